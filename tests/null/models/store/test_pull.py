"""Where models come from: what is pinned is checked, and what is not there is said by name."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferd.protocol import InferdError, InvalidRequest, LimitExceeded, NotFound, Unavailable
from inferd_runtime.models.store import pull
from inferd_runtime.models.store.catalog import KNOWN, PackagedModel
from inferd_runtime.models.store.pull import Pull
from inferd_runtime.models.store.store import ModelStore

PACKAGED = next(name for name, model in KNOWN.items() if isinstance(model, PackagedModel))


def pip_that_writes(monkeypatch: pytest.MonkeyPatch, data: bytes | None) -> list[list[str]]:
    """Replace pip by one that brings ``data`` as the wheel, or fails; returns the commands that it gets."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        if data is not None:
            Path(command[command.index("--dest") + 1], "model.whl").write_bytes(data)
        return subprocess.CompletedProcess(command, int(data is None), "", "no matching distribution")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_a_folder_gets_a_name_and_stays_where_it_is(tmp_path: Path) -> None:
    own = tmp_path / "my-model"
    own.mkdir()
    store = ModelStore(tmp_path / "models")
    with pytest.raises(NotFound, match=r"no config\.json"):
        Pull(store, str(own)).run()
    (own / "config.json").write_text("{}")
    assert Pull(store, str(own)).run().folder == own
    assert Pull(store, str(own), "other").run().note.name == "other"


@pytest.mark.parametrize("source", ["nothing", "./nothing", "a/b/c", "", "missing.gguf"])
def test_what_is_no_source_is_refused_by_name(tmp_path: Path, source: str) -> None:
    with pytest.raises(NotFound):
        Pull(ModelStore(tmp_path), source).run()


@pytest.mark.parametrize(("data", "error"), [(b"other bytes", InvalidRequest), (None, Unavailable)])
def test_a_wheel_that_is_not_the_pinned_one_is_never_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes | None, error: type[InferdError]
) -> None:
    commands = pip_that_writes(monkeypatch, data)
    store = ModelStore(tmp_path)
    with pytest.raises(error, match=r"pinned|matching"):
        Pull(store, PACKAGED).run()
    assert "--no-deps" in commands[0]
    assert store.models() == []


def test_a_pull_without_room_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = pip_that_writes(monkeypatch, b"")
    with pytest.raises(LimitExceeded):
        Pull(ModelStore(tmp_path), PACKAGED, budget=1000).run()
    assert commands == []


def test_a_member_that_leads_out_of_the_folder_is_extracted_inside(tmp_path: Path) -> None:
    """The member's name is ours, and zipfile takes '..' out: what a wheel says never decides where a file goes."""
    model = KNOWN[PACKAGED]
    assert isinstance(model, PackagedModel)
    assert ".." not in model.member
    assert not model.member.startswith("/")
    assert replace(model, version="9").requirement == f"{model.package}==9"


def test_the_hash_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert pull.file_sha256(tmp_path / "x").startswith("ba7816bf")
