"""Files of runs: what is refused, forgotten or given up leaves nothing on disk."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest

from inferd.protocol import LimitExceeded, NotFound
from inferd.protocol.files import BeginFile, WriteFile
from inferd_runtime.server.services import run_files
from inferd_runtime.server.services.run_files import RunFileStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Run:
    """As much of a run as files ask for."""

    def __init__(self, name: str) -> None:
        self.id, self.tenant, self.attempts, self.ending = name, "ann", 1, None

    def filed(self, text: str) -> None:
        pass

    def wake(self) -> None:
        pass


async def sent(store: RunFileStore, run: Any, size: int) -> None:
    """Send a file of so many bytes."""
    file = await store.begin(run, BeginFile("a", "text/plain", size), run.attempts)
    await store.write(run, run.attempts, WriteFile(file.number, 0, bytes(size)))


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def test_a_file_that_is_refused_costs_no_other_and_no_room_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "MAX_TENANT_FILE_BYTES", 100)
    monkeypatch.setattr(run_files, "MAX_RUN_FILES", 2)
    store, over, live = RunFileStore(tmp_path), Run("run-1"), Run("run-2")
    await sent(store, over, 60)
    over.ending = SimpleNamespace()  # type: ignore[assignment]
    for _ in range(2):
        await sent(store, live, 15)
    for size in (60, 90):  # one too many of its run; and more than there is room for with what is over gone
        with pytest.raises(LimitExceeded):
            await sent(store, live, size)
    monkeypatch.setattr(run_files, "MAX_RUN_FILES", 9)
    with pytest.raises(LimitExceeded):
        await sent(store, live, 90)
    assert store.of("run-1", "ann") is not None
    assert on_disk(tmp_path) == 90
    await sent(store, live, 40)
    assert store.of("run-1", "ann") is None
    assert on_disk(tmp_path) == 70
    store.close()


async def test_a_piece_that_is_written_while_its_file_is_forgotten_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = RunFileStore(tmp_path), Run("run-1")
    file = await store.begin(run, BeginFile("a", "text/plain", 50), 1)  # type: ignore[arg-type]
    append, begun, go = run_files._append, anyio.Event(), anyio.Event()

    def late(path: Path, data: bytes) -> None:
        anyio.from_thread.run_sync(begun.set)
        anyio.from_thread.run(go.wait)
        append(path, data)

    async def write() -> None:
        with pytest.raises(NotFound):
            await store.write(run, 1, WriteFile(file.number, 0, bytes(10)))  # type: ignore[arg-type]

    monkeypatch.setattr(run_files, "_append", late)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        await begun.wait()
        await store.drop_unfinished("run-1", 1)
        go.set()
    assert on_disk(tmp_path) == 0
    store.close()


async def test_pieces_of_many_files_of_one_tenant_take_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, runs = RunFileStore(tmp_path), [Run(f"run-{number}") for number in range(60)]
    files = [await store.begin(run, BeginFile("a", "text/plain", 1), 1) for run in runs]  # type: ignore[arg-type]
    go, at_once = threading.Event(), list[int]()

    def still(path: Path, data: bytes) -> None:
        at_once.append(1)
        assert go.wait(20)

    monkeypatch.setattr(run_files, "_append", still)
    async with anyio.create_task_group() as tasks:
        for run, file in zip(runs, files, strict=True):
            tasks.start_soon(store.write, run, 1, WriteFile(file.number, 0, b"x"))
        while not at_once:  # noqa: ASYNC110 - what is waited for is plain state
            await anyio.sleep(0.001)
        assert await anyio.to_thread.run_sync(lambda: len(at_once)) == 1
        go.set()
    assert len(at_once) == 60
    store.close()
