"""What was thought is counted without its marks, however tokens come."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from inferd.chat.reasoning_count import ReasoningCount

BEGIN, END = (1,), (2, 3)


@pytest.mark.parametrize(
    ("opened", "tokens", "thought"),
    [
        (False, [1, 7, 7, 7, 2, 3, 9, 9], 3),
        (True, [7, 7, 2, 3, 9], 2),
        (True, [2, 3, 9], 0),
        (True, [7, 2, 2, 3], 2),
        (False, [9, 9], 0),
        (True, [7, 7, 7], 3),
        (False, [1, 7, 2, 3, 9, 1, 7, 7, 2, 3], 3),
    ],
)
@given(data=st.data())
def test_marks_and_what_is_behind_them_do_not_count(
    opened: bool, tokens: list[int], thought: int, data: st.DataObject
) -> None:
    count = ReasoningCount(BEGIN, END, opened=opened)
    at, taken, is_thinking = 0, [], opened
    while at < len(tokens):
        step = tokens[at : at + data.draw(st.integers(1, 4))]
        for token in step:
            taken.append(token)
            is_thinking = taken[-2:] != [2, 3] if is_thinking else token == 1
        count.take(step, is_thinking=is_thinking)
        at += len(step)
    assert count.tokens == thought


def test_where_a_mark_is_written_with_other_tokens_the_text_decides() -> None:
    count = ReasoningCount(BEGIN, END, opened=True)
    count.take([7, 7], is_thinking=True)
    count.take([5], is_thinking=False)
    count.take([9, 9], is_thinking=False)
    assert count.tokens == 3
