"""Uploaded programs, kept by content hash in one SQLite file; names and versions point at hashes, per tenant.

Synchronous, and for one thread at a time: :mod:`inferd_runtime.server.programs.library` calls it from one. What goes wrong
with the file is Unavailable, never an error of SQLite; the next call opens the file again.
"""

from __future__ import annotations

import re
import sqlite3
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.server.database_file import DatabaseFile, DatabaseFormat
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.tenancy.quotas import Quotas

SCHEMA = """
CREATE TABLE IF NOT EXISTS sources (hash TEXT PRIMARY KEY, bundle BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS programs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL,
    hash TEXT NOT NULL REFERENCES sources(hash), created_at REAL NOT NULL,
    UNIQUE (tenant, name, version)
) STRICT;
CREATE INDEX IF NOT EXISTS programs_by_hash ON programs (tenant, hash);
ALTER TABLE programs ADD COLUMN serves TEXT NOT NULL DEFAULT '';
"""
COLUMNS_CHECK = """
SELECT hash, bundle FROM sources LIMIT 0;
SELECT number, tenant, name, version, hash, created_at, serves FROM programs LIMIT 0;
"""
DATABASE = DatabaseFormat(
    2, SCHEMA, COLUMNS_CHECK, "the registry of programs", "its programs have to be uploaded again"
)
HEXADECIMAL = re.compile("[0-9a-f]+")
AUTOMATIC = re.compile(r"0\.0\.(\d+)")
SHORTEST_HASH = 8
LONGEST_REFERENCE = 200
PROGRAM_BYTES = 1024
"""Bytes that are counted for a program beside its source."""
COLUMNS = "SELECT hash, name, version FROM programs WHERE tenant = ?"


@dataclass(frozen=True)
class Entry:
    """A line of the listing. ``created_at`` is in seconds since the epoch; ``serves``: see :class:`Manifest`."""

    id: str
    name: str
    version: str
    created_at: float
    serves: str = ""


@dataclass(frozen=True)
class Uploaded:
    """What an upload did: ``created`` is False when the same program had that name and version already."""

    program: Program
    created: bool


@dataclass(frozen=True)
class StoredProgram:
    """A program as it is kept: its hash, its name and version, and the JSON of its bundle."""

    id: str
    name: str
    version: str
    bundle: bytes


class Registry:
    """Programs of all tenants."""

    def __init__(self, path: Path) -> None:
        """Open the file. One that is damaged is moved aside first; raises Unavailable where there can be none."""
        self._file = DatabaseFile(path, DATABASE)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def keep(self, program: Program, tenant: str, quotas: Quotas) -> Uploaded:
        """Keep a program.

        The version is the one given, else the one that the program states, else the next of ``0.0.1``, ``0.0.2``, ... for
        that name; but source that already has that name is not given another version. Raises InvalidRequest when other source
        has that name and version, LimitExceeded when the tenant keeps too much, Unavailable when the file cannot be written.
        """
        with self._file.transaction() as db:
            known = self._same_source(db, program, tenant)
            if known is not None:
                return Uploaded(replace(program, version=known), created=False)
            program = replace(program, version=program.version or self._next_version(db, program.name, tenant))
            self._refuse_taken(db, program, tenant)
            bundle = msgspec.json.encode(program.bundle)
            self._check_quotas(db, tenant, len(bundle), quotas)
            db.execute("INSERT OR IGNORE INTO sources VALUES (?, ?)", (program.id, bundle))
            values = (tenant, program.name, program.version, program.id, time.time(), program.serves)
            columns = "tenant, name, version, hash, created_at, serves"
            db.execute(f"INSERT INTO programs ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)
        return Uploaded(program, created=True)

    def resolve(self, reference: str, tenant: str) -> tuple[str, str, str]:
        """Return the hash, name and version of ``name`` (its newest upload), ``name@version``, or ``sha256:`` and at least 8
        digits. Raises NotFound, and InvalidRequest for a hash prefix that fits several programs.
        """
        if len(reference) > LONGEST_REFERENCE:
            raise NotFound(f"no program {reference[:SHORTEST_HASH]}... has been uploaded")
        with self._file.reading() as db:
            return self._resolve(db, reference, tenant)

    def find(self, key: tuple[str, str, str]) -> StoredProgram:
        """Return the program of a resolved reference. Raises NotFound if it was removed meanwhile."""
        with self._file.reading() as db:
            row = db.execute("SELECT bundle FROM sources WHERE hash = ?", (key[0],)).fetchone()
        if row is None:
            raise NotFound(f"no program {key[1]!r} has been uploaded", program=key[1])
        return StoredProgram(*key, row[0])

    def remove(self, reference: str, tenant: str) -> int:
        """Remove ``name@version``, all versions of ``name``, or all names of a hash; returns how many that were.

        Raises what :meth:`resolve` raises.
        """
        with self._file.transaction() as db:
            hash_, name, version = self._resolve(db, reference, tenant)
            if reference.startswith("sha256:"):
                done = db.execute("DELETE FROM programs WHERE tenant = ? AND hash = ?", (tenant, hash_))
            elif "@" in reference:
                row = (tenant, name, version)
                done = db.execute("DELETE FROM programs WHERE tenant = ? AND name = ? AND version = ?", row)
            else:
                done = db.execute("DELETE FROM programs WHERE tenant = ? AND name = ?", (tenant, name))
            db.execute("DELETE FROM sources WHERE hash NOT IN (SELECT hash FROM programs)")
            return done.rowcount

    def entries(self, tenant: str) -> list[Entry]:
        """Return a tenant's programs, newest first."""
        query = "SELECT hash, name, version, created_at, serves FROM programs WHERE tenant = ? ORDER BY number DESC"
        with self._file.reading() as db:
            return [Entry(*row) for row in db.execute(query, (tenant,))]

    def _check_quotas(self, db: sqlite3.Connection, tenant: str, size: int, quotas: Quotas) -> None:
        """Raise LimitExceeded if one more program of ``size`` bytes is too much. The same source twice is counted once."""
        hint = "; remove one: `inferd programs rm NAME@VERSION`"
        count = db.execute("SELECT COUNT(*) FROM programs WHERE tenant = ?", (tenant,)).fetchone()[0] + 1
        quotas.check("programs", count, f"programs{hint}")
        query = "SELECT SUM(LENGTH(bundle)) FROM sources WHERE hash IN (SELECT hash FROM programs WHERE tenant = ?)"
        stored = db.execute(query, (tenant,)).fetchone()[0] or 0
        quotas.check("stored_bytes", stored + size + count * PROGRAM_BYTES, f"bytes of programs{hint}")

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

    def _resolve(self, db: sqlite3.Connection, reference: str, tenant: str) -> tuple[str, str, str]:
        if reference.startswith("sha256:"):
            return self._resolve_hash(db, reference, tenant)
        name, _, version = reference.partition("@")
        query = f"{COLUMNS} AND name = ?{' AND version = ?' if version else ''} ORDER BY number DESC"
        row = db.execute(query, (tenant, name, version) if version else (tenant, name)).fetchone()
        if row is None:
            there = self._similar(db, name, tenant)
            raise NotFound(f"no program {reference!r} has been uploaded{there}", program=reference)
        return row[0], row[1], row[2]

    def _similar(self, db: sqlite3.Connection, name: str, tenant: str) -> str:
        """Return which program there is of this name in another version, case, or with ``-`` for ``_``."""
        same = "REPLACE(LOWER(name), '_', '-') = REPLACE(LOWER(?), '_', '-')"
        row = db.execute(f"{COLUMNS} AND {same} ORDER BY number DESC", (tenant, name)).fetchone()
        return f"; there is {row[1]}@{row[2]}" if row is not None else ""

    def _resolve_hash(self, db: sqlite3.Connection, reference: str, tenant: str) -> tuple[str, str, str]:
        digits = reference.removeprefix("sha256:")
        if len(digits) < SHORTEST_HASH or not HEXADECIMAL.fullmatch(digits):
            raise InvalidRequest(f"{reference!r}: give at least {SHORTEST_HASH} hexadecimal digits of the hash")
        rows = db.execute(f"{COLUMNS} AND hash GLOB ? ORDER BY number DESC", (tenant, reference + "*")).fetchall()
        if not rows:
            raise NotFound(f"no program {reference!r} has been uploaded", program=reference)
        if len({row[0] for row in rows}) > 1:
            raise InvalidRequest(f"{reference!r} fits more than one program: give more digits")
        return rows[0][0], rows[0][1], rows[0][2]
