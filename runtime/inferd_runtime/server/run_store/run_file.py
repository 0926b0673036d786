"""Runs in a SQLite file: their records, events, results, and the keys of their launches, bounded for each tenant.

Synchronous, and for one thread: :class:`~inferd_runtime.server.run_store.archive.RunArchive` calls it from its own. What goes
wrong with the file is Unavailable.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from inferd.protocol import ErrorInfo
from inferd_runtime.sandbox.messages import Bundle
from inferd_runtime.server.database_file import DatabaseFile, DatabaseFormat
from inferd_runtime.server.run_store.pruning import Pruned, split_kept
from inferd_runtime.server.run_store.records import (
    RECORD_BYTES,
    KeptKey,
    Relaunch,
    RunRecord,
    Said,
    StoredEvent,
    UnfinishedRun,
)
from inferd_runtime.server.tenancy.quotas import Quotas

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, over INTEGER NOT NULL, size INTEGER NOT NULL,
    record BLOB NOT NULL, listed BLOB NOT NULL, result BLOB
) STRICT;
CREATE INDEX IF NOT EXISTS runs_of_tenant ON runs (tenant, over, number);
CREATE TABLE IF NOT EXISTS events (
    run TEXT NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    first INTEGER NOT NULL, last INTEGER NOT NULL, events BLOB NOT NULL,
    PRIMARY KEY (run, first)
) STRICT;
CREATE TABLE IF NOT EXISTS keys (
    tenant TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL, run TEXT NOT NULL, created_at REAL NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT;
CREATE INDEX IF NOT EXISTS keys_by_arrival ON keys (tenant);
CREATE INDEX IF NOT EXISTS keys_by_age ON keys (created_at);
CREATE TABLE IF NOT EXISTS relaunches (
    run TEXT PRIMARY KEY REFERENCES runs(id) ON DELETE CASCADE,
    relaunch BLOB NOT NULL, attempts INTEGER NOT NULL, position INTEGER NOT NULL, digest BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS inputs (
    run TEXT NOT NULL REFERENCES relaunches(run) ON DELETE CASCADE, number INTEGER NOT NULL, message TEXT NOT NULL,
    PRIMARY KEY (run, number)
) STRICT;
CREATE TABLE IF NOT EXISTS bundles (program TEXT PRIMARY KEY, bundle BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS bundle_uses (
    run TEXT PRIMARY KEY REFERENCES relaunches(run) ON DELETE CASCADE, program TEXT NOT NULL
) STRICT;
CREATE TRIGGER IF NOT EXISTS unused_bundle AFTER DELETE ON bundle_uses BEGIN
    DELETE FROM bundles WHERE program = OLD.program AND NOT EXISTS (SELECT 1 FROM bundle_uses WHERE program = OLD.program);
END;
"""
CHECK = """
SELECT number, id, tenant, over, size, record, listed, result FROM runs LIMIT 0;
SELECT run, first, last, events FROM events LIMIT 0;
SELECT tenant, key, fingerprint, run, created_at FROM keys LIMIT 0;
SELECT run, relaunch, attempts, position, digest FROM relaunches LIMIT 0;
SELECT run, number, message FROM inputs LIMIT 0;
SELECT run, bundle_uses.program, bundle FROM bundle_uses, bundles LIMIT 0;
"""
FORMAT = DatabaseFormat(3, SCHEMA, CHECK, "the store of runs", "its runs are forgotten")
RUN_COLUMNS = "id, tenant, over, size, record, listed, result"
TAKE_OVER = (
    f"INSERT OR IGNORE INTO runs ({RUN_COLUMNS}) SELECT {RUN_COLUMNS} FROM other.runs ORDER BY number",
    "INSERT OR IGNORE INTO events SELECT * FROM other.events",
    "INSERT OR IGNORE INTO keys SELECT * FROM other.keys",
    "INSERT OR IGNORE INTO relaunches SELECT * FROM other.relaunches",
    "INSERT OR IGNORE INTO inputs SELECT * FROM other.inputs",
    "INSERT OR IGNORE INTO bundles SELECT * FROM other.bundles",
    "INSERT OR IGNORE INTO bundle_uses SELECT * FROM other.bundle_uses",
)
"""What copies the tables of the attached file ``other``."""
KEY_SECONDS = 24 * 3600.0
"""How long a key stands for its launch."""
MAX_KEYS = 10_000
"""Keys of one tenant; those that came first go first."""
_events = msgspec.msgpack.Decoder(list[StoredEvent])
_record = msgspec.msgpack.Decoder(RunRecord)
_relaunch = msgspec.msgpack.Decoder(Relaunch)
_bundle = msgspec.msgpack.Decoder(Bundle)


class RunFile:
    """The file. Every method raises Unavailable where the file or the disk does not do what it should."""

    def __init__(self, path: Path) -> None:
        self._file = DatabaseFile(path, FORMAT)
        self._bundles: WeakValueDictionary[str, Bundle] = WeakValueDictionary()
        """Those that were read and are in use."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    # Writing --------------------------------------------------------------------------------------------------------

    def begin(self, tenant: str, record: RunRecord, key: KeptKey | None = None) -> None:
        """Keep a run that has been launched, and the key of its launch."""
        with self._file.transaction() as db:
            row = (record.id, tenant, RECORD_BYTES, *_packed(record))
            db.execute(
                "INSERT OR IGNORE INTO runs (id, tenant, over, size, record, listed) VALUES (?, ?, 0, ?, ?, ?)", row
            )
            if key is not None:
                self._keep_key(db, tenant, key)

    def keep_relaunch(self, run: str, relaunch: Relaunch, said: Said) -> None:
        """Keep what starting a run again takes, until it is over. It has said nothing yet: ``said``."""
        with self._file.transaction() as db:
            alone = relaunch
            if relaunch.program:
                alone = msgspec.structs.replace(relaunch, bundle=Bundle(relaunch.bundle.name, {}))
            row = (run, msgspec.msgpack.encode(alone), said.position, said.digest)
            kept = db.execute(
                "INSERT OR IGNORE INTO relaunches SELECT ?1, ?2, 1, ?3, ?4 WHERE EXISTS (SELECT 1 FROM runs WHERE id = ?1)",
                row,
            )
            if relaunch.program and kept.rowcount:
                self._keep_bundle(db, run, relaunch)

    def forget_relaunch(self, run: str) -> None:
        """Do not start a run again."""
        with self._file.transaction() as db:
            db.execute("DELETE FROM relaunches WHERE run = ?", (run,))

    def set_attempts(self, run: str, attempts: int) -> None:
        """Keep how often a run was started."""
        with self._file.transaction() as db:
            db.execute("UPDATE relaunches SET attempts = ? WHERE run = ?", (attempts, run))

    def add_input(self, run: str, number: int, message: str) -> None:
        """Keep a message that was sent to a run, its ``number``-th."""
        with self._file.transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO inputs SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM relaunches WHERE run = ?1)",
                (run, number, message),
            )

    def append(self, run: str, events: Sequence[StoredEvent], said: Said | None = None) -> None:
        """Keep further events of a run; ``said``: what it has said with them, if it may be started again."""
        with self._file.transaction() as db:
            self._append(db, run, events)
            if said is not None:
                row = (said.position, said.digest, run)
                db.execute("UPDATE relaunches SET position = ?, digest = ? WHERE run = ?", row)

    def finish(
        self, tenant: str, record: RunRecord, result: Sequence[str] | None, events: Sequence[StoredEvent], first: int
    ) -> None:
        """Keep how a run ended, with the parts of its result and its last events. Events before index ``first`` are dropped."""
        with self._file.transaction() as db:
            row = (record.id, tenant, *_packed(record))
            db.execute(
                "INSERT INTO runs (id, tenant, over, size, record, listed) VALUES (?1, ?2, 1, 0, ?3, ?4) "
                "ON CONFLICT (id) DO UPDATE SET over = 1, record = ?3, listed = ?4, result = NULL",
                row,
            )
            db.execute("DELETE FROM relaunches WHERE run = ?", (record.id,))
            db.execute("DELETE FROM events WHERE run = ? AND last < ?", (record.id, first))
            self._append(db, record.id, events)
            parts = [part.encode() for part in result or ()]
            db.execute(
                "UPDATE runs SET size = ?2 + length(record) + "
                "ifnull((SELECT sum(length(events)) FROM events WHERE run = ?1), 0) WHERE id = ?1",
                (record.id, RECORD_BYTES + sum(map(len, parts))),
            )
            if result is not None:
                self._keep_result(db, record.id, parts)

    def prune(self, tenant: str, quotas: Quotas, oldest: int = 0) -> Pruned:
        """Forget the tenant's ``oldest`` finished runs, and those beyond its quotas except its newest one."""
        with self._file.transaction() as db:
            rows = db.execute(
                "SELECT id, size FROM runs WHERE tenant = ? AND over = 1 ORDER BY number DESC", (tenant,)
            ).fetchall()
            pruned = split_kept(rows, quotas, oldest)
            db.executemany("DELETE FROM runs WHERE id = ?", [(run,) for run in pruned.forgotten])
        return pruned

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return how many finished runs of each tenant there are, and their bytes."""
        with self._file.reading() as db:
            rows = db.execute("SELECT tenant, count(*), sum(size) FROM runs WHERE over = 1 GROUP BY tenant")
            return {tenant: (count, size) for tenant, count, size in rows}

    def take_over(self, path: Path, error: ErrorInfo) -> list[str]:
        """Take all that is in the file of a server that has ended, and return the ids of its runs that are to start again.

        Its other active runs end with ``error``. What is here already stays as it is, so it may be done twice.
        """
        with contextlib.closing(RunFile(path)) as other:
            other.end_active(error)
            unfinished = other.unfinished()
        with self._file.taking_over(path) as db:
            for copy in TAKE_OVER:
                db.execute(copy)
        return unfinished

    def end_active(self, error: ErrorInfo) -> int:
        """End the runs that were active when the last server ended, except those to start again. Returns how many."""
        with self._file.transaction() as db:
            rows = db.execute(
                "SELECT id, record FROM runs WHERE over = 0 AND id NOT IN (SELECT run FROM relaunches)"
            ).fetchall()
            for run, packed in rows:
                record = _record.decode(packed)
                next_index = db.execute("SELECT ifnull(max(last) + 1, 0) FROM events WHERE run = ?", (run,)).fetchone()[
                    0
                ]
                now = time.time()
                ended = msgspec.structs.replace(
                    record, state="failed", finished_at=now, error=error, next_event=next_index + 1
                )
                self._append(db, run, [StoredEvent(next_index, "finished", now)])
                db.execute("UPDATE runs SET over = 1, record = ?, listed = ? WHERE id = ?", (*_packed(ended), run))
        return len(rows)

    # Reading --------------------------------------------------------------------------------------------------------

    def known(self, runs: Sequence[str]) -> set[str]:
        """Return those of some runs that are here."""
        with self._file.reading() as db:
            query = "SELECT id FROM runs WHERE id IN (SELECT value FROM json_each(?))"
            return {run for (run,) in db.execute(query, (msgspec.json.encode(runs).decode(),))}

    def unfinished(self) -> list[str]:
        """Return the ids of the runs to start again, oldest first."""
        with self._file.reading() as db:
            query = "SELECT id FROM runs WHERE over = 0 AND id IN (SELECT run FROM relaunches) ORDER BY number"
            return [run for (run,) in db.execute(query)]

    def unfinished_run(self, run: str) -> UnfinishedRun:
        """Return a run to start again."""
        with self._file.reading() as db:
            query = "SELECT record, tenant, relaunch, attempts, position, digest FROM runs, relaunches WHERE id = ? AND run = id"
            record, tenant, packed, attempts, position, digest = db.execute(query, (run,)).fetchone()
            relaunch = _relaunch.decode(packed)
            if relaunch.program:
                relaunch = msgspec.structs.replace(relaunch, bundle=self._shared_bundle(db, relaunch.program))
            inputs = db.execute("SELECT message FROM inputs WHERE run = ? ORDER BY number", (run,))
            events = db.execute("SELECT events FROM events WHERE run = ? ORDER BY first", (run,))
            return UnfinishedRun(
                _record.decode(record), tenant, relaunch, attempts, Said(position, digest),
                [message for (message,) in inputs], [event for (packed,) in events for event in _events.decode(packed)],
            )  # fmt: skip

    def find(self, tenant: str, run: str) -> RunRecord | None:
        """Return a tenant's run that is over; None if there is none of that id."""
        with self._file.reading() as db:
            query = "SELECT record FROM runs WHERE id = ? AND tenant = ? AND over = 1"
            row = db.execute(query, (run, tenant)).fetchone()
        return None if row is None else _record.decode(row[0])

    def records(self, tenant: str) -> list[RunRecord]:
        """Return the tenant's runs that are over, newest first, as a list shows them."""
        with self._file.reading() as db:
            query = "SELECT listed FROM runs WHERE tenant = ? AND over = 1 ORDER BY number DESC"
            rows = db.execute(query, (tenant,)).fetchall()
        return [_record.decode(row[0]) for row in rows]

    def result_slice(self, run: str, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of a run's result from ``offset`` on; nothing behind its end or without a result."""
        with self._file.reading() as db:
            row = db.execute("SELECT number FROM runs WHERE id = ? AND result IS NOT NULL", (run,)).fetchone()
            if row is None:
                return b""
            with db.blobopen("runs", "result", row[0], readonly=True) as blob:
                blob.seek(min(offset, len(blob)))
                return blob.read(size)

    def events(self, run: str, start: int) -> list[StoredEvent]:
        """Return the next stretch of a run's events from index ``start`` on; nothing after the last one."""
        with self._file.reading() as db:
            query = "SELECT events FROM events WHERE run = ? AND last >= ? ORDER BY first LIMIT 1"
            row = db.execute(query, (run, start)).fetchone()
        return [] if row is None else [event for event in _events.decode(row[0]) if event.index >= start]

    def key(self, tenant: str, key: str) -> KeptKey | None:
        """Return what a key of the tenant stands for, None if it stands for nothing (any more)."""
        with self._file.reading() as db:
            query = "SELECT key, fingerprint, run, created_at FROM keys WHERE tenant = ? AND key = ? AND created_at > ?"
            row = db.execute(query, (tenant, key, time.time() - KEY_SECONDS)).fetchone()
        return None if row is None else KeptKey(*row)

    # Parts ----------------------------------------------------------------------------------------------------------

    def _keep_result(self, db: sqlite3.Connection, run: str, parts: Sequence[bytes]) -> None:
        """Write a result part by part: one call that copies all of it would hold up every other thread."""
        size = sum(map(len, parts))
        db.execute("UPDATE runs SET result = zeroblob(?) WHERE id = ?", (size, run))
        (number,) = db.execute("SELECT number FROM runs WHERE id = ?", (run,)).fetchone()
        with db.blobopen("runs", "result", number) as blob:
            for part in parts:
                blob.write(part)

    def _keep_bundle(self, db: sqlite3.Connection, run: str, relaunch: Relaunch) -> None:
        """Keep a run's bundle as long as the run, and others of its program, may be started again."""
        if db.execute("SELECT 1 FROM bundles WHERE program = ?", (relaunch.program,)).fetchone() is None:
            row = (relaunch.program, msgspec.msgpack.encode(relaunch.bundle))
            db.execute("INSERT INTO bundles VALUES (?, ?)", row)
        db.execute("INSERT INTO bundle_uses VALUES (?, ?)", (run, relaunch.program))

    def _shared_bundle(self, db: sqlite3.Connection, program: str) -> Bundle:
        """Return a program's bundle, the same for all of its runs that are started again."""
        bundle = self._bundles.get(program)
        if bundle is None:
            (packed,) = db.execute("SELECT bundle FROM bundles WHERE program = ?", (program,)).fetchone()
            self._bundles[program] = bundle = _bundle.decode(packed)
        return bundle

    def _append(self, db: sqlite3.Connection, run: str, events: Sequence[StoredEvent]) -> None:
        if events:
            row = (run, events[0].index, events[-1].index, msgspec.msgpack.encode(events))
            db.execute(
                "INSERT OR REPLACE INTO events SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM runs WHERE id = ?1)",
                row,
            )

    def _keep_key(self, db: sqlite3.Connection, tenant: str, key: KeptKey) -> None:
        row = (tenant, key.key, key.fingerprint, key.run, key.created_at)
        db.execute("INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?)", row)
        trim_keys(db, "keys", tenant, key.created_at)


def trim_keys(db: sqlite3.Connection, table: str, tenant: str, now: float) -> None:
    """Forget the keys of a table that are older than KEY_SECONDS, and those of a tenant that came before its newest MAX_KEYS.

    Which came first is told by their rows, not by the clock, which may have been ahead: keys from then age from now on.
    """
    db.execute(f"DELETE FROM {table} WHERE created_at <= ?", (now - KEY_SECONDS,))
    db.execute(f"UPDATE {table} SET created_at = ?1 WHERE created_at > ?1", (now,))
    query = f"SELECT rowid FROM {table} WHERE tenant = ? ORDER BY rowid DESC LIMIT 1 OFFSET ?"
    newest_beyond = db.execute(query, (tenant, MAX_KEYS)).fetchone()
    if newest_beyond is not None:
        db.execute(f"DELETE FROM {table} WHERE tenant = ? AND rowid <= ?", (tenant, newest_beyond[0]))


def _packed(record: RunRecord) -> tuple[bytes, bytes]:
    """Return a record as it is kept, and as lists show it."""
    return msgspec.msgpack.encode(record), msgspec.msgpack.encode(record.in_list())
