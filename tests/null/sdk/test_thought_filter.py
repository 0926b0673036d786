"""What stands behind reasoning, however the text is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from inferd.calls.thought_filter import ThoughtFilter
from inferd.protocol import ReasoningSpec

MARKS = ReasoningSpec("<a>", "</a>")


@given(st.text("</a>x", max_size=40), st.booleans(), st.lists(st.integers(0, 40), max_size=6))
def test_an_answer_is_what_stands_behind_the_reasoning_however_it_is_cut(
    text: str, opened: bool, cuts: list[int]
) -> None:
    places = sorted({min(cut, len(text)) for cut in (0, *cuts, len(text))})
    marks = ReasoningSpec(MARKS.begin, MARKS.end, opened=opened)
    taken = ThoughtFilter(marks)
    inside = opened or text.startswith(MARKS.begin)
    begins = not opened and MARKS.begin.startswith(text)
    expected = text.partition(MARKS.end)[2] if inside else "" if begins else text
    assert "".join(taken.take(text[a:b]) for a, b in pairwise(places)) == expected


@pytest.mark.parametrize("opened", [True, False])
def test_a_long_thought_is_not_looked_at_again_with_each_piece(opened: bool) -> None:
    """One of 400 KB took 9 s, more than a program in the sandbox may take for it."""
    taken = ThoughtFilter(ReasoningSpec(MARKS.begin, MARKS.end, opened=opened))
    taken.take(MARKS.begin)
    for _ in range(100):
        assert not taken.take("abcd" * 1000)
        assert len(taken._held) <= len(MARKS.end)
    assert taken.take("</") + taken.take("a>yes") == "yes"
