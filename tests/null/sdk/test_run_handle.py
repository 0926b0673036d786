"""A run as its client holds it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import httpx
import pytest

import inferd
from inferd import InvalidRequest, LimitExceeded
from inferd.client.http_link import HttpLink
from inferd.client.run_handle import RunHandle

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


@pytest.mark.parametrize(
    ("limit", "patience_s", "asked"), [("connections", 60.0, 3), ("connections", 0.0, 1), ("waiting", 60.0, 1)]
)
async def test_a_request_for_which_the_tenant_has_no_connection_left_waits_for_one(
    limit: str, patience_s: float, asked: int
) -> None:
    """Of 300 results that were awaited at once some failed with "the tenant may have 256 open connections"."""
    refused = {"code": "limit", "message": "full", "detail": {"limit": limit, "retry_after_s": 0.001}}
    answers = [httpx.Response(429, json={"error": refused})] * 2 + [httpx.Response(200, json={"runs": 1})]
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answers[len(seen) - 1]

    link = HttpLink("http://test", None, None, patience_s)
    await link.close()
    link._http = httpx.AsyncClient(base_url="http://test", transport=httpx.MockTransport(answer))
    if asked == 3:
        assert await link.request("GET", "/v1/runs", again=False) == {"runs": 1}
    else:
        with pytest.raises(LimitExceeded, match="full"):
            await link.request("GET", "/v1/runs", again=False)
    assert len(seen) == asked
    await link.close()


@pytest.mark.parametrize("wrong", ["Ann", [1], [("name", "Ann")]])
async def test_arguments_and_limits_that_are_not_by_name_are_refused_by_what_they_are(wrong: Any) -> None:
    async with inferd.Client("http://127.0.0.1:1", "token") as client:
        launches: list[Any] = [client.launch, inferd.launch]
        for launch in launches:
            for name in ("arguments", "limits"):
                with pytest.raises(InvalidRequest, match=f"{name} must be a dict"):
                    await launch("program", **{name: wrong})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (5, "program must be a path, or source texts"),
        ({"main.py": 5}, "the source of main.py must be a"),
        ({"x.txt": 5}, "the file x.txt"),
    ],
)
async def test_what_is_no_program_is_refused_by_what_it_is(wrong: Any, says: str) -> None:
    async with inferd.Client() as client:
        with pytest.raises(InvalidRequest, match=says):
            await client.upload(wrong)


async def test_a_client_that_is_used_behind_its_block_says_so() -> None:
    async with inferd.Client() as client:
        run = RunHandle(client._link, dict(WAITING))
    with inferd.SyncClient() as blocking:
        pass
    for use in (client.programs, run.result, run.cancel):
        with pytest.raises(InvalidRequest, match="its `with` block has ended"):
            await use()
    with pytest.raises(InvalidRequest, match="its `with` block has ended"):
        blocking.programs()
