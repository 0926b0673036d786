"""``make gpu-check`` on a machine without a device: what it says, and that a failure stops what rests on it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_device_it_says_so(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--output", str(tmp_path / "out")])
    assert script.main() == 0
    assert capsys.readouterr().out == "There is no CUDA device here: nothing was checked.\n"
    assert not (tmp_path / "out").exists()


def test_missing_packages_are_named_before_anything_runs(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(script, "find_spec", lambda name: None if name in ("msgspec", "llguidance") else name)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--output", str(tmp_path / "out")])
    assert script.main() == 1
    assert capsys.readouterr().out == "Nothing was checked, as packages are missing: msgspec, llguidance\n"


def test_some_checks_can_be_run_at_a_time(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a device")
    monkeypatch.setattr(script, "find_spec", lambda name: name)
    monkeypatch.setattr(script, "run", lambda check, *given: script.Outcome(check, "passed", 1.0))
    (tmp_path / "cache").mkdir()
    for words in ("smoke,attention", "memory of steps"):
        monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--output", str(tmp_path), "--only", words])
        assert script.main() == 0
    rows = [line for line in (tmp_path / "report.md").read_text().splitlines() if "passed" in line]
    assert [row.split(" | ")[0] for row in rows] == ["| smoke", "| attention, products", "| memory of steps"]
    assert (tmp_path / "cache").exists()
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--output", str(tmp_path), "--only", "smok3"])
    assert script.main() == 1
    assert "No check is named so; there are: smoke; sampling" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--output", str(tmp_path)])
    assert script.main() == 0
    assert (tmp_path / "report.md").read_text().count("| smoke |") == 1
    assert not (tmp_path / "cache").exists()


@pytest.mark.system
def test_the_tests_of_a_device_need_no_other_packages(tmp_path: Path) -> None:
    """Beside those that the check asks for, and what PyTorch and transformers bring."""
    missing = ("zmq", "wasmtime", "starlette", "uvicorn", "websockets", "msgpack", "jsonschema", "prometheus_client")
    without = f"import sys\nsys.modules.update(dict.fromkeys({missing!r}))\n"
    (tmp_path / "sitecustomize.py").write_text(without)
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *filter(None, sys.path)))}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        SCRIPT.parents[1] / "tests/gpu",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=200)
    assert done.returncode == 0, done.stdout


def test_nothing_rests_on_a_recording_that_failed(script: ModuleType) -> None:
    """Up to PyTorch 2.11 none can be made behind it in its process: it has one of its own, whose end stops nothing."""
    broken = [check for check in script.checks(Path("out")) if "--broken" in check.command]
    assert [(check.needed, len(check.command)) for check in broken] == [(False, 3)]


def test_every_test_of_a_device_is_in_it(script: ModuleType) -> None:
    named = " ".join(part for check in script.checks(Path("out")) for part in check.command)
    for path in (SCRIPT.parents[1] / "tests" / "gpu").glob("test_*.py"):
        assert path.name in named


def test_all_of_it_ends_in_time(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With both runs of compute-sanitizer. What one check leaves of its time is for those behind it."""
    monkeypatch.setattr(script.shutil, "which", lambda name: name)
    assert sum(check.seconds for check in script.checks(Path("out"))) <= script.SECONDS == 45 * 60
    allowed = []

    def noted(check: object, output: Path, seconds: float) -> object:
        allowed.append(seconds)
        return script.Outcome(check, "passed", 10.0)

    monkeypatch.setattr(script, "run", noted)
    monkeypatch.setattr(script, "SECONDS", 100)
    assert script.run_all("a device", [script.Check(name, (), 40) for name in "ab"], tmp_path) == 0
    assert allowed == [60, 90]


def test_a_kernel_that_ended_a_process_is_reported(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "cache" / "launches").mkdir(parents=True)
    (tmp_path / "cache" / "launches" / "key-71-1").write_text("paged_attention".ljust(64))
    assert "- paged_attention\n" in script.report("a device", [], [], tmp_path)


def test_what_rests_on_a_failed_check_is_not_run(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def check(name: str, code: str, *, needed: bool = False, seconds: int = 60) -> object:
        return script.Check(name, (sys.executable, "-c", code), seconds, needed)

    some = [
        check("one: a log", "print('fine')"),
        check("two", "import time; time.sleep(60)", seconds=1),
        check("three", "raise SystemExit('differs')", needed=True),
        check("four", ""),
    ]
    monkeypatch.setattr(script, "SECONDS", 1)
    assert script.run_all("a device", some, tmp_path) == 1
    report = (tmp_path / "report.md").read_text()
    assert "| one: a log | passed |" in report
    assert "| two | was not done after 1 s |" in report
    assert "ended a process" not in report
    assert "| three | failed with code 1 |" in report
    assert "| four | not run" in report
    assert "    differs" in report
    assert (tmp_path / "one.log").read_text() == "fine\n"
