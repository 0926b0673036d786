"""Responses in the background: each ends once, however it ends, and is kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from inferd.chat import ChatEvent, ChoiceFinished, TextDelta, UsageReport
from inferd.protocol import InferdError, LimitExceeded, Unavailable
from inferd_runtime.server.chat.answer_pace import AnswerPace
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.responses.answer import ResponsesExchange, read_responses
from inferd_runtime.server.dialects.responses.stored import PIECE_BYTES, KeptEvents, StoredResponse, later_events
from inferd_runtime.server.dialects.server_sent import named_event
from inferd_runtime.server.processes.background import background_tasks
from inferd_runtime.server.response_store.background import BackgroundResponses, OpenResponse, replayed


class Source:
    """Says "hi", and then what it is told: an error, its end, or nothing for ever."""

    run = ""

    def __init__(self, ending: Exception | None = None, waits: bool = False) -> None:
        self._ending = ending
        self._waits = waits
        self._events: list[list[ChatEvent]] = [[TextDelta("hi")], [ChoiceFinished("stop"), UsageReport(1, 1)], []]
        self.waiting = anyio.Event()

    async def next(self) -> list[ChatEvent]:
        if len(self._events) < 3 and self._waits:
            self.waiting.set()
            await anyio.sleep_forever()
        if len(self._events) < 3 and self._ending is not None:
            raise self._ending
        return self._events.pop(0)


@asynccontextmanager
async def answered(
    source: Source, refusal: InferdError | None = None, leaves: anyio.Event | None = None
) -> AsyncIterator[Any]:
    if refusal is not None:
        raise refusal
    yield source
    if leaves is not None:
        leaves.set()
        await anyio.sleep_forever()


def exchange(**fields: Any) -> tuple[ResponsesExchange, list[StoredResponse]]:
    body = {"model": "t", "input": "hi", "background": True, **fields}
    made = read_responses(json.dumps(body).encode(), ClientHeaders())
    kept: list[StoredResponse] = []
    made.when_complete = kept.append
    return made, kept


async def until_kept(kept: list[StoredResponse]) -> dict[str, Any]:
    with anyio.fail_after(10):
        while not kept:
            await anyio.lowlevel.checkpoint()
    (one,) = kept
    return one.response


async def test_it_is_in_progress_and_then_kept() -> None:
    asked, kept = exchange()
    async with background_tasks() as tasks:
        background = BackgroundResponses(tasks, AnswerPace())
        begun = await background.start(asked, answered(Source()), "ann")
        assert begun.exchange.begun.response["status"] == "in_progress"
        ended = await until_kept(kept)
    assert (ended["status"], ended["output"][0]["content"][0]["text"]) == ("completed", "hi")


@pytest.mark.parametrize("ending", [Unavailable("gone"), ValueError("a bug")])
async def test_one_that_fails_is_kept_and_harms_no_other(ending: Exception) -> None:
    asked, kept = exchange()
    other, others = exchange()
    async with background_tasks() as tasks:
        background = BackgroundResponses(tasks, AnswerPace())
        await background.start(asked, answered(Source(ending)), "ann")
        failed = await until_kept(kept)
        await background.start(other, answered(Source()), "ann")
        assert (await until_kept(others))["status"] == "completed"
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")


async def test_one_that_cannot_begin_is_refused() -> None:
    asked, kept = exchange()
    async with background_tasks() as tasks:
        background = BackgroundResponses(tasks, AnswerPace())
        with pytest.raises(LimitExceeded):
            await background.start(asked, answered(Source(), LimitExceeded("full", limit="sockets")), "ann")
        assert background.find("ann", asked.id) is None
    assert not kept


async def test_a_cancelled_one_keeps_what_it_has_and_is_its_tenants_alone() -> None:
    asked, kept = exchange()
    source = Source(waits=True)
    async with background_tasks() as tasks:
        background = BackgroundResponses(tasks, AnswerPace())
        await background.start(asked, answered(source), "ann")
        await source.waiting.wait()
        assert background.find("bob", asked.id) is None
        await background.cancel("bob", asked.id)
        assert background.find("ann", asked.id) is not None
        await background.cancel("ann", asked.id)
        assert background.find("ann", asked.id) is None
    (ended,) = kept
    assert ended.response["status"] == "cancelled"
    assert ended.response["output"][0]["content"][0]["text"] == "hi"


async def test_one_that_is_cancelled_as_it_ends_is_kept_once() -> None:
    asked, kept = exchange()
    leaving = anyio.Event()
    async with background_tasks() as tasks:
        background = BackgroundResponses(tasks, AnswerPace())
        await background.start(asked, answered(Source(), leaves=leaving), "ann")
        await leaving.wait()
        await background.cancel("ann", asked.id)
    assert [one.response["status"] for one in kept] == ["completed"]


def numbers(data: bytes) -> list[int]:
    events = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]
    return [event["sequence_number"] for event in events]


def events_of(begun: OpenResponse) -> KeptEvents:
    assert begun.exchange.kept is not None
    return begun.exchange.kept


async def test_a_stream_goes_on_behind_any_event_while_it_is_answered_and_afterwards() -> None:
    asked, kept = exchange(stream=True)
    async with background_tasks() as tasks:
        begun = await BackgroundResponses(tasks, AnswerPace()).start(asked, answered(Source()), "ann")
        whole = [part async for part in begun.follow(events_of(begun), -1)]
        seen = numbers(b"".join(whole))
        assert seen == list(range(len(seen)))
        rest = {after: b"".join([part async for part in begun.follow(events_of(begun), after)]) for after in seen}
    (one,) = kept
    assert one.events is not None
    assert b"response.completed" in rest[seen[-2]]
    assert rest[seen[-1]] == b""
    assert {after: b"".join(later_events(one.events, after)) for after in seen} == rest
    assert b"".join(later_events(one.events, -1)) == b"".join(whole)
    assert not b"".join(later_events(one.events, 10**15))


def test_long_streams_come_in_pieces_from_any_event_on() -> None:
    kept = KeptEvents()
    for number in range(9):
        kept.add(named_event("a", {"sequence_number": number, "text": "x\n" * 100_000}))
    sent, packed = kept.sent, kept.finish()
    for after in range(-1, 9):
        pieces = list(later_events(packed, after))
        assert b"".join(pieces) == b"".join(sent[after + 1 :])
        assert all(len(piece) <= PIECE_BYTES for piece in pieces)


async def test_events_that_nobody_wants_are_passed_over_in_the_tenants_turns() -> None:
    """Who asked for what is behind the last of 20 MiB, from 100 connections, had 40 threads busy, and left others a tenth."""
    kept = KeptEvents()
    for number in range(3):
        kept.add(named_event("a", {"sequence_number": number, "text": "x" * 10 * PIECE_BYTES}))
    pieces: list[bytes | None] = []

    async def beside(work: Callable[[], bytes | None]) -> bytes | None:
        pieces.append(work())
        return pieces[-1]

    assert [part async for part in replayed(kept.finish(), 10**15, beside)] == []
    assert pieces == [*[b""] * 31, None]


async def test_who_reads_slowly_holds_the_events_packed_once_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferd_runtime.server.response_store.background.EVENTS_AT_ONCE", 1)
    asked, _ = exchange(stream=True)
    source = Source(waits=True)
    async with background_tasks() as tasks:
        background = BackgroundResponses(tasks, AnswerPace())
        begun = await background.start(asked, answered(source), "ann")
        events = events_of(begun)
        reader = begun.follow(events, -1)
        first = await anext(reader)
        await source.waiting.wait()
        await background.cancel("ann", asked.id)
        assert not events.sent
        rest = b"".join([part async for part in reader])
    assert events.packed is not None
    assert first + rest == b"".join(later_events(events.packed, -1))
    assert (numbers(first), b'"hi"' in rest) == ([0], True)


async def test_who_follows_a_response_that_is_cancelled_or_lost_is_told_its_end() -> None:
    for is_cancelled in (True, False):
        asked, kept = exchange(stream=True)
        source = Source(waits=True)
        async with anyio.create_task_group() as readers, background_tasks() as tasks:
            background = BackgroundResponses(tasks, AnswerPace())
            begun = await background.start(asked, answered(source), "ann")
            read: list[bytes] = []

            async def follow(read: list[bytes] = read, begun: OpenResponse = begun) -> None:
                read.extend([part async for part in begun.follow(events_of(begun), -1)])

            readers.start_soon(follow)
            await source.waiting.wait()
            if is_cancelled:
                await background.cancel("ann", asked.id)
        assert b'"hi"' in b"".join(read)
        assert len(kept) == is_cancelled


async def test_events_are_kept_for_those_alone_that_asked_for_a_stream() -> None:
    asked, kept = exchange()
    async with background_tasks() as tasks:
        await BackgroundResponses(tasks, AnswerPace()).start(asked, answered(Source()), "ann")
        await until_kept(kept)
    assert kept[0].events is None
