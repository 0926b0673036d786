"""Opening a SQLite file that other things than this program may have written to, and saying what is wrong with it."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inferd.protocol import InvalidRequest, Unavailable

BUSY_SECONDS = 1.0
"""How long to wait for another process that holds the file."""
OWNER_ONLY = 0o600
"""Mode of a file that is made: its folder may be open to others. What SQLite keeps beside it gets the same."""
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
REASONS = {
    sqlite3.SQLITE_FULL: ("disk_full", "the disk is full"),
    sqlite3.SQLITE_IOERR: ("io_error", "the disk does not take or give what it should: it may be full"),
    sqlite3.SQLITE_READONLY: ("read_only", "it cannot be written"),
    sqlite3.SQLITE_CANTOPEN: ("cannot_open", "it cannot be opened: look at its folder and its permissions"),
    sqlite3.SQLITE_PERM: ("read_only", "it cannot be written"),
    sqlite3.SQLITE_BUSY: ("locked", "another process holds it: try again"),
    sqlite3.SQLITE_LOCKED: ("locked", "another process holds it: try again"),
    sqlite3.SQLITE_CORRUPT: ("damaged", "it is damaged: try again, and it is moved aside"),
    sqlite3.SQLITE_NOTADB: ("damaged", "it is damaged: try again, and it is moved aside"),
}
"""``detail["reason"]`` and words, by SQLite's primary result code."""
log = logging.getLogger("inferd.storage")


@dataclass(frozen=True)
class DatabaseFormat:
    """A format's number (``user_version``), the script that makes its tables, beside those of earlier formats, and one that fails
    where they are others.

    ``what`` names the file in errors, ``lost`` says what damage to it means.
    """

    number: int
    schema: str
    check: str
    what: str
    lost: str


class DatabaseFile:
    """An open file. One that turns out to be damaged is closed: the next use opens it again, and so moves it aside.

    All methods raise what :func:`open_database` raises, and Unavailable where file or disk do not do what they should. What is
    written does not wait for the disk: the last of it may be lost with the machine's power, never the file.
    """

    def __init__(self, path: Path, wanted: DatabaseFormat) -> None:
        self._path = path
        self._format = wanted
        self._db: sqlite3.Connection | None = None
        with self.reading():
            pass

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection to read from."""
        try:
            with storage_errors(self._path, self._format.what):
                if self._db is None:
                    self._db = open_database(self._path, self._format)
                yield self._db
        except Unavailable as error:
            if error.detail.get("reason") == "damaged":
                self.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection to write to: all of the block, or nothing where it raises."""
        with self.reading() as db, db:
            db.execute("BEGIN IMMEDIATE")
            yield db

    @contextmanager
    def taking_over(self, path: Path) -> Iterator[sqlite3.Connection]:
        """Lend the connection as :meth:`transaction` does, with the file of a process that has ended attached as ``other``."""
        with self.reading() as db:
            db.execute("ATTACH ? AS other", (str(path),))
            try:
                with self.transaction() as writing:
                    yield writing
            finally:
                db.execute("DETACH other")


def open_database(path: Path, wanted: DatabaseFormat) -> sqlite3.Connection:
    """Open the file of a format, made if there is none; one that is damaged is moved aside with a message in the log.

    Raises InvalidRequest for a file of another format, Unavailable where it cannot be opened or written.
    """
    with storage_errors(path, wanted.what):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            return _opened(path, wanted)
        except (
            sqlite3.DatabaseError,
            UnicodeDecodeError,
        ) as error:  # the latter: SQLite's message repeats what it found
            if isinstance(error, sqlite3.DatabaseError) and not _is_damaged(error):
                raise
            aside = _move_aside(path)
        log.error("%s is damaged and was moved to %s: %s", path, aside, wanted.lost)
        return _opened(path, wanted)


def _opened(path: Path, wanted: DatabaseFormat) -> sqlite3.Connection:
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(OSError):  # SQLite says what is wrong
            path.touch(OWNER_ONLY)
        db = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None)
        opened.callback(db.close)
        found = db.execute("PRAGMA user_version").fetchone()[0]
        if not 0 <= found <= wanted.number:
            raise InvalidRequest(f"{path.name} has format {found}; this version of inferd reads format {wanted.number}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA foreign_keys=ON")
        if found < wanted.number:  # written only once: a disk that is full later still gives what it has
            db.executescript(f"BEGIN; {wanted.schema} PRAGMA user_version={wanted.number}; COMMIT;")
        db.executescript(wanted.check)
        if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise _damaged()
        opened.pop_all()
    return db


def _damaged() -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError("quick_check found damage")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _is_damaged(error: sqlite3.DatabaseError) -> bool:
    """Return True if the file is no database, a broken one, or one with other tables under these names."""
    code = _primary_code(error)
    return code in DAMAGED or (code == sqlite3.SQLITE_ERROR and not isinstance(error, sqlite3.ProgrammingError))


def _move_aside(path: Path) -> Path:
    """Rename the file and what SQLite keeps beside it. Raises OSError."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    aside = path.with_name(f"{path.name}.damaged-{stamp}-{time.time_ns() % 1_000_000}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


@contextmanager
def storage_errors(path: Path, what: str) -> Iterator[None]:
    """Turn what SQLite and the file system raise in the body into Unavailable; ``detail["reason"]`` says what it is."""
    try:
        yield
    except sqlite3.Error as error:
        reason, words = REASONS.get(_primary_code(error), ("storage", str(error)))
        log.error("%s: %s (%s)", path, words, error)
        raise Unavailable(f"{what} does not work now: {words}", reason=reason) from error
    except UnicodeDecodeError as error:
        reason, words = REASONS[sqlite3.SQLITE_CORRUPT]
        log.error("%s: %s (%s)", path, words, error)
        raise Unavailable(f"{what} does not work now: {words}", reason=reason) from error
    except OSError as error:
        log.error("%s: %s", path, error)
        words = error.strerror or type(error).__name__
        raise Unavailable(f"{what} does not work now: {words}", reason="storage") from error


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
