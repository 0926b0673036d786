"""Which replica was asked to launch, by the client's key: on disk, so that another front asks that one again, and no other."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from inferd_runtime.server.database_file import DatabaseFile, DatabaseFormat
from inferd_runtime.server.run_store.archive import FileArchive
from inferd_runtime.server.run_store.run_file import KEY_SECONDS, trim_keys

HOMES_FILE = "launches.sqlite3"
MOST_RECENT = 10_000
FORMAT = DatabaseFormat(
    number=1,
    schema="""
CREATE TABLE IF NOT EXISTS homes (
    tenant TEXT NOT NULL, key TEXT NOT NULL, replica TEXT NOT NULL, created_at REAL NOT NULL, PRIMARY KEY (tenant, key)
) STRICT;
CREATE INDEX IF NOT EXISTS homes_by_arrival ON homes (tenant);
CREATE INDEX IF NOT EXISTS homes_by_age ON homes (created_at);
""",
    check="SELECT tenant, key, replica, created_at FROM homes LIMIT 0;",
    what="the store of launches' keys",
    lost="a launch that is repeated may start again",
)


class HomeFile:
    """The file. Every method raises Unavailable where the file or the disk does not do what it should."""

    def __init__(self, path: Path) -> None:
        self._file = DatabaseFile(path, FORMAT)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def find(self, tenant: str, key: str) -> str | None:
        """Return the replica that was asked with a key in the last KEY_SECONDS."""
        with self._file.reading() as db:
            query = "SELECT replica FROM homes WHERE tenant = ? AND key = ? AND created_at > ?"
            row = db.execute(query, (tenant, key, time.time() - KEY_SECONDS)).fetchone()
        return None if row is None else str(row[0])

    def keep(self, tenant: str, key: str, replica: str) -> None:
        """Note which replica is asked. A tenant's keys that came first go first."""
        now = time.time()
        with self._file.transaction() as db:
            db.execute("INSERT OR REPLACE INTO homes VALUES (?, ?, ?, ?)", (tenant, key, replica, now))
            trim_keys(db, "homes", tenant, now)

    def drop(self, tenant: str, key: str) -> None:
        """Forget a key."""
        with self._file.transaction() as db:
            db.execute("DELETE FROM homes WHERE tenant = ? AND key = ?", (tenant, key))


class LaunchHomes:
    """Belongs to the front's event loop. What waits raises Unavailable where the file does not work."""

    def __init__(self, archive: FileArchive[HomeFile]) -> None:
        self._archive = archive
        self._recent: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._turns: defaultdict[tuple[str, str], anyio.Lock] = defaultdict(anyio.Lock)
        self._using: Counter[tuple[str, str]] = Counter()

    @asynccontextmanager
    async def turn(self, tenant: str, key: str) -> AsyncIterator[None]:
        """Have one launch with a key at a time: the next one goes where this one went."""
        name = tenant, key
        self._using[name] += 1
        try:
            async with self._turns[name]:
                yield
        finally:
            self._using[name] -= 1
            if not self._using[name]:
                del self._using[name], self._turns[name]

    async def find(self, tenant: str, key: str) -> str | None:
        """Return the replica that was asked to launch with this key, None if none was."""
        return self._recent.get((tenant, key)) or await self._archive.read(lambda file: file.find(tenant, key), tenant)

    async def keep(self, tenant: str, key: str, replica: str) -> None:
        """Note which replica is asked: before it is."""
        if self._recent.get((tenant, key)) == replica:
            return
        await self._archive.read(lambda file: file.keep(tenant, key, replica), tenant)
        self._recent[tenant, key] = replica
        self._recent.move_to_end((tenant, key))
        while len(self._recent) > MOST_RECENT:
            self._recent.popitem(last=False)

    async def drop(self, tenant: str, key: str) -> None:
        """Forget a key whose launch was refused: one that is sent again is admitted anew."""
        self._recent.pop((tenant, key), None)
        await self._archive.read(lambda file: file.drop(tenant, key), tenant)


@asynccontextmanager
async def open_launch_homes(folder: Path) -> AsyncIterator[LaunchHomes]:
    """Open the store."""
    archive = FileArchive(lambda: HomeFile(folder / HOMES_FILE), FORMAT.what)
    try:
        yield LaunchHomes(archive)
    finally:
        with anyio.CancelScope(shield=True):
            await archive.close()
