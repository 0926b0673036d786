"""A front refuses to start with what it cannot read."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from inferd.protocol import InvalidRequest
from inferd_runtime.cluster.front.launch_homes import HOMES_FILE
from inferd_runtime.cluster.front.serving import FrontStart, open_front
from inferd_runtime.settings.settings import Settings


async def test_a_front_that_is_set_back_does_not_start_launches_again_whose_homes_it_cannot_read(
    tmp_path: Path,
) -> None:
    """They are opened at the first launch with a key only."""
    folder = tmp_path / "data"
    folder.mkdir()
    with contextlib.closing(sqlite3.connect(folder / HOMES_FILE)) as db:
        db.execute("PRAGMA user_version=1000")
    order = FrontStart(key="k" * 32, settings=Settings(data_dir=folder, state_dir=tmp_path / "state", port=0))
    with pytest.raises(InvalidRequest, match=f"{HOMES_FILE} has format 1000"):
        async with open_front(order):
            raise AssertionError
