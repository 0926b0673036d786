"""The layers of processes that own models: they reach their own files, and the compilers that they start have their layers."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.skipif(bool(MISSING), reason=f"this system does not offer {', '.join(MISSING)}")
def test_a_process_with_models_that_was_taken_over_reaches_no_other_files_or_processes(secret: Path) -> None:
    launch = Launch(str(ATTEMPTS), ChildKind.MODEL, (str(secret), str(os.getpid())), require_all=True)
    done = subprocess.run(
        launch.command, input=launch.document(), env=launch.environment, capture_output=True, timeout=60
    )
    found = json.loads(done.stdout or done.stderr)
    through = [name for name, came in found["made"].items() if not came.startswith("refused")]
    assert (through, found["compiler_lacks"]) == ([], [])
    assert len(found["made"]) > 30
    assert set(found["needed"].values()) == {"done"}
    assert secret.exists()


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
