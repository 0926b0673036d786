"""Constraints written as a program, alone and beside others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from inferd_grammar import (
    AnyJsonGrammar,
    Constraint,
    ExactGrammar,
    GrammarCompiler,
    GrammarError,
    GrammarFailure,
    GrammarMatcher,
    RegexGrammar,
    TokenTable,
)
from inferd_grammar.conformance.matcher_checks import check_matcher, language, legal_ids
from inferd_grammar.matchers.product import intersect
from inferd_grammar.matchers.program import source_matcher


class Rising:
    """Letters in rising order, at most four; may end after the first."""

    def __init__(self, table: TokenTable, *, as_mask: bool = False) -> None:
        self.table, self.as_mask, self.calls = table, as_mask, 0

    def step(self, accepted: Sequence[int]) -> NDArray[np.int32] | Iterable[int]:
        self.calls += 1
        text = b"".join(self.table.tokens[token] for token in accepted)
        ids = [i for i, token in enumerate(self.table.tokens) if token and self._rises(text + token)]
        ids += self.table.eos_ids if text else []
        if not self.as_mask:
            return ids
        row = np.zeros(self.table.words, np.uint32)
        for token in ids:
            row[token >> 5] |= np.uint32(1 << (token & 31))
        return row.view(np.int32)

    def _rises(self, text: bytes) -> bool:
        return len(text) <= 4 and text.isalpha() and text.islower() and list(text) == sorted(set(text))


class Says:
    """Always the same answer."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def step(self, accepted: Sequence[int]) -> Iterable[int]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize("as_mask", [False, True], ids=["ids", "mask"])
def test_conforms(table: TokenTable, as_mask: bool) -> None:
    def make(constraint: Constraint) -> GrammarMatcher:
        return source_matcher(Rising(table, as_mask=as_mask), table)

    check_matcher(make, table, [AnyJsonGrammar()], rounds=6)  # the constraint is a name only


def test_beside_a_constraint(table: TokenTable, compiler: GrammarCompiler) -> None:
    def make(constraint: Constraint) -> GrammarMatcher:
        beside = compiler.compile(ExactGrammar(constraint)).matcher()
        return intersect([source_matcher(Rising(table), table), beside], table)

    check_matcher(make, table, [RegexGrammar("[a-c]{0,3}")], rounds=6)
    assert language(make(RegexGrammar("[a-c]{0,3}")), table, 3) == {b"a", b"b", b"c", b"ab", b"ac", b"bc", b"abc"}


def test_steps_are_asked_for_once_a_state(table: TokenTable) -> None:
    source = Rising(table)
    matcher = source_matcher(source, table)
    legal = legal_ids(matcher, table)
    assert legal_ids(matcher, table) == legal
    assert not matcher.may_end()
    assert source.calls == 1
    assert matcher.accept(legal[:1]) == 1
    assert matcher.may_end()
    assert source.calls == 2


def test_special_tokens_stay_illegal(table: TokenTable) -> None:
    everything = list(range(table.vocab_size))
    legal = set(legal_ids(source_matcher(Says(everything), table), table))
    assert legal & table.special_ids == set(table.eos_ids)
    assert all(table.tokens[i] for i in legal - set(table.eos_ids))


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        ([10**9], GrammarError, "no token id"),
        ([-1], GrammarError, "no token id"),
        (["a"], GrammarError, "no token id"),
        (np.zeros(3, np.int32), GrammarError, "step must give int32"),
        (np.zeros(3), GrammarError, "step must give int32"),
        ([], GrammarFailure, "no token of this vocabulary"),
        (KeyError("mine"), KeyError, "mine"),
    ],
)
def test_wrong_answers_are_errors_and_change_nothing(
    table: TokenTable, answer: object, error: type[Exception], reason: str
) -> None:
    source = Says([table.tokens.index(b"a")])
    matcher = source_matcher(source, table)
    assert matcher.accept([table.tokens.index(b"a")]) == 1
    source.answer = answer
    for _ in range(2):
        with pytest.raises(error, match=reason):
            matcher.fill(np.empty(table.words, np.int32))
    assert matcher.depth == 1
    matcher.rollback(1)
    source.answer = list(table.eos_ids)
    assert matcher.accept([table.tokens.index(b"a"), *table.eos_ids]) == 2


def test_the_number_of_tokens_is_no_token(table: TokenTable) -> None:
    with pytest.raises(GrammarError, match=f"step gave {table.vocab_size}, which is no token id"):
        source_matcher(Says([table.vocab_size]), table).fill(np.empty(table.words, np.int32))


def test_intersect_needs_matchers_that_have_not_ended(
    table: TokenTable, make: Callable[[Constraint], GrammarMatcher]
) -> None:
    matcher = make(RegexGrammar("a?"))
    assert matcher.accept(table.eos_ids[:1]) == 1
    for matchers in ([], [matcher]):
        with pytest.raises(ValueError, match="at least one matcher, none of them ended"):
            intersect(matchers, table)
