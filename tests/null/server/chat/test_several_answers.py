"""Several prompts of one request: their answers become one, and the first error ends all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from inferd.chat import ChatEvent, ChoiceFinished, TextDelta, UsageReport
from inferd.protocol import InferdError, LimitExceeded
from inferd_runtime.server.chat.several_answers import AT_ONCE, Answer, several_answers


class Recorded:
    """Brings recorded events, one at a time, then an error or the end."""

    run = ""

    def __init__(self, events: list[ChatEvent], error: InferdError | None = None) -> None:
        self.events = list(events)
        self.error = error

    async def next(self) -> list[ChatEvent]:
        await anyio.lowlevel.checkpoint()
        if self.events:
            return [self.events.pop(0)]
        if self.error is not None:
            raise self.error
        return []


class Waiting:
    """Never brings anything."""

    run = ""

    async def next(self) -> list[ChatEvent]:
        await anyio.sleep_forever()
        raise AssertionError("nobody wakes it")


@asynccontextmanager
async def opened(source: Recorded | Waiting, counted: list[int]) -> AsyncIterator[Recorded | Waiting]:
    """Open a source; ``counted`` is how many are open, after each change."""
    counted.append(counted[-1] + 1)
    try:
        yield source
    finally:
        counted.append(counted[-1] - 1)


def answer(text: str) -> Recorded:
    return Recorded([TextDelta(text), ChoiceFinished("stop"), UsageReport(1, 2)])


async def all_of(sources: Sequence[Answer]) -> list[ChatEvent]:
    events: list[ChatEvent] = []
    async with several_answers(sources, n=1) as source:
        while new := await source.next():
            events += new
    return events


async def test_all_answers_come_with_choices_counted_through() -> None:
    counted = [0]
    sources = [opened(answer(str(at)), counted) for at in range(20)]
    events = await all_of(sources)
    texts = {event.choice: event.text for event in events if isinstance(event, TextDelta)}
    assert texts == {at: str(at) for at in range(20)}
    assert [event for event in events if isinstance(event, UsageReport)][-1] == UsageReport(20, 40)
    assert max(counted) == AT_ONCE


async def test_the_first_error_ends_all_of_them_as_it_is() -> None:
    counted = [0]
    sources = [opened(Waiting(), counted), opened(Recorded([], LimitExceeded("no", limit="runs")), counted)]
    with pytest.raises(LimitExceeded, match="no"):
        await all_of(sources)
    assert counted[-1] == 0


async def test_who_leaves_ends_all_of_them() -> None:
    counted = [0]
    async with several_answers([opened(Waiting(), counted) for _ in range(3)], n=1):
        await anyio.wait_all_tasks_blocked()
        assert counted[-1] == 3
    assert counted[-1] == 0


async def test_two_that_fail_at_once_are_one_error() -> None:
    counted = [0]
    sources = [opened(Recorded([], LimitExceeded("no", limit="runs")), counted) for _ in range(AT_ONCE)]
    with pytest.raises(LimitExceeded, match="no"):
        await all_of(sources)
    assert counted[-1] == 0
