"""Servers of tools that clients bring along, and that operators name: who may use them, and what a bad one costs."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest

from inferd import Forbidden, InferdError, InvalidRequest, LimitExceeded, NotFound, Unavailable
from inferd.program.manifest import Manifest
from inferd.protocol.mcp import (
    AnswerMcpCall,
    CallMcpTool,
    ConnectMcp,
    ListMcpServers,
    ListMcpTools,
    McpConnected,
    McpTools,
    NextMcpCall,
    OfferMcp,
    WithdrawMcp,
)
from inferd_runtime.server.services.call_log import REFUSED_PER_MINUTE, CallLog
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.mcp import CALLS_PER_MINUTE, IDLE_SECONDS, LIFE_SECONDS, McpService
from inferd_runtime.server.services.mcp_offers import MAX_CALLS, MAX_OFFERS
from inferd_runtime.server.services.mcp_servers import ServerEntry, ServerTable, read_servers

CLIENT = Caller("ann", "ws/1")
PROGRAM = Caller("ann", "run-1", manifest=Manifest("p", mcp=["desk", "tools"]))


class StillProcess:
    """Stands for a server's process."""

    def __init__(self, pid: int = 0) -> None:
        self.pid = pid
        self.stopped = 0
        self.why: InferdError | None = None
        self.alive = True

    async def started(self) -> None:
        pass

    async def call(self, op: str, request: Any, kind: Any) -> Any:
        self.asked = msgspec.msgpack.decode(request)
        return {McpTools: McpTools([]), McpConnected: McpConnected(self.asked["server"])}[kind]

    def stop(self, why: InferdError | None = None) -> None:
        self.stopped += 1
        self.why = why


class Family:
    """The family with what it starts and tells."""

    def __init__(self, **entries: ServerEntry) -> None:
        self.now, self.processes, self.told = 0.0, list[StillProcess](), list[dict[str, Any]]()
        entries = entries or {"tools": ServerEntry(command="x", tenants=("ann",))}
        self.taken: dict[int, int] = {}
        self.mcp = McpService(
            ServerTable(entries), self._start, CallLog(self.told.append), lambda: self.now,  # type: ignore[arg-type]
            memory_mb=100, measure=lambda pids: {pid: self.taken[pid] for pid in pids},
        )  # fmt: skip

    def _start(self, tenant: str, name: str, entry: ServerEntry) -> StillProcess:
        self.processes.append(StillProcess(len(self.processes) + 1))
        return self.processes[-1]

    async def ask(self, caller: Caller, request: Any) -> Any:
        return await self.mcp.operations()[request.op](caller, request)


async def test_arguments_for_an_operators_server_wait_packed() -> None:
    """As Python's values, a request of a MiB takes twenty, for as long as the server makes it wait."""
    at, request = Family(), CallMcpTool("tools", "look", {"values": [[1]] * 100})
    with pytest.raises(KeyError):  # the process has no reply of that kind
        await at.ask(PROGRAM, request)
    assert request.arguments == {}
    assert at.processes[0].asked["arguments"] == {"values": [[1]] * 100}


async def test_servers_that_have_ended_keep_no_place_of_their_tenant_and_are_remembered() -> None:
    """Sixteen that never greeted kept all others from it for five minutes."""
    names = [f"s{number}" for number in range(17)]
    at = Family(**{name: ServerEntry(command="x", tenants=("ann",)) for name in names})
    for name in names[:16]:
        await at.ask(CLIENT, ListMcpTools(name))
    with pytest.raises(LimitExceeded):
        await at.ask(CLIENT, ListMcpTools(names[16]))
    at.processes[3].alive = False
    at.mcp.tick(at.now)
    at.mcp.tick(at.now)
    await at.ask(CLIENT, ListMcpTools(names[16]))
    with pytest.raises(LimitExceeded):
        await at.ask(CLIENT, ListMcpTools(names[3]))
    at.processes[5].alive = False
    at.mcp.tick(at.now)
    await at.ask(CLIENT, ListMcpTools(names[3]))
    assert len(at.processes) == 17, "the one that ended may start again when it was told to, and no sooner"
    at.now = IDLE_SECONDS + 1
    at.mcp.tick(at.now)
    for name in names[:16]:
        await at.ask(CLIENT, ListMcpTools(name))


async def test_a_tenants_servers_have_one_limit_of_memory_together() -> None:
    """One could have 4 GiB, and each of sixteen as much."""
    names = ("a", "b", "c")
    at = Family(**{name: ServerEntry(command="x", tenants=("ann", "bob")) for name in names})
    for tenant, server in (("ann", "a"), ("ann", "b"), ("ann", "c"), ("bob", "a")):
        await at.ask(Caller(tenant, "ws/1"), ListMcpTools(server))
    at.taken = {1: 30 << 20, 2: 50 << 20, 3: 20 << 20, 4: 99 << 20}
    await at.mcp.look()
    assert [process.stopped for process in at.processes] == [0, 0, 0, 0]
    at.taken[3] += 1
    await at.mcp.look()
    assert [process.stopped for process in at.processes] == [0, 1, 0, 0]  # the largest of hers, and none of another's
    assert isinstance(at.processes[1].why, LimitExceeded)
    assert at.processes[1].why.detail["limit"] == "mcp_memory_mb"
    assert at.told[-1] | {"time": 0} == {
        "time": 0, "tenant": "ann", "subject": "", "call": "mcp.ended", "server": "b", "bytes": 50 << 20,
    }  # fmt: skip
    await at.mcp.look()  # which another one has room for now
    assert [process.stopped for process in at.processes] == [0, 1, 0, 0]
    await at.ask(Caller("ann", "ws/1"), ListMcpTools("b"))
    assert len(at.processes) == 5


async def test_operator_tenant_and_manifest_have_to_agree() -> None:
    at = Family()
    assert (await at.ask(PROGRAM, ListMcpServers())).servers == ["tools"]
    await at.ask(PROGRAM, ConnectMcp("tools"))
    with pytest.raises(Forbidden, match="manifest"):
        await at.ask(Caller("ann", "run-2", manifest=Manifest("p")), ConnectMcp("tools"))
    for caller, name in ((Caller("bob", "ws/2"), "tools"), (CLIENT, "other"), (CLIENT, "../x")):
        with pytest.raises(NotFound):
            await at.ask(caller, ConnectMcp(name))
    assert len(at.processes) == 1
    assert [entry["call"] for entry in at.told] == ["mcp.connect"]


async def test_a_server_ends_when_it_is_idle_or_old_and_never_in_a_call() -> None:
    at = Family()
    await at.ask(CLIENT, ListMcpTools("tools"))
    at.mcp.tick(IDLE_SECONDS - 1)
    assert at.processes[0].stopped == 0
    at.now = IDLE_SECONDS + 1
    at.mcp.tick(at.now)
    assert at.processes[0].stopped == 1
    for _ in range(int(LIFE_SECONDS // 200) + 2):
        await at.ask(CLIENT, ListMcpTools("tools"))
        at.now += 200
        at.mcp.tick(at.now)
    assert [process.stopped for process in at.processes[:2]] == [1, 1]


async def test_calls_per_minute_are_bounded() -> None:
    at = Family()
    for _ in range(CALLS_PER_MINUTE):
        await at.ask(CLIENT, ListMcpTools("tools"))
    with pytest.raises(LimitExceeded) as caught:
        await at.ask(CLIENT, ListMcpTools("tools"))
    assert caught.value.detail["limit"] == "mcp_calls_per_minute"


async def test_a_flood_of_refused_calls_fills_no_log() -> None:
    at = Family()
    for _ in range(CALLS_PER_MINUTE):
        await at.ask(CLIENT, ListMcpTools("tools"))
    for _ in range(10 * REFUSED_PER_MINUTE):
        with pytest.raises(LimitExceeded):
            await at.ask(CLIENT, ListMcpTools("tools"))
    assert len(at.told) <= CALLS_PER_MINUTE + REFUSED_PER_MINUTE


async def test_an_offer_to_a_run_of_a_megabyte_is_none() -> None:
    with pytest.raises(InvalidRequest):
        await Family().ask(CLIENT, OfferMcp("desk", run="x" * (1 << 20)))


async def relayed(at: Family, answer: AnswerMcpCall | None, request: Any) -> Any:
    """What a program gets for a request that the client answers so; None: it leaves instead."""
    await at.ask(CLIENT, OfferMcp("desk"))
    replies: list[Any] = []

    async def call() -> None:
        try:
            replies.append(await at.ask(PROGRAM, request))
        except InferdError as error:
            replies.append(error)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            got = (await at.ask(CLIENT, NextMcpCall("desk"))).reply
            assert got.op == request.op
            if answer is None:
                at.mcp.closed(CLIENT)
            else:
                await at.ask(CLIENT, AnswerMcpCall("desk", got.number, answer.reply, answer.problem))
    return replies[0]


async def test_an_offer_is_called_through_its_client() -> None:
    reply = {"tools": [{"name": "t", "description": "", "parameters": {"type": "object"}}]}
    found = await relayed(Family(), AnswerMcpCall("desk", 0, reply), ListMcpTools("desk"))
    assert [tool.name for tool in found.tools] == ["t"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, Unavailable),
        (AnswerMcpCall("desk", 0), Unavailable),
        (AnswerMcpCall("desk", 0, {"tools": 3}), Unavailable),
        (AnswerMcpCall("desk", 0, {"tools": [{"name": "x"}]}), Unavailable),
        (AnswerMcpCall("desk", 0, problem="x" * 10_000), InvalidRequest),
    ],
)
async def test_a_client_that_lies_or_leaves_is_a_typed_error(
    answer: AnswerMcpCall | None, kind: type[Exception]
) -> None:
    found = await relayed(Family(), answer, ListMcpTools("desk"))
    assert isinstance(found, kind)
    assert len(str(found)) < 1000


async def test_an_offer_belongs_to_its_client_and_tenant() -> None:
    at = Family()
    await at.ask(CLIENT, OfferMcp("desk", "run-1"))
    thief = Caller("ann", "ws/2")
    for request in (NextMcpCall("desk"), AnswerMcpCall("desk", 1), WithdrawMcp("desk")):
        with pytest.raises(NotFound):
            await at.ask(thief, request)
    assert (await at.ask(PROGRAM, ListMcpServers())).servers == ["desk", "tools"]
    assert (await at.ask(thief, ListMcpServers())).servers == ["tools"]
    for other in (Caller("ann", "run-2", manifest=PROGRAM.manifest), Caller("bob", "run-1", manifest=PROGRAM.manifest)):
        with pytest.raises(NotFound):
            await at.ask(other, ListMcpTools("desk"))
    for name in ("desk", "tools", "a b"):
        with pytest.raises(InvalidRequest):
            await at.ask(thief, OfferMcp(name, "run-1"))
    with pytest.raises(InvalidRequest):
        await at.ask(CLIENT, OfferMcp("desk"))
    await at.ask(thief, OfferMcp("desk"))  # for all others: who has one of its own keeps that
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(at.ask, PROGRAM, ListMcpTools("desk"))
        call = (await at.ask(CLIENT, NextMcpCall("desk"))).reply
        await at.ask(CLIENT, AnswerMcpCall("desk", call.number, {"tools": []}))
    await at.ask(thief, WithdrawMcp("desk"))
    await at.ask(CLIENT, WithdrawMcp("desk"))
    with pytest.raises(NotFound):
        await at.ask(PROGRAM, ListMcpTools("desk"))


async def test_an_offer_for_a_launch_needs_no_manifest_and_holds_for_what_the_run_launches() -> None:
    at = Family()
    await at.ask(CLIENT, OfferMcp("desk", "key-1"))
    plain = Manifest("p")
    for key, seen in (("key-1", ["desk"]), ("", []), ("key-2", [])):
        run = SimpleNamespace(mcp=key)
        caller = Caller("ann", "run-7", manifest=plain, run=run)  # type: ignore[arg-type]
        assert (await at.ask(caller, ListMcpServers())).servers == seen
        assert (await at.ask(replace(caller, tenant="bob"), ListMcpServers())).servers == []
    await at.ask(CLIENT, WithdrawMcp("desk"))
    await at.ask(CLIENT, OfferMcp("desk"))
    with pytest.raises(Forbidden, match="manifest"):
        await at.ask(Caller("ann", "run-7", manifest=plain), ListMcpTools("desk"))


async def test_offers_and_their_calls_are_bounded() -> None:
    at = Family()
    for number in range(MAX_OFFERS):
        await at.ask(CLIENT, OfferMcp(f"desk{number}"))
    with pytest.raises(LimitExceeded):
        await at.ask(CLIENT, OfferMcp("desk"))
    script = Caller("ann", "ws/3")
    async with anyio.create_task_group() as tasks:
        for _ in range(MAX_CALLS):
            tasks.start_soon(at.ask, script, ListMcpTools("desk0"))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(LimitExceeded):
            await at.ask(script, ListMcpTools("desk0"))
        tasks.cancel_scope.cancel()
    with pytest.raises(LimitExceeded) as caught:
        await at.ask(script, CallMcpTool("desk0", "t", timeout_s=0.01))
    assert caught.value.detail["limit"] == "mcp_call_s"


async def test_a_call_that_did_not_reach_its_client_is_the_next_one_again() -> None:
    at = Family()
    await at.ask(CLIENT, OfferMcp("desk"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(at.ask, PROGRAM, ListMcpTools("desk"))
        first = await at.ask(CLIENT, NextMcpCall("desk"))
        first.undo()
        again = await at.ask(CLIENT, NextMcpCall("desk"))
        assert again.reply.number == first.reply.number
        tasks.cancel_scope.cancel()


async def test_a_call_that_nobody_waits_for_any_more_neither_comes_again_nor_is_held() -> None:
    """A script that fetches calls and gives each back, once their programs have withdrawn them, kept a MiB of each."""
    at = Family()
    await at.ask(CLIENT, OfferMcp("desk"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(at.ask, PROGRAM, CallMcpTool("desk", "look", {"value": "x"}))
        handed = await at.ask(CLIENT, NextMcpCall("desk"))
        tasks.cancel_scope.cancel()
    call, undo = weakref.ref(handed.reply), handed.undo
    del handed
    gc.collect()
    assert call() is None
    undo()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(at.ask, PROGRAM, ListMcpTools("desk"))
        assert (await at.ask(CLIENT, NextMcpCall("desk"))).reply.op == ListMcpTools.op
        tasks.cancel_scope.cancel()


GOOD = {"command": "x"}


@pytest.mark.parametrize(
    "servers",
    [{"a b": GOOD}, {"a": {}}, {"a": {**GOOD, "url": "https://x.example"}}, {"a": {"url": "ftp://x.example"}},
     {"a": {"url": "https://x.example", "args": ["a"]}}, {"a": {**GOOD, "headers": {"a": "b"}}}, {"a": {**GOOD, "x": 1}},
     {"a": {"command": "x\0y"}}, {"a": {**GOOD, "tenants": "ann"}}],
)  # fmt: skip
def test_a_file_that_says_nothing_clear_is_refused(tmp_path: Path, servers: Any) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    path.chmod(0o600)
    with pytest.raises(InvalidRequest):
        read_servers(path)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"a": GOOD, "b": {"url": "https://x.example/mcp", "tenants": ["*"]}}}))
    path.chmod(0o644)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        read_servers(path)
    path.chmod(0o600)
    table = read_servers(path)
    assert table.names("default", None) == ["a", "b"]
    assert table.names("ann", None) == ["b"]
