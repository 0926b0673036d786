"""Answering is timed turn by turn, and whatever is awaited in it goes on as if it were not."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import anyio
import pytest
from starlette.types import Receive, Scope, Send

from inferd_runtime.server.connections.connection_table import ConnectionTable
from inferd_runtime.server.gateway.request_watch import CONNECTION_KEY, RequestWatch, timed
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.server.tenancy.tenant_use import TenantUse

BUSY = 0.02
DENIAL: dict[str, Any] = {"websocket.http.response": {}}
"""The extension of the HTTP server by which a WebSocket's handshake is refused with an answer."""


def compute() -> None:
    end = time.thread_time() + BUSY
    while time.thread_time() < end:
        pass


async def test_what_an_answer_computes_is_charged_and_what_it_waits_for_is_not() -> None:
    turns: list[float] = []

    async def work() -> None:
        for _ in range(3):
            compute()
            await anyio.sleep(5 * BUSY)

    await timed(work(), turns.append)
    assert len(turns) == 4
    assert all(turn >= BUSY for turn in turns[:3])
    assert turns[3] < BUSY


async def test_errors_and_cancellations_pass_through_and_are_charged() -> None:
    turns: list[float] = []
    ended = []

    async def fails() -> None:
        await anyio.sleep(0.001)
        raise ValueError("x")

    async def waits() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")

    with pytest.raises(ValueError, match="x"):
        await timed(fails(), turns.append)
    with anyio.move_on_after(0.01):
        await timed(waits(), turns.append)
    assert ended == ["cancelled"]
    assert len(turns) == 4


async def test_what_is_awaited_brings_its_value() -> None:
    found = []

    async def work() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, 7)
        found.append(await future)

    await timed(work(), lambda seconds: None)
    assert found == [7]


async def test_who_is_made_to_wait_for_a_turn_is_not_said_to_send_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant that had taken the thread for long was told, when its turn came late, that its request was not complete."""
    table = ConnectionTable(TenantUse(same_for_all(Quotas())))
    connection = table.arrived(("127.0.0.1", 1), asyncio.Protocol)
    due: list[float] = []

    async def wait() -> None:
        due.append(connection.deadlines.due)
        await anyio.sleep_forever()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        due.append(connection.deadlines.due)

    async def nothing(*message: Any) -> Any:
        return {}

    monkeypatch.setattr(table, "begin_answer", lambda connection: 0.001)
    monkeypatch.setattr(connection.lost, "wait", wait)
    scope = {"type": "http", "client": ("127.0.0.1", 1), "headers": [(b"content-length", b"5")]}
    await RequestWatch(application, table)(scope, nothing, nothing)
    assert due[0] == math.inf
    assert time.monotonic() < due[1] < math.inf


async def test_a_websockets_message_that_waits_for_its_turn_is_still_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ConnectionTable(TenantUse(same_for_all(Quotas())))
    connection = table.arrived(("127.0.0.1", 1), asyncio.Protocol)
    happened: list[object] = []

    async def sleep(seconds: float) -> None:
        happened.append(seconds)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        happened.append(await receive())

    async def message(*sent: Any) -> Any:
        return {"type": "websocket.receive", "bytes": b"12345"}

    async def turn(connection: object) -> None:
        happened.append("turn")

    monkeypatch.setattr(table, "begin_message", lambda connection, size: 10.0 * size)
    monkeypatch.setattr(table, "turn", turn)
    monkeypatch.setattr(table, "message_came", lambda connection: happened.append("came"))
    monkeypatch.setattr(anyio, "sleep", sleep)
    scope = {"type": "websocket", "client": connection.peer, "headers": []}
    await RequestWatch(application, table)(scope, message, message)
    assert happened == [50.0, "turn", "came", await message()]


@pytest.mark.parametrize("started", [False, True])
async def test_a_request_that_outlasts_the_drain_is_told_so(started: bool) -> None:
    """An upload that looked for packages got no answer, and left a traceback in the log."""
    table = ConnectionTable(TenantUse(same_for_all(Quotas())))
    connection = table.arrived(("127.0.0.1", 1), asyncio.Protocol)
    sent: list[Any] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await anyio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/v1/programs", "method": "POST", "client": connection.peer, "headers": []}
    task = asyncio.create_task(RequestWatch(application, table)(scope, send, send))  # type: ignore[arg-type]
    await anyio.wait_all_tasks_blocked()
    task.cancel("Task cancelled, timeout graceful shutdown exceeded")
    await task
    assert [message.get("status") for message in sent] == ([200] if started else [503, None])
    if not started:
        assert b"shutting down" in sent[1]["body"]


@pytest.mark.parametrize("leaves", ["before its token is read", "while it is answered"])
async def test_requests_whose_clients_have_left_count_until_they_are_over(leaves: str) -> None:
    """12,000 that waited for a session took 430 MiB, held the loop for 2 s, and outlasted a SIGTERM."""
    table = ConnectionTable(use := TenantUse(same_for_all(Quotas())))
    over = anyio.Event()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope[CONNECTION_KEY]
        if leaves == "before its token is read":
            connection.connection_lost(None)
        table.belongs_to(connection, "eve")
        connection.connection_lost(None)
        await over.wait()

    async def nothing(*message: Any) -> Any:
        return {}

    async def ask(port: int) -> None:
        table.arrived(("127.0.0.1", port), asyncio.Protocol)
        scope = {"type": "http", "client": ("127.0.0.1", port), "headers": []}
        await RequestWatch(application, table)(scope, nothing, nothing)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, 1)
        tasks.start_soon(ask, 2)
        await anyio.wait_all_tasks_blocked()
        assert use.connections.held("eve") == 2
        over.set()
    assert use.connections.used == 0


async def test_a_request_that_came_before_the_last_one_was_over_is_not_taken_for_none() -> None:
    """Its connection was closed as one on which nothing is asked, and of a client that left it did not count."""
    table = ConnectionTable(use := TenantUse(same_for_all(Quotas())))
    connection = table.arrived(("127.0.0.1", 1), asyncio.Protocol)
    table.head_came(connection, has_body=False)
    table.belongs_to(connection, "eve")
    table.head_came(connection, has_body=False)
    table.request_over(connection)
    assert connection.deadlines.due == math.inf
    connection.connection_lost(None)
    assert use.connections.held("eve") == 1
    table.request_over(connection)
    assert use.connections.used == 0


async def test_a_connection_whose_port_came_again_before_it_was_lost_is_given_up_and_counts_no_more() -> None:
    """While nothing is read a reset is not seen. The table knew the new connection alone: the old one counted for ever."""
    table = ConnectionTable(use := TenantUse(same_for_all(Quotas())))
    before = table.arrived(("127.0.0.1", 1), asyncio.Protocol)
    refused: list[str] = []
    before.refuse = lambda: refused.append("before")
    table.head_came(before, has_body=False)
    table.belongs_to(before, "eve")
    after = table.arrived(("127.0.0.1", 1), asyncio.Protocol)
    assert refused == ["before"]
    before.connection_lost(None)
    assert table.find(after.peer) is after
    assert use.connections.held("eve") == 1
    table.request_over(before)
    assert use.connections.used == 0


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_request_whose_client_leaves_before_its_turn_waits_no_more(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12,000 that had shown no token, and had left at once, 8,500 waited after two seconds, and more with each second."""
    table = ConnectionTable(TenantUse(same_for_all(Quotas())))
    connection = table.arrived(("127.0.0.1", 1), asyncio.Protocol)
    sent: list[Any] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        pytest.fail("answered though nobody is there")

    async def nothing(*message: Any) -> Any:
        sent.extend(message)
        return {"type": f"{kind}.disconnect"}

    monkeypatch.setattr(table, "begin_answer", lambda connection: math.inf)
    scope = {
        "type": kind,
        "path": "/v1/runs",
        "method": "GET",
        "client": connection.peer,
        "headers": [],
        "extensions": DENIAL,
    }
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(RequestWatch(application, table), scope, nothing, nothing)
        await anyio.wait_all_tasks_blocked()
        assert not sent
        connection.connection_lost(None)
    assert sent


async def test_around_each_part_of_a_longer_answer_its_owner_waits_for_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    table, happened = ConnectionTable(TenantUse(same_for_all(Quotas()))), list[object]()
    connection = table.arrived(("127.0.0.1", 1), asyncio.Protocol)

    async def turn(connection: object) -> None:
        happened.append("turn")

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await send({"type": "http.response.body", "body": b"end"})

    async def sent(*message: Any) -> Any:
        happened.append(message[0].get("body", "head") if message else {})

    monkeypatch.setattr(table, "turn", turn)
    await RequestWatch(application, table)({"type": "http", "client": connection.peer, "headers": []}, sent, sent)
    assert happened == ["head", "turn", b"part", "turn", b"end"]
