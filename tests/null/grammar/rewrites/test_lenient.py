"""What is rewritten with holes: wider than the schema, never narrower."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from byte_texts import compact, taken

from inferd_grammar import GrammarCompiler, GrammarError, JsonSchemaGrammar, TokenTable
from inferd_grammar.rewrites import rewrite

BYTES = GrammarCompiler(TokenTable.of_bytes())
SET = {"type": "array", "uniqueItems": True}
UNION = {
    "oneOf": [
        {"type": "object", "properties": {"k": {"enum": ["a"]}}, "required": ["t"]},
        {"type": "object", "properties": {"k": {"type": "string"}, "t": SET}},
    ]
}


@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_a_member_whose_complement_cannot_be_said_may_be_what_tells_two_branches_apart(mode: Any) -> None:
    compiled = BYTES.compile(JsonSchemaGrammar(UNION, mode))
    for value, valid in (({"t": [1, 1]}, True), ({"k": "a", "t": 1}, True), ({"k": "b"}, True), ({"t": [1]}, False)):
        text = compact(value)
        assert (taken(compiled.matcher(), text) and compiled.validate(text) is None) == valid, text


OTHER = {"type": "object", "required": ["z"], "properties": {"y": {"type": "string"}}}


def chain(last: dict[str, Any], length: int) -> dict[str, Any]:
    """Return definitions of which each tells the next one apart from something else, in three places."""
    links = {
        f"d{n}": {
            "type": "object",
            "properties": {key: {"oneOf": [{"$ref": f"#/$defs/d{n + 1}"}, OTHER]} for key in "abc"},
        }
        for n in range(length)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": last}}


def test_a_complement_that_cannot_be_said_is_looked_for_once() -> None:
    """Each place that asked for it searched again; schemas of AsyncAPI took a minute and more."""
    rewrite(chain({"type": "object", "propertyNames": {"pattern": "^a"}}, 20), lenient=True)  # within its steps


def test_no_reference_is_left_to_a_complement_that_was_given_up() -> None:
    """`a` tells objects apart, so that `b` is passed over; what was begun for `b` is not there for `c` to refer to."""
    told = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/names"}}}
    schema = {
        "type": "object",
        "properties": {"x": {"not": told}, "c": {"not": {"$ref": "#/$defs/names"}}},
        "$defs": {"names": {"propertyNames": {"pattern": "^a"}}},
    }
    with pytest.raises(GrammarError, match="the complement of propertyNames"):
        rewrite(schema)


def test_the_complement_of_what_anything_satisfies_is_none() -> None:
    """A key that matches may hold anything, as extensions do: no name has to be known that would be wrong."""
    extended = {"type": "object", "patternProperties": {"^x-": {"$ref": "#/$defs/anything"}}, "required": ["a"]}
    schema = {"oneOf": [extended, {"type": "object", "required": ["b"]}], "$defs": {"anything": {"title": "Anything"}}}
    assert BYTES.compile(JsonSchemaGrammar(schema)).refusal is None


@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_branches_that_multiply_leave_masks_for_what_stands_beside_them(mode: Any) -> None:
    """As in pyproject's: the library had 2**15 cases and reads no look-ahead, so that nothing at all was held by masks."""
    names = [f"k{n}" for n in range(15)]
    schema = {
        "type": "object",
        "properties": {
            "s": {"type": "string", "pattern": "^(?!a$)[a-z]+$"},
            **{name: {"type": "integer"} for name in names},
        },
        "additionalProperties": False,
        "dependentRequired": {name: [before] for before, name in itertools.pairwise(names)},
    }
    compiled = BYTES.compile(JsonSchemaGrammar(schema, mode))
    for text, held in (('{"s":"b","k0":1,"k1":1}', True), ('{"s":"A', False), ('{"k0":"', False), ('{"z', False)):
        assert (compiled.matcher().accept([byte + 1 for byte in text.encode()]) == len(text)) == held, text
    unmet = [byte + 1 for byte in b'{"k1":1}']
    assert not compiled.matcher().ends_with(unmet) if mode == "strict" else compiled.validate('{"k1":1}') is not None
