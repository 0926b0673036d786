"""Bugs that engines met where a grammar meets speculation; one test each, at the level of the matcher."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from inferd_grammar import Constraint, GrammarMatcher, JsonSchemaGrammar, RegexGrammar, TokenTable, walk
from inferd_grammar.conformance.matcher_checks import dirty_row, legal_ids, look

Make = Callable[[Constraint], GrammarMatcher]
CLOSED = RegexGrammar("[ab]{3}")  # the library stops by itself at the last letter
OPEN = RegexGrammar("[ab]{1,9}")  # the text may end and may go on


@pytest.fixture(scope="module")
def a(make: Make, table: TokenTable) -> int:
    """A token that spells "a" and is legal at the start."""
    return next(i for i in legal_ids(make(OPEN), table) if table.tokens[i] == b"a")


def rows_for(draft: list[int], table: TokenTable) -> np.ndarray:
    return np.full((len(draft) + 1, table.words), -1, dtype=np.int32)


def test_grammar_applies_to_every_row_of_a_draft(make: Make, table: TokenTable, a: int) -> None:
    """lmdeploy 4551: rows behind the first went unmasked on the speculative path."""
    rows = rows_for([a, a], table)
    matcher = make(CLOSED)
    assert walk(matcher, [a, a], rows) == 2
    for count, row in enumerate(rows):
        fresh = make(CLOSED)
        fresh.accept([a] * count)
        assert row.tobytes() == look(fresh, table).mask


def test_fill_on_an_ended_matcher_gives_eos_only(make: Make, table: TokenTable, a: int) -> None:
    """SGLang 15373, OpenVINO 4081, vLLM 37506: crash, or a mask of nothing."""
    matcher = make(OPEN)
    assert matcher.accept([a, table.eos_ids[0]]) == 2
    row = dirty_row(table)
    matcher.fill(row)
    assert row.tobytes() == table.eos_mask.tobytes()


def test_tokens_behind_eos_are_cut_not_a_failure(make: Make, table: TokenTable, a: int) -> None:
    """vLLM 52805: the rest of the window behind EOS counted as a grammar failure."""
    draft = [a, table.eos_ids[1], a, table.eos_ids[0]]
    matcher = make(OPEN)
    assert walk(matcher, draft, rows_for(draft, table)) == 2
    assert matcher.ended()
    assert matcher.accept([a]) == 0


@pytest.mark.parametrize("constraint", [CLOSED, OPEN], ids=["closed", "open"])
@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_eos_in_a_rejected_draft_is_undone_exactly(
    make: Make, table: TokenTable, a: int, constraint: Constraint, kept: int
) -> None:
    """vLLM 25905, 31532, xgrammar 161: "terminated" stayed set, or a real token was taken back in place of EOS."""
    draft = [a, a, a, table.eos_ids[0]]
    matcher, fresh = make(constraint), make(constraint)
    legal = walk(matcher, draft, rows_for(draft, table))
    assert (legal, matcher.depth, matcher.ended()) == (4, 4, True)
    matcher.rollback(legal - kept)
    fresh.accept(draft[:kept])
    assert look(matcher, table) == look(fresh, table)
    assert not matcher.ended()


def test_a_refused_token_leaves_no_trace(make: Make, table: TokenTable, a: int) -> None:
    """xgrammar 164: a refused token advanced half way. llguidance's consume_token breaks the matcher for good."""
    matcher = make(CLOSED)
    before = look(matcher, table)
    illegal = sorted(set(range(-3, table.vocab_size + 70)) - set(legal_ids(matcher, table)))
    assert not any(matcher.accept([token]) for token in [*illegal, 2**31, 2**40, -(2**40)])
    assert look(matcher, table) == before
    assert matcher.accept([a, a, a, a]) == 3


def test_walking_does_not_accept_twice(make: Make, table: TokenTable, a: int) -> None:
    """SGLang 29110: the same token was taken by two code paths."""
    matcher = make(CLOSED)
    legal = walk(matcher, [a, a], rows_for([a, a], table))
    assert matcher.depth == legal == 2
    matcher.rollback(0)
    assert matcher.accept([a]) == 1
    assert matcher.may_end()


def test_rollback_of_nothing_keeps_everything(make: Make, table: TokenTable, a: int) -> None:
    """SGLang 31728: list[:-0] cleared the history."""
    matcher = make(OPEN)
    matcher.accept([a, a, table.eos_ids[0]])
    before = look(matcher, table)
    matcher.rollback(0)
    assert look(matcher, table) == before
    assert matcher.depth == 3


def test_an_illegal_draft_token_is_known_from_the_mask(make: Make, table: TokenTable, a: int) -> None:
    """vLLM 53777: the drafter proposed the same illegal token for ever; the row at the cut says what would be legal."""
    illegal = table.tokens.index(b"z")
    rows = rows_for([a, illegal, a], table)
    matcher = make(CLOSED)
    cut = walk(matcher, [a, illegal, a], rows)
    assert cut == 1
    assert not rows[cut][illegal >> 5] >> (illegal & 31) & 1
    assert rows[cut][a >> 5] >> (a & 31) & 1


@pytest.mark.parametrize("constraint", [CLOSED, JsonSchemaGrammar({"enum": ["ab", 5]})], ids=["regex", "json"])
def test_the_end_is_seen_on_the_speculative_path(make: Make, table: TokenTable, constraint: Constraint) -> None:
    """SGLang 21723: the finish was not noticed when the last tokens came from a draft."""
    matcher, draft = make(constraint), list[int]()
    while not matcher.may_end():
        draft += legal_ids(matcher, table)[:1]
        matcher.accept(draft[-1:])
    matcher.rollback(matcher.depth)
    rows = rows_for(draft, table)
    assert walk(matcher, draft, rows) == len(draft)
    assert matcher.may_end()
    assert rows[-1].tobytes() == table.eos_mask.tobytes()


def test_no_runaway_white_space(make: Make, table: TokenTable) -> None:
    """vLLM 38696, xgrammar 412: a model wrote blanks until max_tokens. Outside strings none is legal."""
    matcher = make(JsonSchemaGrammar({"type": "array", "items": {"type": "integer"}}))
    blank = {i for i, token in enumerate(table.tokens) if token and not token.strip()}
    for _ in range(6):
        legal = legal_ids(matcher, table)
        assert not blank & set(legal)
        matcher.accept(legal[:1])
