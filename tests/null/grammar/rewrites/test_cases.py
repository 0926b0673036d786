"""Several `if` in one `allOf`, told apart by one key."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from inferd_grammar import GrammarCompiler, JsonSchemaGrammar, TokenTable

BYTES = GrammarCompiler(TokenTable.of_bytes())
VALUES: list[Any] = [
    *({}, {"x": 1}, {"y": 1}, {"x": 1, "y": 1}, {"t": "c"}, {"t": "a"}, {"t": "a", "x": 1}, {"t": "b", "x": 1}),
    *({"t": "b", "y": 1}, {"t": "d"}, {"t": "a", "y": 1}, "s", 1, [], None),
]


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
        text = [byte + 1 for byte in json.dumps(value, separators=(",", ":")).encode()]
        matcher = compiled.matcher()
        assert (matcher.accept(text) == len(text) and matcher.may_end()) == validator.is_valid(value), value
