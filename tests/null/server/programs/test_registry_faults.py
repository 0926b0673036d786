"""The registry's file when the disk is full, the folder read-only, the file damaged, foreign, or held by somebody else."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest
from small_disk import make_read_only, make_writable, small_disk

from inferd.protocol import InvalidRequest, LimitExceeded, NotFound, Unavailable
from inferd_runtime.sandbox.messages import Bundle
from inferd_runtime.server.gateway.replies import own_status
from inferd_runtime.server.programs.bundles import Program, make_program
from inferd_runtime.server.programs.registry import Registry
from inferd_runtime.server.tenancy.quotas import Quotas

QUOTAS = Quotas()
FILE = "programs.sqlite3"


def program(name: str, size: int = 0) -> Program:
    return make_program(Bundle(name, {"main.py": f"async def main(): pass\n#{name}{'x' * size}"}))


def reason(caught: pytest.ExceptionInfo[Unavailable]) -> str:
    return str(caught.value.detail["reason"])


def names(registry: Registry) -> list[str]:
    return [entry.name for entry in registry.entries("ann")]


def fill(registry: Registry) -> None:
    for number in range(100):
        registry.keep(program(f"p{number}", 20_000), "ann", QUOTAS)


def filled(path: Path) -> bytes:
    """Make a registry of two programs at the path; returns the file's bytes."""
    registry = Registry(path)
    registry.keep(program("first", 50_000), "ann", QUOTAS)
    registry.keep(program("second", 50_000), "ann", QUOTAS)
    registry.close()
    return path.read_bytes()


@pytest.mark.parametrize("damage", ["garbage", "half", "a page", "no header", "other tables", "an index alone"])
def test_a_damaged_file_is_moved_aside_with_a_message(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / FILE
    whole = filled(path)
    if damage in ("other tables", "an index alone"):
        path.unlink()
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE sources (x)" if damage == "other tables" else "CREATE TABLE programs (hash)")
        db.close()
    else:
        changed = {
            "garbage": b"not a database" * 1000,
            "half": whole[: len(whole) // 2],
            "a page": whole[:4096] + b"\xff" * 4096 + whole[8192:],
            "no header": bytes(100) + whole[100:],
        }
        path.write_bytes(changed[damage])
    before = path.read_bytes()
    with caplog.at_level(logging.ERROR):
        registry = Registry(path)
    assert "moved to" in caplog.text
    assert names(registry) == []
    registry.keep(program("new"), "ann", QUOTAS)
    assert names(registry) == ["new"]
    registry.close()
    aside = [each for each in tmp_path.iterdir() if "damaged" in each.name and each.name.count("-") == 2]
    assert len(aside) == 1
    assert aside[0].read_bytes() == before or damage not in ("garbage", "no header")


def test_damage_that_comes_while_the_server_runs_is_named_and_then_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / FILE
    filled(path)
    registry = Registry(path)
    path.write_bytes(b"\xff" * path.stat().st_size)
    with registry._file.reading() as db:
        db.execute("PRAGMA shrink_memory")  # what was read already would hide it
    with pytest.raises(Unavailable) as caught:
        registry.find(registry.resolve("first", "ann"))
    assert reason(caught) == "damaged"
    assert names(registry) == []
    registry.keep(program("new"), "ann", QUOTAS)
    registry.close()


def test_an_empty_file_is_a_new_registry(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    registry = Registry(tmp_path / FILE)
    assert names(registry) == []
    registry.close()


def test_a_folder_that_cannot_be_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / FILE).mkdir()
    for path in (tmp_path / "file" / FILE, tmp_path / FILE):
        with pytest.raises(Unavailable, match="registry"):
            Registry(path)


def test_a_file_that_another_process_holds_is_unavailable_until_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / FILE
    filled(path)
    registry = Registry(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Unavailable) as caught:
        registry.keep(program("third"), "ann", QUOTAS)
    assert (reason(caught), own_status(caught.value)) == ("locked", 503)
    other.execute("ROLLBACK")
    other.close()
    registry.keep(program("third"), "ann", QUOTAS)
    assert names(registry) == ["third", "second", "first"]
    registry.close()


def test_a_full_database_keeps_what_it_has(tmp_path: Path) -> None:
    registry = Registry(tmp_path / FILE)
    registry.keep(program("first"), "ann", QUOTAS)
    with registry._file.reading() as db:
        db.execute("PRAGMA max_page_count=20")
    with pytest.raises(Unavailable) as caught:
        registry.keep(program("large", 500_000), "ann", QUOTAS)
    assert (reason(caught), own_status(caught.value)) == ("disk_full", 507)
    assert names(registry) == ["first"]
    registry.keep(program("second"), "ann", QUOTAS)
    registry.close()


def test_a_full_disk_keeps_what_it_has_and_takes_more_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 400) as disk:
        registry = Registry(disk / FILE)
        registry.keep(program("first"), "ann", QUOTAS)
        (disk / "ballast").write_bytes(bytes(200_000))
        with pytest.raises(Unavailable) as caught:
            fill(registry)
        assert reason(caught) in ("disk_full", "io_error")
        assert "first" in names(registry)
        (disk / "ballast").unlink()
        registry.keep(program("last", 20_000), "ann", QUOTAS)
        assert {"first", "last"} <= set(names(registry))
        registry.close()


def test_a_disk_that_is_full_from_the_start_is_unavailable(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 40) as disk:
        (disk / "ballast").write_bytes(bytes(40_000 // 4096 * 4096))
        with pytest.raises(Unavailable, match="registry"):
            Registry(disk / FILE)


def test_a_read_only_disk_is_unavailable_and_is_read_again_when_it_is_not(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1000) as disk:
        Registry(disk / FILE).close()
        make_read_only(disk)
        with pytest.raises(Unavailable) as caught:
            Registry(disk / FILE)
        assert reason(caught) in ("read_only", "cannot_open", "storage")
        make_writable(disk)
        registry = Registry(disk / FILE)
        registry.keep(program("first"), "ann", QUOTAS)
        registry.close()


def test_quotas_of_programs_and_bytes_are_named_with_a_way_out(tmp_path: Path) -> None:
    registry = Registry(tmp_path / FILE)
    small = Quotas(programs=2, stored_bytes=100_000)
    registry.keep(program("first"), "ann", small)
    with pytest.raises(LimitExceeded, match="inferd programs rm") as caught:
        registry.keep(program("large", 100_000), "ann", small)
    assert (caught.value.detail["limit"], own_status(caught.value)) == ("stored_bytes", 507)
    registry.keep(program("second"), "ann", small)
    with pytest.raises(LimitExceeded, match="inferd programs rm") as caught:
        registry.keep(program("third"), "ann", small)
    assert (caught.value.detail["limit"], own_status(caught.value)) == ("programs", 507)
    assert not registry.keep(program("second"), "ann", small).created
    registry.keep(program("third"), "bob", small)
    assert registry.remove("second", "ann") == 1
    registry.keep(program("third"), "ann", small)
    registry.close()


def test_programs_are_removed_by_version_by_name_and_by_hash(tmp_path: Path) -> None:
    registry = Registry(tmp_path / FILE)
    kept = [registry.keep(program("p", size), "ann", QUOTAS).program for size in range(4)]
    registry.keep(program("p"), "bob", QUOTAS)
    assert registry.remove("p@0.0.2", "ann") == 1
    assert registry.remove(kept[3].id, "ann") == 1
    assert [entry.version for entry in registry.entries("ann")] == ["0.0.3", "0.0.1"]
    assert registry.remove("p", "ann") == 2
    for reference in ("p", "p@0.0.1", kept[0].id):
        with pytest.raises(NotFound):
            registry.remove(reference, "ann")
    assert registry.resolve("p", "bob")[0] == kept[0].id
    registry.close()


@pytest.mark.parametrize(
    "reference", ["x" * 100_000, "sha256:" + "*" * 150, "sha256:[!a]aaaaaa", "'; DROP TABLE programs", "\0"]
)
def test_odd_references_are_unknown(tmp_path: Path, reference: str) -> None:
    registry = Registry(tmp_path / FILE)
    registry.keep(program("p"), "ann", QUOTAS)
    with pytest.raises((NotFound, InvalidRequest)) as caught:
        registry.resolve(reference, "ann")
    assert len(caught.value.message) < 400
    assert names(registry) == ["p"]
    registry.close()
