"""The store of responses for the gateway: reads and writes go through one thread, in order."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio

from inferd.protocol import InferdError, Unavailable
from inferd_runtime.server.chat.answer_pace import AnswerPace
from inferd_runtime.server.dialects.responses.answer import ResponsesExchange
from inferd_runtime.server.dialects.responses.items import Item
from inferd_runtime.server.dialects.responses.stored import (
    StoredResponse,
    broken_off,
    no_events,
    not_cancellable,
    still_in_progress,
    too_long,
    unknown_response,
)
from inferd_runtime.server.processes.background import background_tasks
from inferd_runtime.server.response_store.background import Answer, BackgroundResponses, OpenResponse, replayed
from inferd_runtime.server.response_store.response_file import (
    RESPONSE_BYTES,
    ResponseFile,
    about_bytes,
    packed_response,
)
from inferd_runtime.server.run_store.archive import FileArchive
from inferd_runtime.server.run_store.pruning import Pruned
from inferd_runtime.server.tenancy.kept_counts import KeptCounts
from inferd_runtime.server.tenancy.quotas import QuotasOf

RESPONSES_FILE = "responses.sqlite3"
log = logging.getLogger("inferd.responses")


class ResponseStore:
    """Keeps responses as far as the tenant's quotas let it. Belongs to one event loop.

    ``background``: those that are not over. ``most_bytes``: of a conversation that a request goes on with, as it is kept.
    """

    def __init__(
        self,
        archive: FileArchive[ResponseFile],
        quotas: QuotasOf,
        background: BackgroundResponses,
        most_bytes: int,
        pace: AnswerPace,
    ) -> None:
        self.background = background
        self.kept = KeptCounts()
        """Responses that are stored."""
        self._archive = archive
        self._quotas = quotas
        self._most_bytes = most_bytes
        self._pace = pace

    async def follow(self, exchange: ResponsesExchange, tenant: str, unstored: StoredResponse | None = None) -> None:
        """Complete a request with the response and the items that it names. ``unstored``: a response that it may follow, too.

        Raises InvalidRequest, NotFound, Unavailable.
        """
        if not exchange.previous and not exchange.references:
            return
        known = unstored if unstored is not None and unstored.id == exchange.previous else None

        def look_up(file: ResponseFile) -> tuple[int, StoredResponse | None, dict[str, Item]]:
            asked = exchange.previous if known is None else ""
            size = file.size(tenant, asked, exchange.references) + (0 if known is None else about_bytes(known))
            if size + exchange.size > self._most_bytes:
                return size, None, {}
            previous = file.find(tenant, asked) if asked else known
            return size, previous, file.items(tenant, exchange.references)

        size, previous, referenced = await self._archive.read(look_up, tenant)
        if size and size + exchange.size > self._most_bytes:
            field = "previous_response_id" if exchange.previous else "input"
            raise too_long(field, size + exchange.size, self._most_bytes)
        await self._pace.beside(tenant, partial(exchange.follow, previous, referenced))

    def keep(self, stored: StoredResponse, tenant: str) -> None:
        """Keep a response. Returns at once; what is looked up later finds it."""
        quotas = self._quotas(tenant)

        def job(file: ResponseFile) -> Pruned:
            file.keep(tenant, stored.id, *packed_response(stored))
            return file.prune(tenant, quotas)

        if not self._archive.save(job, about_bytes(stored), partial(self._pruned, tenant), tenant=tenant):
            log.error("a response is not kept: too much waits to be written")

    def _pruned(self, tenant: str, pruned: Pruned, error: InferdError | None) -> None:
        if error is None:
            self.kept.pruned(tenant, pruned.count, pruned.size, len(pruned.forgotten), pruned.forgotten_size)

    def forget_oldest(self, tenant: str, target: int) -> None:
        """Forget a tenant's oldest responses, until so many were since the process started."""
        quotas = self._quotas(tenant)

        def start(count: int) -> bool:
            def done(pruned: Pruned, error: InferdError | None) -> None:
                self.kept.settled(tenant, count)
                self._pruned(tenant, pruned, error)

            return self._archive.save(
                lambda file: file.prune(tenant, quotas, count), RESPONSE_BYTES, done, tenant=tenant
            )

        self.kept.forget(tenant, target, start)

    async def begin(self, exchange: ResponsesExchange, answer: Answer, tenant: str) -> OpenResponse:
        """Begin to answer in the background. The response is kept at once, so that it is known after a restart.

        Raises what beginning the answer raises, and Unavailable where it is not kept: it could be asked for in vain.
        """
        begun, now = await self.background.start(exchange, answer, tenant), exchange.begun
        try:
            await self._archive.read(lambda file: file.begin(tenant, exchange.id, packed_response(now)[0]), tenant)
        except Unavailable:
            await self.background.cancel(tenant, exchange.id)
            raise
        return begun

    async def find(self, tenant: str, response_id: str) -> StoredResponse:
        """Return a response of the tenant, as it is now. Raises NotFound, Unavailable."""
        if (begun := self.background.find(tenant, response_id)) is not None:
            return begun.exchange.begun
        stored = await self._archive.read(lambda file: file.find(tenant, response_id), tenant)
        if stored is None:
            raise unknown_response(response_id)
        return broken_off(stored) if stored.is_in_progress else stored

    async def events(self, tenant: str, response_id: str, after: int) -> tuple[AsyncGenerator[bytes], int]:
        """Return a response's events with higher numbers than ``after``, those to come included, and the bytes that are held for
        who reads them, alone.

        Raises NotFound, Unavailable, and InvalidRequest for a response whose events are not kept.
        """
        begun = self.background.find(tenant, response_id)
        if begun is not None and begun.exchange.kept is not None:
            return begun.follow(begun.exchange.kept, after), 0
        stored = await self.find(tenant, response_id)
        if not stored.events:
            raise no_events(response_id)
        return replayed(stored.events, after, partial(self._pace.beside, tenant)), len(stored.events)

    async def cancel(self, tenant: str, response_id: str) -> StoredResponse:
        """End a response in the background, and return how it ended.

        Raises NotFound, Unavailable, and InvalidRequest for another response.
        """
        await self.background.cancel(tenant, response_id)
        stored = await self.find(tenant, response_id)
        if not stored.is_background:
            raise not_cancellable(response_id)
        return stored

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget a response of the tenant. Raises NotFound, Unavailable, and InvalidRequest for one in progress."""
        if self.background.find(tenant, response_id) is not None:
            raise still_in_progress(response_id)
        if not await self._archive.read(lambda file: file.delete(tenant, response_id), tenant):
            raise unknown_response(response_id)

    async def take_over(self, path: Path) -> None:
        """Take the responses from the file of a server that has ended. Raises Unavailable."""
        await self._archive.read(lambda file: file.take_over(path))
        self.kept.found(await self._archive.read(lambda file: file.totals()))


@asynccontextmanager
async def open_response_store(
    path: Path, quotas: QuotasOf, most_bytes: int, pace: AnswerPace
) -> AsyncIterator[ResponseStore]:
    """Open the store, whose conversations take so many bytes at most; what waits to be written at the end is written.

    ``pace``: of all answers of the process.
    """
    archive = FileArchive(lambda: ResponseFile(path), "the store of responses")
    try:
        async with background_tasks() as tasks:
            yield ResponseStore(archive, quotas, BackgroundResponses(tasks, pace), most_bytes, pace)
    finally:
        with anyio.CancelScope(shield=True):
            await archive.close()
