"""The guard over a library: failures are loud, fills are cheap, buffers are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inferd_grammar import GrammarFailure, TokenTable, walk
from inferd_grammar.conformance.matcher_checks import dirty_row
from inferd_grammar.matchers.matcher import Core, GuardedMatcher
from inferd_grammar.matchers.product import MatcherCore


class FakeCore:
    """A library that allows one token for ever, counts its fills, and breaks or runs dry on demand."""

    def __init__(self, token: int, words: int) -> None:
        self.row = np.zeros(words, dtype=np.int32)
        self.row[token >> 5] = 1 << (token & 31)
        self.fills = 0
        self.error: str | None = None

    def fill(self, row: NDArray[np.int32], address: int) -> None:
        assert address == row.ctypes.data
        self.fills += 1
        self.check()
        np.copyto(row, self.row)

    def check(self) -> None:
        if self.error:
            raise GrammarFailure(self.error)

    def push(self, token: int) -> None:
        self.check()

    def pop(self, count: int) -> None:
        self.check()

    def may_end(self) -> bool:
        self.check()
        return False

    def forced(self, most: int) -> bytes:
        return b""

    def forced_tokens(self) -> list[int]:
        return []

    def copy(self) -> Core:
        return self


@pytest.fixture
def token(table: TokenTable) -> int:
    return table.tokens.index(b"x")


@pytest.fixture
def core(table: TokenTable, token: int) -> FakeCore:
    return FakeCore(token, table.words)


def test_a_fill_and_its_accept_are_one_library_call(core: FakeCore, table: TokenTable, token: int) -> None:
    matcher = GuardedMatcher(core, table)
    row = dirty_row(table)
    for _ in range(3):
        matcher.fill(row)
        matcher.fill(row)
        assert matcher.accept([token]) == 1
    assert core.fills == 3


def test_a_verified_walk_is_one_library_call_a_row(core: FakeCore, table: TokenTable, token: int) -> None:
    matcher = GuardedMatcher(core, table)
    assert walk(matcher, [token] * 4, np.empty((5, table.words), np.int32)) == 4
    matcher.rollback(3)
    assert matcher.accept([token]) == 1  # the mask of the state it landed on is still held
    assert core.fills == 5


@pytest.mark.parametrize("held", [0, 3, 70])
def test_a_fork_knows_the_mask_of_its_state(core: FakeCore, table: TokenTable, token: int, held: int) -> None:
    matcher = GuardedMatcher(core, table)
    row, same = dirty_row(table), dirty_row(table)
    assert matcher.accept([token] * held) == held
    matcher.fill(row)
    fills = core.fills
    matcher.fork().fill(same)
    assert (same.tolist(), core.fills) == (row.tolist(), fills)


def test_masks_of_rolled_back_states_are_forgotten(core: FakeCore, table: TokenTable, token: int) -> None:
    matcher = GuardedMatcher(core, table)
    row = dirty_row(table)
    matcher.accept([token] * 2)
    matcher.fill(row)
    matcher.rollback(2)
    matcher.accept([token] * 2)
    fills = core.fills
    matcher.fill(row)
    assert core.fills == fills + 1


def test_a_failure_of_the_library_is_raised_not_a_mask(core: FakeCore, table: TokenTable, token: int) -> None:
    matcher = GuardedMatcher(core, table)
    core.error = "too many items"
    for call in (lambda: matcher.fill(dirty_row(table)), lambda: matcher.accept([token]), matcher.may_end):
        with pytest.raises(GrammarFailure, match="too many items"):
            call()


def test_a_dead_end_is_raised_not_an_empty_mask(core: FakeCore, table: TokenTable, token: int) -> None:
    matcher = GuardedMatcher(core, table)
    matcher.accept([token])
    core.row[:] = 0
    with pytest.raises(GrammarFailure, match="no token"):
        matcher.fill(dirty_row(table))
    matcher.rollback(1)
    assert matcher.accept([token]) == 1


def test_special_tokens_a_library_lets_through_are_cleared(core: FakeCore, table: TokenTable, token: int) -> None:
    core.row[:] = -1
    matcher = GuardedMatcher(core, table)
    row = dirty_row(table)
    matcher.fill(row)
    assert row.tobytes() == table.text_mask.tobytes()
    assert not any(matcher.accept([i]) for i in (*table.special_ids, table.vocab_size - 1))


@pytest.mark.parametrize("shape", ["short", "long", "float", "strided", "matrix"])
def test_wrong_buffers_are_refused(core: FakeCore, table: TokenTable, shape: str) -> None:
    words = table.words
    row: Any = {
        "short": np.zeros(words - 1, np.int32),
        "long": np.zeros(words + 1, np.int32),
        "float": np.zeros(words, np.float32),
        "strided": np.zeros(words * 2, np.int32)[::2],
        "matrix": np.zeros((1, words), np.int32),
    }[shape]
    with pytest.raises(ValueError, match="contiguous int32"):
        GuardedMatcher(core, table).fill(row)


def test_a_walk_needs_a_bonus_row(core: FakeCore, table: TokenTable, token: int) -> None:
    with pytest.raises(ValueError, match="3 or more"):
        walk(GuardedMatcher(core, table), [token] * 2, np.empty((2, table.words), np.int32))


class ShortCore(FakeCore):
    """It allows two tokens, and may end behind the first; what follows is forced where that is asked."""

    def __init__(self, token: int, words: int) -> None:
        super().__init__(token, words)
        self.depth = 0

    def push(self, token: int) -> None:
        self.depth += 1
        if self.depth == 2:
            self.row = np.zeros_like(self.row)

    def pop(self, count: int) -> None:
        self.depth -= count
        self.row = np.zeros_like(self.row) if self.depth >= 2 else self.first

    @property
    def first(self) -> NDArray[np.int32]:
        return FakeCore(self.token, len(self.row)).row

    token = 0

    def may_end(self) -> bool:
        return self.depth == 1

    def forced(self, most: int) -> bytes:
        return b"x"

    def forced_tokens(self) -> list[int]:
        return [self.token]


@pytest.fixture
def short(table: TokenTable, token: int) -> ShortCore:
    core = ShortCore(token, table.words)
    core.token = token
    return core


def test_nothing_is_forced_where_the_text_may_end_or_has_ended(short: ShortCore, table: TokenTable, token: int) -> None:
    """The model may choose end-of-text there; behind it nothing comes."""
    matcher = GuardedMatcher(short, table)
    assert (matcher.forced(), matcher.forced_tokens()) == (b"x", [token])
    assert matcher.accept([token]) == 1
    assert (matcher.forced(), matcher.forced_tokens()) == (b"", [])
    assert matcher.accept([table.eos_ids[0]]) == 1
    assert matcher.ended()
    assert (matcher.forced(), matcher.forced_tokens()) == (b"", [])


def test_a_walk_stops_before_a_token_behind_which_nothing_is_legal(
    short: ShortCore, table: TokenTable, token: int
) -> None:
    matcher = GuardedMatcher(short, table)
    rows = np.empty((4, table.words), np.int32)
    assert walk(matcher, [token] * 3, rows) == 1
    assert (matcher.depth, short.depth) == (1, 1)


def test_a_matcher_that_is_reset_is_at_its_start_and_has_not_ended(
    short: ShortCore, table: TokenTable, token: int
) -> None:
    matcher = GuardedMatcher(short, table)
    assert matcher.accept([token, table.eos_ids[0]]) == 2
    assert matcher.reset() is short
    assert (short.depth, matcher.depth, matcher.ended()) == (0, 0, False)


def test_a_member_that_refuses_what_its_mask_allows_is_broken(short: ShortCore, table: TokenTable, token: int) -> None:
    member = MatcherCore(GuardedMatcher(short, table), table)
    member.push(token)
    with pytest.raises(GrammarFailure, match=f"refused token {table.vocab_size}"):
        member.push(table.vocab_size)
