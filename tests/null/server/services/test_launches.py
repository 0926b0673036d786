"""Children through the SDK, without processes: who may reach them, where there is no room, and when they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import inferd
from inferd.program.interface import Interface
from inferd.program.manifest import Manifest
from inferd.protocol import ErrorInfo, InvalidRequest, LimitExceeded, NotFound, Unavailable
from inferd.protocol.launches import AwaitChild, ReceiveFromChild, StartChild
from inferd.transport import restore_transport, use_transport
from inferd_runtime.sandbox.messages import Bundle, Limits, RunFinished, RunUsage, Sent, Used
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.launches import launches
from inferd_runtime.server.services.launches.launches import Launches
from inferd_runtime.server.services.table import ServiceTable
from inferd_runtime.server.supervisor.held_runs import RunRequest
from inferd_runtime.server.supervisor.run_events import EventBuffer
from inferd_runtime.server.supervisor.run_followers import FIRST_SECONDS
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.tenancy.quotas import ADMIN_QUOTAS, same_for_all
from inferd_runtime.server.tenancy.tenant_use import TenantUse
from inferd_runtime.settings.settings import Settings
from inferd_runtime.testing.services import ServiceTransport, calling, service_table

PROGRAM = Program("sha256:0", "p", "1.0.0", Bundle("p", {"main.py": ""}), Interface(Manifest("p"), []), {})


class Launcher:
    """Starts runs at once, or, without room, never; the tests say what they do."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.use = TenantUse(same_for_all(ADMIN_QUOTAS))
        self.runs: list[Run] = []
        self.watched: list[Run] = []
        self.has_room = True

    def launch_request(self, asked: RunRequest, tenant: str) -> Run:
        run = Run(
            asked.program,
            asked.arguments,
            tenant,
            asked.limits,
            EventBuffer(1 << 12),
            parent=asked.parent,
            on_cancel=self.end,
        )
        self.runs.append(run)
        if self.has_room:
            run.placed = True
            run.started()
        return run

    def report_use(self, run: Run) -> None:
        self.watched.append(run)

    def end(self, run: Run, error: ErrorInfo) -> None:
        if run.fail(error):
            run.on_over(run)

    def finish(self, run: Run, result: str) -> None:
        run.finish_from(RunFinished(run.id, RunUsage(), result))
        run.on_over(run)


class World:
    def __init__(self, launcher: Launcher, table: ServiceTable) -> None:
        self.launcher, self.table = launcher, table

    @property
    def child(self) -> Run:
        return self.launcher.runs[-1]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    launcher = Launcher()

    async def find(reference: str, tenant: str) -> Program:
        if reference != "p" or tenant != "ann":
            raise NotFound("no such program")
        return PROGRAM

    async with service_table(Launches(launcher, find)) as table, asyncio.timeout(20):
        yield World(launcher, table)


async def test_a_child_brings_messages_and_its_result() -> None:
    async with world() as w:
        with calling(w.table):
            child = await inferd.launch("p")
            assert w.child.parent == "run-1"
            result = asyncio.create_task(child.result())
            reading = asyncio.create_task(child.receive())
            await anyio.lowlevel.checkpoint()
            for number in range(3):
                w.child.sent(Sent(w.child.id, str(number)))
            w.launcher.finish(w.child, '{"a":[1]}')
            assert await result == {"a": [1]}
            assert [await reading, *[message async for message in child]] == [0, 1, 2]
            with pytest.raises(Unavailable, match="over"):
                await child.receive()
            with pytest.raises(InvalidRequest, match="over"):
                await child.send(1)
            assert await child.result() == {"a": [1]}


async def test_a_childs_error_reaches_who_waits_for_it() -> None:
    async with world() as w:
        with calling(w.table):
            child = await inferd.launch("p")
            w.launcher.end(w.child, LimitExceeded("too long", limit="wall_s", value=1).to_wire())
            with pytest.raises(LimitExceeded, match="too long") as error:
                await child.result()
            assert error.value.detail["child"] == w.child.id


async def test_children_that_are_over_hold_no_more_than_a_bound_of_their_tenants_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred results of 20 MB were held for as long as a script's session, whatever the tenant's quotas."""
    monkeypatch.setattr(launches, "MAX_FINISHED_BYTES", 3 << 10)
    async with world() as w:
        with calling(w.table) as one, calling(w.table, name="run-2") as other:
            children = []
            for parent in (one, other, one, other):
                children.append((await parent.call(StartChild("p", {}, {}))).child)
                w.launcher.finish(w.child, '"' + "x" * 1000 + '"')
            for parent, child in zip((one, other), children[:2], strict=True):
                with pytest.raises(NotFound, match="forgotten"):
                    await parent.call(AwaitChild(child))
            for parent, child in zip((one, other), children[2:], strict=True):
                assert (await parent.call(AwaitChild(child))).result == "x" * 1000


async def test_the_newest_child_that_is_over_is_kept_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "MAX_FINISHED_BYTES", 10)
    async with world() as w:
        with calling(w.table):
            child = await inferd.launch("p")
            w.launcher.finish(w.child, "7")
            assert await child.result() == 7


async def test_messages_that_were_not_kept_are_an_error_and_not_silence() -> None:
    async with world() as w:
        with calling(w.table):
            child = await inferd.launch("p")
            for _ in range(100):
                w.child.sent(Sent(w.child.id, '"' + "x" * 100 + '"'))
            w.child.expire_followers(time.monotonic() + FIRST_SECONDS + 1)
            with pytest.raises(LimitExceeded, match="not received in time"):
                await child.receive()


async def test_messages_are_kept_for_a_parent_that_takes_its_time_between_them() -> None:
    """A parent that looked at each message for some milliseconds lost those beyond a megabyte."""
    async with world() as w:
        with calling(w.table):
            child = await inferd.launch("p")
            w.child.sent(Sent(w.child.id, '"first"'))
            assert await child.receive() == "first"
            for number in range(100):
                w.child.sent(Sent(w.child.id, f'"{number:0100d}"'))
            assert w.child.outruns_followers, "it is to wait"
            assert [int(await child.receive()) for _ in range(100)] == list(range(100))
            assert not w.child.outruns_followers


async def test_messages_behind_all_that_there_can_be_are_none_and_no_bug() -> None:
    async with world() as w:
        with calling(w.table) as run:
            child = await inferd.launch("p")
            reading = asyncio.create_task(run.call(ReceiveFromChild(child.id, after=(1 << 64) - 1)))
            await anyio.lowlevel.checkpoint()
            w.launcher.finish(w.child, "1")
            assert (await reading).over


async def test_a_result_that_is_too_long_for_a_reply_is_refused() -> None:
    async with world() as w:
        with calling(w.table):
            child = await inferd.launch("p")
            w.launcher.finish(w.child, '"' + "x" * (launches.MAX_RESULT_BYTES + 1) + '"')
            with pytest.raises(LimitExceeded, match="result"):
                await child.result()


async def test_only_who_launched_a_child_reaches_it() -> None:
    async with world() as w:
        with calling(w.table):
            child = await inferd.launch("p")
            for tenant, name in (("ann", "run-2"), ("bob", "run-1")):
                with calling(w.table, tenant, name) as other, pytest.raises(NotFound):
                    await other.call(AwaitChild(child.id))
            with calling(w.table, "bob"), pytest.raises(NotFound):
                await inferd.launch("p")
            assert not w.child.ending


async def test_children_end_with_their_parent() -> None:
    async with world() as w:
        with calling(w.table):
            for _ in range(3):
                await inferd.launch("p")
        assert [run.state for run in w.launcher.runs] == ["cancelled"] * 3


async def test_a_launch_that_nobody_waits_for_any_more_leaves_no_child() -> None:
    async with world() as w:
        w.launcher.has_room = False
        with calling(w.table):
            launching = asyncio.create_task(inferd.launch("p"))
            while not w.launcher.runs:
                await anyio.lowlevel.checkpoint()
            launching.cancel()
            await asyncio.gather(launching, return_exceptions=True)
            while w.child.ending is None:
                await anyio.lowlevel.checkpoint()
            assert w.child.state == "cancelled"


async def test_where_parents_take_all_room_a_launch_is_refused_instead_of_waiting_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launches, "ROOM_SECONDS", 0.05)
    async with world() as w:
        w.launcher.has_room = False
        with calling(w.table):
            with pytest.raises(LimitExceeded, match="no sandbox worker had room"):
                await inferd.launch("p")
            assert w.child.state == "failed"
            w.launcher.has_room = True
            await inferd.launch("p")


def a_run(limits: Limits) -> Run:
    run = Run(PROGRAM, "{}", "ann", limits, EventBuffer(1 << 12))
    run.started()
    return run


def used(run: Run, **use: Any) -> None:
    run.on_used(Used(run.id, **use))


async def test_what_a_tree_uses_together_ends_its_root_and_with_it_all() -> None:
    async with world() as w:
        root = a_run(Limits(cpu_s=10.0, memory_mb=1024))
        root.on_cancel = w.launcher.end
        transport = ServiceTransport(w.table, Caller("ann", root.id, run=root, limits=root.limits))
        token = use_transport(transport)
        await inferd.launch("p")
        await inferd.launch("p", limits={"cpu_s": 2})
        assert w.launcher.watched == [root]
        first, second = w.launcher.runs
        assert (first.limits.cpu_s, second.limits.cpu_s) == (10.0, 2.0)
        used(first, cpu_s=6.0)
        used(root, cpu_s=3.0)
        assert root.ending is None
        used(second, cpu_s=1.5)
        assert root.error is not None
        assert root.error.detail["limit"] == "cpu_s"
        transport.desk.close()
        assert [run.state for run in (first, second)] == ["cancelled"] * 2
        restore_transport(token)


async def test_a_parent_that_is_started_again_does_not_find_its_old_children() -> None:
    async with world() as w:
        root = a_run(Limits(memory_mb=1024))
        for attempt in range(2):
            transport = ServiceTransport(w.table, Caller("ann", root.id, run=root, limits=root.limits))
            token = use_transport(transport)
            children = [await inferd.launch("p") for _ in range(2)]
            assert len(w.launcher.runs) == 2 * (attempt + 1)
            transport.desk.close()  # its attempt is over
            restore_transport(token)
            assert all(run.state == "cancelled" for run in w.launcher.runs)
            assert {child.id for child in children} <= {run.id for run in w.launcher.runs}


async def test_wrong_limits_and_arguments_are_refused_before_anything_starts() -> None:
    async with world() as w:
        with calling(w.table):
            for asked in ({"limits": {"cpu_s": -1}}, {"limits": {"x": 1}}, {"arguments": {"unknown": 1}}):
                with pytest.raises(InvalidRequest):
                    await inferd.launch("p", **asked)  # type: ignore[arg-type]
            with pytest.raises(LimitExceeded):
                await inferd.launch("p", limits={"wall_s": 1e9})
        assert not w.launcher.runs
