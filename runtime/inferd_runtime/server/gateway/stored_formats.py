"""Before anything of a data folder is opened: whether this version of inferd reads all that is in it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from inferd.protocol import InvalidRequest
from inferd_runtime.kv import snapshot_table
from inferd_runtime.server.gateway.gateway_role import REGISTRY_FILE
from inferd_runtime.server.programs.registry import DATABASE
from inferd_runtime.server.response_store import response_file
from inferd_runtime.server.response_store.response_store import RESPONSES_FILE
from inferd_runtime.server.run_store import run_file
from inferd_runtime.server.run_store.archive import RUNS_FILE
from inferd_runtime.server.services.topics import queue_file
from inferd_runtime.server.services.topics.kept_values import QUEUES_FILE
from inferd_runtime.server.tenancy import shared_file
from inferd_runtime.server.tenancy.token_store import TOKENS_FILE
from inferd_runtime.settings.settings import Settings


def refuse_newer_formats(settings: Settings) -> None:
    """As :func:`refuse_newer`, for all that a server may keep."""
    refuse_newer(_formats(settings))


def refuse_newer(formats: Iterable[tuple[Path, int]]) -> None:
    """Raise InvalidRequest that names the files which a newer version of inferd has written; given are the numbers known here.

    Some stores are opened at their first use only: a downgraded server would start, and serve without what they hold.
    """
    newer = [
        f"{path} has format {found}, and this version reads format {known}"
        for path, known in formats
        if (found := _format_of(path)) > known
    ]
    if newer:
        raise InvalidRequest(
            f"a newer version of inferd has written to this data folder: {'; '.join(newer)}. Start that version, or "
            "put back the folder as it was before the upgrade"
        )


def _formats(settings: Settings) -> Iterator[tuple[Path, int]]:
    data = settings.data_dir
    yield data / REGISTRY_FILE, DATABASE.number
    yield data / RUNS_FILE, run_file.FORMAT.number
    yield data / RESPONSES_FILE, response_file.FORMAT.number
    yield data / QUEUES_FILE, queue_file.FORMAT.number
    yield data / TOKENS_FILE, shared_file.FORMAT
    yield settings.secrets, shared_file.FORMAT
    yield settings.contexts / snapshot_table.DATABASE, snapshot_table.FORMAT


def _format_of(path: Path) -> int:
    """Return the number of a file's format; 0 for none, and for one that cannot be read, of which its own store says why."""
    with contextlib.suppress(sqlite3.Error, OSError, UnicodeDecodeError):
        if path.exists():
            # A file that was closed is read as it is: SQLite would put two others beside it, which only who may write removes.
            way = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
            with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?{way}", uri=True)) as db:
                found: int = db.execute("PRAGMA user_version").fetchone()[0]
                return found
    return 0
