"""The supervisor: one engine, its sandbox workers, and the runs that they hold.

    async with open_runtime(settings) as runtime:
        run = runtime.launch(program, "{}")
        ending = await run.wait()

A dead engine or worker is started again. Every run that it held ends with Unavailable, which names it; the rest go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import zmq

from inferd.protocol import Cancelled, ErrorInfo, LimitExceeded, Models, Unavailable
from inferd_runtime.log_lines import current_request, run_fields
from inferd_runtime.sandbox.messages import (
    Asked,
    Cancel,
    Deliver,
    EventsTaken,
    LaunchRun,
    Limits,
    Output,
    Received,
    ReportUse,
    ResultPart,
    RunFinished,
    Sent,
    Started,
    Used,
    Waiting,
    Withdrawn,
)
from inferd_runtime.sandbox.worker_start import WorkerLinks
from inferd_runtime.server.processes.background import background_tasks
from inferd_runtime.server.processes.rundir import make_sockets_folder, run_directory
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.run_store.archive import RunArchive
from inferd_runtime.server.run_store.records import KeptKey, UnfinishedRun, new_run_id
from inferd_runtime.server.services.call_log import CallLog
from inferd_runtime.server.services.mcp_offers import Offers
from inferd_runtime.server.services.outside import OutsideServices, OutsideWiring, join_outside
from inferd_runtime.server.services.run_files import FileService, RunFileStore
from inferd_runtime.server.services.table import ServiceTable
from inferd_runtime.server.services.topics.families import join_messages
from inferd_runtime.server.supervisor.begun_runs import launched_run, resumed_run
from inferd_runtime.server.supervisor.charging import charge_produced_tokens
from inferd_runtime.server.supervisor.commands import Commands, default_commands
from inferd_runtime.server.supervisor.engine_supervisor import EngineSupervisor
from inferd_runtime.server.supervisor.held_runs import HeldRun, RunRequest, check_undelivered, session_of, too_long
from inferd_runtime.server.supervisor.left_sessions import LeftSessions
from inferd_runtime.server.supervisor.loop_socket import control_socket, zmq_context
from inferd_runtime.server.supervisor.run_desks import RunDesks
from inferd_runtime.server.supervisor.run_events import Ending
from inferd_runtime.server.supervisor.run_keeper import SERVER_ENDED, RunKeeper
from inferd_runtime.server.supervisor.run_observer import RunObserver
from inferd_runtime.server.supervisor.run_totals import RunTotals, TenantTotals
from inferd_runtime.server.supervisor.runs import Run, RunStore
from inferd_runtime.server.supervisor.transcript import ReplayDiffers
from inferd_runtime.server.supervisor.wiring import Wiring
from inferd_runtime.server.supervisor.worker_fleet import FleetLaunch, RunReport, WorkerFleet
from inferd_runtime.server.supervisor.worker_pool import PoolSettings, WorkerPool
from inferd_runtime.server.tenancy.quotas import ADMIN_QUOTAS, same_for_all
from inferd_runtime.server.tenancy.tenant_use import TenantUse
from inferd_runtime.settings.settings import Settings

GRACE_SECONDS = 5.0
"""How long a worker may take to end a run, or the next of several, before the worker itself is killed."""
QUEUE_SECONDS = 60.0
TICK_SECONDS = 0.25
MAX_ATTEMPTS = 3
"""How often a retry-safe run is started."""
ENGINE_BACK_SECONDS = 120.0
"""How long a retry-safe run waits for an engine that answers."""
STOP_SECONDS = 3.0
log = logging.getLogger("inferd.runtime")


class Runtime:
    """A live runtime; made by :func:`open_runtime`. Belongs to the event loop that made it."""

    def __init__(
        self, settings: Settings, commands: Commands, wiring: Wiring, spare: int, use: TenantUse | None = None
    ) -> None:
        self.settings = settings
        self.use = use or TenantUse(same_for_all(ADMIN_QUOTAS))
        self.runs = RunStore(self.use.quotas)
        self.keeper = RunKeeper(self.runs, self.use.quotas, wiring.archive)
        self.totals = RunTotals()
        self.tenant_totals = TenantTotals()
        self.traces: RunObserver | None = None
        """Called when a run begins or ends."""
        self.new_run_id: Callable[[], str] = new_run_id
        self.services = ServiceTable(wiring.tasks)
        self.files = RunFileStore(settings.data_dir, self._is_over, keeps=wiring.archive is not None)
        self.keeper.on_forgotten = self.files.forget
        self.call_log = CallLog()
        """Tells of what programs ask of the world outside."""
        self.outside: OutsideServices | None = None
        self.desks = RunDesks(self.services, lambda worker, answer: self.fleet.send(worker, answer))
        self._wiring = wiring
        self._held: dict[str, HeldRun] = {}
        self._undelivered: dict[str, list[str]] = {}
        self._closing = False
        control, engine = wiring.endpoint("control"), wiring.endpoint("engine")
        self.engine = EngineSupervisor(
            wiring.context, engine, commands.engine, self._engine_lost, settings.engine_start_s
        )
        self._left_sessions = LeftSessions(self.engine, wiring.tasks)
        launch = FleetLaunch(
            lambda name, secret: commands.worker(WorkerLinks(control, engine, name, secret)),
            wiring.tasks,
            settings.worker_start_s,
        )
        pool = PoolSettings(
            settings.workers, settings.max_workers, spare, settings.runs_per_worker, settings.max_waiting
        )
        self.fleet = WorkerFleet(
            control_socket(wiring.context, control), WorkerPool(pool, self.use.quotas), self, launch
        )

    @property
    def context(self) -> zmq.Context[Any]:
        """The ZeroMQ context, for sessions of scripts."""
        return self._wiring.context

    @property
    def closing(self) -> bool:
        """True once it is shutting down."""
        return self._closing

    @property
    def models(self) -> Models:
        """What the engine serves. Raises Unavailable while no engine answers."""
        return self.engine.current.models

    def launch(self, program: Program, arguments: str, tenant: str = "default", limits: Limits | None = None) -> Run:
        """Start a run; ``arguments`` is a JSON object's text. See :meth:`launch_request`."""
        return self.launch_request(RunRequest(program, arguments, limits or self.settings.limits), tenant)

    def launch_request(self, asked: RunRequest, tenant: str) -> Run:
        """Start a run. It is queued while no worker is free.

        Raises Unavailable when no engine answers or the runtime is closing, and LimitExceeded when too many runs wait, the tenant
        launches too often, or its runs hold too much.
        """
        if self._closing:
            raise Unavailable("the runtime is shutting down")
        _ = self.engine.current
        self.runs.check_room(tenant, len(asked.arguments))
        self.runs.check_program(tenant, asked.program)
        self.use.admit_launch(tenant)
        run = launched_run(asked, tenant, self.new_run_id(), self.settings.run_event_bytes)
        run.on_cancel, run.on_message, run.on_read = self._end, self._deliver, self._confirm
        self.fleet.pool.submit(run.id, tenant)
        self.runs.add(run)
        self.keeper.begun(run, KeptKey(asked.key, asked.fingerprint, run.id, run.created_at) if asked.key else None)
        self.fleet.apply()
        run.request = current_request()
        if self.traces is not None:
            self.traces.launched(run)
        log.info(
            "launched %s@%s", asked.program.name, asked.program.version, extra=run_fields(run.id, tenant, run.request)
        )
        return run

    def start(self) -> None:
        """Start the engine and the workers, and keep them alive."""
        tasks = self._wiring.tasks
        tasks.start_soon(self.engine.supervise)
        tasks.start_soon(self.fleet.run)
        tasks.start_soon(self._watch_clock)
        tasks.start_soon(charge_produced_tokens, self.engine, self.use)
        tasks.start_soon(self._recover)
        self.fleet.apply()

    async def _recover(self) -> None:
        """Take over what the last server has left. Files come first: a run that is resumed asks for its own."""
        await self.files.load(self.keeper.known)
        await self.keeper.recover(self.resume)

    def _is_over(self, run_id: str) -> bool:
        run = self.runs.find(run_id)
        return run is None or run.ending is not None

    async def wait_ready(self) -> None:
        """Wait until launches work. Raises the error that the engine ended with, or Unavailable with what engine or worker
        printed, if one does not start.
        """
        await self.fleet.wait_ready()
        await self.engine.wait_up()

    async def drain(self, seconds: float) -> None:
        """Refuse new runs and requests of LLM clients from now on, and wait until those that there are are over, at most
        ``seconds``.
        """
        self._closing = True
        log.info(
            "draining: %d runs and %d answers have %g s to end", len(self.runs.active), self.use.answering, seconds
        )
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.use.answers_over)
                for run in self.runs.active:
                    await run.wait()

    async def shutdown(self) -> None:
        """Refuse new runs, leave those that survive to the next server, end the others with Cancelled, and wait up to
        STOP_SECONDS for them.
        """
        self._closing = True
        error = Cancelled("the runtime is shutting down").to_wire()
        with anyio.move_on_after(STOP_SECONDS):
            for run in self.runs.active:
                if run.survives:
                    self._leave(run, error)
                else:
                    self._end(run, error)
            for run in self.runs.active:
                await run.wait()
        for run in self.runs.active:
            self._over(run, run.fail(error))

    def _leave(self, run: Run, error: ErrorInfo) -> None:
        """Leave a run to the next server. What its worker still says of it is not heard."""
        self._end_attempt(run, error)
        self._undelivered.pop(run.id, None)
        self.keeper.left(run)

    def _end_attempt(self, run: Run, error: ErrorInfo) -> None:
        held = self._held.get(run.id)
        if held is not None:
            self.fleet.send(held.worker, Cancel(run.id, error))
        self._leave_worker(run)

    def resume(self, unfinished: UnfinishedRun) -> None:
        """Start a run again that another server left, or end it if it was started too often."""
        run = resumed_run(unfinished, self.settings.run_event_bytes)
        run.on_cancel, run.on_message, run.on_read = self._end, self._deliver, self._confirm
        self.runs.add(run)
        self.keeper.watch(run)
        error = SERVER_ENDED.to_wire()
        if not self._retried(run, error):
            self._over(run, run.fail(error))

    # Reports of the workers and the engine -------------------------------------------------------------------------

    def run_placed(self, run_id: str, worker: str) -> None:
        """Launch a run on the worker that has room for it."""
        run = self.runs.find(run_id)
        assert run is not None
        self._held[run_id] = HeldRun(run, worker, time.monotonic() + run.limits.wall_s + GRACE_SECONDS)
        grant = self.engine.grants.issue(session_of(run), run.tenant)
        is_child, run.placed = run.parent is not None, True
        launch = LaunchRun(run.id, grant, run.program.bundle, run.arguments, run.limits, run.seed, is_child)
        self.fleet.launch(worker, launch, run.program)
        for message in self._undelivered.pop(run_id, []):
            self.fleet.send(worker, Deliver(run_id, message))
        run.waiting_bytes = 0
        if not run.retry_safe:
            run.arguments = ""  # the worker has them
        self._divide_processors()

    def worker_reported(self, worker: str, message: RunReport, size: int) -> None:
        """Apply a worker's report about one of its own runs, which came in ``size`` bytes; one about any other run is ignored."""
        held = self._held.get(message.run)
        if held is None or held.worker != worker:
            return
        match message:
            case Started():
                held.run.started()
            case Output() | Sent() | Waiting() if held.count(size):
                self._event_reported(held, message)
            case Asked() | Withdrawn() | Received():
                self.desks.take(held.run, worker, message)
            case Used():
                held.run.on_used(message)
            case ResultPart() if held.add_part(message.text, size):
                pass
            case Output() | Sent() | Waiting() | ResultPart():
                self._kill_for_excess(held)
            case RunFinished():
                self._finished(held, message)

    def _event_reported(self, held: HeldRun, message: Output | Sent | Waiting) -> None:
        try:
            held.run.said_by(message)
        except ReplayDiffers as error:
            self._end(held.run, error.to_wire())
        self._confirm(held.run)

    def _confirm(self, run: Run) -> None:
        """Tell the worker how many of a run's events were taken, if the program is to go on."""
        held = self._held.get(run.id)
        if held is not None and (taken := held.receipt()):
            self.fleet.send(held.worker, EventsTaken(run.id, taken))

    def _kill_for_excess(self, held: HeldRun) -> None:
        log.error("worker %s reports more of %s than its limits allow: killing it", held.worker, held.run.id)
        self.fleet.kill(held.worker)

    def _finished(self, held: HeldRun, message: RunFinished) -> None:
        """End a run as its worker reports, or start it again."""
        for other in self._held.values():
            if other.worker == held.worker:
                other.postpone(time.monotonic() + GRACE_SECONDS)
        self.desks.close(held.run)  # first: what it left open is told of in its events
        if message.error is not None and self._retried(held.run, message.error):
            return
        try:
            ended = held.run.finish_from(message, held.parts)
        except ReplayDiffers as error:
            failed = message.error if held.verdict is not None else error.to_wire()
            ended = held.run.finish(Ending(message.usage, error=failed))
        self._over(held.run, ended)

    def _retried(self, run: Run, error: ErrorInfo) -> bool:
        """Start a retry-safe run again that what it ran on has left. False if it is to end."""
        if not run.retry_safe or error.code != Unavailable.code or run.attempts >= MAX_ATTEMPTS or run.ending:
            return False
        log.warning("starting %s again: %s", run.id, error.message)
        self._leave_worker(run)
        run.again()
        self.keeper.attempted(run, run.attempts)
        self._undelivered[run.id] = list(run.inputs)
        self._wiring.tasks.start_soon(self._queue_again, run, error)
        return True

    async def _queue_again(self, run: Run, error: ErrorInfo) -> None:
        """Queue a run once an engine answers and there is room; end it with ``error`` if none does, or if that takes too long."""
        await self.engine.wait_answers(max(ENGINE_BACK_SECONDS, self.settings.engine_start_s))
        run.queued = time.monotonic()
        while run.ending is None and not run.left:
            try:
                _ = self.engine.current
                self.fleet.pool.submit(run.id, run.tenant)
                break
            except LimitExceeded as refused:  # many runs of a tenant begin anew at once
                if time.monotonic() - run.queued > QUEUE_SECONDS:
                    self._over(run, run.fail(refused.to_wire()))
            except Unavailable:
                self._over(run, run.fail(error))
            await anyio.sleep(TICK_SECONDS)
        self.fleet.apply()

    def worker_lost(self, worker: str, runs: Sequence[str], error: Unavailable) -> None:
        """End the runs of a worker that has ended."""
        for run_id in runs:
            run, held = self.runs.find(run_id), self._held.get(run_id)
            if run is None:
                continue
            self.desks.close(run)
            verdict = (held.verdict if held is not None else None) or error.to_wire()
            if held is None or not self._retried(run, verdict):
                self._over(run, run.fail(verdict))

    def _engine_lost(self, error: Unavailable) -> None:
        for held in list(self._held.values()):
            self._end(held.run, error.to_wire())

    # Requests about runs --------------------------------------------------------------------------------------------

    def _end(self, run: Run, error: ErrorInfo) -> None:
        """End a run with ``error``: at once while it waits, else through its worker. The first reason counts."""
        held = self._held.get(run.id)
        if held is None:
            self._over(run, run.fail(error))
        elif held.verdict is None:
            held.tell(error, time.monotonic() + GRACE_SECONDS)
            self.fleet.send(held.worker, Cancel(run.id, error))

    def _deliver(self, run: Run, message: str) -> None:
        held = self._held.get(run.id)
        if held is None:
            queue = self._undelivered.setdefault(run.id, [])
            check_undelivered(run, queue, message)
            self.runs.check_room(run.tenant, len(message))
            queue.append(message)
            run.waiting_bytes += len(message)
        else:
            self.fleet.send(held.worker, Deliver(run.id, message))
        self.keeper.received(run, message)

    def _over(self, run: Run, ended: bool) -> None:
        """Forget a run that has ended, wherever it was, and close its session at the engine if its worker has not."""
        if not ended or run.ending is None:
            return
        log.info(
            "%s after %.0f ms", run.state, run.ending.usage.wall_ms, extra=run_fields(run.id, run.tenant, run.request)
        )
        self.totals.add(run.ending)
        self.tenant_totals.add(run.tenant, run.ending)
        if self.traces is not None:
            self.traces.ended(run)
        self._leave_worker(run)
        run.on_over(run)
        self._undelivered.pop(run.id, None)
        self.runs.retire(run)
        self.keeper.ended(run)
        self.tenant_left(run.tenant)
        self.fleet.apply()

    def report_use(self, run: Run) -> None:
        """Have a run's worker say what it uses."""
        if run.id in self._held:
            self.fleet.send(self._held[run.id].worker, ReportUse(run.id))

    def tenant_left(self, tenant: str) -> None:
        """Tell the services where a tenant has neither a run nor a script's session any more."""
        if not self.runs.has_active(tenant) and not self.use.sockets.held(tenant):
            self.services.idle(tenant)

    def _leave_worker(self, run: Run) -> None:
        """Forget that a worker has a run, and have its session at the engine closed if the worker has not."""
        held = self._held.pop(run.id, None)
        if held is not None:
            self.fleet.left(held.worker, run.program)
            self.desks.close(run)
            self._left_sessions.add(session_of(run))
        self.fleet.pool.finished(run.id)

    async def _watch_clock(self) -> None:
        """End runs that outlast the workers' own limits, and kill the worker that does not end one."""
        while True:
            await anyio.sleep(TICK_SECONDS)
            self.tick(time.monotonic())
            self.keeper.progressed()
            await self.files.sweep()

    def _divide_processors(self) -> None:
        """Have programs step behind while several tenants are there: what one computes is to slow no other's text."""
        self.fleet.step_behind(len(self.use.sockets.tenants | self.fleet.pool.tenants) > 1)

    def tick(self, now: float) -> None:
        """End overdue runs, and those that waited too long for a worker, at ``now`` (monotonic seconds)."""
        self._divide_processors()
        for held in list(self._held.values()):
            held.run.expire_followers(now)
            if held.kill_at <= now:
                log.error(
                    "worker %s did not end the run in time: killing it", held.worker,
                    extra=run_fields(held.run.id, held.run.tenant, held.run.request),
                )  # fmt: skip
                self.fleet.kill(held.worker)
            elif held.overdue_at <= now:
                self._end(held.run, too_long(held.run.limits))
        for run_id in self.fleet.pool.waiting:
            run = self.runs.find(run_id)
            if run is not None and now - run.queued > QUEUE_SECONDS:
                self._end(run, Unavailable(f"no sandbox worker had room within {QUEUE_SECONDS:g} s").to_wire())


@asynccontextmanager
async def open_runtime(
    settings: Settings,
    commands: Commands | None = None,
    *,
    spare: int = 1,
    wait: bool = True,
    use: TenantUse | None = None,
    archive: RunArchive | None = None,
    messages: Callable[[ServiceTable], None] = join_messages,
    offers: Offers | None = None,
) -> AsyncIterator[Runtime]:
    """Open a runtime that is ready; everything that it started has ended when the block ends.

    ``spare``: how many workers to keep warm for tenants that have none. ``use``: holds tenants to their quotas; by default all
    are admins. ``archive``: stores runs; by default they live in memory only. ``messages`` joins what answers for topics and
    queues; by default there are no durable ones. ``offers``: see :func:`join_outside`. With ``wait=False`` the body starts at
    once; call :meth:`Runtime.wait_ready` in it. Raises what that raises.
    """
    with run_directory() as directory, zmq_context() as context:
        make_sockets_folder(directory)
        async with background_tasks() as tasks:
            wiring = Wiring(context, directory, tasks, archive)
            runtime = Runtime(settings, commands or default_commands(settings), wiring, spare, use)
            messages(runtime.services)
            runtime.services.join(FileService(runtime.files, tasks.start_soon))
            outside = OutsideWiring(context, tasks, wiring.endpoint, directory)
            runtime.outside = join_outside(
                runtime.services, settings, outside, runtime.use.quotas, runtime.call_log, offers
            )
            try:
                runtime.start()
                if wait:
                    await runtime.wait_ready()
                yield runtime
            finally:
                with anyio.CancelScope(shield=True):
                    await runtime.shutdown()
                runtime.outside.close()
                runtime.files.close()
