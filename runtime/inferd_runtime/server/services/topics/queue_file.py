"""The values of durable queues in a SQLite file. Synchronous, for one thread; what goes wrong with the file is Unavailable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inferd_runtime.server.database_file import DatabaseFile, DatabaseFormat
from inferd_runtime.server.services.topics.buffers import HeldValue, size_of

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


class QueueFile:
    """The file."""

    def __init__(self, path: Path) -> None:
        self._file = DatabaseFile(path, FORMAT)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def add(self, tenant: str, queue: str, values: Sequence[HeldValue], most: int) -> list[HeldValue] | None:
        """Keep values; returns them with their rows, or None, and keeps none, if the tenant's take more than ``most`` bytes."""
        with self._file.transaction() as db:
            query = "SELECT ifnull(sum(size), 0) FROM queued WHERE tenant = ?"
            if db.execute(query, (tenant,)).fetchone()[0] + size_of(values) > most:
                return None
            insert = "INSERT INTO queued (tenant, queue, size, value) VALUES (?, ?, ?, ?) RETURNING number"
            return [
                value._replace(row=db.execute(insert, (tenant, queue, value.size, value.text)).fetchone()[0])
                for value in values
            ]

    def values(self, tenant: str, queue: str) -> list[HeldValue]:
        """Return what a queue holds, in order."""
        with self._file.reading() as db:
            query = "SELECT value, number FROM queued WHERE tenant = ? AND queue = ? ORDER BY number"
            return [HeldValue(text, row) for text, row in db.execute(query, (tenant, queue))]

    def drop(self, rows: Sequence[int]) -> None:
        """Forget values."""
        with self._file.transaction() as db:
            db.executemany("DELETE FROM queued WHERE number = ?", [(row,) for row in rows])
