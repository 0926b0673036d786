"""A front refuses to start with what it cannot read; one that has started is not held up by what it has loaded."""

from __future__ import annotations

import contextlib
import gc
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from inferd.protocol import InvalidRequest
from inferd_runtime.cluster.front.launch_homes import HOMES_FILE
from inferd_runtime.cluster.front.serving import ClusterFront, FrontStart, open_front, serve_front
from inferd_runtime.interpreter import GC_THRESHOLDS
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


@pytest.fixture
def as_before() -> Iterator[None]:
    """The garbage collector of this process stays as it was."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("as_before")
async def test_collections_of_garbage_leave_out_what_a_front_has_loaded(tmp_path: Path) -> None:
    """Each full one held up all clients for 60 to 90 ms."""
    settings, stopping = Settings(data_dir=tmp_path / "data", state_dir=tmp_path / "state", port=0), anyio.Event()
    found: list[tuple[bool, tuple[int, int, int]]] = []

    def ready(front: ClusterFront) -> None:
        found.append((gc.get_freeze_count() > 0, gc.get_threshold()))
        stopping.set()

    gc.unfreeze()
    await serve_front(FrontStart(key="k" * 32, settings=settings), ready, stopping)
    assert found == [(True, GC_THRESHOLDS)]
