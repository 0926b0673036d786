"""Snapshots on disk: a file each, and one SQLite table that says whose they are. Blocking calls, for one thread.

A snapshot is written to a file that nothing names, synced, renamed, and entered into the table in the same transaction; a
crash leaves the old state or the new one. Several processes may share the folder: each holds its lock shared, and what a
crash left behind is cleared away by a process that finds itself alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from inferd.protocol import SavedContext, SnapshotDamaged, Unavailable, check_snapshot_name
from inferd_runtime.kv import snapshot_format
from inferd_runtime.kv.snapshot_format import Snapshot
from inferd_runtime.kv.snapshot_place import (
    BLOCK,
    Row,
    Taken,
    check_count,
    in_blocks,
    in_use,
    over_quota,
    tenant_folder,
    unknown,
)
from inferd_runtime.kv.snapshot_table import DATABASE, open_table

LOCK = "lock"
SUFFIX, UNFINISHED = ".safetensors", ".part"
HEADROOM = 2 * BLOCK
"""Bytes that are assumed for a header that is not written yet."""
log = logging.getLogger("inferd.snapshots")
faults = logging.getLogger("inferd.storage")


class SnapshotFolder:
    """All tenants' snapshots under one folder, at most ``quota`` bytes for each tenant.

    Every method may raise Unavailable when the disk does not do what it should. Nothing is made before the first call.
    """

    def __init__(self, folder: Path, quota: int) -> None:
        self._folder = folder
        self._quota = quota
        self._lock: int | None = None
        self._opened: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the table, until the next call opens it again."""
        if self._opened is not None:
            self._opened.close()
        if self._lock is not None:
            os.close(self._lock)
        self._opened = self._lock = None

    def clean(self) -> None:
        """Delete what a crash left behind, if the folder exists and no other process uses it."""
        with disk_errors():
            if self._folder.is_dir():
                self._db()

    def save(self, tenant: str, name: str, snapshot: Snapshot, *, overwrite: bool) -> SavedContext:
        """Write a snapshot to disk and return its row.

        Raises InvalidRequest for a name that is not allowed or in use, LimitExceeded past the tenant's quota.
        """
        check_snapshot_name(name)
        with disk_errors():
            self._check_room(tenant, name, snapshot.nbytes + HEADROOM, overwrite)
            file = f"{tenant_folder(tenant)}/{secrets.token_hex(16)}{SUFFIX}"
            path = self._folder / file
            part = path.with_suffix(UNFINISHED)
            try:
                size = self._write(snapshot, part)
                row = Row(tenant, name, file, snapshot.facts.model, len(snapshot.tokens), size, time.time())
                self._enter(row, part, overwrite)
            finally:
                part.unlink(missing_ok=True)  # gone already where it became the file
        return row.saved

    def load(self, tenant: str, name: str) -> Snapshot:
        """Return a snapshot. Raises NotFound, SnapshotDamaged, SnapshotForeign."""
        with disk_errors():
            return self._read(self._row(tenant, name))

    def take(self, tenant: str, name: str, check: Callable[[Snapshot], object]) -> Taken:
        """Return a snapshot and withdraw it from the table, unless it cannot be read or ``check`` raises."""
        with disk_errors():
            row = self._row(tenant, name)
            snapshot = self._read(row)
            check(snapshot)
            with self._transaction() as db:
                if not db.execute("DELETE FROM snapshots WHERE file = ?", (row.file,)).rowcount:
                    raise unknown(name)
            return Taken(snapshot, row)

    def finish_take(self, taken: Taken, *, used: bool) -> None:
        """Delete the file if the snapshot was ``used``; else put it back, unless its name is in use again."""
        row = taken.row
        with disk_errors():
            if not used:
                with self._transaction() as db:
                    used = not self._insert(db, row, "IGNORE")
            if used:
                (self._folder / row.file).unlink(missing_ok=True)

    def delete(self, tenant: str, name: str) -> None:
        """Delete a snapshot without reading it. Raises NotFound."""
        with disk_errors():
            row = self._row(tenant, name)
            with self._transaction() as db:
                if not db.execute("DELETE FROM snapshots WHERE file = ?", (row.file,)).rowcount:
                    raise unknown(name)
            (self._folder / row.file).unlink(missing_ok=True)

    def saved(self, tenant: str) -> list[SavedContext]:
        """Return a tenant's snapshots, ordered by name."""
        with disk_errors():
            rows = self._db().execute("SELECT * FROM snapshots WHERE tenant = ? ORDER BY name", (tenant,))
            return [Row(*row).saved for row in rows]

    # -- Rows -----------------------------------------------------------------------------------------------------

    def _row(self, tenant: str, name: str) -> Row:
        check_snapshot_name(name)
        row = self._find(self._db(), tenant, name)
        if row is None:
            raise unknown(name)
        return row

    def _find(self, db: sqlite3.Connection, tenant: str, name: str) -> Row | None:
        found = db.execute("SELECT * FROM snapshots WHERE tenant = ? AND name = ?", (tenant, name)).fetchone()
        return None if found is None else Row(*found)

    def _insert(self, db: sqlite3.Connection, row: Row, conflict: str) -> bool:
        values = (row.tenant, row.name, row.file, row.model, row.length, row.bytes, row.created)
        return bool(db.execute(f"INSERT OR {conflict} INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?)", values).rowcount)

    def _enter(self, row: Row, part: Path, overwrite: bool) -> None:
        """Rename the file and enter its row in one transaction; delete the file that had the name before."""
        with self._transaction() as db:
            old = self._check_room(row.tenant, row.name, row.bytes, overwrite)
            part.replace(self._folder / row.file)
            _sync(part.parent)
            _sync(self._folder)
            self._insert(db, row, "REPLACE")
        if old is not None:
            (self._folder / old.file).unlink(missing_ok=True)

    def _check_room(self, tenant: str, name: str, size: int, overwrite: bool) -> Row | None:
        """Return the row that will be replaced, None if there is none. Raises InvalidRequest or LimitExceeded."""
        db = self._db()
        old = self._find(db, tenant, name)
        if old is not None and not overwrite:
            raise in_use(name)
        query = "SELECT count(*), sum((bytes + :most) / :block * :block) FROM snapshots WHERE tenant = :tenant AND name != :name"
        row = db.execute(query, {"tenant": tenant, "name": name, "block": BLOCK, "most": BLOCK - 1}).fetchone()
        others, held = row[0], row[1] or 0
        if held + in_blocks(size) > self._quota:
            raise over_quota(self._quota)
        if old is None:
            check_count(others)
        return old

    # -- Files ----------------------------------------------------------------------------------------------------

    def _write(self, snapshot: Snapshot, path: Path) -> int:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        snapshot_format.write(snapshot, path)
        _sync(path)
        return path.stat().st_size

    def _read(self, row: Row) -> Snapshot:
        try:
            return snapshot_format.read(self._folder / row.file)
        except FileNotFoundError:
            if self._find(self._db(), row.tenant, row.name) is None:
                raise unknown(row.name) from None  # another process has just deleted it
            raise SnapshotDamaged(f"the file of snapshot {row.name!r} is gone") from None

    # -- The table ------------------------------------------------------------------------------------------------

    def _db(self) -> sqlite3.Connection:
        if self._opened is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.ExitStack() as failed:
                failed.callback(self.close)  # a lock that is held would have the next call wait for this one, for ever
                self._lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
                alone = _try_lock(self._lock)
                self._opened = open_table(self._folder / DATABASE)
                if alone:
                    self._clean(self._opened)
                fcntl.flock(self._lock, fcntl.LOCK_SH)
                failed.pop_all()
        return self._opened

    def _clean(self, db: sqlite3.Connection) -> None:
        """Delete rows without a file and files without a row."""
        rows = {row[0] for row in db.execute("SELECT file FROM snapshots")}
        files = {str(path.relative_to(self._folder)) for path in self._folder.glob("*/*") if path.is_file()}
        for file in rows - files:
            log.warning("the snapshot file %s is gone", file)
            db.execute("DELETE FROM snapshots WHERE file = ?", (file,))
        for file in files - rows:
            (self._folder / file).unlink(missing_ok=True)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._db() as db:  # commits, or rolls back what an exception interrupted
            db.execute("BEGIN IMMEDIATE")
            yield db


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raise Unavailable for errors of the disk and of SQLite. Where on the disk is for the log: tenants are told the rest."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        faults.error("snapshots: %s", error)
        reason = getattr(error, "strerror", None) or error
        raise Unavailable(f"the folder of the snapshots cannot be used: {reason}") from error


def _try_lock(lock: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
