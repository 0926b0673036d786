"""`inferd doctor`: what is missing, what is dangerous, and its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sqlite3
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from inferd_runtime.cli import doctor_checks
from inferd_runtime.cli.doctor import doctor, examine
from inferd_runtime.cli.doctor_checks import Finding
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.layers import Layer
from inferd_runtime.kernels.native import compiler
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.settings.settings import EngineSettings, Settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for kind in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.delenv("INFERD_TESTS", raising=False)  # no setting, which is told
    layers = [Layer("seccomp", True, ""), Layer("landlock", False, "the kernel has none")]
    monkeypatch.setattr(doctor_checks, "report", lambda: {ChildKind.WORKER: layers})
    return tmp_path


def settings(home: Path, **changes: object) -> Settings:
    values = {"data_dir": home / "data", "state_dir": home / "state", "port": 1, **changes}
    return Settings(**values)  # type: ignore[arg-type]


def file_system(f_flag: int = 0, f_files: int = 0) -> SimpleNamespace:
    """What the system says of one that is full, and without a free inode."""
    return SimpleNamespace(f_flag=f_flag, f_files=f_files, f_favail=0, f_frsize=1, f_blocks=1, f_bfree=1, f_bavail=1)


def found(settings: Settings, area: str) -> list[Finding]:
    return [finding for finding in examine(settings) if finding.area == area]


def test_every_area_is_looked_at(home: Path) -> None:
    areas = {finding.area for finding in examine(settings(home))}
    assert areas == {"versions", "processor", "memory", "limits", "disk", "sandbox", "isolation", "models", "server"}


def test_a_package_that_is_needed_is_missed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "NEEDED", ("no-such-package",))
    assert Finding("versions", "missing", "no-such-package is not installed") in found(settings(home), "versions")


def test_a_folder_that_cannot_be_written_is_missed(home: Path) -> None:
    (home / "file").touch()
    missing = [one for one in found(settings(home, data_dir=home / "file" / "data"), "disk") if one.state == "missing"]
    assert len(missing) == 1
    assert "--data-dir" in missing[0].text


@pytest.mark.parametrize("wrong", ["noexec", "temporary", "formats", "address"])
def test_what_a_server_would_not_start_with_is_missed(home: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    match wrong:
        case "noexec":
            told = file_system(f_flag=os.ST_NOEXEC)
            monkeypatch.setattr(os, "statvfs", lambda path: told)
        case "temporary":
            monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp/" + "long" * 20)
        case "formats":
            (home / "data").mkdir()
            with contextlib.closing(sqlite3.connect(home / "data" / "runs.sqlite3")) as db:
                db.execute("PRAGMA user_version=1000")
        case "address":
            limit = resource.getrlimit
            few = (1 << 30, 1 << 30)
            monkeypatch.setattr(resource, "getrlimit", lambda kind: few if kind == resource.RLIMIT_AS else limit(kind))
    words = {"noexec": "noexec", "temporary": "TMPDIR", "formats": "format 1000", "address": "ulimit -v"}[wrong]
    assert [one.state for one in examine(settings(home)) if words in one.text] == ["missing"]


def test_looking_makes_no_folder_of_whoever_looks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root who looked once left a folder for machine code that the server's user could not use."""
    monkeypatch.setenv("INFERD_CACHE_DIR", str(home / "cache"))
    before = sorted(home.rglob("*"))
    assert [one.state for one in found(settings(home), "disk") if "cache" in one.text] == ["ok"]
    assert sorted(home.rglob("*")) == before
    (home / "cache" / "runner").mkdir(parents=True, mode=0o700)
    (home / "cache" / "runner").chmod(0o777)
    assert [one.state for one in found(settings(home), "disk") if "cache" in one.text] == ["missing"]


def test_folders_without_inodes_and_few_open_files_are_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: file_system(f_files=10))
    assert all(one.state == "missing" and "inode" in one.text for one in found(settings(home), "disk"))
    assert [one.state for one in found(settings(home, max_connections=1 << 40), "limits")] == ["warning"]


def test_a_machine_without_a_compiler_is_told_what_that_costs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "processor", lambda: "avx2 fma f16c")
    monkeypatch.setattr(compiler, "COMPILER", "sh")
    assert Finding("processor", "ok", "models run in kernels of our own") in found(settings(home), "processor")
    monkeypatch.setattr(compiler, "COMPILER", "no-such-compiler")
    notes = [one.text for one in found(settings(home), "processor") if one.state == "note"]
    assert any(text.endswith("there is no no-such-compiler") for text in notes)


def test_a_missing_layer_counts_as_missing_where_it_is_required(home: Path) -> None:
    text = "worker: landlock: the kernel has none"
    assert Finding("isolation", "warning", text) in found(settings(home), "isolation")
    assert Finding("isolation", "missing", text) in found(settings(home, require_isolation=True), "isolation")


@pytest.mark.parametrize(("name", "state"), [("tiny", "ok"), ("/no/such/folder", "missing"), ("org/model", "note")])
def test_models_are_looked_for(home: Path, name: str, state: str) -> None:
    engine = EngineSettings(model=(ModelOptions(name),))
    assert [one.state for one in found(settings(home, engine=engine), "models")] == [state]


def test_dangerous_settings_are_told(home: Path) -> None:
    tokens = home / "tokens"
    tokens.touch(mode=0o644)
    tokens.chmod(0o644)
    words = " ".join(
        one.text for one in found(settings(home, host="0.0.0.0", tokens_file=tokens, metrics_for="all"), "settings")
    )
    (home / "data").mkdir(mode=0o755)
    assert "chmod go= " in " ".join(one.text for one in found(settings(home), "settings"))
    (home / "data").chmod(0o700)
    for part in ("without TLS", "--require-isolation", "chmod go=", "metrics_for"):
        assert part in words
    assert not found(settings(home), "settings")


@pytest.mark.parametrize("missing", [True, False])
def test_the_exit_code_says_whether_something_is_missing(
    home: Path, missing: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor_checks, "NEEDED", ("no-such-package",) if missing else ("msgspec",))
    monkeypatch.setattr(doctor_checks, "_version", lambda name: "" if name == "no-such-package" else "1")
    options = ["--data-dir", str(home / "data"), "--state-dir", str(home / "state"), "--port", "1"]
    assert doctor([*options, "--json"]) == int(missing)
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is not missing
    assert doctor(options) == int(missing)
    assert "landlock" in capsys.readouterr().out


def test_a_server_that_does_not_answer_is_no_fault(home: Path) -> None:
    assert [one.state for one in found(settings(home), "server")] == ["note"]
