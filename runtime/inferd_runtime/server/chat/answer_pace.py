"""How fast answers are handled: together they take a part of the event loop's time, of which each tenant has an even share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from inferd.chat import ChatEvent, PromptScores, ReasoningDelta, TextDelta, TokenScore, ToolArguments
from inferd.protocol import TokenLogprob
from inferd_runtime.server.services.pace import ServicePace

LOOP_SHARE = 0.75
TURN_SECONDS = 0.004
"""What is done of one answer before others have a turn."""
EVENT_SECONDS, SCORE_SECONDS, CHARACTER_SECONDS = 10e-6, 2e-6, 5e-9
"""What an event, each log-probability and each character of a text take, measured: once in the built-in program, which makes it
of a generation's step, and once in the dialect, which writes it.
"""
T = TypeVar("T")
Turn = Callable[[float], Awaitable[None]]
"""Waits until so many seconds of the event loop may be taken for an answer."""


class AnswerPace:
    """Says when the next part of an answer may be handled, and has one thread for what takes long. Belongs to one event loop."""

    def __init__(self) -> None:
        self._pace = ServicePace(LOOP_SHARE)
        self._thread = anyio.CapacityLimiter(1)
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def turn(self, tenant: str, seconds: float) -> None:
        """Wait for the tenant's turn. What comes at once for many of its answers, handled at once, would hold up the loop."""
        now = anyio.current_time()
        wait = self._pace.wait(tenant, now)
        self._pace.used(tenant, seconds, now)
        if wait > 0:
            await anyio.sleep(wait)

    async def beside(self, tenant: str, work: Callable[[], T]) -> T:
        """Do work that takes long in the one thread that there is for it, in which tenants take turns.

        Of several threads each would keep the GIL for 5 ms whenever the event loop waits for anything: 40 delayed all requests by
        seconds.
        """
        async with self._turns[tenant]:
            return await anyio.to_thread.run_sync(work, limiter=self._thread)


def numbers_of(scores: Sequence[TokenScore]) -> int:
    """Return how many log-probabilities there are, alternatives included."""
    return sum(1 + len(score.top) for score in scores)


def seconds_of_entries(entries: Sequence[TokenLogprob]) -> float:
    """Return about how long log-probabilities take until they are scores of an event."""
    return SCORE_SECONDS * sum(1 + len(each.top_tokens) for each in entries)


def seconds_of(event: ChatEvent) -> float:
    """Return about how long an event takes."""
    match event:
        case TextDelta() | ReasoningDelta():
            return EVENT_SECONDS + CHARACTER_SECONDS * len(event.text) + SCORE_SECONDS * numbers_of(event.scores)
        case PromptScores():
            return EVENT_SECONDS + SCORE_SECONDS * numbers_of(event.scores)
        case ToolArguments():
            return EVENT_SECONDS + CHARACTER_SECONDS * len(event.text)
        case _:
            return EVENT_SECONDS


async def in_turns(events: Sequence[ChatEvent], turn: Turn) -> AsyncIterator[Sequence[ChatEvent]]:
    """Yield the events a few at a time, each part when its turn has come."""
    part: list[ChatEvent] = []
    taken = 0.0
    for event in events:
        seconds = seconds_of(event)
        if part and taken + seconds > TURN_SECONDS:
            await turn(taken)
            yield part
            await anyio.lowlevel.checkpoint()  # on a slow machine a part takes longer than is counted: none waits
            part, taken = [], 0.0
        part.append(event)
        taken += seconds
    if part:
        await turn(taken)
        yield part
