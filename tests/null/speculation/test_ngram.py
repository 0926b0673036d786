"""The n-gram index against a plain search, and the draft length that follows success."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferd_runtime.speculation.ngram import ORDERS, NgramDrafter, NgramIndex


def search(tokens: list[int], limit: int) -> tuple[list[int], int]:
    """The plain twin: newest earlier occurrence of the longest suffix."""
    for order in ORDERS:
        for start in range(len(tokens) - 1, order - 1, -1):
            if tokens[start - order : start] == tokens[-order:]:
                draft = tokens[start : start + limit]
                while len(draft) < limit:
                    draft.append(draft[len(draft) - (len(tokens) - start)])
                return draft, order
    return [], 0


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 12))
def test_lookup_equals_a_plain_search(tokens: list[int], limit: int) -> None:
    index = NgramIndex()
    for token in tokens:
        index.extend([token])
    assert index.lookup(limit) == search(tokens, limit)


def test_a_copied_prompt_is_drafted_from_the_prompt() -> None:
    drafter = NgramDrafter(8)
    drafter.observe([1, 2, 3, 4, 5, 6, 7, 8, 9])
    drafter.observe([1, 2, 3])
    assert list(drafter.propose(4)) == [4, 5, 6, 7]


def test_failing_short_matches_are_paused_longer_each_time() -> None:
    drafter = NgramDrafter()
    drafter.observe([1, 2, 9, 1, 2])
    silent = []
    for _ in range(4):
        quiet = 0
        while not drafter.propose(8):
            quiet += 1
        silent.append(quiet)
        drafter.feedback(4, 0)
    assert silent == [0, 1, 2, 4]


def test_a_long_match_is_tried_during_a_pause() -> None:
    drafter = NgramDrafter()
    drafter.observe([5, 6, 7, 8, 3, 1, 2, 9, 1, 2])
    drafter.propose(8)
    drafter.feedback(4, 0)
    drafter.observe([0, 4, 5, 6, 7, 8, 3])
    assert list(drafter.propose(1)) == [1]
