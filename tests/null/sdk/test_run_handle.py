"""A run as its client holds it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from inferd.client.http_link import HttpLink
from inferd.client.run_handle import RunHandle

pytestmark = pytest.mark.anyio
WAITING = {
    "id": "run-1", "state": "queued", "started_at": None, "finished_at": None, "next_event": 0, "error": None,
    "usage": {"tokens": 0}, "result": None,
}  # fmt: skip
ENDED = {"state": "succeeded", "error": None, "usage": {"tokens": 5}, "result": {"a": 1}}


class OneRun:
    """A link to a server whose only run is queued at first, and ends while it is followed."""

    patience_s = 1.0

    async def request(self, *asked: Any, **options: Any) -> dict[str, Any]:
        return dict(WAITING)

    async def lines(self, path: str) -> AsyncGenerator[bytes]:
        yield json.dumps({"index": 0, "type": "started", "time": 3.0}).encode()
        yield json.dumps({"index": 1, "type": "finished", "time": 4.0, **ENDED}).encode()


async def test_the_record_of_a_run_that_ended_is_whole() -> None:
    """It had the end's state and usage beside the times and the result of a run that waits."""
    run = RunHandle(cast("HttpLink", OneRun()), dict(WAITING))
    assert await run.result() == {"a": 1}
    assert run.record == {**WAITING, **ENDED, "started_at": 3.0, "finished_at": 4.0, "next_event": 2}
