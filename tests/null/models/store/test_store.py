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


def test_a_pull_that_failed_leaves_no_model_and_is_resumed(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    with pytest.raises(ZeroDivisionError), store.adding("a") as folder:
        assert (folder / "part").write_text("first half") // 0
    assert store.find("a") is None
    assert store.models() == []
    with store.adding("a") as folder:
        assert (folder / "part").read_text() == "first half"
        write_note(folder, ModelNote("a", "x"))
    assert store.find("a") is not None


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


@pytest.mark.parametrize("name", ["", "..", "../a", "a/b/c", "/a", "a/", ".hidden", "a b", "a\n", "x" * 129])
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
