"""``launch.*``: programs and scripts start programs of their tenant, hear from them, and end them.

A child is a run like any other, but that it ends with the one that started it (also where that is started again), and that
what it uses counts to the limits of the first run of its line. It is not started again after a crash: its parent hears of it.

A child that finds no room within ``ROOM_SECONDS`` is not started: those that wait for it may be what fills the room.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import anyio

from inferd.protocol import Done, LimitExceeded, NotFound, shown
from inferd.protocol.launches import (
    AwaitChild,
    CancelChild,
    ChildMessages,
    ChildResult,
    ChildStarted,
    ReceiveFromChild,
    SendToChild,
    StartChild,
)
from inferd_runtime.sandbox.messages import Limits, Used
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.programs.launch_checks import check_arguments, check_limits
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.launches.trees import LEAST_MEMORY_MB, TreeNode
from inferd_runtime.server.services.table import Handed, Handler
from inferd_runtime.server.services.wires import JsonText
from inferd_runtime.server.supervisor.held_runs import RunRequest
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.tenancy.tenant_use import TenantUse
from inferd_runtime.settings.settings import Settings

ROOM_SECONDS = 5.0
MAX_RESULT_BYTES = 1 << 20
"""Of a child's result, for its parent: what is longer can be sent in messages, or read by a client."""
MAX_FINISHED = 256
"""Children of one parent that are over and whose end it can still ask for: then the oldest ones are forgotten."""
MAX_FINISHED_BYTES = 32 << 20
"""Of events and results of all such children of a tenant, except the newest one's."""
IDLE_SECONDS = 60.0
FindProgram = Callable[[str, str], Awaitable[Program]]
"""Returns a tenant's program by its reference. Raises NotFound."""
Audit = Callable[[dict[str, Any]], None]
Admit = Callable[[Caller], Awaitable[None]]
"""Counts a launch where the runtime itself does not. Raises LimitExceeded, Unavailable."""


async def admitted(caller: Caller) -> None:
    """Count nothing: the runtime does."""


class RunLauncher(Protocol):
    """What starts runs: the runtime."""

    settings: Settings
    use: TenantUse

    def launch_request(self, asked: RunRequest, tenant: str) -> Run:
        """Start a run, or queue it."""

    def report_use(self, run: Run) -> None:
        """Have a run's worker say what it uses."""


@dataclass(eq=False)
class _Parent:
    caller: Caller
    node: TreeNode
    children: dict[str, Run] = field(default_factory=dict)
    nodes: dict[str, TreeNode] = field(default_factory=dict)


class _Ended:
    """A tenant's children that are over, oldest first, each with its parent and the bytes that it holds."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[_Parent, int]] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, parent: _Parent, run: Run) -> None:
        """Add one; its parent, or another one, forgets the oldest beyond what may be held."""
        self._held[run.id] = parent, run.buffer.size
        self._bytes += run.buffer.size
        while len(parent.children) - len(parent.nodes) > MAX_FINISHED:
            self.forget(next(name for name in parent.children if name in self._held))
        while self._bytes > MAX_FINISHED_BYTES and len(self._held) > 1:
            self.forget(next(iter(self._held)))

    def forget(self, name: str) -> None:
        """Have a child's parent forget it. Nothing happens for one that goes on."""
        if name in self._held:
            parent, size = self._held.pop(name)
            del parent.children[name]
            self._bytes -= size


class Launches:
    """All callers' children."""

    def __init__(
        self, launcher: RunLauncher, find: FindProgram, audit: Audit = lambda entry: None, admit: Admit = admitted
    ) -> None:
        self._launcher = launcher
        self._find_program = find
        self._audit = audit
        self._admit = admit
        self._parents: dict[Caller, _Parent] = {}
        self._nodes: dict[str, TreeNode] = {}
        """Of the children that go on, by run."""
        self._ended: defaultdict[str, _Ended] = defaultdict(_Ended)
        self._runs: dict[str, Run] = {}
        """The runs of all trees that go on, except roots that are scripts."""

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers."""
        return {
            "launch.start": self._start,
            "launch.result": self._result,
            "launch.send": self._send,
            "launch.receive": self._receive,
            "launch.cancel": self._cancel,
        }

    def closed(self, caller: Caller) -> None:
        """End a caller's children."""
        parent = self._parents.pop(caller, None)
        if parent is None:
            return
        if caller.id not in self._nodes:
            self._runs.pop(caller.id, None)
        ended = self._ended[caller.tenant]
        for run in list(parent.children.values()):
            ended.forget(run.id)
            run.cancel(f"what launched it, {caller.id}, is over")
        if not ended:
            del self._ended[caller.tenant]

    async def _start(self, caller: Caller, request: StartChild) -> Handed:
        program = await self._find_program(request.program, caller.tenant)
        parent = self._parent(caller)
        limits = self._limits(parent.node, caller.tenant, program, request.limits)
        arguments = check_arguments(program, request.arguments)
        request.arguments.clear()  # as JSON they are many times smaller, and it may wait
        await self._admit(caller)
        asked = RunRequest(
            program, arguments, limits, parent=caller.id, mcp="" if caller.run is None else caller.run.mcp
        )
        run = self._launcher.launch_request(asked, caller.tenant)
        self._note(parent, run, time.monotonic())
        self._write_audit(caller, run)
        try:
            await self._placed(run)
        except BaseException:
            run.cancel("its parent does not wait for it any more")
            raise
        return Handed(ChildStarted(run.id), partial(self._unheard_of, run.id))

    def _unheard_of(self, name: str) -> None:
        """End a child whose parent never received its id. By name: a reference would keep the run until that is known."""
        run = self._runs.get(name)
        if run is not None:
            run.cancel("its parent never heard of it")

    def _limits(self, node: TreeNode, tenant: str, program: Program, changes: dict[str, Any]) -> Limits:
        """Return a child's limits. Raises what :func:`check_limits` raises, and LimitExceeded if there can be no child."""
        wanted = check_limits(program, changes, self._launcher.settings)
        self._launcher.use.check_limits(tenant, wanted.cpu_s, wanted.memory_mb)
        return node.room_for(wanted, time.monotonic())

    def _note(self, parent: _Parent, run: Run, now: float) -> None:
        node = parent.node.add(run.id, run.limits, now)
        parent.children[run.id], parent.nodes[run.id] = run, node
        self._nodes[run.id], self._runs[run.id] = node, run
        run.on_used = partial(self._used, node)
        run.on_over = partial(self._over, parent, node)

    async def _placed(self, run: Run) -> None:
        """Wait until a run has been given to a worker. Raises LimitExceeded if there is no room for it in time."""
        with anyio.move_on_after(ROOM_SECONDS):
            while not run.placed and run.ending is None:
                await run.next_batch(run.buffer.next_index, ROOM_SECONDS)
        if run.placed or run.ending is not None:
            return
        text = (
            f"no sandbox worker had room for a child within {ROOM_SECONDS:g} s: those that wait for it may take it all"
        )
        error = LimitExceeded(text, limit="runs", raise_with="fewer runs at a time, or more workers")
        run.on_cancel(run, error.to_wire())
        raise error

    async def _result(self, caller: Caller, request: AwaitChild) -> ChildResult:
        ending = await self._child(caller, request.child).wait()
        if ending.error is not None:
            error = ending.error.to_exception()
            error.detail.setdefault("child", request.child)
            raise error
        if ending.size > MAX_RESULT_BYTES:
            text = f"the child's result takes {ending.size} bytes; {MAX_RESULT_BYTES} are allowed"
            raise LimitExceeded(
                text, limit="child_result_bytes", value=MAX_RESULT_BYTES, raise_with="messages of the child"
            )
        return ChildResult(JsonText(*(ending.parts or ("null",))))

    async def _send(self, caller: Caller, request: SendToChild) -> Done:
        self._child(caller, request.child).deliver(request.message)
        return Done()

    async def _receive(self, caller: Caller, request: ReceiveFromChild) -> ChildMessages:
        run = self._child(caller, request.child)
        index = min(max(request.after, 0), run.buffer.next_index)
        while not run.complete or index < run.shown_end:
            events = await run.next_batch(index, IDLE_SECONDS)
            if any(event.kind == "dropped" for event in events):
                most = run.buffer.capacity
                text = f"messages of {run.id} were not received in time: {most} bytes of its events are kept"
                raise LimitExceeded(
                    text, limit="run_event_bytes", value=most, raise_with="the server's --run-event-bytes"
                )
            index = events[-1].index + 1 if events else index
            run.returns_at(index)
            found = [JsonText(event.payload) for event in events if event.kind == "message"]
            if found:
                return ChildMessages(found, index)
        return ChildMessages([], index, over=True)

    async def _cancel(self, caller: Caller, request: CancelChild) -> Done:
        self._child(caller, request.child).cancel("its parent cancelled it")
        return Done()

    def _child(self, caller: Caller, name: str) -> Run:
        parent = self._parents.get(caller)
        run = None if parent is None else parent.children.get(name)
        if run is None:
            raise NotFound(f"no child {shown(name)}: it never was one of this caller's, or has been forgotten")
        return run

    def _parent(self, caller: Caller) -> _Parent:
        if caller not in self._parents:
            self._parents[caller] = _Parent(caller, self._node_of(caller))
        return self._parents[caller]

    def _node_of(self, caller: Caller) -> TreeNode:
        """Return where a caller stands: a child in its tree, everybody else as the root of one of its own."""
        if caller.run is None:
            return TreeNode(caller.id, None, math.inf)
        if caller.run.id in self._nodes:
            return self._nodes[caller.run.id]
        began = max(caller.run.started_mono or 0.0, caller.run.queued)
        used = Used(caller.id, memory_mb=LEAST_MEMORY_MB)
        node = TreeNode(caller.id, caller.limits, began + caller.limits.wall_s, used=used)
        caller.run.on_used = partial(self._used, node)
        self._runs[caller.id] = caller.run
        self._launcher.report_use(caller.run)
        return node

    def _used(self, node: TreeNode, used: Used) -> None:
        """Take what a run says that it uses, and end its tree where that is too much."""
        node.used = used
        budget = node.budget
        error, first = budget.exceeded(), self._runs.get(budget.run)
        if error is not None and first is not None:
            first.on_cancel(first, error.to_wire())

    def _over(self, parent: _Parent, node: TreeNode, run: Run) -> None:
        parent.nodes.pop(run.id, None)
        self._nodes.pop(run.id, None)
        self._runs.pop(run.id, None)
        parent.node.remove(node)
        run.on_used, run.on_over = (lambda used: None), (lambda run: None)  # which lead back to it, by its parent
        if self._parents.get(parent.caller) is parent:
            self._ended[run.tenant].add(parent, run)

    def _write_audit(self, caller: Caller, run: Run) -> None:
        program = f"{run.program.name}@{run.program.version}"
        entry = {"method": "LAUNCH", "path": program, "subject": run.id, "parent": caller.id}
        self._audit({"time": time.time(), "tenant": caller.tenant, "role": caller.role, **entry})
