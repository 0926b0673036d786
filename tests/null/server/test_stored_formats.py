"""A data folder that a newer version has written to is refused as a whole, before anything is opened."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from inferd.protocol import InvalidRequest
from inferd_runtime.server.gateway.app import open_entrance
from inferd_runtime.server.gateway.stored_formats import refuse_newer_formats
from inferd_runtime.settings.settings import Settings

FILES = (
    "programs.sqlite3", "runs.sqlite3", "responses.sqlite3", "queues.sqlite3", "tokens.sqlite3", "secrets.sqlite3",
    "snapshots/snapshots.sqlite3",
)  # fmt: skip


def settings(folder: Path) -> Settings:
    return Settings(data_dir=folder / "data", state_dir=folder / "state", port=0)


def write(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA user_version={number}")


@pytest.mark.parametrize("name", FILES)
def test_a_server_that_is_set_back_does_not_serve_without_what_a_newer_one_kept(tmp_path: Path, name: str) -> None:
    path = tmp_path / "data" / name
    write(path, 1_000)
    before = path.read_bytes()
    with (
        pytest.raises(InvalidRequest, match=f"{path.name} has format 1000.*Start that version"),
        open_entrance(settings(tmp_path)),
    ):
        raise AssertionError
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.glob(f"{path.name}*")] == [path.name]


def test_a_number_that_is_in_the_files_log_alone_counts(tmp_path: Path) -> None:
    """The newer server was killed."""
    path = tmp_path / "data" / "runs.sqlite3"
    write(path, 1)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=1000")
        with pytest.raises(InvalidRequest, match="has format 1000"):
            refuse_newer_formats(settings(tmp_path))


def test_files_of_older_formats_and_damaged_ones_are_their_stores_own_affair(tmp_path: Path) -> None:
    for name in FILES:
        write(tmp_path / "data" / name, 1)
    (tmp_path / "data" / "runs.sqlite3").write_bytes(b"no database")
    refuse_newer_formats(settings(tmp_path))
