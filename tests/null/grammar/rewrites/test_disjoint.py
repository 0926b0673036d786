"""Branches that no value is valid in together."""

from __future__ import annotations

from typing import Any

import pytest

from inferd_grammar.rewrites import rewrite

REFERENCE = {"type": "object", "required": ["$ref"], "properties": {"$ref": {"type": "string"}}}


@pytest.mark.parametrize(
    ("pattern", "apart"),
    [("^x-", True), ("^\\$", False), ("(?<a>x)\\k<a>", False)],
    ids=["misses", "matches", "unknown"],
)
def test_a_name_that_no_pattern_matches_is_one_of_the_others(pattern: str, apart: bool) -> None:
    """A closed object with a pattern for extensions, as OpenAPI and AsyncAPI have, was not told apart from a reference."""
    closed = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False}
    names: dict[str, Any] = {
        "properties": {f"p{n}": {} for n in range(40)}
    }  # for the complement's "another name" too many
    schema = {"allOf": [names, {"oneOf": [REFERENCE, closed]}]}
    dropped = rewrite(schema, lenient=True).dropped
    assert [keyword for keyword, _ in dropped if keyword == "oneOf"] == ([] if apart else ["oneOf"])
