"""What is rewritten with holes: wider than the schema, never narrower."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferd_grammar import GrammarCompiler, JsonSchemaGrammar, TokenTable

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
        text = json.dumps(value, separators=(",", ":"))
        matcher, ids = compiled.matcher(), [byte + 1 for byte in text.encode()]
        taken = matcher.accept(ids) == len(ids) and matcher.may_end() and compiled.validate(text) is None
        assert taken == valid, text
