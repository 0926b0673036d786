"""Keeps runs beyond this process: what happens to them is written behind, and what has left the memory is read again."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import msgspec

from inferd.protocol import IdempotencyKeyReused, InferdError, InvalidRequest, Unavailable
from inferd_runtime.server.run_store.archive import RunArchive
from inferd_runtime.server.run_store.pruning import Pruned
from inferd_runtime.server.run_store.records import (
    RECORD_BYTES,
    KeptKey,
    Relaunch,
    RunRecord,
    Said,
    StoredEvent,
    UnfinishedRun,
)
from inferd_runtime.server.run_store.run_file import KEY_SECONDS, RunFile
from inferd_runtime.server.supervisor.event_texts import unknown_run
from inferd_runtime.server.supervisor.run_events import Ending, RunEvent
from inferd_runtime.server.supervisor.runs import SLICE_BYTES, Run, RunStore
from inferd_runtime.server.tenancy.kept_counts import KeptCounts
from inferd_runtime.server.tenancy.quotas import QuotasOf

STORE_EVENTS = 512
"""Events of one run that are handed to the store at a time while it goes on."""
MAX_RECENT_KEYS = 10_000
"""Newest keys of all tenants, here because what is read from the store may be older than the launch that wrote it."""
SERVER_ENDED = Unavailable("the server ended while this run went on")
log = logging.getLogger("inferd.runs")


@dataclass(frozen=True)
class StoredRun:
    """A run that is over and has left the memory."""

    kept: RunRecord
    tenant: str
    archive: RunArchive

    @property
    def id(self) -> str:
        """The run's id."""
        return self.kept.id

    def record(self) -> RunRecord:
        """Return the run as it is shown."""
        return self.kept

    def cancel(self) -> None:
        """Do nothing: it is over."""

    async def wait(self) -> None:
        """Return at once: it is over."""

    def deliver(self, message: Any) -> None:
        """Raise InvalidRequest: it is over."""
        raise InvalidRequest(f"run {self.id} takes no more messages: it is over", run=self.id)

    def end_messages(self) -> None:
        """Raise InvalidRequest: it is over."""
        self.deliver(None)

    async def result_slices(self) -> AsyncGenerator[bytes]:
        """Yield the result's JSON in slices; nothing without a result. Raises Unavailable."""
        offset = 0
        while part := await self.archive.read(partial(_result_slice, self.id, offset), self.tenant):
            yield part
            offset += len(part)

    async def batches(self, start: int, idle_seconds: float) -> AsyncGenerator[list[RunEvent]]:
        """Yield the events that are kept from index ``start`` on. Raises Unavailable."""
        index = start
        while index < self.kept.next_event:
            stored = await self.archive.read(lambda file, at=index: file.events(self.id, at), self.tenant)  # type: ignore[misc]
            if not stored:
                return
            first = stored[0].index
            gap = [] if first == index else [RunEvent(first - 1, "dropped", stored[0].time, first - index)]
            yield [*gap, *map(self._event, stored)]
            index = stored[-1].index + 1

    def _event(self, event: StoredEvent) -> RunEvent:
        payload: Any = event.text
        if event.kind == "finished":
            payload = Ending(self.kept.usage, None, self.kept.error)
        return RunEvent(event.index, event.kind, event.time, payload)


AnyRun = Run | StoredRun


class RunKeeper:
    """Between the runs in memory and the archive, which may be missing (None). Belongs to one event loop."""

    def __init__(self, runs: RunStore, quotas: QuotasOf, archive: RunArchive | None = None) -> None:
        self.archive = archive
        self._runs = runs
        self._quotas = quotas
        self.settles_all = False
        """Whether :meth:`settled` waits for every run, not only for those that survive."""
        self.on_forgotten: Callable[[list[str]], object] = lambda names: None
        """Called with the ids of runs whose records the store has removed."""
        self.kept = KeptCounts()
        """Finished runs that are stored."""
        self._recent: dict[tuple[str, str], KeptKey] = {}
        self._recovered = anyio.Event()
        if archive is None:
            self._recovered.set()

    @property
    def failure(self) -> str | None:
        """Why runs are not stored at the moment, None while they are (or are not meant to be)."""
        return None if self.archive is None else self.archive.failure

    def begun(self, run: Run, key: KeptKey | None = None) -> None:
        """Keep a run that was just launched, and its key."""
        if key is not None:
            self._recent[run.tenant, key.key] = key
            while len(self._recent) > MAX_RECENT_KEYS:
                del self._recent[next(iter(self._recent))]
        if self.archive is not None:
            record, tenant = run.record(), run.tenant
            taken = self.archive.save(lambda file: file.begin(tenant, record, key), RECORD_BYTES, tenant=tenant)
            if taken and run.retry_safe:
                self._begun_to_survive(run, self.archive)

    def _begun_to_survive(self, run: Run, archive: RunArchive) -> None:
        relaunch = Relaunch(run.program.bundle, run.arguments, run.seed, run.mcp, run.program.key)
        job = partial(_keep_relaunch, run.id, relaunch, run.said)
        if archive.save(job, relaunch.size, tenant=run.tenant):
            self.watch(run)

    def watch(self, run: Run) -> None:
        """Store what a run that survives says as soon as it says it, and show it then."""
        run.survives, run.on_said = True, self._said
        run.shown_index = run.stored_index

    def _said(self, run: Run) -> None:
        if self.archive is None or run.appending or run.ending is not None or not run.survives:
            return
        events = [_stored(event) for event in run.buffer.since(run.stored_index) if event.kind != "dropped"]
        if not events:
            return

        def done(_: Any, error: InferdError | None) -> None:
            run.appending = False
            if error is None:
                run.stored_index = max(run.stored_index, events[-1].index + 1)
            # While the store fails, what is said is shown at once.
            run.show(run.stored_index if error is None else run.buffer.next_index)
            if error is None:
                self._said(run)

        size = run.buffer.size
        run.appending = self.archive.save(partial(_append, run.id, events, run.said), size, done, tenant=run.tenant)
        if not run.appending:
            run.show(run.buffer.next_index)

    def received(self, run: Run, message: str) -> None:
        """Keep a message that was sent to a run that survives."""
        if self.archive is not None and run.survives:
            number, name = len(run.inputs), run.id
            self.archive.save(lambda file: file.add_input(name, number, message), len(message), tenant=run.tenant)

    def attempted(self, run: Run, attempts: int) -> None:
        """Keep how often a run that survives was started."""
        if self.archive is not None and run.survives:
            name = run.id
            self.archive.save(lambda file: file.set_attempts(name, attempts), RECORD_BYTES, tenant=run.tenant)

    def left(self, run: Run) -> None:
        """Note that a run is left to the next server, which does not count as an attempt."""
        self._said(run)
        self.attempted(run, run.attempts - 1)
        run.leave()
        self._runs.forget(run)

    async def settled(self, run: AnyRun) -> None:
        """Wait until what happened to a run that survives is on disk, as far as the store works."""
        if self.archive is not None and isinstance(run, Run) and (run.survives or self.settles_all):
            with contextlib.suppress(Unavailable):
                await self.archive.read(lambda file: None, run.tenant)

    def progressed(self) -> None:
        """Store what active runs have said since the last call, and what ended while the store had no room or failed."""
        if self.archive is None:
            return
        for run in self._runs.active:
            if run.survives:
                self._progressed_surviving(run, self.archive)
                continue
            events = _unstored(run)
            size = sum(event.size for event in events)
            stored = [_stored(event) for event in events]
            if stored and self.archive.save(partial(_append, run.id, stored, None), size, tenant=run.tenant):
                run.stored_index = stored[-1].index + 1
        for run in self._runs.finished:
            if not run.storing:
                self.ended(run)

    def _progressed_surviving(self, run: Run, archive: RunArchive) -> None:
        if run.retry_safe:
            self._said(run)
            return
        name = run.id  # it was sent more than is kept
        run.survives = not archive.save(lambda file: file.forget_relaunch(name), RECORD_BYTES, tenant=run.tenant)
        run.changed.wake()

    def ended(self, run: Run) -> None:
        """Store a run that is over; it leaves the memory once that has worked."""
        if self.archive is None or run.ending is None:
            return
        events = [_stored(event) for event in run.buffer.since(run.stored_index) if event.kind != "dropped"]
        record = msgspec.structs.replace(run.record(), next_event=run.buffer.next_index)
        result, first = run.ending.parts, run.buffer.first_index
        quotas, tenant = self._quotas(run.tenant), run.tenant

        def done(pruned: Pruned, error: InferdError | None) -> None:
            run.storing = run.survives = False
            run.changed.wake()
            if error is None:
                self._runs.forget(run)
                self._pruned(tenant, pruned)

        def finish(file: RunFile) -> Pruned:
            file.finish(tenant, record, result, events, first)
            return file.prune(tenant, quotas)

        run.storing = self.archive.save(finish, run.buffer.size, done, tenant=tenant)
        run.survives = run.survives and run.storing
        run.changed.wake()

    def _pruned(self, tenant: str, pruned: Pruned) -> None:
        self.kept.pruned(tenant, pruned.count, pruned.size, len(pruned.forgotten), pruned.forgotten_size)
        self.on_forgotten(pruned.forgotten)

    def forget_oldest(self, tenant: str, target: int) -> None:
        """Forget a tenant's oldest finished runs, until so many were since the process started."""
        archive, quotas = self.archive, self._quotas(tenant)
        if archive is None:
            return

        def start(count: int) -> bool:
            def done(pruned: Pruned, error: InferdError | None) -> None:
                self.kept.settled(tenant, count)
                if error is None:
                    self._pruned(tenant, pruned)

            return archive.save(lambda file: file.prune(tenant, quotas, count), RECORD_BYTES, done, tenant=tenant)

        self.kept.forget(tenant, target, start)

    async def find(self, run_id: str, tenant: str) -> AnyRun:
        """Return a tenant's run, wherever it is. Raises NotFound, and Unavailable."""
        await self._recovered.wait()
        run = self._runs.find(run_id)
        if run is not None and run.tenant == tenant:
            return run
        if self.archive is None:
            raise unknown_run(run_id)
        archive = self.archive
        record = await archive.read(lambda file: file.find(tenant, run_id), tenant)
        if record is None:
            raise unknown_run(run_id)
        return StoredRun(record, tenant, archive)

    async def records(self, tenant: str) -> list[RunRecord]:
        """Return a tenant's runs as a list shows them, newest first. Raises Unavailable."""
        await self._recovered.wait()
        stored = [] if self.archive is None else await self.archive.read(lambda file: file.records(tenant), tenant)
        here = [run.record().in_list() for run in self._runs.of(tenant)]
        ids = {record.id for record in here}
        both = here + [record for record in stored if record.id not in ids]
        return sorted(both, key=lambda record: record.created_at, reverse=True)

    async def launched(self, tenant: str, key: str, fingerprint: str) -> AnyRun | None:
        """Return the run that an earlier launch with this key started, None if there was none.

        Does not wait between the last look and returning None. Raises IdempotencyKeyReused if that launch was another one,
        NotFound if its run has been forgotten, and Unavailable.
        """
        kept = self._recent.get((tenant, key))
        if kept is None and self.archive is not None:
            kept = await self.archive.read(lambda file: file.key(tenant, key), tenant)
            kept = self._recent.get((tenant, key)) or kept
        if kept is None or kept.created_at <= time.time() - KEY_SECONDS:
            return None
        if kept.fingerprint != fingerprint:
            raise IdempotencyKeyReused("this Idempotency-Key was used for another launch", run=kept.run)
        return await self.find(kept.run, tenant)

    async def known(self, names: list[str]) -> set[str]:
        """Return those of some runs that the store has. Raises Unavailable."""
        return set() if self.archive is None else await self.archive.read(lambda file: file.known(names))

    async def recover(self, resume: Callable[[UnfinishedRun], None] = lambda unfinished: None) -> None:
        """End the runs that were active when the last server ended, and have those that survive resumed.

        A store that fails is reported, and nothing else. Until this is over, nobody gets an answer about runs.
        """
        try:
            if self.archive is not None:
                await self._recover(self.archive, resume)
        except InferdError as failed:  # of any kind: a record that cannot be read is to keep no server from starting
            log.error("%s: what the last server has left is not taken over", failed.message)
        finally:
            self._recovered.set()

    async def _recover(self, archive: RunArchive, resume: Callable[[UnfinishedRun], None]) -> None:
        ended = await archive.read(lambda file: file.end_active(SERVER_ENDED.to_wire()))
        if ended:
            log.warning("%d runs were active when the last server ended", ended)
        for name in await archive.read(lambda file: file.unfinished()):
            resume(await archive.read(partial(_unfinished_run, name)))
        self.kept.found(await archive.read(lambda file: file.totals()))

    async def take_over(self, path: Path) -> list[str]:
        """Take the runs from the store of a server that has ended. Return the ids of those to resume. Raises Unavailable."""
        await self._recovered.wait()
        if self.archive is None:
            raise Unavailable("runs are kept in memory only")
        names = await self.archive.read(lambda file: file.take_over(path, SERVER_ENDED.to_wire()))
        self.kept.found(await self.archive.read(lambda file: file.totals()))
        return names

    async def resume(self, names: list[str], resume: Callable[[UnfinishedRun], None]) -> None:
        """Have runs that were taken over resumed, except those that go on here. Raises Unavailable."""
        for name in names:
            if self.archive is not None and self._runs.find(name) is None:
                resume(await self.archive.read(partial(_unfinished_run, name)))


def _result_slice(run: str, offset: int, file: RunFile) -> bytes:
    return file.result_slice(run, offset, SLICE_BYTES)


def _append(run: str, events: list[StoredEvent], said: Said | None, file: RunFile) -> None:
    file.append(run, events, said)


def _keep_relaunch(run: str, relaunch: Relaunch, said: Said, file: RunFile) -> None:
    file.keep_relaunch(run, relaunch, said)


def _unfinished_run(run: str, file: RunFile) -> UnfinishedRun:
    return file.unfinished_run(run)


def _unstored(run: Run) -> list[RunEvent]:
    if run.stored_index == run.buffer.next_index:
        return []
    fresh = (event for event in run.buffer.since(run.stored_index) if event.kind not in ("dropped", "finished"))
    return list(islice(fresh, STORE_EVENTS))


def _stored(event: RunEvent) -> StoredEvent:
    return StoredEvent(event.index, event.kind, event.time, event.payload if isinstance(event.payload, str) else None)
