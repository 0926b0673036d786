"""One run of a program as the runtime keeps it: its state, its replayable events, and how it ended.

Everything here is a synchronous state machine except :meth:`Run.follow` and :meth:`Run.wait`, which only wait.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import anyio

from inferd.protocol import Cancelled, ErrorInfo, InvalidRequest, LimitExceeded
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.json_cost import read_checked_json
from inferd_runtime.sandbox.messages import Limits, Output, RunFinished, RunUsage, Sent, Used, Waiting
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.run_store.records import ProgramName, RunRecord, Said, new_run_id
from inferd_runtime.server.supervisor.event_texts import json_text, one_line, unknown_run
from inferd_runtime.server.supervisor.run_events import EVENT_OVERHEAD, Ending, EventBuffer, RunEvent, RunState
from inferd_runtime.server.supervisor.run_followers import Follower, Followers
from inferd_runtime.server.supervisor.transcript import MESSAGE, RunReplay, Transcript
from inferd_runtime.server.tenancy.quotas import QuotasOf, quota_exceeded

BATCH_EVENTS = 128
BATCH_BYTES = 64 << 10
"""What a follower gets at a time: one that reads slowly holds no more than this of what the buffer has dropped since."""
NO_MORE = ""
"""Instead of a message's JSON: there are no more."""
MAX_INPUT_BYTES = 1 << 20
"""Bytes of messages to a retry-safe run that are kept to be sent again; a run with more is not started again."""
RETRY_SECONDS = 1.0
MAX_PROGRAM_BYTES = 256 << 20
"""Of all different programs whose runs are not over, of one tenant: a program that many runs share counts once."""
SLICE_BYTES = 256 << 10
"""Bytes, or characters, of a result that are handed out at a time."""
MAX_FOLLOWERS = 64
"""Streams of one run's events at a time."""


@dataclass
class Run:
    """A run that was launched. Change it only through its methods, in the event loop that launched it."""

    program: Program
    arguments: str
    tenant: str
    limits: Limits
    buffer: EventBuffer
    id: str = field(default_factory=new_run_id)
    created_at: float = field(default_factory=time.time)
    started_at: float | None = None
    finished_at: float | None = None
    ending: Ending | None = None
    request: str = ""
    """The id of the request that launched it."""
    parent: str | None = None
    """The run, or the script's session, that launched it as a child."""
    mcp: str = ""
    """The key under which clients offer servers of tools to it and to the runs that it launches."""
    placed: bool = False
    """True once a worker was told to start it."""
    on_used: Callable[[Used], None] = field(default=lambda used: None, repr=False)
    on_over: Callable[[Run], None] = field(default=lambda run: None, repr=False)
    on_cancel: Callable[[Run, ErrorInfo], None] = field(default=lambda run, error: None, repr=False)
    on_message: Callable[[Run, str], None] = field(default=lambda run, message: None, repr=False)
    created: float = field(default_factory=time.monotonic, repr=False)
    """When it was launched, by the monotonic clock: the times above are for people, and jump with the system's clock."""
    started_mono: float | None = field(default=None, repr=False)
    changed: ChangeSignal = field(default_factory=ChangeSignal, repr=False)
    retry_safe: bool = False
    """Whether it is started again when its worker or the engine ends: its arguments and messages are kept for that."""
    seed: int | None = None
    """Of all random numbers of the program, and of samplers without a seed of their own; None: they draw anew."""
    attempts: int = 1
    queued: float = field(default_factory=time.monotonic, repr=False)
    """When it began to wait for a worker, by the monotonic clock."""
    inputs: list[str] = field(default_factory=list, repr=False)
    input_bytes: int = field(default=0, repr=False)
    transcript: Transcript = field(default_factory=Transcript, repr=False)
    replay: RunReplay | None = field(default=None, repr=False)
    messages_ended: bool = False
    """True once the launcher has said that there are no more messages."""
    waiting_bytes: int = field(default=0, repr=False)
    """Bytes of messages that wait for the run to start."""
    stored_index: int = field(default=0, repr=False)
    """Index of the first event that the store has not got."""
    storing: bool = field(default=False, repr=False)
    """True while the store has its end in hand."""
    survives: bool = False
    """Whether the next server starts it again. Its events are shown once they are stored, so that no client sees one twice."""
    appending: bool = False
    """True while the store has a part of what it said in hand."""
    shown_index: int = field(default=0, repr=False)
    """Index of the first event that is not shown yet, of a run that survives."""
    on_said: Callable[[Run], None] = field(default=lambda run: None, repr=False)
    left: bool = False
    """True once this server has left it to the next one."""
    followers: Followers = field(default_factory=Followers, repr=False)
    on_read: Callable[[Run], None] = field(default=lambda run: None, repr=False)
    """Called when a follower has read, or is not waited for any more."""
    _followers: int = field(default=0, repr=False)

    @property
    def state(self) -> RunState:
        """Where the run is."""
        if self.ending is not None:
            return self.ending.state
        return RunState.QUEUED if self.started_at is None else RunState.RUNNING

    @property
    def result(self) -> Any:
        """The JSON value that ``main`` returned; None while it runs and when it failed."""
        text = None if self.ending is None else self.ending.result
        return None if text is None else read_checked_json(text)

    @property
    def error(self) -> ErrorInfo | None:
        """The error that the run ended with, None if it did not fail."""
        return None if self.ending is None else self.ending.error

    @property
    def usage(self) -> RunUsage:
        """What the run used: all zero until it is over."""
        return RunUsage() if self.ending is None else self.ending.usage

    @property
    def said(self) -> Said:
        """What it has said in all of its attempts."""
        return self.transcript.said if self.replay is None else self.replay.said

    @property
    def shown_end(self) -> int:
        """Index behind the last event that may be shown."""
        return self.shown_index if self.survives else self.buffer.next_index

    @property
    def complete(self) -> bool:
        """True if no more events will be shown."""
        return self.left or (self.ending is not None and self.shown_end == self.buffer.next_index)

    @property
    def held_bytes(self) -> int:
        """The bytes that are kept of the run in this process."""
        return len(self.arguments) + self.buffer.size + self.waiting_bytes + self.input_bytes

    @property
    def outruns_followers(self) -> bool:
        """True while somebody who follows it has much to read: the program is to wait."""
        first, most = self.followers.first, self.buffer.capacity // 2
        return first is not None and self.buffer.size > most and self.buffer.bytes_from(first) > most

    def record(self) -> RunRecord:
        """Return the run as it is shown."""
        return RunRecord(
            self.id, ProgramName.of(self.program), self.state, self.created_at, self.started_at, self.finished_at,
            self.limits, self.error, self.usage, self.shown_end, self.parent,
        )  # fmt: skip

    async def result_slices(self) -> AsyncGenerator[bytes]:
        """Yield the result's JSON in slices; nothing without a result."""
        for part in (self.ending.parts if self.ending is not None else None) or ():
            for start in range(0, len(part), SLICE_BYTES):
                yield part[start : start + SLICE_BYTES].encode()

    async def batches(self, start: int, idle_seconds: float) -> AsyncGenerator[list[RunEvent]]:
        """Yield events from index ``start`` on, past and to come, until the run's last one, or until it is left to the next
        server; an empty list after each silence of ``idle_seconds``.
        """
        with self.followed_from(start) as follower:
            while not self.complete or follower.index < self.shown_end:
                batch = await self.next_batch(follower.index, idle_seconds)
                yield batch
                if batch:
                    self.read_by(follower, batch[-1].index + 1)

    def started(self) -> None:
        """Note that the worker has made the instance."""
        if self.ending is None and self.started_at is None:
            self.started_at = time.time()
            self.started_mono = time.monotonic()
            self._record("started", None, 0)

    def again(self) -> None:
        """Begin anew after a crash. What it has said already is left out when it says it again."""
        self.attempts += 1
        self.queued = time.monotonic()
        self.replay = RunReplay(self.said)

    def _new(self, kind: str, text: str) -> str:
        """Return what of a text is new. Raises ReplayDiffers."""
        if self.replay is not None:
            return self.replay.take(kind, text)
        if self.retry_safe:
            self.transcript.begin(kind)
            self.transcript.add(text.encode())
        return text

    def said_by(self, message: Output | Sent | Waiting) -> None:
        """Note what the program's worker reports of it. Raises ReplayDiffers."""
        match message:
            case Output():
                self.wrote(message)
            case Sent():
                self.sent(message)
            case Waiting() if self.ending is None and (self.replay is None or self.replay.over):
                self._record("waiting", None, 0)

    def wrote(self, output: Output) -> None:
        """Note what the program wrote to one of its streams. Raises ReplayDiffers."""
        text = self._new(output.stream, output.text) if self.ending is None else ""
        if text:
            self._record(output.stream, text, len(text.encode()))

    def sent(self, sent: Sent) -> None:
        """Note a message that the program sent to its launcher. Raises ReplayDiffers."""
        text = self._new(MESSAGE, one_line(sent.json)) if self.ending is None else ""
        if text:
            self._record(MESSAGE, text, len(text.encode()))

    def called(self, entry: str) -> None:
        """Note what the program asked of the world outside, as a JSON object."""
        if self.ending is None:
            self._record("call", entry, len(entry))

    def awaits_file(self) -> None:
        """Note that the program waits for a file of its launcher's."""
        if self.ending is None and (self.replay is None or self.replay.over):
            self._record("waiting_file", None, 0)

    def filed(self, entry: str) -> None:
        """Note a file that the program has sent, as a JSON object."""
        if self.ending is None:
            self._record("file", entry, len(entry.encode()))

    def finish(self, ending: Ending) -> bool:
        """End the run; False (and nothing changes) if it has ended before."""
        if self.ending is not None:
            return False
        self.ending = ending
        self.finished_at = time.time()
        self.followers.expect_none()
        self._record("finished", ending, ending.size)
        return True

    def finish_from(self, message: RunFinished, parts: Iterable[str] = ()) -> bool:
        """End the run as its worker reports; ``parts`` of its result came before. Raises ReplayDiffers."""
        if self.replay is not None and self.ending is None:
            self.replay.finish()
        whole = None if message.result is None else (*parts, one_line(message.result))
        return self.finish(Ending(message.usage, whole, message.error))

    def fail(self, error: ErrorInfo) -> bool:
        """End the run from outside, with the wall time that it has taken and no other figure."""
        wall_ms = 0.0 if self.started_mono is None else (time.monotonic() - self.started_mono) * 1e3
        return self.finish(Ending(RunUsage(wall_ms=wall_ms), error=error))

    def cancel(self, reason: str = "the run was cancelled") -> None:
        """Ask for the run to end with Cancelled; nothing happens if it is over."""
        if self.ending is None:
            self.on_cancel(self, Cancelled(reason).to_wire())

    def deliver(self, message: Any) -> None:
        """Hand a JSON value to the program's ``session.receive``.

        Raises InvalidRequest once the run is over, and for a value that JSON or msgpack cannot carry.
        """
        self.check_takes_messages()
        self._hand_over(json_text(message))

    def end_messages(self) -> None:
        """Tell the program that there are no more messages. Raises InvalidRequest once the run is over."""
        self.check_takes_messages()
        self._hand_over(NO_MORE)
        self.messages_ended = True
        self.changed.wake()

    def check_takes_messages(self) -> None:
        """Raise InvalidRequest if nothing more can be sent to the program."""
        if self.ending is not None or self.messages_ended:
            why = "its messages were ended" if self.ending is None else "it is over"
            raise InvalidRequest(f"run {self.id} takes no more messages: {why}", run=self.id)

    def _hand_over(self, text: str) -> None:
        self.on_message(self, text)
        if self.retry_safe:
            self.inputs.append(text)
            self.input_bytes += len(text) + EVENT_OVERHEAD
            if self.input_bytes > MAX_INPUT_BYTES:
                self.retry_safe = False
                self.inputs.clear()
                self.input_bytes = 0

    async def next_batch(self, index: int, seconds: float = math.inf) -> list[RunEvent]:
        """Wait for events from ``index`` on. Empty when the time is up, and after the run's last event."""
        with anyio.move_on_after(seconds):
            while index >= self.shown_end and not self.complete:
                await self.changed.wait()
        return self._batch(index)

    def _batch(self, index: int) -> list[RunEvent]:
        batch: list[RunEvent] = []
        size = 0
        for event in islice(self.buffer.since(index), BATCH_EVENTS):
            size += event.size
            if event.index >= self.shown_end or (batch and size > BATCH_BYTES):
                break
            batch.append(event)
        return batch

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Count a stream of the run's events while the body runs. Raises LimitExceeded if there are too many."""
        if self._followers >= MAX_FOLLOWERS:
            text = f"{MAX_FOLLOWERS} streams of the events of {self.id} are open already"
            raise LimitExceeded(text, limit="followers", value=MAX_FOLLOWERS, raise_with="fewer streams of one run")
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1

    @contextmanager
    def followed_from(self, index: int) -> Iterator[Follower]:
        """Keep the events from ``index`` on for a follower while the body runs, and have the program wait for it."""
        try:
            with self.followers.joined(index) as follower:
                yield follower
        finally:
            self._followers_changed()

    def read_by(self, follower: Follower, index: int) -> None:
        """Note that a follower has read what is before ``index``."""
        follower.move(index)
        self._followers_changed()

    def returns_at(self, index: int) -> None:
        """Note that what launched the run has received what is before ``index``, and is to come back for the rest."""
        self.followers.returns_at(index)
        self._followers_changed()

    def expire_followers(self, now: float) -> None:
        """Wait no longer for followers that have read nothing for too long, at ``now`` (monotonic seconds)."""
        if self.followers.expire(self.shown_end, now):
            self._followers_changed()

    def _followers_changed(self) -> None:
        if self.ending is None:  # else the store keeps what is there
            self.buffer.trim(self.followers.first)
            self.on_read(self)

    async def follow(self, start: int = 0) -> AsyncIterator[RunEvent]:
        """Yield all events from index ``start``, past ones first, until the run is over."""
        with self.followed_from(start) as follower:
            while batch := await self.next_batch(follower.index):
                for event in batch:
                    yield event
                self.read_by(follower, batch[-1].index + 1)

    async def wait(self) -> Ending:
        """Wait until the run is over."""
        while self.ending is None:
            await self.changed.wait()
        return self.ending

    def _record(self, kind: str, payload: Any, size: int) -> None:
        self.buffer.append(kind, payload, size, unread=self.followers.first)
        self.on_said(self)
        self.changed.wake()

    def show(self, index: int) -> None:
        """Let followers see the events before ``index``."""
        self.shown_index = index
        self.changed.wake()

    def leave(self) -> None:
        """Leave it to the next server: streams of its events end."""
        self.left = True
        self.changed.wake()


class RunStore:
    """The runs in memory: all that go on, and the newest finished ones of each tenant, within its quotas, until they are
    stored. ``held_elsewhere``: bytes that active runs hold on other replicas of a cluster, by tenant.
    """

    def __init__(self, quotas: QuotasOf) -> None:
        self.held_elsewhere: Mapping[str, int] = {}
        self._quotas = quotas
        self._active: dict[str, Run] = {}
        self._active_of: defaultdict[str, dict[str, Run]] = defaultdict(dict)
        self._finished: dict[str, Run] = {}

    def __len__(self) -> int:
        return len(self._active) + len(self._finished)

    @property
    def active(self) -> list[Run]:
        """The runs that are not over, oldest first."""
        return list(self._active.values())

    @property
    def finished(self) -> list[Run]:
        """The runs that are over and still here, oldest first."""
        return list(self._finished.values())

    def check_room(self, tenant: str, size: int) -> None:
        """Raise LimitExceeded if a run of ``size`` bytes of arguments is more than is kept of the tenant's active runs."""
        most = self._quotas(tenant).kept_bytes
        here = sum(run.held_bytes for run in self._active_of.get(tenant, {}).values())
        held = here + self.held_elsewhere.get(tenant, 0)
        if most and held + size > most:
            message = f"the tenant's runs that are not over hold {held} bytes already"
            raise quota_exceeded("kept_bytes", most, message, RETRY_SECONDS)

    def check_program(self, tenant: str, program: Program) -> None:
        """Raise LimitExceeded if a run of the program is too much beside the programs of the tenant's active runs."""
        held = {id(program.bundle): program.size}
        active = self._active_of.get(tenant, {}).values()
        held |= {id(run.program.bundle): run.program.size for run in active}
        if sum(held.values()) > MAX_PROGRAM_BYTES:
            text = f"{len(held)} programs whose runs are not over take more than {MAX_PROGRAM_BYTES} bytes"
            raise LimitExceeded(
                text, limit="program_bytes", value=MAX_PROGRAM_BYTES, raise_with="fewer large programs at a time"
            )

    @property
    def held(self) -> dict[str, int]:
        """The bytes that active runs hold, by tenant."""
        return {tenant: sum(run.held_bytes for run in runs.values()) for tenant, runs in self._active_of.items()}

    def has_active(self, tenant: str) -> bool:
        """Return True if a run of the tenant is not over."""
        return tenant in self._active_of

    def add(self, run: Run) -> None:
        """Keep a new run."""
        self._active[run.id] = self._active_of[run.tenant][run.id] = run

    def retire(self, run: Run) -> None:
        """Move a run that is over to the finished ones, and forget the oldest of its tenant's beyond its quotas."""
        if not self._drop_active(run):
            return
        run.arguments = ""
        run.inputs.clear()
        run.program = run.program.without_files()  # who launched it may hold it for long
        self._finished[run.id] = run
        quotas = self._quotas(run.tenant)
        kept = [one for one in self._finished.values() if one.tenant == run.tenant]
        total = sum(one.buffer.size for one in kept)
        while len(kept) > 1 and (
            (quotas.kept_runs and len(kept) > quotas.kept_runs) or (quotas.kept_bytes and total > quotas.kept_bytes)
        ):
            oldest = kept.pop(0)
            total -= oldest.buffer.size
            self.forget(oldest)

    def forget(self, run: Run) -> None:
        """Drop a run that is over, or was left to the next server."""
        self._finished.pop(run.id, None)
        self._drop_active(run)

    def _drop_active(self, run: Run) -> bool:
        if self._active.pop(run.id, None) is None:
            return False
        del self._active_of[run.tenant][run.id]
        if not self._active_of[run.tenant]:
            del self._active_of[run.tenant]
        return True

    def find(self, run_id: str) -> Run | None:
        """Return the run of that id, or None."""
        return self._active.get(run_id) or self._finished.get(run_id)

    def get(self, run_id: str, tenant: str) -> Run:
        """Return a tenant's run. Raises NotFound for an unknown id, a forgotten run, and another tenant's run alike."""
        run = self.find(run_id)
        if run is None or run.tenant != tenant:
            raise unknown_run(run_id)
        return run

    def of(self, tenant: str) -> list[Run]:
        """Return a tenant's runs, newest first."""
        runs = [run for run in (*self._finished.values(), *self._active.values()) if run.tenant == tenant]
        return sorted(runs, key=lambda run: run.created, reverse=True)
