"""Files of runs: what is refused, forgotten or given up leaves nothing on disk."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest
from small_disk import small_disk
from waiting import until

from inferd.protocol import LimitExceeded, NotFound, Unavailable
from inferd.protocol.files import BeginFile, WriteFile
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.server.services import run_files
from inferd_runtime.server.services.run_file_folder import WholeFile, note_whole
from inferd_runtime.server.services.run_files import LAUNCHER, RunFileStore


class Run:
    """As much of a run as files ask for."""

    def __init__(self, name: str) -> None:
        self.id, self.tenant, self.attempts, self.ending = name, "ann", 1, None
        self.changed = ChangeSignal()

    def filed(self, text: str) -> None:
        pass

    def check_takes_messages(self) -> None:
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
    over, live = Run("run-1"), Run("run-2")
    store = RunFileStore(tmp_path, lambda name: name == "run-1" and over.ending is not None)
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
    store, run = RunFileStore(tmp_path, lambda name: False), Run("run-1")
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
    store, runs = RunFileStore(tmp_path, lambda name: False), [Run(f"run-{number}") for number in range(60)]
    files = [await store.begin(run, BeginFile("a", "text/plain", 1), 1) for run in runs]  # type: ignore[arg-type]
    go, at_once = threading.Event(), list[int]()

    def still(path: Path, data: bytes) -> None:
        at_once.append(1)
        assert go.wait(20)

    monkeypatch.setattr(run_files, "_append", still)
    async with anyio.create_task_group() as tasks:
        for run, file in zip(runs, files, strict=True):
            tasks.start_soon(store.write, run, 1, WriteFile(file.number, 0, b"x"))
        await until(lambda: at_once)
        assert await anyio.to_thread.run_sync(lambda: len(at_once)) == 1
        go.set()
    assert len(at_once) == 60
    store.close()


async def test_a_piece_that_a_full_disk_does_not_take_leaves_nothing_of_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        store, run = RunFileStore(disk, lambda name: False), Run("run-1")
        file = await store.begin(run, BeginFile("a", "text/plain", 120_000), 1)  # type: ignore[arg-type]
        await store.write(run, 1, WriteFile(file.number, 0, b"a" * 10_000))  # type: ignore[arg-type]
        with pytest.raises(Unavailable):
            await store.write(run, 1, WriteFile(file.number, 10_000, b"b" * 110_000))  # type: ignore[arg-type]
        assert on_disk(disk) == 10_000
        await store.write(run, 1, WriteFile(file.number, 10_000, b"c" * 20_000))  # type: ignore[arg-type]
        assert file.path.read_bytes() == b"a" * 10_000 + b"c" * 20_000
        store.close()


def test_a_line_that_a_full_disk_does_not_take_leaves_the_next_one_whole(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 12) as disk:
        (disk / "1").write_bytes(b"x" * 10)
        (fill := disk / "fill").write_bytes(b"x" * 4096)
        file = WholeFile("ann", 1, "n" * 200, "text/plain", 10, "0" * 64, by_program=True)
        with contextlib.suppress(OSError):
            for _ in range(40):
                note_whole(disk, file)
        fill.unlink()
        note_whole(disk, file)
        assert len(set((disk / "whole.jsonl").read_bytes().splitlines())) == 1


def kept_store(folder: Path) -> RunFileStore:
    return RunFileStore(folder, lambda name: False, keeps=True)


async def test_a_file_whose_note_a_full_disk_did_not_take_is_whole_when_its_last_piece_comes_again(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        store, run = kept_store(disk), Run("run-1")
        file = await store.begin(run, BeginFile("a", "text/plain", 20_000), LAUNCHER)  # type: ignore[arg-type]
        await store.write(run, LAUNCHER, WriteFile(file.number, 0, b"a" * 10_000))  # type: ignore[arg-type]
        fill, last = disk / "fill", WriteFile(file.number, 10_000, b"b" * 10_000)
        fill.write_bytes(b"x" * (64 * 1024 - 20_480))  # what is left is for the last piece alone
        for _ in range(2):
            with pytest.raises(Unavailable):
                await store.write(run, LAUNCHER, last)  # type: ignore[arg-type]
        fill.unlink()
        assert file.path.read_bytes() == b"a" * 10_000 + b"b" * 10_000
        assert await store.write(run, LAUNCHER, last)  # type: ignore[arg-type]
        store.close()
        again = kept_store(disk)
        await again.load(everything)
        files = again.of("run-1", "ann")
        assert files is not None
        assert [one.size for one in files.unread] == [20_000]


async def test_what_a_broken_disk_does_not_let_go_of_ends_no_task_that_nobody_waits_for(tmp_path: Path) -> None:
    """The end of a run that had begun a file ended the server."""
    store, run = kept_store(tmp_path), Run("run-1")
    file = await store.begin(run, BeginFile("a", "text/plain", 9), 1)  # type: ignore[arg-type]
    (tmp_path / "run-files").rmdir()
    (tmp_path / "run-files").write_text("a file")
    with pytest.raises(Unavailable):
        await store.write(run, 1, WriteFile(file.number, 0, b"a"))  # type: ignore[arg-type]
    await store.drop_unfinished("run-1", 1)
    files = store.of("run-1", "ann")
    assert files is not None
    assert not files.bytes


async def everything(names: list[str]) -> set[str]:
    return set(names)


async def test_files_that_are_whole_are_there_after_a_restart_and_nothing_else(tmp_path: Path) -> None:
    store, run, other = kept_store(tmp_path), Run("run-1"), Run("run-2")
    for sender, name, data in ((LAUNCHER, "in", b"to it"), (1, "out", b"of it"), (LAUNCHER, "empty", b"")):
        file = await store.begin(run, BeginFile(name, "text/plain", len(data)), sender)  # type: ignore[arg-type]
        await store.write(run, sender, WriteFile(file.number, 0, data))  # type: ignore[arg-type]
    half = await store.begin(run, BeginFile("half", "text/plain", 9), 1)  # type: ignore[arg-type]
    await store.write(run, 1, WriteFile(half.number, 0, b"half"))  # type: ignore[arg-type]
    await sent(store, other, 7)
    store.close()
    with (tmp_path / "run-files" / "run-1" / "whole.jsonl").open("a") as notes:
        notes.write('{"tenant": "ann", "num')  # the server was killed in the middle of it
    again = kept_store(tmp_path)
    await again.load(lambda names: everything(["run-1"]))
    assert again.of("run-2", "ann") is None, "its record is gone"
    assert again.of("run-1", "bob") is None
    files = again.of("run-1", "ann")
    assert files is not None
    assert (files.bytes, [file.name for file in files.sent]) == (10, ["out"])
    piece = await again.read(files, LAUNCHER, files.sent[0].number, 0)
    assert (piece.data, piece.last) == (b"of it", True)
    files.enter(2)
    assert [(file.name, file.size) for file in files.unread] == [("in", 5), ("empty", 0)], (
        "a new attempt gets them again"
    )
    names = sorted(path.name for path in (tmp_path / "run-files").rglob("*"))
    assert names == ["0", "1", "2", "run-1", "whole.jsonl"]
    again.forget(["run-1"])
    await again.sweep()
    assert on_disk(tmp_path) == 0


async def test_what_another_attempt_had_sent_is_not_told_again_and_numbers_are_not_used_twice(tmp_path: Path) -> None:
    store, run = kept_store(tmp_path), Run("run-1")
    await sent(store, run, 7)
    again = kept_store(tmp_path)
    await again.load(everything)
    run.attempts = 2
    await sent(again, run, 7)
    await sent(again, run, 8)
    files = again.of("run-1", "ann")
    assert files is not None
    assert [(file.number, file.size) for file in files.sent] == [(0, 7), (2, 8)]
    heir = kept_store(tmp_path / "heir")
    await heir.take_over(tmp_path)
    assert heir.of("run-1", "ann") is not None
    assert [file.size for file in heir.of("run-1", "ann").sent] == [7, 8]  # type: ignore[union-attr]
