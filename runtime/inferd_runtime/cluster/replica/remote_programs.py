"""Programs as a replica gets them: the front keeps them, and a replica asks for what it has not got. Content never changes:
a program is known by its hash, which is checked where it is parsed.
"""

from __future__ import annotations

import http.client
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from inferd.protocol import ErrorInfo, InvalidRequest, Unavailable
from inferd_runtime.cluster.hop import hop_authorization, unpinned
from inferd_runtime.cluster.messages import (
    ENTRIES_PATH,
    RESOLVE_PATH,
    SOURCE_PATH,
    ProgramEntry,
    ProgramKey,
    ProgramQuery,
)
from inferd_runtime.cluster.proof import check_peer_of
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.programs.library import ProgramLibrary
from inferd_runtime.server.programs.parser_pool import ParserPool
from inferd_runtime.server.programs.registry import Entry, StoredProgram, Uploaded
from inferd_runtime.server.tenancy.quotas import Quotas, QuotasOf

ASK_SECONDS = 10.0
OK = 200
T = TypeVar("T")


class _Failure(msgspec.Struct, frozen=True):
    error: ErrorInfo


class RemotePrograms:
    """Asks the front, over one connection. Its calls block, and belong to one thread at a time.

    ``front`` returns the front's private address, "" while it is not known.
    """

    def __init__(self, key: str, front: Callable[[], str]) -> None:
        self._key = key
        self._front = front

    def keep(self, program: Program, tenant: str, quotas: Quotas) -> Uploaded:
        """Raise InvalidRequest: programs are uploaded to the front."""
        raise InvalidRequest("a replica keeps no programs: upload to the cluster's front")

    def remove(self, reference: str, tenant: str) -> int:
        """Raise InvalidRequest: see :meth:`keep`."""
        raise InvalidRequest("a replica keeps no programs: remove them at the cluster's front")

    def resolve(self, reference: str, tenant: str) -> tuple[str, str, str]:
        """Return the hash, name and version that a reference stands for; the front says so with each launch that it passes on."""
        known = unpinned(self._key, tenant, reference)
        if known is not None:
            return known
        found = msgspec.json.decode(self._ask(RESOLVE_PATH, ProgramQuery(tenant, reference)), type=ProgramKey)
        return found.hash, found.name, found.version

    def find(self, key: tuple[str, str, str]) -> StoredProgram:
        """Return a program's source. Raises NotFound."""
        return StoredProgram(*key, self._ask(SOURCE_PATH, ProgramKey(*key)))

    def entries(self, tenant: str) -> list[Entry]:
        """Return a tenant's programs, newest first."""
        listed = msgspec.json.decode(self._ask(ENTRIES_PATH, ProgramQuery(tenant)), type=list[ProgramEntry])
        return [Entry(one.id, one.name, one.version, one.created_at, one.serves) for one in listed]

    def _ask(self, path: str, question: object) -> bytes:
        """Return the answer of the front. Raises the error that it sends, and Unavailable."""
        front = self._front()
        parts = urlsplit(front)
        if not parts.hostname:
            raise Unavailable("this replica has not heard of its front yet")
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=ASK_SECONDS)
        with closing(connection):
            try:
                check_peer_of(connection, self._key, front)
                connection.request("POST", path, msgspec.json.encode(question), self._headers())
                answer = connection.getresponse()
                data, status = answer.read(), answer.status
            except (OSError, http.client.HTTPException) as error:
                raise Unavailable(f"the cluster's front does not answer: {error or type(error).__name__}") from None
        if status != OK:
            raise msgspec.json.decode(data, type=_Failure).error.to_exception()
        return data

    def _headers(self) -> dict[str, str]:
        return {"Authorization": hop_authorization(self._key), "Content-Type": "application/json"}


@asynccontextmanager
async def open_remote_library(quotas: QuotasOf, source: RemotePrograms) -> AsyncIterator[ProgramLibrary]:
    """Open a library over the front's programs. It remembers sources, and asks anew what a name stands for."""
    pool = ParserPool()
    try:
        pool.warm_up()
        yield ProgramLibrary(source, pool, quotas, most_resolved=0)
    finally:
        pool.close()
