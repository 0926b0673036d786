"""The layers of processes that own models: they reach their own files, and the compilers that they start have their layers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferd_runtime.draft_models.options import DraftOptions
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.model_files import model_access, writable
from inferd_runtime.isolation.order import Access, Launch
from inferd_runtime.isolation.report import layers
from inferd_runtime.models.adapter_options import AdapterOptions
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.server.engine_process.command import engine_access
from inferd_runtime.settings.settings import EngineSettings

MISSING = [layer.name for kind in (ChildKind.MODEL, ChildKind.COMPILER) for layer in layers(kind) if not layer.active]
ATTEMPTS = Path(__file__).parent / "model_attempts.py"


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file outside of the folder for temporary files, which is everybody's to write to."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder) / "secret"
        path.write_text("a token")
        yield path


@pytest.fixture
def attempted(secret: Path) -> Iterator[Callable[[Access], dict[str, Any]]]:
    """What came of the attempts of a process with that access, beside an abstract socket of this one."""
    name = f"inferd-test-{os.getpid()}"

    def attempt(access: Access) -> dict[str, Any]:
        arguments = (str(secret), str(os.getpid()), name)
        launch = Launch(str(ATTEMPTS), ChildKind.MODEL, arguments, access=access, require_all=True)
        done = subprocess.run(
            launch.command, input=launch.document(), env=launch.environment, capture_output=True, timeout=60
        )
        found: dict[str, Any] = json.loads(done.stdout or done.stderr)
        return found

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name)
        yield attempt


@pytest.mark.skipif(bool(MISSING), reason=f"this system does not offer {', '.join(MISSING)}")
def test_a_process_with_models_that_was_taken_over_reaches_no_other_files_or_processes(
    secret: Path, attempted: Callable[[Access], dict[str, Any]]
) -> None:
    found = attempted(Access())
    through = [name for name, came in found["made"].items() if not came.startswith("refused")]
    assert (through, found["compiler_lacks"]) == ([], [])
    assert len(found["made"]) > 30
    assert set(found["needed"].values()) == {"done"}
    assert secret.exists()


@pytest.mark.skipif(bool(MISSING), reason=f"this system does not offer {', '.join(MISSING)}")
def test_ranks_speak_to_each_other_over_abstract_sockets_and_reach_nothing_else(
    attempted: Callable[[Access], dict[str, Any]],
) -> None:
    """NCCL hands memory of devices out over them: refused, it would end the first sum of two GPUs."""
    access = engine_access(replace(EngineSettings(), tensor_parallel=2))
    found = attempted(Access(abstract_sockets=access.abstract_sockets))
    through = [name for name, came in found["made"].items() if not came.startswith("refused")]
    assert through == ["speak to the parent's abstract socket"]
    assert not engine_access(EngineSettings()).abstract_sockets


def test_an_engine_may_read_its_models_and_adapters_and_where_their_links_lead(tmp_path: Path) -> None:
    blobs, model, adapter = tmp_path / "blobs", tmp_path / "model", tmp_path / "adapter"
    for folder in (blobs, model, adapter):
        folder.mkdir()
    (blobs / "1").write_text("weights")
    (model / "model.safetensors").symlink_to(blobs / "1")
    (model / "gone").symlink_to(blobs / "2")
    settings = EngineSettings(
        model=(ModelOptions(str(model)), ModelOptions("a-name-of-the-hub")),
        draft=(DraftOptions(ModelOptions(str(model))),),
        adapter=(AdapterOptions("a", adapter),),
        snapshots=tmp_path / "snapshots",
        engine_read=(str(tmp_path / "more"),),
        engine_write=("/dev/an-accelerator",),
    )
    access = engine_access(settings, tmp_path / "sockets")
    assert set(access.read) == {str(model), str(blobs / "1"), str(adapter)}
    own = {str(tmp_path / "sockets"), str(tmp_path / "snapshots"), "/dev/an-accelerator"}
    assert own <= set(access.write)


def test_folders_of_its_own_are_made_before_they_are_all_that_it_may_write_to(tmp_path: Path) -> None:
    own = tmp_path / "cache" / "inferd"
    assert str(own) in writable(Access(write=(str(own),)))
    assert own.stat().st_mode & 0o777 == 0o700
    assert model_access([tmp_path / "nothing"], []).read == ()
