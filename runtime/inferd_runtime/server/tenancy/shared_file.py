"""A SQLite file of mode 600 that a server reads while the command line writes it."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from inferd.protocol import InvalidRequest, Unavailable

FORMAT = 1
BUSY_SECONDS = 5.0
log = logging.getLogger("inferd.storage")


class SharedFile:
    """The file. Many processes may have it open: a server reads what the command line writes.

    ``what`` names it in errors. Where it is ``secret``, others must not be able to read it, nor what was deleted.
    """

    def __init__(self, path: Path, what: str, schema: str, *, secret: bool = False) -> None:
        self._path = path
        self._what = what
        self._version = -1
        """The file's version when it was last read; -1 behind changes of our own, which do not change it for us."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._typed(), ExitStack() as opened:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            if secret:
                self._check_mode()
            self._db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False)
            opened.callback(self._db.close)
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, FORMAT):
                raise InvalidRequest(f"{path} has format {found}; this version of inferd reads format {FORMAT}")
            self._db.execute("PRAGMA journal_mode=WAL")
            if secret:
                self._db.execute("PRAGMA secure_delete=ON")
            self._db.executescript(schema)
            self._db.execute(f"PRAGMA user_version={FORMAT}")
            opened.pop_all()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _check_mode(self) -> None:
        mode = stat.S_IMODE(self._path.stat().st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidRequest(f"{self._path} is open to other users (mode {mode:o}): chmod 600 {self._path}")

    @contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn what a file can do wrong into Unavailable, which says in which folder it is to the log alone."""
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            log.error("%s: %s", self._path, error)
            reason = getattr(error, "strerror", None) or error
            raise Unavailable(f"the {self._what} file {self._path.name} cannot be used: {reason}") from None
