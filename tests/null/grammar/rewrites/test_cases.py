"""Several `if` in one `allOf`, told apart by one key."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest
from byte_texts import compact, taken

from inferd_grammar import GrammarCompiler, JsonSchemaGrammar, TokenTable

BYTES = GrammarCompiler(TokenTable.of_bytes())
VALUES: list[Any] = [
    *({}, {"x": 1}, {"y": 1}, {"x": 1, "y": 1}, {"t": "c"}, {"t": "a"}, {"t": "a", "x": 1}, {"t": "b", "x": 1}),
    *({"t": "b", "y": 1}, {"t": "d"}, {"t": "a", "y": 1}, "s", 1, [], None),
]


TWO_KEYS = {
    "both required": [
        {
            "if": {"properties": {"t": {"const": "a"}, "x": {"const": n}}, "required": ["t", "x"]},
            "then": {"required": [name]},
        }
        for n, name in enumerate(("y", "z"))
    ],
    "none required": [
        {"if": {"properties": {"t": {"const": "a"}, "x": {"const": n}}}, "then": {"required": [name]}}
        for n, name in enumerate(("y", "z"))
    ],
    "one each": [
        {"if": {"properties": {"t": {"const": "a"}}}, "then": {"required": ["y"]}},
        {"if": {"properties": {"x": {"const": 7}}, "required": ["x"]}, "then": {"required": ["z"]}},
    ],
}


def when(value: str, then: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"if": {"properties": {"t": {"const": value}}, **more}, "then": then}


NEEDS_X, NEEDS_Y = {"required": ["x"]}, {"required": ["y"]}
CASES = {
    "required": [when("a", NEEDS_X, required=["t"]), when("b", NEEDS_Y, required=["t"])],
    "not required": [when("a", NEEDS_X), when("b", NEEDS_Y)],
    "one required": [when("a", NEEDS_X), when("b", NEEDS_Y, required=["t"])],
    "of objects": [when("a", NEEDS_X, required=["t"], type="object"), when("b", {"type": ["object", "string"]})],
}


@pytest.mark.parametrize("kind", [{"type": "object"}, {}], ids=["objects", "any"])
@pytest.mark.parametrize("cases", CASES.values(), ids=CASES)
def test_a_value_without_the_key_that_tells_cases_apart_is_not_refused(
    cases: list[dict[str, Any]], kind: dict[str, Any]
) -> None:
    schema = {**kind, "properties": {"t": {"enum": ["a", "b", "c"]}, "x": {}, "y": {}}, "allOf": cases}
    compiled = BYTES.compile(JsonSchemaGrammar(schema))
    validator = jsonschema.Draft202012Validator(schema)
    assert compiled.refusal is None
    for value in VALUES:
        assert taken(compiled.matcher(), compact(value)) == validator.is_valid(value), value


@pytest.mark.parametrize("needed", [[], ["t"], ["t", "x"]], ids=str)
@pytest.mark.parametrize("cases", TWO_KEYS.values(), ids=TWO_KEYS)
def test_nor_one_without_one_of_two_keys(cases: list[dict[str, Any]], needed: list[str]) -> None:
    properties = {"t": {"enum": ["a", "b"]}, "x": {"enum": [0, 1, 2]}, "y": {}, "z": {}}
    schema = {"type": "object", "properties": properties, "required": needed, "allOf": cases}
    compiled = BYTES.compile(JsonSchemaGrammar(schema))
    validator = jsonschema.Draft202012Validator(schema)
    names = {"t": (None, "a", "b"), "x": (None, 0, 1, 2), "y": (None, 1), "z": (None, 1)}
    for values in itertools.product(*names.values()):
        value = {name: one for name, one in zip(names, values, strict=True) if one is not None}
        assert taken(compiled.matcher(), compact(value)) == validator.is_valid(value), value


@pytest.mark.parametrize(
    "kind", [{"enum": [f"v{n}" for n in range(41)]}, {"type": "string"}, {}], ids=["enum", "string", "any"]
)
@pytest.mark.parametrize("needed", [["t"], []], ids=str)
def test_forty_cases_are_held_by_masks(kind: dict[str, Any], needed: list[str]) -> None:
    """From 16 on they were held at the end of the text alone: to have none of them was one of two to the 16th ways."""
    cases = [when(f"v{n}", {"required": [f"a{n}"]}, required=needed) for n in range(40)]
    schema = {"type": "object", "properties": {"t": kind}, "allOf": cases}
    compiled = BYTES.compile(JsonSchemaGrammar(schema))
    validator = jsonschema.Draft202012Validator(schema)
    assert compiled.refusal is None
    values: list[dict[str, Any]] = [
        {"t": "v7", "a7": 1},
        {"t": "v7", "a8": 1},
        {"t": "v40"},
        {"t": "w"},
        {"t": 1},
        {},
        {"a7": 1},
    ]
    for value in values:
        text = [byte + 1 for byte in json.dumps(value, separators=(",", ":")).encode()]
        assert compiled.matcher().ends_with(text) == validator.is_valid(value), value
