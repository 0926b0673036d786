"""A run as its client holds it."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

import inferd
from inferd import InternalError, InvalidRequest, LimitExceeded, Unavailable
from inferd.client import http_link
from inferd.client.http_link import HttpLink, error_of
from inferd.client.run_handle import RunHandle, write_new_file
from inferd.protocol import ErrorInfo
from inferd.protocol.files import FileHead
from inferd.transport.room import pause_of

WAITING = {
    "id": "run-1", "state": "queued", "started_at": None, "finished_at": None, "next_event": 0, "error": None,
    "usage": {"tokens": 0}, "result": None,
}  # fmt: skip
ENDED = {"state": "succeeded", "error": None, "usage": {"tokens": 5}, "result": {"a": 1}}


def streamed(status: int, value: Any) -> httpx.Response:
    return httpx.Response(status, stream=httpx.ByteStream(json.dumps(value).encode()))


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
    answers = [streamed(429, {"error": refused}), streamed(429, {"error": refused}), streamed(200, {"runs": 1})]
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


async def link_to(answer: Any) -> HttpLink:
    link = HttpLink("http://test", None, None, 0.0)
    headers = link._http.headers
    await link.close()
    link._http = httpx.AsyncClient(base_url="http://test", headers=headers, transport=httpx.MockTransport(answer))
    return link


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("line", [False, True])
async def test_an_answer_without_end_does_not_fill_the_clients_memory(
    monkeypatch: pytest.MonkeyPatch, status: int, line: bool
) -> None:
    monkeypatch.setattr(http_link, "MAX_ANSWER", 1 << 20)
    sent = 0

    async def endless() -> AsyncGenerator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 16
            yield b" " * (1 << 16)

    link = await link_to(lambda request: httpx.Response(status, content=endless()))
    asked = anext(link.lines("/v1/runs/r/events")) if line else link.request("GET", "/v1/runs", again=True)
    with pytest.raises(InternalError, match="more than"):
        await asked
    assert sent <= 2 << 20
    await link.close()


async def test_logs_without_end_do_not_fill_the_clients_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_link, "MAX_ANSWER", 1 << 16)

    class Endless(OneRun):
        async def request(self, *asked: Any, **options: Any) -> dict[str, Any]:
            return {**WAITING, "next_event": 1 << 60}

        async def lines(self, path: str) -> AsyncGenerator[bytes]:
            for index in range(1 << 20):
                yield json.dumps({"index": index, "type": "stdout", "time": 3.0}).encode()

    with pytest.raises(InternalError, match="more than"):
        await RunHandle(cast("HttpLink", Endless()), dict(WAITING)).logs()


async def test_a_compressed_answer_is_neither_asked_for_nor_unpacked() -> None:
    """600 KB took 1.2 GB."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        packed = httpx.ByteStream(gzip.compress(b"{}"))
        return httpx.Response(200, stream=packed, headers={"Content-Encoding": "gzip"})

    link = await link_to(answer)
    with pytest.raises(InternalError, match="no JSON"):
        await link.request("GET", "/v1/runs", again=True)
    assert asked[0].headers["Accept-Encoding"] == "identity"
    await link.close()


@pytest.mark.parametrize("error", [
    None, [], "x", {"code": [], "message": "m", "detail": {}}, {"code": "limit", "message": {}, "detail": {}},
    {"code": "limit", "message": "m", "detail": [["a", 1]]}, {"code": "limit", "message": "m"},
])  # fmt: skip
def test_an_error_of_another_shape_is_no_error_of_the_runtime(error: Any) -> None:
    found = error_of("http://test", 400, json.dumps({"error": error}).encode())
    assert isinstance(found, InternalError)
    assert "answered 400 with something that is no inferd error" in found.message


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 10**400, "1", [], {}, None])
def test_a_pause_that_makes_no_sense_is_none(seconds: Any) -> None:
    """A server's NaN was slept for, and a text ended the client with a TypeError."""
    assert pause_of(ErrorInfo("limit", "full", {"retry_after_s": seconds}).to_exception()) is None


@pytest.mark.parametrize("pieces", [[b"ab", b"cd", b"e" * 1000], [b"ab"], [b"ab", Unavailable("lost")], [b"abcx"]])
async def test_of_a_file_that_does_not_come_as_announced_nothing_stays(
    tmp_path: Path, pieces: list[bytes | Unavailable]
) -> None:
    """One that never ended filled the disk, and one that was cut stayed there under its name."""
    taken = 0

    async def coming() -> AsyncGenerator[bytes]:
        nonlocal taken
        for piece in pieces:
            if isinstance(piece, Unavailable):
                raise piece
            taken += len(piece)
            yield piece

    head = FileHead(0, "a.txt", "text/plain", 4, hashlib.sha256(b"abcd").hexdigest())
    with pytest.raises(Unavailable):
        await write_new_file(head, tmp_path, coming())
    assert os.listdir(tmp_path) == []
    assert taken <= 1004
