"""The store of durable queues for the gateway, whose event loop never waits on a disk."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel

from inferd.protocol import InferdError, LimitExceeded
from inferd_runtime.server.run_store.archive import FileArchive
from inferd_runtime.server.services.topics.buffers import MAX_TENANT_HELD, HeldValue
from inferd_runtime.server.services.topics.queue_file import QueueFile
from inferd_runtime.server.tenancy.quotas import QuotasOf

QUEUES_FILE = "queues.sqlite3"
ROW_BYTES = 64
RETRY_SECONDS = 1.0
"""After how long the file is told again to forget what it could not."""
log = logging.getLogger("inferd.services")


class KeptValues:
    """Values of durable queues on disk. Belongs to one event loop. What waits raises Unavailable where the file does not work.

    Each tenant has at most one task waiting for the file's thread, and all deletions together are one more: the queue of tasks
    is bounded, and tenants wait equally long.
    """

    def __init__(self, archive: FileArchive[QueueFile], quotas: QuotasOf) -> None:
        self._archive = archive
        self._quotas = quotas
        self._to_drop: list[int] = []
        self._sent: list[int] = []
        """What the file is told to forget: if it cannot, as on a full disk, that is noted again and tried later."""
        self._retry_at = 0.0

    async def add(self, tenant: str, queue: str, values: Sequence[HeldValue]) -> list[HeldValue]:
        """Keep values; returns them with their rows. Raises LimitExceeded."""
        self._drop_if_due()
        most = min(self._quotas(tenant).stored_bytes or MAX_TENANT_HELD, MAX_TENANT_HELD)
        kept = await self._archive.read(lambda file: file.add(tenant, queue, values, most), tenant)
        if kept is None:
            text = f"the tenant's durable queues take {most} bytes already"
            raise LimitExceeded(text, limit="durable_bytes", value=most, raise_with="pulling from them")
        return kept

    async def values(self, tenant: str, queue: str) -> list[HeldValue]:
        """Return what a queue holds."""
        self._drop_if_due()
        gone = {*self._sent, *self._to_drop}  # the file may not have forgotten them yet
        found = await self._archive.read(lambda file: file.values(tenant, queue), tenant)
        return [value for value in found if value.row not in gone]

    def drop(self, rows: Sequence[int]) -> None:
        """Forget values, soon."""
        self._to_drop += rows
        self._drop_if_due()

    def drop_now(self) -> None:
        """Have the file forget what was noted so far."""
        rows, self._to_drop = self._to_drop, []
        if rows and self._archive.save(
            lambda file: file.drop(rows), ROW_BYTES * len(rows), lambda value, error: self._dropped(rows, error)
        ):
            self._sent += rows
        else:
            self._to_drop = rows

    @property
    def left(self) -> int:
        """How many values were pulled and are still on disk."""
        return len(self._sent) + len(self._to_drop)

    def _drop_if_due(self) -> None:
        if self._to_drop and not self._sent and time.monotonic() >= self._retry_at:
            self.drop_now()

    def _dropped(self, rows: list[int], error: InferdError | None) -> None:
        del self._sent[: len(rows)]
        if error is not None:
            self._to_drop += rows
            self._retry_at = time.monotonic() + RETRY_SECONDS
        self._drop_if_due()


@asynccontextmanager
async def open_kept_values(path: Path, quotas: QuotasOf) -> AsyncIterator[KeptValues]:
    """Open the store; what is queued at the end is written."""
    archive = FileArchive(lambda: QueueFile(path), "the store of durable queues")
    kept = KeptValues(archive, quotas)
    try:
        yield kept
    finally:
        kept.drop_now()
        with anyio.CancelScope(shield=True):
            await archive.close()
            await anyio.lowlevel.checkpoint()  # what the file's thread had to say last is heard
        if kept.left:
            log.error("%d values that were pulled from a durable queue stay on disk: they come again", kept.left)
