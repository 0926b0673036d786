"""Keeps runs beyond this process: what happens to them is written behind, and what has left the memory is read again."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from inferd.protocol import IdempotencyKeyReused, InferdError, InvalidRequest, Unavailable
from inferd_runtime.server.run_store.archive import RunArchive
from inferd_runtime.server.run_store.records import RECORD_BYTES, KeptKey, RunRecord, StoredEvent
from inferd_runtime.server.run_store.run_file import KEY_SECONDS, RunFile
from inferd_runtime.server.supervisor.runs import SLICE_BYTES, Ending, Run, RunEvent, RunStore, unknown_run
from inferd_runtime.server.tenancy.quotas import QuotasOf

STORE_EVENTS = 512
"""Events of one run that are handed to the store at a time while it goes on."""
MAX_RECENT_KEYS = 10_000
"""Newest keys of all tenants, here because what is read from the store may be older than the launch that wrote it."""
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

    def deliver(self, message: Any) -> None:
        """Raise InvalidRequest: it is over."""
        raise InvalidRequest(f"run {self.id} is over: it takes no more messages", run=self.id)

    async def result_slices(self) -> AsyncGenerator[bytes]:
        """Yield the result's JSON in slices; nothing without a result. Raises Unavailable."""
        offset = 0
        while part := await self.archive.read(lambda file, at=offset: file.result_slice(self.id, at, SLICE_BYTES)):  # type: ignore[misc]
            yield part
            offset += len(part)

    async def batches(self, start: int, idle_seconds: float) -> AsyncGenerator[list[RunEvent]]:
        """Yield the events that are kept from index ``start`` on. Raises Unavailable."""
        index = start
        while index < self.kept.next_event:
            stored = await self.archive.read(lambda file, at=index: file.events(self.id, at))  # type: ignore[misc]
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
        self._recent: dict[tuple[str, str], KeptKey] = {}

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
            self.archive.save(lambda file: file.begin(tenant, record, key), RECORD_BYTES)

    def progressed(self) -> None:
        """Store what active runs have said since the last call, and what ended while the store had no room or failed."""
        if self.archive is None:
            return
        for run in self._runs.active:
            events = _unstored(run)
            size = sum(event.size for event in events)
            stored = [_stored(event) for event in events]
            if stored and self.archive.save(partial(_append, run.id, stored), size):
                run.stored_index = stored[-1].index + 1
        for run in self._runs.finished:
            if not run.storing:
                self.ended(run)

    def ended(self, run: Run) -> None:
        """Store a run that is over; it leaves the memory once that has worked."""
        if self.archive is None or run.ending is None:
            return
        events = [_stored(event) for event in run.buffer.since(run.stored_index) if event.kind != "dropped"]
        record, result, first = run.record(), run.ending.result, run.buffer.first_index
        quotas, tenant = self._quotas(run.tenant), run.tenant

        def done(_: Any, error: InferdError | None) -> None:
            run.storing = False
            if error is None:
                self._runs.forget(run)

        def finish(file: RunFile) -> None:
            file.finish(tenant, record, result, events, first)
            file.prune(tenant, quotas)

        run.storing = self.archive.save(finish, run.buffer.size, done)

    async def find(self, run_id: str, tenant: str) -> AnyRun:
        """Return a tenant's run, wherever it is. Raises NotFound, and Unavailable."""
        run = self._runs.find(run_id)
        if run is not None and run.tenant == tenant:
            return run
        if run is not None or self.archive is None:
            raise unknown_run(run_id)
        archive = self.archive
        record = await archive.read(lambda file: file.find(tenant, run_id))
        if record is None:
            raise unknown_run(run_id)
        return StoredRun(record, tenant, archive)

    async def records(self, tenant: str) -> list[RunRecord]:
        """Return a tenant's runs as a list shows them, newest first. Raises Unavailable."""
        stored = [] if self.archive is None else await self.archive.read(lambda file: file.records(tenant))
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
            kept = await self.archive.read(lambda file: file.key(tenant, key))
            kept = self._recent.get((tenant, key)) or kept
        if kept is None or kept.created_at <= time.time() - KEY_SECONDS:
            return None
        if kept.fingerprint != fingerprint:
            raise IdempotencyKeyReused("this Idempotency-Key was used for another launch", run=kept.run)
        return await self.find(kept.run, tenant)

    async def recover(self) -> None:
        """End the runs that were active when the last server ended. A store that fails is reported, and nothing else."""
        if self.archive is None:
            return
        error = Unavailable("the server ended while this run went on").to_wire()
        try:
            ended = await self.archive.read(lambda file: file.end_active(error))
        except Unavailable as failed:
            log.error("%s: runs are kept in memory only", failed.message)
            return
        if ended:
            log.warning("%d runs were active when the last server ended", ended)


def _append(run: str, events: list[StoredEvent], file: RunFile) -> None:
    file.append(run, events)


def _unstored(run: Run) -> list[RunEvent]:
    if run.stored_index == run.buffer.next_index:
        return []
    fresh = (event for event in run.buffer.since(run.stored_index) if event.kind not in ("dropped", "finished"))
    return list(islice(fresh, STORE_EVENTS))


def _stored(event: RunEvent) -> StoredEvent:
    return StoredEvent(event.index, event.kind, event.time, event.payload if isinstance(event.payload, str) else None)
