"""What an answer is read from, whoever writes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import anyio.lowlevel

from inferd.chat import ChatEvent

EVENTS_AT_ONCE = 256
"""Events that are written before other requests have a turn: about 5 ms."""


class AnswerSource(Protocol):
    """The events of one answer."""

    run: str
    """The id of the run that writes it, "" where there is none."""

    async def next(self) -> list[ChatEvent]:
        """Wait for more events; an empty list is the end. Raises the InferdError that the answer failed with."""
        ...


async def in_turns(events: Sequence[ChatEvent]) -> AsyncIterator[Sequence[ChatEvent]]:
    """Yield the events a few at a time, and let other tasks have a turn between them."""
    for start in range(0, len(events), EVENTS_AT_ONCE):
        if start:
            await anyio.lowlevel.checkpoint()
        yield events[start : start + EVENTS_AT_ONCE]
