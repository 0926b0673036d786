"""Uploaded programs, kept by content hash in one SQLite file; names and versions point at hashes, per tenant."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.sandbox.messages import Bundle
from inferd_runtime.server.programs.bundles import Program, make_program

SCHEMA = """
CREATE TABLE IF NOT EXISTS sources (hash TEXT PRIMARY KEY, bundle BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS programs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL,
    hash TEXT NOT NULL REFERENCES sources(hash), created_at REAL NOT NULL,
    UNIQUE (tenant, name, version)
) STRICT;
CREATE INDEX IF NOT EXISTS programs_by_hash ON programs (tenant, hash);
"""
FORMAT = 1
AUTOMATIC = re.compile(r"0\.0\.(\d+)")
SHORTEST_HASH = 8
CACHED = 256


@dataclass(frozen=True)
class Entry:
    """A line of the listing. ``created_at`` is in seconds since the epoch."""

    id: str
    name: str
    version: str
    created_at: float


@dataclass(frozen=True)
class Uploaded:
    """What an upload did: ``created`` is False when the same program had that name and version already."""

    program: Program
    created: bool


class Registry:
    """Programs of all tenants. May be used from several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        self._parsed: dict[tuple[str, str, str], Program] = {}
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT):
            self._db.close()
            raise InvalidRequest(f"{path} has format {found}; this version of inferd reads format {FORMAT}")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA foreign_keys=ON")
        self._db.executescript(SCHEMA)
        self._db.execute(f"PRAGMA user_version={FORMAT}")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def upload(self, bundle: Bundle, tenant: str, name: str = "", version: str = "") -> Uploaded:
        """Check a program and keep it.

        The version is the one given, else the one that the program states, else the next of ``0.0.1``, ``0.0.2``, ... for
        that name; but source that already has that name is not given another version. Raises what
        :func:`~inferd_runtime.server.programs.bundles.make_program` raises, and InvalidRequest when other source has
        that name and
        version.
        """
        program = make_program(bundle, name, version)
        with self._transaction() as db:
            known = self._same_source(db, program, tenant)
            if known is not None:
                return Uploaded(replace(program, version=known), created=False)
            program = replace(program, version=program.version or self._next_version(db, program.name, tenant))
            self._refuse_taken(db, program, tenant)
            row = (program.id, msgspec.json.encode(program.bundle))
            db.execute("INSERT OR IGNORE INTO sources VALUES (?, ?)", row)
            values = (tenant, program.name, program.version, program.id, time.time())
            db.execute("INSERT INTO programs (tenant, name, version, hash, created_at) VALUES (?, ?, ?, ?, ?)", values)
        return Uploaded(program, created=True)

    def cached(self, reference: str, tenant: str) -> Program | None:
        """Return what :meth:`find` would, if that takes no time; else None."""
        with self._lock:
            return self._parsed.get(self._resolve(reference, tenant))

    def find(self, reference: str, tenant: str) -> Program:
        """Return a program by ``name`` (its newest upload), ``name@version``, or ``sha256:`` and at least 8 digits.

        Raises NotFound, and InvalidRequest for a hash prefix that fits several programs.
        """
        with self._lock:
            key = self._resolve(reference, tenant)
            if key not in self._parsed:
                self._parsed[key] = self._load(key)
                while len(self._parsed) > CACHED:
                    del self._parsed[next(iter(self._parsed))]
            return self._parsed[key]

    def entries(self, tenant: str) -> list[Entry]:
        """Return a tenant's programs, newest first."""
        query = "SELECT hash, name, version, created_at FROM programs WHERE tenant = ? ORDER BY number DESC"
        with self._lock:
            return [Entry(*row) for row in self._db.execute(query, (tenant,))]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._db:  # commits, or rolls back what an exception interrupted
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db

    def _same_source(self, db: sqlite3.Connection, program: Program, tenant: str) -> str | None:
        """Return the version under which the same source has this name already, where that answers the upload; else None."""
        query = "SELECT version FROM programs WHERE tenant = ? AND name = ? AND hash = ? ORDER BY number DESC"
        versions = [row[0] for row in db.execute(query, (tenant, program.name, program.id))]
        if program.version:
            return program.version if program.version in versions else None
        return versions[0] if versions else None

    def _next_version(self, db: sqlite3.Connection, name: str, tenant: str) -> str:
        rows = db.execute("SELECT version FROM programs WHERE tenant = ? AND name = ?", (tenant, name))
        used = [int(match[1]) for row in rows if (match := AUTOMATIC.fullmatch(row[0]))]
        return f"0.0.{max(used, default=0) + 1}"

    def _refuse_taken(self, db: sqlite3.Connection, program: Program, tenant: str) -> None:
        query = "SELECT hash FROM programs WHERE tenant = ? AND name = ? AND version = ?"
        row = db.execute(query, (tenant, program.name, program.version)).fetchone()
        if row is not None:
            raise InvalidRequest(
                f"{program.name}@{program.version} exists with other source: change the version to upload this one",
                existing=row[0], uploaded=program.id,
            )  # fmt: skip

    def _resolve(self, reference: str, tenant: str) -> tuple[str, str, str]:
        if reference.startswith("sha256:"):
            return self._resolve_hash(reference, tenant)
        name, _, version = reference.partition("@")
        clause = " AND version = ?" if version else ""
        query = f"SELECT hash, name, version FROM programs WHERE tenant = ? AND name = ?{clause} ORDER BY number DESC"
        row = self._db.execute(query, (tenant, name, version) if version else (tenant, name)).fetchone()
        if row is None:
            raise NotFound(f"no program {reference!r} has been uploaded", program=reference)
        return row[0], row[1], row[2]

    def _resolve_hash(self, reference: str, tenant: str) -> tuple[str, str, str]:
        digits = reference.removeprefix("sha256:")
        if len(digits) < SHORTEST_HASH or not re.fullmatch("[0-9a-f]+", digits):
            raise InvalidRequest(f"{reference!r}: give at least {SHORTEST_HASH} hexadecimal digits of the hash")
        query = "SELECT hash, name, version FROM programs WHERE tenant = ? AND hash GLOB ? ORDER BY number DESC"
        rows = self._db.execute(query, (tenant, reference + "*")).fetchall()
        if not rows:
            raise NotFound(f"no program {reference!r} has been uploaded", program=reference)
        if len({row[0] for row in rows}) > 1:
            raise InvalidRequest(f"{reference!r} fits more than one program: give more digits")
        return rows[0][0], rows[0][1], rows[0][2]

    def _load(self, key: tuple[str, str, str]) -> Program:
        hash_, name, version = key
        blob = self._db.execute("SELECT bundle FROM sources WHERE hash = ?", (hash_,)).fetchone()[0]
        return make_program(msgspec.json.decode(blob, type=Bundle), name, version)
