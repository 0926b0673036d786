from __future__ import annotations

from collections.abc import Callable

import pytest

from inferd_grammar import Constraint, GrammarMatcher, TokenTable
from inferd_grammar.conformance.matcher_checks import (
    COMPOSED_CONSTRAINTS,
    GRAMMAR_CONSTRAINTS,
    JSON_CONSTRAINTS,
    TAGGED_CONSTRAINTS,
    TEXT_CONSTRAINTS,
    check_matcher,
)

KINDS = {
    "text": TEXT_CONSTRAINTS,
    "json": JSON_CONSTRAINTS,
    "grammar": GRAMMAR_CONSTRAINTS,
    "tagged": TAGGED_CONSTRAINTS,
    "composed": COMPOSED_CONSTRAINTS,
}


@pytest.mark.parametrize("kind", KINDS)
def test_conforms(make: Callable[[Constraint], GrammarMatcher], table: TokenTable, kind: str) -> None:
    check_matcher(make, table, KINDS[kind])
