"""Events of runs over HTTP: whole and in order, and held for a client only as far as it reads."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from starlette.requests import Request

from inferd_runtime.sandbox.messages import RunUsage
from inferd_runtime.server.gateway import event_stream
from inferd_runtime.server.gateway.event_stream import PART_BYTES, stream_events
from inferd_runtime.server.supervisor.run_events import Ending, RunEvent

PRINTED = 1 << 16
EVENTS = 16


class Over:
    """A run that is over: it printed control characters, six bytes each in JSON, and its events come together."""

    def __init__(self, result: list[bytes]) -> None:
        self.result = result
        self.next_event, self.finished_at = EVENTS + 1, 1.0

    def record(self) -> Over:
        return self

    async def batches(self, start: int, idle_seconds: float) -> AsyncGenerator[list[RunEvent]]:
        printed = [RunEvent(index, "stdout", 0.0, "\1" * PRINTED) for index in range(start, EVENTS)]
        yield [*printed, RunEvent(EVENTS, "finished", 0.0, Ending(RunUsage()))]

    async def result_slices(self) -> AsyncGenerator[bytes]:
        for part in self.result:
            yield part


def stream(run: Over, query: str = "") -> Any:
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": query.encode()}
    return stream_events(cast(Any, run), Request(scope)).body_iterator


@pytest.mark.parametrize("result", [[], [b"[1,", b"2]"]])
async def test_events_come_whole_and_the_result_with_the_last(result: list[bytes]) -> None:
    pieces = [piece async for piece in stream(Over(result), "from=14")]
    lines = [json.loads(line) for line in b"".join(pieces).splitlines()]
    assert [line["index"] for line in lines] == [14, 15, 16]
    assert [line["text"] for line in lines[:-1]] == ["\1" * PRINTED] * 2
    assert lines[-1]["result"] == ([1, 2] if result else None)
    assert all(isinstance(piece, bytes) for piece in pieces)


async def test_what_a_client_does_not_read_is_not_written_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """240 clients that asked for the events of a run that had printed a MB, and read none of them, took 3.3 GiB."""
    written: list[int] = []
    encode = event_stream._encode

    def counted(event: RunEvent, as_sse: bool) -> bytes:
        written.append(event.index)
        return encode(event, as_sse)

    monkeypatch.setattr(event_stream, "_encode", counted)
    reader = stream(Over([]))
    assert len(await anext(reader)) == PART_BYTES
    assert written == [0]
    await reader.aclose()


async def test_for_a_client_that_has_left_no_more_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """240 that left in the middle of a MB each had the rest of it written in one turn of the loop, which took 1.6 s."""
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    response = stream_events(cast(Any, Over([])), Request(scope))
    sent: list[Any] = []

    async def left() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await response(scope, left, send)
    assert len(sent) <= 2
