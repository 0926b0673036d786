"""Models that were pulled: whole or not at all, found by name, bounded by the disk and by the operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.protocol import InvalidRequest, LimitExceeded, NotFound
from inferd_runtime.models.store.store import ModelNote, ModelStore, is_name, write_note


def add(store: ModelStore, name: str, size: int = 10, **note: str) -> None:
    with store.adding(name) as folder:
        (folder / "weights").write_bytes(bytes(size))
        write_note(folder, ModelNote(name, "somewhere", **note))


def test_a_model_is_found_by_its_name_and_listed_with_its_size(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    assert store.models() == []
    assert store.find("a") is None
    add(store, "org/b", 100)
    add(store, "a", 10, license="MIT")
    assert [model.note.name for model in store.models()] == ["a", "org/b"]
    found = store.find("org/b")
    assert found is not None
    assert found.size >= 100
    assert (found.folder / "weights").is_file()


def fail_to_add(store: ModelStore, name: str, resumes: str = "") -> None:
    with pytest.raises(ZeroDivisionError), store.adding(name, resumes) as folder:
        assert (folder / "part").write_text("first half") // 0


def test_a_download_that_failed_leaves_no_model_and_is_resumed(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    fail_to_add(store, "a", "a@1")
    assert store.find("a") is None
    assert store.models() == []
    with store.adding("a", "a@1") as folder:
        assert (folder / "part").read_text() == "first half"
        write_note(folder, ModelNote("a", "x"))
    assert store.find("a") is not None
    assert store.unfinished() == {}


@pytest.mark.parametrize("then", ["a@2", ""])
def test_files_of_one_pull_never_come_into_another_ones_model(tmp_path: Path, then: str) -> None:
    store = ModelStore(tmp_path)
    fail_to_add(store, "a", "a@1")
    with store.adding("a", then) as folder:
        assert list(folder.iterdir()) == []
        write_note(folder, ModelNote("a", "x"))
    assert store.unfinished() == {}


def test_what_cannot_be_resumed_leaves_nothing(tmp_path: Path) -> None:
    """A full disk would stay full."""
    store = ModelStore(tmp_path)
    fail_to_add(store, "a")
    assert store.unfinished() == {}


def test_what_interrupted_pulls_left_counts_and_can_be_removed(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    fail_to_add(store, "org/a", "a@1")
    assert store.unfinished() == {"org/a": 10}
    store.check_room(95, 100, "org/a")
    with pytest.raises(LimitExceeded):
        store.check_room(95, 100, "b")
    assert store.remove("org/a") == 10
    assert store.unfinished() == {}
    with pytest.raises(NotFound, match="'org/a'"):
        store.remove("org/a")


def test_a_pull_that_was_killed_is_cleared_by_the_next_one(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    fail_to_add(store, "a", "a@1")
    add(store, "a")
    assert store.unfinished() == {}


def test_a_new_pull_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    add(store, "a", 10, sha256="1")
    add(store, "a", 20, sha256="2")
    (model,) = store.models()
    assert model.note.sha256 == "2"
    assert (model.folder / "weights").stat().st_size == 20


def test_a_folder_of_the_user_is_never_deleted(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    store = ModelStore(tmp_path / "models")
    with store.adding("mine") as folder:
        write_note(folder, ModelNote("mine", str(own), folder=str(own)))
    found = store.find("mine")
    assert found is not None
    assert found.folder == own
    assert found.size == 0
    store.remove("mine")
    assert own.is_dir()
    assert store.find("mine") is None
    with pytest.raises(NotFound, match="'mine'"):
        store.remove("mine")


@pytest.mark.parametrize(
    "name", ["", "..", "../a", "a/b/c", "/a", "a/", ".hidden", "a b", "a\n", "x" * 129, "a--b", "a/b--c"]
)
def test_a_name_cannot_lead_out_of_the_store(tmp_path: Path, name: str) -> None:
    store = ModelStore(tmp_path / "models")
    assert not is_name(name)
    assert store.find(name) is None
    with pytest.raises(InvalidRequest), store.adding(name):
        pass


def test_a_damaged_note_is_no_model(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    add(store, "a")
    (tmp_path / "a" / "inferd-model.json").write_text("{")
    assert store.find("a") is None
    assert store.models() == []


def test_room_is_checked_before_anything_is_fetched(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    add(store, "a", 1000)
    store.check_room(500, 0)
    store.check_room(500, 10_000)
    with pytest.raises(LimitExceeded) as refused:
        store.check_room(500, 1200)
    assert refused.value.detail["limit"] == "models_bytes"
    with pytest.raises(LimitExceeded) as full:
        store.check_room(1 << 60, 0)
    assert full.value.detail["limit"] == "disk"
