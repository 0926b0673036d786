"""A run's events over HTTP: server-sent events for browsers, JSON lines for everybody else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

import anyio
import anyio.lowlevel
import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from inferd.protocol import InvalidRequest
from inferd_runtime.server.gateway.replies import NO_RESULT, RESULT, event_json
from inferd_runtime.server.supervisor.run_events import RunEvent
from inferd_runtime.server.supervisor.run_keeper import AnyRun
from inferd_runtime.server.supervisor.runs import Run

PING_SECONDS = 15.0
PAUSE_SECONDS = 0.005
"""Wait after a batch, so that the events of many small writes go together: a client costs by the piece, not by the byte."""
PART_BYTES = 256 << 10
SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Of every streamed answer. The second one keeps nginx from buffering it."""


def stream_events(run: AnyRun, request: Request) -> StreamingResponse:
    """Stream a run's events from ``?from=INDEX`` (or ``Last-Event-ID``) on.

    ``?follow=false`` ends with what has happened so far. A client that leaves does not change the run.
    """
    as_sse = SSE in request.headers.get("accept", "")
    start, follow = first_index(request), follow_of(request)
    with ExitStack() as counted:
        if isinstance(run, Run):
            counted.enter_context(run.followed())
        return EventResponse(_lines(run, start, follow, as_sse), as_sse=as_sse, held=counted.pop_all())


class EventResponse(StreamingResponse):
    """Streams encoded events. At its end, whatever that was, it closes them and then ``held``."""

    def __init__(self, events: AsyncGenerator[bytes], *, as_sse: bool, held: ExitStack | None = None) -> None:
        super().__init__(events, media_type=SSE if as_sse else NDJSON, headers=STREAM_HEADERS)
        self._events = events
        self._held = held or ExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            await send(message)
            # send() does not wait once the client has left: all of the rest would be encoded without a turn for others.
            await anyio.lowlevel.checkpoint()

        with self._held:
            async with aclosing(self._events):
                await super().__call__(scope, receive, sent)


def first_index(request: Request) -> int:
    """Return the index of the first event that a client asks for. Raises InvalidRequest."""
    last = request.headers.get("last-event-id")
    behind = 0 if last is None else _whole(last, "Last-Event-ID") + 1
    asked = request.query_params.get("from")
    return behind if asked is None else _whole(asked, "from")


def _whole(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidRequest(f"{name} must be a whole number, got {text!r}")
    return int(text)


def follow_of(request: Request) -> bool:
    """Return whether a client waits for what is to come. Raises InvalidRequest."""
    text = request.query_params.get("follow", "true")
    if text not in ("true", "false"):
        raise InvalidRequest(f"follow must be true or false, got {text!r}")
    return text == "true"


async def _lines(run: AnyRun, start: int, follow: bool, as_sse: bool) -> AsyncGenerator[bytes]:
    """Yield a run's events, encoded.

    A client that follows a finished run always gets the last event, even if it asks for a later index: it may have seen
    events that were lost when the server was killed.
    """
    index, end, finished = start, run.record().next_event, False
    if index >= end and not follow:
        return
    async with aclosing(run.batches(start, PING_SECONDS if follow else 0)) as batches:
        async for batch in batches:
            async for part in _parts(run, batch, as_sse):
                yield part
            if batch:
                index, finished = batch[-1].index + 1, batch[-1].kind == "finished"
            if not follow and index >= end:
                return
            if not batch:
                yield b": ping\n\n" if as_sse else b"\n"
            elif follow:
                await anyio.sleep(PAUSE_SECONDS)
    record = run.record()
    if record.finished_at is not None and not finished:
        async for part in _lines(run, record.next_event - 1, False, as_sse):
            yield part


async def _parts(run: AnyRun, batch: list[RunEvent], as_sse: bool) -> AsyncGenerator[bytes]:
    """Yield a batch's lines in pieces of bounded size, the result with the event that it belongs to.

    Events are encoded piece by piece: JSON may be six times as long, and would be held for each client that reads slowly.
    """
    lines = bytearray()
    for event in batch:
        lines += _encode(event, as_sse)
        if event.kind == "finished":
            before, _, end = lines.rpartition(NO_RESULT)
            first = True
            async for part in run.result_slices():
                yield bytes(before + RESULT + part) if first else part
                first = False
            lines = before + NO_RESULT + end if first else end
        while len(lines) >= PART_BYTES:
            yield bytes(lines[:PART_BYTES])
            del lines[:PART_BYTES]
    if lines:
        yield bytes(lines)


def _encode(event: RunEvent, as_sse: bool) -> bytes:
    payload = msgspec.json.encode(event_json(event))
    if not as_sse:
        return payload + b"\n"
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.index, event.kind.encode(), payload)
