"""The programs of all tenants, as the gateway uses them: parsed in processes of their own, kept in the registry's file.

Everything that takes time happens elsewhere than in the event loop: parsing in :class:`ParserPool`'s processes, and all of
SQLite's work in one thread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread
import msgspec

from inferd.protocol import InvalidRequest, Unavailable
from inferd_runtime.server.packages.finder import PackageFinder, with_packages
from inferd_runtime.server.programs.bundles import Program, assemble_program
from inferd_runtime.server.programs.parser_messages import ParsedUpload
from inferd_runtime.server.programs.parser_pool import ParserPool
from inferd_runtime.server.programs.registry import Entry, Registry, StoredProgram, Uploaded
from inferd_runtime.server.tenancy.quotas import Quotas, QuotasOf

CACHED_BYTES = 32 << 20
"""Source and interfaces of programs that can be launched without being parsed again."""
MAX_RESOLVED = 4096
"""References of tenants that are remembered."""
T = TypeVar("T")
Key = tuple[str, str, str]


class Programs(Protocol):
    """Where programs are kept: :class:`Registry`, or what asks another process for them. Its calls block."""

    def keep(self, program: Program, tenant: str, quotas: Quotas) -> Uploaded:
        """Keep a program."""

    def resolve(self, reference: str, tenant: str) -> Key:
        """Return the hash, name and version that a reference stands for."""

    def find(self, key: Key) -> StoredProgram:
        """Return the program of a resolved reference."""

    def remove(self, reference: str, tenant: str) -> int:
        """Remove programs; returns how many."""

    def entries(self, tenant: str) -> list[Entry]:
        """Return a tenant's programs, newest first."""


class ProgramCache:
    """Programs by tenant, then hash, name and version: nobody can tell by the time of a launch what another tenant runs.

    Of the tenant with most bytes those leave first that were not asked for the longest.
    """

    def __init__(self, most: int = CACHED_BYTES) -> None:
        self._most = most
        self._programs: defaultdict[str, dict[Key, tuple[Program, int]]] = defaultdict(dict)
        self._sizes: Counter[str] = Counter()

    @property
    def bytes(self) -> int:
        """What is kept takes."""
        return self._sizes.total()

    def get(self, tenant: str, key: Key) -> Program | None:
        """Return a program that is kept."""
        found = self._programs[tenant].pop(key, None)
        if found is None:
            return None
        self._programs[tenant][key] = found
        return found[0]

    def put(self, tenant: str, key: Key, program: Program, size: int) -> None:
        """Keep a program of ``size`` bytes; what has no room beside it leaves."""
        if size > self._most or key in self._programs[tenant]:
            return
        self._programs[tenant][key] = (program, size)
        self._sizes[tenant] += size
        while self.bytes > self._most:
            ((largest, _),) = self._sizes.most_common(1)
            programs = self._programs[largest]
            self._sizes[largest] -= programs.pop(next(iter(programs)))[1]


class ResolvedReferences:
    """What references stood for when they were looked up, until the programs change."""

    def __init__(self, most: int = MAX_RESOLVED) -> None:
        self._most = most
        self.changes = 0
        """How often the programs have changed: what was looked up before the last time is not kept."""
        self._keys: dict[tuple[str, str], Key] = {}

    def get(self, reference: str, tenant: str) -> Key | None:
        """Return what a tenant's reference stands for, None if that has to be looked up."""
        return self._keys.get((tenant, reference))

    def put(self, reference: str, tenant: str, key: Key, changes: int) -> None:
        """Keep what was looked up when ``changes`` was the number of changes."""
        if changes != self.changes or not self._most:
            return
        if len(self._keys) >= self._most:
            self._keys.clear()
        self._keys[tenant, reference] = key

    def forget(self) -> None:
        """Note that the programs have changed, or may have."""
        self.changes += 1
        self._keys.clear()


class ProgramLibrary:
    """Made by :func:`open_library`; belongs to one event loop."""

    def __init__(
        self,
        registry: Programs,
        parsers: ParserPool,
        quotas: QuotasOf,
        packages: PackageFinder | None = None,
        most_resolved: int = MAX_RESOLVED,
    ) -> None:
        """``packages`` finds what uploads depend on; without one, only programs that are kept already have any."""
        self._packages = packages
        self._registry = registry
        self._parsers = parsers
        self._quotas = quotas
        self._thread = anyio.CapacityLimiter(1)
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._cache = ProgramCache()
        self._resolved = ResolvedReferences(most_resolved)

    async def upload(self, read: Callable[[], Awaitable[bytes]], tenant: str) -> Uploaded:
        """Parse and keep the program that ``read`` returns as JSON; see :class:`UploadBody`.

        Raises what ``read``, :meth:`ParserPool.parse`, :meth:`PackageFinder.find`, :func:`assemble_program` and
        :meth:`Registry.keep` raise, and LimitExceeded while too many uploads of the tenant are under way.
        """
        async with self._parsers.in_line(tenant):
            upload = await read()
            async with self._parsers.turn(tenant):
                parsed = await self._parsers.parse(upload)
            parsed = await self._with_packages(parsed, tenant)  # which may take minutes: others of the tenant go on
            return await self._change(lambda: self._keep(parsed, tenant), tenant)

    async def find(self, reference: str, tenant: str) -> Program:
        """Return a program, parsed again if need be. Raises what :meth:`Registry.resolve` raises."""
        key = await self.resolve(reference, tenant)
        found = self._cache.get(tenant, key)
        if found is not None:
            return found
        async with self._parsers.turn(tenant):  # the same upload may have been parsed while this one waited
            return self._cache.get(tenant, key) or await self._load(key, tenant)

    async def entries(self, tenant: str) -> list[Entry]:
        """Return a tenant's programs, newest first."""
        return await self._in_thread(lambda: self._registry.entries(tenant), tenant)

    async def remove(self, reference: str, tenant: str) -> int:
        """Remove programs; see :meth:`Registry.remove`."""
        return await self._change(lambda: self._registry.remove(reference, tenant), tenant)

    async def resolve(self, reference: str, tenant: str) -> Key:
        """Return the hash, name and version that a reference stands for. Raises what :meth:`Registry.resolve` raises."""
        return self._resolved.get(reference, tenant) or await self._resolve(reference, tenant)

    async def stored(self, key: Key) -> StoredProgram:
        """Return the source of what :meth:`resolve` returned. Raises NotFound if it was removed meanwhile."""
        found: StoredProgram = await self._in_thread(lambda: self._registry.find(key))
        return found

    async def _with_packages(self, parsed: ParsedUpload, tenant: str) -> ParsedUpload:
        """Return an upload with the packages that it depends on."""
        if parsed.bundle.packages or parsed.bundle.lock:
            raise InvalidRequest("an upload brings no packages: the program names them as its dependencies")
        bundle = await with_packages(parsed.bundle, parsed.interface.manifest.dependencies, self._packages, tenant)
        return msgspec.structs.replace(parsed, bundle=bundle)

    async def _resolve(self, reference: str, tenant: str) -> Key:
        changes = self._resolved.changes
        key = await self._in_thread(lambda: self._registry.resolve(reference, tenant), tenant)
        self._resolved.put(reference, tenant, key, changes)
        return key

    async def _change(self, work: Callable[[], T], tenant: str) -> T:
        try:
            return await self._in_thread(work, tenant)
        finally:
            self._resolved.forget()

    def _keep(self, parsed: ParsedUpload, tenant: str) -> Uploaded:
        program = assemble_program(parsed.bundle, parsed.interface, parsed.name, parsed.version)
        return self._registry.keep(program, tenant, self._quotas(tenant))

    async def _load(self, key: Key, tenant: str) -> Program:
        stored = await self.stored(key)
        parsed = await self._parsers.parse(stored.bundle)
        program = assemble_program(parsed.bundle, parsed.interface, stored.name, stored.version)
        if program.id != stored.id:
            raise Unavailable(f"{stored.name}@{stored.version} was not parsed as it is kept: try again")
        self._cache.put(tenant, key, program, len(stored.bundle) + len(msgspec.json.encode(program.interface)))
        return program

    async def _in_thread(self, work: Callable[[], T], tenant: str = "") -> T:
        """Do some work in the one thread. Of a tenant's one waits for it at a time, so that another's waits for no more."""
        async with self._turns[tenant] if tenant else nullcontext():
            return await anyio.to_thread.run_sync(work, limiter=self._thread)


@asynccontextmanager
async def open_library(
    path: Path, quotas: QuotasOf, packages: PackageFinder | None = None
) -> AsyncIterator[ProgramLibrary]:
    """Open the registry's file and the parsers. Raises what :class:`Registry` raises."""
    registry = Registry(path)
    pool = ParserPool()
    try:
        pool.warm_up()
        yield ProgramLibrary(registry, pool, quotas, packages)
    finally:
        pool.close()
        registry.close()
