from __future__ import annotations

from collections.abc import Callable

from inferd_grammar import Constraint, Matcher, TokenTable
from inferd_grammar.testing import JSON_CONSTRAINTS, TEXT_CONSTRAINTS, check_matcher


def test_conforms(make: Callable[[Constraint], Matcher], table: TokenTable) -> None:
    check_matcher(make, table, TEXT_CONSTRAINTS + JSON_CONSTRAINTS)
