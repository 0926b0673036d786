"""The time that answers take of the event loop: a few events at a time, in turns."""

from __future__ import annotations

import anyio
import pytest

from inferd.chat import ChatEvent, PromptScores, TextDelta, TokenScore, ToolArguments
from inferd_runtime.server.chat.answer_pace import (
    EVENT_SECONDS,
    LOOP_SHARE,
    SCORE_SECONDS,
    TURN_SECONDS,
    AnswerPace,
    in_turns,
    seconds_of,
)
from inferd_runtime.server.connections.loop_shares import ALLOWED_DEBT

pytestmark = pytest.mark.anyio
SCORE = TokenScore(1, "a", [97], -1.0, [TokenScore(2, "b", [98], -1.5, [], 1)] * 20, 1)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    "event", [TextDelta("x"), TextDelta("x", scores=[SCORE] * 8), PromptScores([SCORE] * 8), ToolArguments(0, "{}")]
)
async def test_every_part_is_paid_before_it_is_written_and_none_is_longer_than_a_turn(event: ChatEvent) -> None:
    paid: list[float] = []

    async def turn(seconds: float) -> None:
        paid.append(seconds)

    events = [event] * (3 * int(TURN_SECONDS / EVENT_SECONDS) + 1)
    seen: list[ChatEvent] = []
    async for part in in_turns(events, turn):
        assert paid[-1] == pytest.approx(sum(map(seconds_of, part)))
        seen += part
    assert seen == events
    assert max(paid) <= TURN_SECONDS
    assert len(paid) >= 3


async def test_an_event_that_is_longer_than_a_turn_is_a_part_of_its_own() -> None:
    large, paid = PromptScores([SCORE] * 128), list[float]()

    async def turn(seconds: float) -> None:
        paid.append(seconds)

    assert [part async for part in in_turns([TextDelta("x"), large, TextDelta("x")], turn)] == [
        [TextDelta("x")],
        [large],
        [TextDelta("x")],
    ]
    assert paid[1] == pytest.approx(EVENT_SECONDS + 128 * 21 * SCORE_SECONDS)


async def test_parts_of_many_answers_at_once_have_turns_one_after_the_other() -> None:
    """Each alone is short; handled in one round of the loop, 64 of them would hold it for a quarter of a second."""
    pace, begun = AnswerPace(), list[float]()

    async def answer() -> None:
        await pace.turn("mallory", TURN_SECONDS)
        begun.append(anyio.current_time())

    async with anyio.create_task_group() as tasks:
        for _ in range(64):
            tasks.start_soon(answer)
    at_once = ALLOWED_DEBT / (TURN_SECONDS / LOOP_SHARE)
    for first in begun:
        assert sum(first <= one < first + TURN_SECONDS for one in begun) <= at_once + 3
