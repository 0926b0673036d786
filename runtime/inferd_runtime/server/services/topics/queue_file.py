"""The values of durable queues in a SQLite file. Synchronous, for one thread; what goes wrong with the file is Unavailable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from inferd_runtime.server.database_file import DatabaseFile, DatabaseFormat
from inferd_runtime.server.services.topics.buffers import HeldValue

FORMAT = DatabaseFormat(
    number=1,
    schema="""
CREATE TABLE IF NOT EXISTS queued (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL, queue TEXT NOT NULL, size INTEGER NOT NULL, value BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS queued_of_tenant ON queued (tenant, queue, number);
""",
    check="SELECT number, tenant, queue, size, value FROM queued LIMIT 0;",
    what="the store of durable queues",
    lost="what was in durable queues is lost",
)
NAME_COPIES = 2
"""A queue's name stands beside each of its values, and in the index."""
SHORT_NAMES = 32
"""Bytes of names that are counted with a value already."""


class QueueFile:
    """The file. How many bytes each tenant has in it is counted here: adding them up takes longer the more there are."""

    def __init__(self, path: Path) -> None:
        self._file = DatabaseFile(path, FORMAT)
        with self._file.reading() as db:
            self._bytes = Counter(dict(db.execute("SELECT tenant, sum(size) FROM queued GROUP BY tenant")))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def add(self, tenant: str, queue: str, values: Sequence[HeldValue], most: int) -> list[HeldValue] | None:
        """Keep values; returns them with their rows, or None, and keeps none, if the tenant's take more than ``most`` bytes."""
        name = max(NAME_COPIES * len(queue.encode()) - SHORT_NAMES, 0)
        sizes = [value.size + name for value in values]
        if self._bytes[tenant] + sum(sizes) > most:
            return None
        insert = "INSERT INTO queued (tenant, queue, size, value) VALUES (?, ?, ?, ?) RETURNING number"
        with self._file.transaction() as db:
            kept = [
                value._replace(row=db.execute(insert, (tenant, queue, size, value.text)).fetchone()[0])
                for value, size in zip(values, sizes, strict=True)
            ]
        self._bytes[tenant] += sum(sizes)
        return kept

    def values(self, tenant: str, queue: str) -> list[HeldValue]:
        """Return what a queue holds, in order."""
        with self._file.reading() as db:
            query = "SELECT value, number FROM queued WHERE tenant = ? AND queue = ? ORDER BY number"
            return [HeldValue(text, row) for text, row in db.execute(query, (tenant, queue))]

    def drop(self, rows: Sequence[int]) -> None:
        """Forget values."""
        delete = "DELETE FROM queued WHERE number = ? RETURNING tenant, size"
        with self._file.transaction() as db:
            gone = [one for row in rows for one in db.execute(delete, (row,)).fetchall()]
        for tenant, size in gone:
            self._bytes[tenant] -= size
