"""One distribution: what a user installs holds all three packages, the runner's sources and the embedded model."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest
import trove_classifiers

ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    "inferd/__init__.py", "inferd/py.typed", "inferd_grammar/__init__.py", "inferd_grammar/py.typed",
    "inferd_runtime/cli/__init__.py", "inferd_runtime/inferlets/chat/main.py", "inferd_runtime/py.typed",
    "inferd_runtime/sandbox/runner/world.wit", "inferd_runtime/sandbox/runner/app.py",
    "inferd_runtime/models/tiny/target/model.safetensors", "inferd_runtime/models/tiny/target/tokenizer.json",
    "inferd_runtime/models/tiny/draft/model.safetensors",
)  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(next(folder.glob("inferd-*.whl")))


@pytest.mark.parametrize("name", NEEDED)
def test_the_wheel_holds(wheel: zipfile.ZipFile, name: str) -> None:
    assert name in wheel.namelist()


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return email.message_from_bytes(wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))))


def test_it_says_what_it_is_and_under_which_licence(wheel: zipfile.ZipFile, metadata: Message) -> None:
    assert (metadata["Name"], metadata["License-Expression"], metadata["License-File"]) == (
        "inferd", "Apache-2.0", "LICENSE",
    )  # fmt: skip
    licence = next(name for name in wheel.namelist() if name.endswith("licenses/LICENSE"))
    assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert all(metadata[field] for field in ("Summary", "Author", "Keywords", "Requires-Python"))
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "# inferd" in str(metadata.get_payload())


def test_its_classifiers_exist(metadata: Message) -> None:
    classifiers = metadata.get_all("Classifier", [])
    assert set(classifiers) <= trove_classifiers.classifiers
    assert not any(each.startswith("License ::") for each in classifiers)  # the expression says it


def test_every_room_of_the_sources_is_in_it(wheel: zipfile.ZipFile) -> None:
    packages = {"inferd": "sdk", "inferlet": "sdk", "inferd_runtime": "runtime", "inferd_grammar": "grammar"}
    sources = {
        path.relative_to(ROOT / top) for name, top in packages.items() for path in (ROOT / top / name).rglob("*.py")
    }
    assert {path.as_posix() for path in sources} <= set(wheel.namelist())


def test_the_wheel_holds_nothing_else_at_the_top(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "inferd",
        "inferd_grammar",
        "inferd_runtime",
        "inferlet",
    }


def test_the_embedded_models_stay_small() -> None:
    files = (ROOT / "runtime" / "inferd_runtime" / "models" / "tiny").rglob("*")
    assert sum(file.stat().st_size for file in files if file.is_file()) < 12e6


def test_the_command_is_declared(wheel: zipfile.ZipFile) -> None:
    entry = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert b"inferd = inferd_runtime.cli:main" in wheel.read(entry)
