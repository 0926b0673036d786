"""Keywords about the names of an object together."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from byte_texts import compact, taken

from inferd_grammar import GrammarCompiler, JsonSchemaGrammar, TokenTable

BYTES = GrammarCompiler(TokenTable.of_bytes())
INTEGER = {"type": "integer"}


def takes(schema: dict[str, Any], value: object) -> bool:
    matcher = BYTES.compile(JsonSchemaGrammar({"type": "object", **schema})).matcher()
    return taken(matcher, json.dumps(value, separators=(",", ":"), ensure_ascii=False))


@pytest.mark.parametrize("names", [{"not": {"const": "a"}}, {"pattern": "^[a-z]+$"}, {"maxLength": 2}])
@pytest.mark.parametrize("others", [False, True])
def test_listed_names_are_no_other_names_beside_a_condition_on_all(names: dict[str, Any], others: bool) -> None:
    """With `additionalProperties: false` no listed property could be there."""
    schema = {
        "type": "object",
        "propertyNames": names,
        "patternProperties": {"^x": {"type": "integer"}},
        "properties": {"c": {"type": "string"}, "a": {}},
        "additionalProperties": others,
    }
    compiled = BYTES.compile(JsonSchemaGrammar(schema))
    validator = jsonschema.Draft202012Validator(schema)
    for value in ({"c": "s"}, {"c": 1}, {"c": "s", "x": 1}, {"x": "s"}, {"a": 1}, {"z": 1}, {"zzz": 1}, {"-": 1}, {}):
        assert taken(compiled.matcher(), compact(value)) == validator.is_valid(value), value


IN_DOUBT = [
    (r"^\w+$", "é"),
    (r"^\w{1,99}$", "aé"),
    (r"^\d+$", "\u0663"),
    (r"^[a-z]+$", "a\n"),
    (r"^[^_]$", "\n\n"),
    (r"^a\s$", "a\x1c"),
    (r"^.*$", "a\r"),
    (r"\bé", "é"),
    (r"(?i)^k", "\u212a"),
]


@pytest.mark.parametrize(("pattern", "name"), IN_DOUBT)
def test_a_name_on_which_dialects_differ_is_no_other_name(pattern: str, name: str) -> None:
    """`{"é": "x"}` passed beside `^\\w+$`, which finds a letter there for Python, as a name of any value."""
    refused = [
        {"patternProperties": {pattern: INTEGER}},
        {"patternProperties": {pattern: INTEGER, "^x-": {}}, "additionalProperties": {"type": ["string", "null"]}},
        {"patternProperties": {pattern: False}, "properties": {"b": {}}},
        {"propertyNames": {"not": {"pattern": pattern}}},
        {"patternProperties": {pattern: INTEGER}, "propertyNames": {"maxLength": 9}},
        {"patternProperties": {pattern: INTEGER}, "properties": {name: {"type": ["string", "null"]}}},
        {
            "patternProperties": {pattern: INTEGER},
            "properties": {name: {"type": "string"}},
            "additionalProperties": False,
        },
    ]
    for schema in refused:
        assert not takes(schema, {name: "x"}), schema
    assert takes({"patternProperties": {pattern: INTEGER}, "properties": {name: {"type": ["integer"]}}}, {name: 1})


@pytest.mark.parametrize("others", [{}, {"additionalProperties": {"type": "string"}}])
def test_names_that_no_dialect_finds_a_pattern_in_stay_free(others: dict[str, Any]) -> None:
    schema = {"patternProperties": {r"^x-\w+$": INTEGER, "^[A-Z]{1,90}$": {}}, **others}
    assert takes(schema, {"größe": "x", "x y\n": "x", "x-a": 1, "AB": None, "": "x"})
    assert not takes(schema, {"x-a": "x"})


def test_a_name_in_doubt_is_not_told_apart_by_a_complement() -> None:
    """The complement of patterns takes no name for another one that some dialect finds a pattern in."""
    inner = {"patternProperties": {r"^\w+$": INTEGER, "^x": {}}, "additionalProperties": {"type": "null"}}
    schema = {"not": inner, "properties": {"é": {}, "-": {}}}
    assert takes(schema, {"-": "x"})
    assert not takes(schema, {"é": 1})


def test_names_of_two_patterns_in_doubt_for_one_are_in_none_of_them() -> None:
    for closed in ({}, {"additionalProperties": False}):
        assert not takes({"patternProperties": {r"^\w+$": False, "é": {}}, **closed}, {"é": 1})


@pytest.mark.parametrize("pattern", [r"^\P{L}+$", r"^[^\p{L}]+$"])
def test_what_the_checks_own_search_passes_over_is_not_taken_for_absent(pattern: str) -> None:
    """The search by the library finds no U+0001 in such classes, so that `not` took a text with it."""
    compiled = BYTES.compile(JsonSchemaGrammar({"type": "string", "not": {"pattern": pattern}}))
    for text, valid in (("\x01", False), ("1", False), ("a", True)):
        assert taken(compiled.matcher(), json.dumps(text, ensure_ascii=False)) == valid, ascii(text)


def test_a_condition_that_all_names_meet_leaves_patterns_as_they_are() -> None:
    """Beside `propertyNames: {type: string}` no name was free that no pattern is found in."""
    schema = {"propertyNames": {"type": "string"}, "patternProperties": {"^a": INTEGER}}
    assert takes(schema, {"b": "x", "a": 1})
    assert not takes(schema, {"a": "x"})
