"""The SQLite table of a folder of snapshots: whose they are, and which file holds one."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from inferd.protocol import Unavailable

SCHEMA = """
CREATE TABLE IF NOT EXISTS snapshots (
    tenant TEXT NOT NULL, name TEXT NOT NULL, file TEXT NOT NULL UNIQUE, model TEXT NOT NULL,
    length INTEGER NOT NULL, bytes INTEGER NOT NULL, created REAL NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT;
"""
FORMAT = 1
DATABASE = "snapshots.sqlite3"


def open_table(path: Path) -> sqlite3.Connection:
    """Return the table in a file, made if there is none. Raises Unavailable for another format, OSError and sqlite3.Error."""
    with contextlib.ExitStack() as opened:
        path.touch(0o600)
        db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        opened.callback(db.close)
        found = db.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT):
            raise Unavailable(f"{path} has format {found}; this version of inferd reads format {FORMAT}")
        try:
            db.execute("PRAGMA journal_mode=WAL")
        except UnicodeDecodeError as error:  # SQLite's message repeats what it found
            raise sqlite3.DatabaseError("the file is damaged") from error
        db.executescript(SCHEMA)
        db.execute(f"PRAGMA user_version={FORMAT}")
        opened.pop_all()
    return db
