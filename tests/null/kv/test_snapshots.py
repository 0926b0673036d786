"""Snapshots as bytes and on disk: what comes back is what was saved, or a typed error."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd.protocol import (
    InferdError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    SnapshotDamaged,
    SnapshotForeign,
    Unavailable,
)
from inferd_runtime.kv import snapshot_folder, snapshot_place
from inferd_runtime.kv.snapshot_folder import SnapshotFolder
from inferd_runtime.kv.snapshot_format import Facts, PlaceMark, Snapshot, TurnMark, decode, encode, write
from inferd_runtime.kv.snapshot_place import BLOCK
from inferd_runtime.kv.snapshot_table import open_table
from inferd_runtime.kv.snapshots import SnapshotStore

PAGE, PAGE_BYTES = 4, 24


def make(tokens: int = 9, computed: int = 6, **changes: Any) -> Snapshot:
    values: dict[str, Any] = {
        "model": "m", "fingerprint": "f", "kv_layout": "l", "page_size": PAGE, "computed": computed,
        "lineage": (1 << 64) - 1, "forks": 3, "turns": (TurnMark(0, True, False, False),),
    }  # fmt: skip
    pages = np.random.default_rng(0).integers(0, 256, (-(-computed // PAGE), PAGE_BYTES), np.uint8)
    return Snapshot(Facts(**{**values, **changes}), list(range(tokens)), pages)


def same(one: Snapshot, other: Snapshot) -> bool:
    return (one.facts, one.tokens) == (other.facts, other.tokens) and np.array_equal(one.pages, other.pages)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SnapshotFolder]:
    folder = SnapshotFolder(tmp_path / "snapshots", 1 << 20)
    yield folder
    folder.close()


def files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "snapshots").glob("*/*") if path.is_file()]


# -- The format --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "computed"), [(0, 0), (1, 0), (4, 4), (9, 6)])
def test_bytes_come_back_as_they_were(tokens: int, computed: int) -> None:
    snapshot = make(tokens, computed)
    assert same(decode(encode(snapshot)), snapshot)


@pytest.mark.parametrize(
    "changes",
    [
        {"irregular_from": 0}, {"irregular_from": 5}, {"irregular_from": 9}, {"lineage": 0}, {"forks": 0},
        {"places": (PlaceMark(0, 1, None),)}, {"places": (PlaceMark(8, None, b"xy"),)},
        {"turns": (TurnMark(0, True, False, False), TurnMark(9, False, False, False))},
    ],
)  # fmt: skip
def test_facts_at_the_edge_of_what_is_allowed_come_back(changes: dict[str, Any]) -> None:
    assert same(decode(encode(make(**changes))), make(**changes))


def test_bytes_behind_the_tensors_are_refused() -> None:
    with pytest.raises(SnapshotDamaged, match="its length is not what its header says"):
        decode(encode(make()) + b"x")


def test_the_bytes_are_a_safetensors_file() -> None:
    snapshot = make()
    tensors = safetensors.numpy.load(encode(snapshot))
    assert tensors["tokens"].tolist() == snapshot.tokens
    assert np.array_equal(tensors["pages"], snapshot.pages)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_changed_bytes_are_refused_or_mean_the_same(data: st.DataObject) -> None:
    snapshot = make()
    good = bytearray(encode(snapshot))
    match data.draw(st.sampled_from(["flip", "cut", "grow", "splice"])):
        case "flip":
            at = data.draw(st.integers(0, len(good) - 1))
            good[at] ^= data.draw(st.integers(1, 255))
        case "cut":
            del good[data.draw(st.integers(0, len(good) - 1)) :]
        case "grow":
            good += data.draw(st.binary(min_size=1, max_size=9))
        case "splice":
            at = data.draw(st.integers(0, len(good) - 1))
            good[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    try:
        read = decode(bytes(good))
    except (SnapshotDamaged, SnapshotForeign):
        return
    assert same(read, snapshot)


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(SnapshotDamaged):
        decode(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"computed": 10}, {"computed": -1}, {"computed": 1}, {"page_size": 0}, {"page_size": -4}, {"lineage": -1},
        {"lineage": 1 << 64}, {"forks": -1}, {"forks": 1 << 64}, {"turns": ()}, {"turns": (TurnMark(1, True, False, False),)},
        {"turns": (TurnMark(0, True, False, False), TurnMark(10, False, False, False))}, {"irregular_from": 10},
        {"places": (PlaceMark(9, 1, None),)}, {"places": (PlaceMark(-1, 1, None),)},
        {"places": (PlaceMark(3, 1, None), PlaceMark(3, 2, None))}, {"places": (PlaceMark(8, None, b"x"),)},
    ],
)  # fmt: skip
def test_facts_that_contradict_the_rest_are_refused_whatever_the_checksum_says(changes: dict[str, Any]) -> None:
    forged = make()
    forged = Snapshot(msgspec.structs.replace(forged.facts, **changes), forged.tokens, forged.pages)
    with pytest.raises(SnapshotDamaged, match=r"contradicts|cannot be read"):
        decode(encode(forged))


def with_pages(**fields: Any) -> bytes:
    """A snapshot whose safetensors header says something else of its pages."""
    good = encode(make())
    length = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + length])
    header["pages"] |= fields
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + good[8 + length :]


@pytest.mark.parametrize("shape", [[0, 1 << 70], [1 << 40, 0], [-1, -24], [-2, -24], [48], [2, 24, 1], [24, 2]])
def test_shapes_that_no_array_has_are_refused(shape: list[int]) -> None:
    with pytest.raises(SnapshotDamaged):
        decode(with_pages(shape=shape))


@pytest.mark.parametrize("shape", [[1 << 30] * 60_000, [1 << 62] * 60_000])
def test_a_shape_of_many_numbers_is_not_multiplied_out(shape: list[int]) -> None:
    """The product of all that 8 MB hold took minutes, and nobody else had a turn meanwhile."""
    began = time.process_time()
    with pytest.raises(SnapshotDamaged):
        decode(with_pages(shape=shape))
    assert time.process_time() - began < 0.5


def test_a_header_of_many_marks_is_not_read() -> None:
    good = encode(make())
    length = int.from_bytes(good[:8], "little")
    header = good[8 : 8 + length].replace(b'turns\\":[', b'turns\\":[' + b"{}," * 200_000)
    assert len(header) > length
    with pytest.raises(SnapshotDamaged, match="lists and objects"):
        decode(len(header).to_bytes(8, "little") + header + good[8 + length :])


@pytest.mark.parametrize("fields", [{"data_offsets": [0, 48]}, {"data_offsets": [36, 85]}, {"dtype": "I8"}])
def test_pages_that_stand_elsewhere_are_refused(fields: dict[str, Any]) -> None:
    assert same(decode(with_pages(data_offsets=[36, 84], dtype="U8")), make())
    with pytest.raises(SnapshotDamaged, match="a tensor is"):
        decode(with_pages(**fields))


@pytest.mark.parametrize("text", ["\\ud800", "\\u0000", "\\udfff\\ud800"])
def test_strange_text_in_the_header_is_read_or_refused(text: str) -> None:
    good = encode(make(adapter="ADAPTER"))
    length = int.from_bytes(good[:8], "little")
    header = good[8 : 8 + length].replace(b"ADAPTER", text.encode().replace(b"\\", b"\\\\"))
    with pytest.raises(SnapshotDamaged):
        decode(len(header).to_bytes(8, "little") + header + good[8 + length :])


def test_another_format_is_named() -> None:
    data = encode(make()).replace(rb"{\"format\":1,", rb"{\"format\":7,")
    with pytest.raises(SnapshotForeign, match="format 7; this version of inferd reads format 1"):
        decode(data)


def test_pages_may_hold_one_token_each() -> None:
    snapshot = make(page_size=1)
    snapshot = Snapshot(snapshot.facts, snapshot.tokens, np.ones((6, 3), np.uint8))
    assert same(decode(encode(snapshot)), snapshot)


# -- The folder --------------------------------------------------------------------------------------------------------


def test_snapshots_survive_the_process(folder: SnapshotFolder, tmp_path: Path) -> None:
    told = folder.save("ann", "a", make(), overwrite=False)
    assert (told.name, told.model, told.length) == ("a", "m", 9)
    folder.close()
    again = SnapshotFolder(tmp_path / "snapshots", 1 << 20)
    assert same(again.load("ann", "a"), make())
    assert again.saved("ann") == [told]
    assert told.bytes == files(tmp_path)[0].stat().st_size
    again.close()


def test_tenants_do_not_see_each_other(folder: SnapshotFolder) -> None:
    folder.save("ann", "a", make(tokens=7), overwrite=False)
    folder.save("bob", "a", make(tokens=8), overwrite=False)
    assert len(folder.load("ann", "a").tokens) == 7
    folder.delete("bob", "a")
    assert [saved.name for saved in folder.saved("ann")] == ["a"]
    assert folder.saved("bob") == []
    for forbidden in (folder.load, folder.delete):
        with pytest.raises(NotFound, match="there is no snapshot 'a'"):
            forbidden("bob", "a")


@pytest.mark.parametrize("name", ["", "x" * 129, "a b", "ä", "a\n", "a\0b", "a'; --"])
def test_names_outside_the_alphabet_are_refused(folder: SnapshotFolder, name: str) -> None:
    with pytest.raises(InvalidRequest, match="1 to 128 of the characters"):
        folder.save("ann", name, make(), overwrite=False)
    with pytest.raises(InvalidRequest, match="1 to 128 of the characters"):
        folder.load("ann", name)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/", "..", "x" * 128, "a/b:c.d-e_f"])
def test_a_name_is_never_a_path(folder: SnapshotFolder, tmp_path: Path, name: str) -> None:
    folder.save("../ann", name, make(), overwrite=False)
    assert same(folder.load("../ann", name), make())
    assert len(files(tmp_path)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"snapshots"}


def test_a_name_in_use_is_overwritten_only_when_asked(folder: SnapshotFolder, tmp_path: Path) -> None:
    folder.save("ann", "a", make(tokens=7), overwrite=False)
    with pytest.raises(InvalidRequest, match="overwrite=True"):
        folder.save("ann", "a", make(tokens=8), overwrite=False)
    assert len(folder.load("ann", "a").tokens) == 7
    folder.save("ann", "a", make(tokens=8), overwrite=True)
    assert len(folder.load("ann", "a").tokens) == 8
    assert len(files(tmp_path)) == 1


def test_a_tenant_has_a_quota_of_bytes(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path / "snapshots", 4 * BLOCK)
    for name in ("a", "b"):
        folder.save("ann", name, make(), overwrite=False)
    with pytest.raises(LimitExceeded) as caught:
        folder.save("ann", "c", make(), overwrite=False)
    assert (caught.value.detail["limit"], caught.value.detail["value"]) == ("snapshot_bytes", 4 * BLOCK)
    folder.save("ann", "a", make(), overwrite=True)
    folder.save("bob", "c", make(), overwrite=False)
    folder.delete("ann", "b")
    folder.save("ann", "c", make(), overwrite=False)
    assert len(files(tmp_path)) == 3
    folder.close()


def test_a_tenant_has_no_more_snapshots_than_one_reply_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_place, "MAX_SNAPSHOTS", 2)
    folder = SnapshotFolder(tmp_path / "snapshots", 1 << 20)
    for name in ("a", "b"):
        folder.save("ann", name, make(), overwrite=False)
    with pytest.raises(LimitExceeded) as caught:
        folder.save("ann", "c", make(), overwrite=True)
    assert (caught.value.detail["limit"], caught.value.detail["value"]) == ("snapshots", 2)
    folder.save("ann", "a", make(), overwrite=True)
    folder.save("bob", "c", make(), overwrite=False)
    assert len(files(tmp_path)) == 3
    folder.close()


def test_a_snapshot_whose_file_is_gone_is_overwritten(folder: SnapshotFolder, tmp_path: Path) -> None:
    folder.save("t", "n", make(), overwrite=False)
    files(tmp_path)[0].unlink()
    with pytest.raises(SnapshotDamaged, match="is gone"):
        folder.load("t", "n")
    folder.save("t", "n", make(7), overwrite=True)
    assert same(folder.load("t", "n"), make(7))


def test_a_table_of_another_format_is_left_alone(tmp_path: Path) -> None:
    first = SnapshotFolder(tmp_path / "snapshots", 1 << 20)
    first.save("t", "n", make(), overwrite=False)
    first.close()
    table = sqlite3.connect(next((tmp_path / "snapshots").glob("*.sqlite3")))
    assert table.execute("PRAGMA user_version").fetchone() == (1,)
    table.execute("PRAGMA user_version=2")
    table.close()
    with pytest.raises(Unavailable, match="has format 2; this version of inferd reads format 1"):
        first.load("t", "n")
    first.close()


def test_only_the_owner_of_the_process_reads_what_is_saved(folder: SnapshotFolder, tmp_path: Path) -> None:
    folder.save("t", "n", make(), overwrite=False)
    folders = [tmp_path / "snapshots", files(tmp_path)[0].parent]
    assert [each.stat().st_mode & 0o777 for each in folders] == [0o700, 0o700]
    assert (tmp_path / "snapshots" / "lock").stat().st_mode & 0o777 == 0o600


def test_a_transaction_that_is_broken_off_leaves_the_table_as_it_was(folder: SnapshotFolder) -> None:
    folder.save("t", "n", make(), overwrite=False)

    def broken_off() -> None:
        with folder._transaction() as db:
            db.execute("DELETE FROM snapshots")
            db.execute("SELECT nothing")

    with pytest.raises(sqlite3.OperationalError):
        broken_off()
    assert [saved.name for saved in folder.saved("t")] == ["n"]


def test_a_file_that_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write(make(), tmp_path / "nowhere" / "file")


def test_a_damaged_snapshot_can_be_deleted_and_overwritten(folder: SnapshotFolder, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        folder.save("ann", name, make(), overwrite=False)
    for path in files(tmp_path):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    for forbidden in (folder.load, lambda tenant, name: folder.take(tenant, name, lambda _: None)):
        with pytest.raises(SnapshotDamaged, match="checksum"):
            forbidden("ann", "a")
    for path in files(tmp_path):
        path.write_bytes(b"")
    with pytest.raises(SnapshotDamaged):
        folder.load("ann", "a")
    folder.delete("ann", "a")
    folder.save("ann", "b", make(), overwrite=True)
    assert same(folder.load("ann", "b"), make())
    assert [saved.name for saved in folder.saved("ann")] == ["b", "c"]
    for path in files(tmp_path):
        path.unlink()
    with pytest.raises(SnapshotDamaged, match="is gone"):
        folder.load("ann", "c")
    folder.delete("ann", "c")


def test_what_a_crash_left_behind_is_cleared_away(tmp_path: Path) -> None:
    first = SnapshotFolder(tmp_path / "snapshots", 1 << 20)
    for name in ("kept", "lost"):
        first.save("ann", name, make(), overwrite=False)
    lost = sqlite3.connect(tmp_path / "snapshots" / "snapshots.sqlite3").execute(
        "SELECT file FROM snapshots WHERE name='lost'"
    )
    (tmp_path / "snapshots" / lost.fetchone()[0]).unlink()
    (kept,) = files(tmp_path)
    orphans = [kept.with_name("0.safetensors"), kept.with_name("1.part")]
    for orphan in orphans:
        orphan.write_bytes(b"x")
    beside = SnapshotFolder(tmp_path / "snapshots", 1 << 20)
    beside.clean()
    assert all(orphan.exists() for orphan in orphans)  # another process may be about to name them
    beside.close()
    first.close()
    alone = SnapshotFolder(tmp_path / "snapshots", 1 << 20)
    alone.clean()
    assert files(tmp_path) == [kept]
    assert [saved.name for saved in alone.saved("ann")] == ["kept"]
    alone.close()


def test_a_process_that_came_second_is_not_taken_for_gone_when_the_first_leaves(tmp_path: Path) -> None:
    """Every process shares the lock: else a third would clear away what the second is about to name."""
    first, second = (SnapshotFolder(tmp_path / "snapshots", 1 << 20) for _ in range(2))
    first.save("ann", "a", make(), overwrite=False)
    assert second.saved("ann")
    first.close()
    unfinished = files(tmp_path)[0].with_name("1.part")
    unfinished.write_bytes(b"x")
    third = SnapshotFolder(tmp_path / "snapshots", 1 << 20)
    third.clean()
    assert unfinished.exists()
    second.close()
    third.close()


def test_nothing_is_made_before_it_is_needed(folder: SnapshotFolder, tmp_path: Path) -> None:
    folder.clean()
    assert list(tmp_path.iterdir()) == []


def test_a_take_that_was_not_used_puts_the_snapshot_back(folder: SnapshotFolder, tmp_path: Path) -> None:
    folder.save("ann", "a", make(), overwrite=False)
    taken = folder.take("ann", "a", lambda _: None)
    with pytest.raises(NotFound):
        folder.take("ann", "a", lambda _: None)
    folder.finish_take(taken, used=False)
    assert same(folder.load("ann", "a"), make())
    taken = folder.take("ann", "a", lambda _: None)
    folder.save("ann", "a", make(tokens=8), overwrite=False)
    folder.finish_take(taken, used=False)
    assert len(folder.load("ann", "a").tokens) == 8
    assert len(files(tmp_path)) == 1


def test_a_take_that_is_refused_leaves_the_snapshot(folder: SnapshotFolder) -> None:
    def refuse(_: Snapshot) -> None:
        raise SnapshotForeign("no")

    folder.save("ann", "a", make(), overwrite=False)
    with pytest.raises(SnapshotForeign):
        folder.take("ann", "a", refuse)
    assert same(folder.load("ann", "a"), make())


def test_what_another_process_deletes_meanwhile_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (SnapshotFolder(tmp_path / "snapshots", 1 << 20) for _ in range(2))
    first.save("ann", "a", make(), overwrite=False)
    row = first._row("ann", "a")
    monkeypatch.setattr(first, "_row", lambda *_: row)
    second.delete("ann", "a")
    with pytest.raises(NotFound, match="there is no snapshot 'a'"):
        first.delete("ann", "a")
    for folder in (first, second):
        folder.close()


def test_of_several_processes_exactly_one_takes_a_snapshot(tmp_path: Path) -> None:
    folders = [SnapshotFolder(tmp_path / "snapshots", 1 << 20) for _ in range(4)]
    folders[0].save("ann", "a", make(), overwrite=False)
    read = threading.Barrier(len(folders))
    outcomes: list[str] = []

    def take(folder: SnapshotFolder) -> None:
        try:
            folder.take("ann", "a", lambda _: read.wait(10) and None)
            outcomes.append("won")
        except NotFound:
            outcomes.append("lost")

    threads = [threading.Thread(target=take, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost", "lost", "lost", "won"]
    for folder in folders:
        folder.close()


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    folder = SnapshotFolder(tmp_path / "snapshots", 1 << 20)
    folder.save("ann", "a", make(tokens=7), overwrite=False)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable, match="No space left on device"):
        folder.save("ann", "a", make(), overwrite=True)
    monkeypatch.undo()
    assert len(files(tmp_path)) == 1
    assert len(folder.load("ann", "a").tokens) == 7
    folder.close()


@pytest.mark.parametrize("step", ["open_table", "_clean"])
def test_a_disk_that_was_full_at_the_first_use_is_used_once_it_has_room(
    folder: SnapshotFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The use that failed kept its lock: the next one waited for it, and no save or open was answered again."""

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(snapshot_folder if step == "open_table" else SnapshotFolder, step, full)
        with pytest.raises(Unavailable, match="disk is full"):
            folder.saved("ann")
    with (tmp_path / "snapshots" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert folder.saved("ann") == []


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = SnapshotFolder(tmp_path / "file" / "snapshots", 1 << 20)
    with pytest.raises(Unavailable, match="Not a directory") as caught:
        folder.save("ann", "a", make(), overwrite=False)
    assert str(tmp_path) not in caught.value.message, "a tenant is told where the server keeps its files"
    folder.close()


# -- The thread --------------------------------------------------------------------------------------------------------


class Told:
    """What a store's work came to, in order."""

    def __init__(self, store: SnapshotStore) -> None:
        self.store = store
        self.outcomes: list[Any] = []

    def of(self, work: Callable[[SnapshotFolder], Any], **options: Any) -> Any:
        self.store.submit("ann", work, self.outcomes.append, **options)
        return self.next()

    def next(self) -> Any:
        while not self.outcomes:
            assert self.store.wait(10)
            self.store.poll()
        return self.outcomes.pop(0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SnapshotStore]:
    store = SnapshotStore(SnapshotFolder(tmp_path / "snapshots", 1 << 20), max_waiting=400)
    yield store
    store.close()


def test_work_is_done_in_order_and_told_in_the_callers_thread(store: SnapshotStore) -> None:
    threads: list[int] = []
    outcomes: list[Any] = []
    for number in range(3):
        store.submit("ann", lambda _, n=number: threads.append(threading.get_ident()) or n, outcomes.append)  # type: ignore[misc]
    while len(outcomes) < 3:
        store.wait(10)
        store.poll()
    assert outcomes == [0, 1, 2]
    assert threading.get_ident() not in threads
    assert not store.poll()


def test_errors_are_told_and_a_bug_is_named(store: SnapshotStore) -> None:
    told = Told(store)
    assert isinstance(told.of(lambda folder: folder.load("ann", "a")), NotFound)
    bug = told.of(lambda _: 1 // 0)
    assert isinstance(bug, InternalError)
    assert "ZeroDivisionError" in bug.message


def test_bytes_that_wait_are_bounded(store: SnapshotStore) -> None:
    hold, told = threading.Event(), Told(store)
    store.submit("ann", lambda _: hold.wait(10), told.outcomes.append, nbytes=80)
    with pytest.raises(LimitExceeded) as caught:
        store.submit("ann", lambda _: None, told.outcomes.append, nbytes=21)
    store.submit("ann", lambda _: True, told.outcomes.append, nbytes=20)
    assert caught.value.detail["limit"] == "waiting_snapshot_bytes"
    hold.set()
    assert told.next() is True
    assert told.next() is True
    assert told.of(lambda _: 5, nbytes=1000) == 5


def test_what_a_tenant_has_waiting_keeps_nobody_else_from_saving(store: SnapshotStore) -> None:
    """One tenant's saves and opens were all done first, and the bytes that wait were everybody's."""
    hold, done = threading.Event(), list[str]()
    store.submit("ann", lambda _: hold.wait(10), lambda _: done.append("ann"), nbytes=300)
    for _ in range(5):
        store.submit("ann", lambda _: None, lambda _: done.append("ann"))
    for _ in range(2):
        store.submit("bob", lambda _: None, lambda _: done.append("bob"), nbytes=50)
    hold.set()
    while len(done) < 8:
        store.wait(10)
        store.poll()
    assert done == ["ann", "bob", "ann", "bob", "ann", "ann", "ann", "ann"]


def test_work_that_was_cancelled_before_it_began_is_not_told(store: SnapshotStore) -> None:
    hold, told = threading.Event(), Told(store)
    store.submit("ann", lambda _: hold.wait(10), told.outcomes.append)
    leave_out = store.submit("ann", lambda _: 7, told.outcomes.append, nbytes=50)
    leave_out()
    hold.set()
    assert told.next() is True
    assert told.of(lambda _: 8, nbytes=100) == 8


def test_closing_finishes_what_was_submitted(tmp_path: Path) -> None:
    store = SnapshotStore(SnapshotFolder(tmp_path / "snapshots", 1 << 20))
    outcomes: list[Any] = []
    store.submit("ann", lambda folder: folder.save("ann", "a", make(), overwrite=False), outcomes.append)
    store.close()
    assert not isinstance(outcomes[0], InferdError)
    assert len(files(tmp_path)) == 1
    assert store._place._opened is None, "the table is closed, too"
    with pytest.raises(RuntimeError):
        store.submit("ann", lambda _: 1, outcomes.append)


def test_nothing_is_to_do_once_all_is_told(store: SnapshotStore) -> None:
    told = Told(store)
    store.submit("ann", lambda _: 1, told.outcomes.append)
    assert told.next() == 1
    assert not store.poll()
    assert not store.wait(0.0)


def test_a_store_clears_away_what_a_crash_left_behind(tmp_path: Path) -> None:
    left = tmp_path / "snapshots" / "tenant" / "left.part"
    left.parent.mkdir(parents=True)
    left.touch()
    SnapshotStore(SnapshotFolder(tmp_path / "snapshots", 1 << 20)).close()
    assert not left.exists()


def test_a_name_is_on_disk_before_its_row(
    folder: SnapshotFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(snapshot_folder, "_sync", lambda path: synced.append(path.name))
    folder.save("t", "n", make(), overwrite=False)
    kept = files(tmp_path)[0]
    assert synced == [f"{kept.stem}.part", kept.parent.name, "snapshots"]


def test_a_table_whose_damage_sqlite_tells_in_bytes_that_are_no_text_is_an_error_of_the_database(
    tmp_path: Path,
) -> None:
    """Python raises UnicodeDecodeError for such a message, which no boundary of the store expects."""
    path = tmp_path / "table"
    open_table(path).close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE\x98TABLE", 1))
    with pytest.raises(sqlite3.DatabaseError):
        open_table(path)
