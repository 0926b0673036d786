"""Runs on disk: what is kept of them, for how long, and what a damaged file or a full disk does."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd.protocol import Cancelled, Unavailable
from inferd_runtime.sandbox.messages import Bundle, Limits, RunUsage
from inferd_runtime.server.run_store.records import (
    KeptKey,
    ProgramName,
    Relaunch,
    RunRecord,
    Said,
    StoredEvent,
    UnfinishedRun,
)
from inferd_runtime.server.run_store.run_file import KEY_SECONDS, MAX_KEYS, RunFile
from inferd_runtime.server.tenancy.quotas import Quotas

PROGRAM = ProgramName("sha256:1", "p", "1")
LOST = Unavailable("the server ended").to_wire()


def record(run: str, state: str = "succeeded", events: int = 3) -> RunRecord:
    over = None if state == "running" else 9.0
    error = Cancelled("x" * 5000).to_wire() if state == "cancelled" else None
    return RunRecord(run, PROGRAM, state, 1.0, 2.0, over, Limits(), error, RunUsage(tokens=7), events)


def events(*indices: int) -> list[StoredEvent]:
    return [StoredEvent(index, "stdout", float(index), f"line {index}\n") for index in indices]


def keep(file: RunFile, run: str, tenant: str = "ann", result: str | None = "1") -> None:
    file.begin(tenant, record(run, "running", 0))
    file.finish(tenant, record(run), None if result is None else [result], events(0, 1, 2), 0)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[RunFile]:
    file = RunFile(tmp_path / "runs.sqlite3")
    yield file
    file.close()


def test_a_run_survives_with_its_events_and_its_result(tmp_path: Path) -> None:
    first = RunFile(tmp_path / "r")
    first.begin("ann", record("a", "running", 0))
    first.append("a", events(0, 1))
    first.append("a", events(2))
    first.finish("ann", record("a", events=5), ['{"x', '":1}'], events(3, 4), 0)
    first.close()
    second = RunFile(tmp_path / "r")
    assert second.end_active(LOST) == 0
    assert second.find("ann", "a") == record("a", events=5)
    assert [event.index for start in (0, 2, 3) for event in second.events("a", start)] == [0, 1, 2, 3, 4]
    assert second.events("a", 5) == []
    assert second.result_slice("a", 0, 100) == b'{"x":1}'
    assert second.result_slice("a", 2, 3) == b'x":'
    assert second.result_slice("a", 7, 3) == second.result_slice("b", 0, 3) == b""
    second.close()


def test_runs_that_were_active_are_ended_once(file: RunFile) -> None:
    file.begin("ann", record("a", "running", 0))
    file.append("a", events(0, 1))
    assert file.find("ann", "a") is None
    assert file.end_active(LOST) == 1
    found = file.find("ann", "a")
    assert found is not None
    assert (found.state, found.error, found.next_event) == ("failed", LOST, 3)
    assert [event.kind for event in file.events("a", 1)] == ["stdout"]
    assert [event.kind for event in file.events("a", 2)] == ["finished"]
    assert file.end_active(LOST) == 0


def test_a_run_of_another_tenant_is_not_there(file: RunFile) -> None:
    keep(file, "a")
    assert file.find("bob", "a") is None
    assert file.records("bob") == []
    assert [one.id for one in file.records("ann")] == ["a"]


def test_a_list_does_not_repeat_whole_errors(file: RunFile) -> None:
    file.finish("ann", record("a", "cancelled"), None, [], 0)
    listed, found = file.records("ann")[0], file.find("ann", "a")
    assert listed.error is not None
    assert len(listed.error.message) == 500
    assert found is not None
    assert found.error is not None
    assert len(found.error.message) == 5000


def test_each_tenant_keeps_its_newest_runs_within_its_quotas(file: RunFile) -> None:
    for number in range(5):
        keep(file, f"a{number}")
    keep(file, "b", "bob", '"' + "x" * 100_000 + '"')
    file.begin("ann", record("active", "running"))
    file.prune("ann", Quotas(kept_runs=3))
    assert [one.id for one in file.records("ann")] == ["a4", "a3", "a2"]
    assert file.events("a1", 0) == []
    file.prune("ann", Quotas(kept_bytes=3000))
    assert [one.id for one in file.records("ann")] == ["a4", "a3"]
    file.prune("bob", Quotas(kept_bytes=3000))
    assert [one.id for one in file.records("bob")] == ["b"]  # the newest one stays, whatever its size
    file.prune("ann", Quotas(kept_runs=0, kept_bytes=0))
    assert len(file.records("ann")) == 2


def test_events_that_left_the_buffer_are_not_kept_either(file: RunFile) -> None:
    file.begin("ann", record("a", "running"))
    file.append("a", events(0, 1))
    file.append("a", events(2, 3))
    file.finish("ann", record("a"), None, events(4), 3)
    assert [event.index for event in file.events("a", 0)] == [2, 3]


def test_a_key_stands_for_its_launch_for_a_day(file: RunFile, monkeypatch: pytest.MonkeyPatch) -> None:
    key = KeptKey("k", "print", "a", time.time())
    file.begin("ann", record("a", "running"), key)
    assert file.key("ann", "k") == key
    assert file.key("bob", "k") is None
    later = time.time() + KEY_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert file.key("ann", "k") is None


def test_a_tenants_keys_are_bounded(file: RunFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferd_runtime.server.run_store.run_file.MAX_KEYS", 3)
    assert MAX_KEYS > 3
    now = time.time()
    for number in range(6):
        file.begin("ann", record(f"r{number}", "running"), KeptKey(f"k{number}", "f", f"r{number}", now + number))
    assert [number for number in range(6) if file.key("ann", f"k{number}")] == [3, 4, 5]


def test_keys_of_a_clock_that_was_ahead_do_not_push_new_ones_out(
    file: RunFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferd_runtime.server.run_store.run_file.MAX_KEYS", 3)
    now = time.time()
    for number, ahead in enumerate([9e5, 9e5, 9e5, 0, 1]):
        key = KeptKey(f"k{number}", "f", f"r{number}", now + ahead)
        file.begin("ann", record(f"r{number}", "running"), key)
    assert [number for number in range(5) if file.key("ann", f"k{number}")] == [2, 3, 4]
    monkeypatch.setattr(time, "time", lambda: now + KEY_SECONDS + 2)
    assert file.key("ann", "k2") is None, "the age of a key from a clock that was ahead never counted"


def test_a_full_disk_is_unavailable_and_over_when_there_is_room_again(file: RunFile) -> None:
    with file._file.reading() as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(Unavailable, match="the disk is full") as caught:
        keep(file, "a", result='"' + "x" * 200_000 + '"')
    assert caught.value.detail["reason"] == "disk_full"
    with file._file.reading() as db:
        db.execute("PRAGMA max_page_count=1000000")
    keep(file, "b")
    assert file.find("ann", "b") is not None


def test_a_damaged_file_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite3"
    path.write_bytes(b"this is no database" * 1000)
    file = RunFile(path)
    keep(file, "a")
    assert file.find("ann", "a") is not None
    file.close()
    assert len(list(tmp_path.glob("runs.sqlite3.damaged-*"))) == 1


def test_a_file_that_is_damaged_while_it_is_open_gives_typed_errors(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite3"
    file = RunFile(path)
    with sqlite3.connect(path) as other:
        other.execute("DROP TABLE events")
    other.close()
    with pytest.raises(Unavailable):
        file.events("a", 0)
    file.close()


def test_what_starting_a_run_again_takes_is_kept_until_it_is_over(tmp_path: Path) -> None:
    first = RunFile(tmp_path / "r")
    relaunch = Relaunch(Bundle("p", {"main.py": "x"}), "{}", 7)
    for run in ("a", "b", "plain"):
        first.begin("ann", record(run, "running", 0))
    for run in ("a", "b", "nobody"):
        first.keep_relaunch(run, relaunch, Said(0, b""))
        first.add_input(run, 0, '"hello"')
    first.add_input("a", 1, "2")
    first.append("a", events(0, 1), Said(14, b"d"))
    first.set_attempts("a", 2)
    first.finish("ann", record("b"), None, [], 0)
    first.close()
    second = RunFile(tmp_path / "r")
    assert second.end_active(LOST) == 1  # the plain one
    assert second.unfinished() == ["a"]
    assert second.unfinished_run("a") == UnfinishedRun(
        record("a", "running", 0), "ann", relaunch, 2, Said(14, b"d"), ['"hello"', "2"], events(0, 1)
    )
    second.forget_relaunch("a")
    assert second.end_active(LOST) == 1
    with second._file.reading() as db:
        assert db.execute("SELECT count(*) FROM inputs").fetchone() == (0,)
    second.close()


def test_runs_of_one_program_keep_it_once(tmp_path: Path) -> None:
    """192 runs of a program of 3 MB wrote 560 MB, and others' reads waited for that."""
    file = RunFile(tmp_path / "r")
    relaunch = Relaunch(Bundle("p", {"main.py": "x" * 100_000}), "{}", 7, program="sha256:1 p")
    for run in ("a", "b"):
        file.begin("ann", record(run, "running", 0))
        file.keep_relaunch(run, relaunch, Said(0, b""))
    with file._file.reading() as db:
        assert db.execute("SELECT sum(length(relaunch)) FROM relaunches").fetchone()[0] < 1000
        assert db.execute("SELECT count(*) FROM bundles").fetchone() == (1,)
    assert file.unfinished_run("a").relaunch.bundle is not relaunch.bundle
    resumed = [file.unfinished_run(run) for run in ("a", "b")]
    assert resumed[0].relaunch.bundle is resumed[1].relaunch.bundle
    file.finish("ann", record("a"), None, [], 0)
    other = RunFile(tmp_path / "other")
    assert other.take_over(tmp_path / "r", LOST) == ["b"]
    for each in (file, other):
        assert each.unfinished_run("b").relaunch == relaunch
        each.forget_relaunch("b")
        with each._file.reading() as db:
            assert db.execute("SELECT count(*) FROM bundles").fetchone() == (0,)
        each.close()


def test_a_file_of_the_format_before_is_read(tmp_path: Path) -> None:
    file = RunFile(tmp_path / "r")
    keep(file, "a")
    with file._file.reading() as db:
        db.executescript("DROP TABLE bundle_uses; DROP TABLE inputs; DROP TABLE relaunches; PRAGMA user_version=1")
    file.close()
    again = RunFile(tmp_path / "r")
    assert again.find("ann", "a") == record("a")
    assert again.unfinished() == []
    again.close()
