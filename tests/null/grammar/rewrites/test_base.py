"""Unions and intersections of schemas."""

from __future__ import annotations

from typing import Any

import pytest
from byte_texts import compact, taken

from inferd_grammar import GrammarCompiler, JsonSchemaGrammar, TokenTable

BYTES = GrammarCompiler(TokenTable.of_bytes())


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"oneOf": [{"const": True}, {"const": 1}]}, [True, 1]),
        ({"oneOf": [{"enum": [False, "x"]}, {"enum": [0, "y"]}]}, [False, 0, "x", "y"]),
        ({"type": "array", "items": {"enum": [0, False]}, "uniqueItems": True}, [[0], [False], [0, False]]),
    ],
)
def test_a_branch_for_one_is_no_copy_of_one_for_true(schema: dict[str, Any], values: list[Any]) -> None:
    """1 equals True in Python, and so do two schemas that list them: the second branch was left out."""
    compiled = BYTES.compile(JsonSchemaGrammar(schema))
    for value in values:
        assert taken(compiled.matcher(), compact(value)), value
