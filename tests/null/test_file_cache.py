"""The cache: whole or not at all, never somebody else's, and never trusted when it is damaged."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferd.protocol import InternalError, Unavailable
from inferd_runtime.file_cache import CacheEntry, cache_folder, code_folder, drop_oldest, locked, private_folder
from inferd_runtime.sandbox.runner_build import component
from inferd_runtime.sandbox.runner_build.component import (
    COMPILE,
    COMPONENTIZE,
    BuildStep,
    OnProgress,
    Progress,
    ensure_runner,
    guest_sources,
)


class FakeBuild:
    """Stands for the child processes: each step writes a file, and may fail or take its time."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.fail = False
        self.seconds = 0.0

    def __call__(self, step: BuildStep, arguments: list[str], on_progress: OnProgress) -> None:
        self.steps.append(step.command)
        on_progress(Progress(step.stage, 0.5))
        time.sleep(self.seconds)
        if self.fail:
            raise InternalError("it failed")
        Path(arguments[-1]).write_text(f"made by {step.command}")


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBuild:
    fake = FakeBuild()
    monkeypatch.setenv("INFERD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(component, "_run", fake)
    return fake


@pytest.mark.skipif(not hasattr(os, "ST_NOEXEC"), reason="this system does not tell")
def test_machine_code_on_a_file_system_that_runs_none_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code_folder(tmp_path / "a") == tmp_path / "a"
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(Unavailable, match=r"a holds machine code.*noexec; set INFERD_CACHE_DIR"):
        code_folder(tmp_path / "a")


def test_what_a_process_that_was_killed_while_it_wrote_has_left_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    """Packed weights of gigabytes stayed for each start that ran out of memory."""
    code = (
        "import sys, signal, os, pathlib, time\nfrom inferd_runtime.file_cache import CacheEntry\n"
        "def write(path):\n    path.write_text('half'); print('writes', flush=True); sys.stdin.read()\n"
        "CacheEntry(pathlib.Path(sys.argv[1]) / 'a').put(write)"
    )
    with contextlib.ExitStack() as started:
        killed, writes = (
            started.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            for _ in range(2)
        )
        for process in (killed, writes):
            assert process.stdout is not None
            assert process.stdout.readline() == b"writes\n"
        killed.kill()
        killed.wait()
        assert len(list(tmp_path.glob("tmp-*"))) == 2
        CacheEntry(tmp_path / "b").put(Path.touch)
        assert len(list(tmp_path.glob("tmp-*"))) == 2  # as they are too young
        for left in tmp_path.glob("tmp-*"):
            os.utime(left, (0, 0))
        CacheEntry(tmp_path / "b").put(Path.touch)
        assert len(list(tmp_path.glob("tmp-*"))) == 1
        writes.communicate()
    assert CacheEntry(tmp_path / "a").is_whole()
    assert not list(tmp_path.glob("tmp-*"))


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERD_CACHE_DIR", "/own")
    assert cache_folder() == Path("/own")
    monkeypatch.delenv("INFERD_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache_folder() == Path("/shared/inferd")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache_folder() == Path("/home/ada/.cache/inferd")


def test_a_runner_is_built_once(build: FakeBuild) -> None:
    seen: list[Progress] = []
    path = ensure_runner(seen.append)
    assert path.read_text() == "made by compile"
    assert build.steps == ["componentize", "compile"]
    assert [progress.stage for progress in seen] == [COMPONENTIZE.stage, COMPILE.stage]
    assert ensure_runner(seen.append) == path
    assert len(build.steps) == 2
    assert len(seen) == 2


def test_a_damaged_entry_is_built_again(build: FakeBuild) -> None:
    path = ensure_runner()
    path.write_text("garbage")
    assert ensure_runner().read_text() == "made by compile"
    assert build.steps == ["componentize", "compile", "compile"]
    path.with_name(path.name + ".sha256").write_bytes(b"\xff")
    ensure_runner()
    assert build.steps.count("compile") == 3


def test_a_failed_build_leaves_nothing_that_looks_whole(build: FakeBuild, tmp_path: Path) -> None:
    build.fail = True
    with pytest.raises(InternalError):
        ensure_runner()
    left = {path.name for path in (tmp_path / "cache" / "runner").iterdir()}
    assert left == {"lock"}
    build.fail = False
    assert ensure_runner().exists()


def test_two_builders_do_not_both_build(build: FakeBuild) -> None:
    build.seconds = 0.3
    stages: list[str] = []
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(ensure_runner(lambda p: stages.append(p.stage)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.steps == ["componentize", "compile"]
    assert len(set(paths)) == 1
    assert any("Waiting" in stage for stage in stages)


def test_the_key_follows_the_sources(build: FakeBuild, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_runner()
    sources = guest_sources()
    monkeypatch.setattr(component, "guest_sources", lambda: sources | {"inferd/protocol/__init__.py": b"# other"})
    assert ensure_runner() != first
    monkeypatch.setattr(component, "guest_sources", lambda: sources)
    monkeypatch.setattr(component, "processor", lambda: "another processor")
    assert ensure_runner().name.split("-")[0] == first.name.split("-")[0]
    assert build.steps == ["componentize", "compile", "componentize", "compile", "compile"]


def test_what_goes_into_the_component() -> None:
    sources = guest_sources()
    assert {"world.wit", "inferd/protocol/__init__.py", "inferd_runtime/sandbox/runner/app.py"} <= sources.keys()
    assert "inferd/outlines.py" not in sources  # a client's: its package is not in the sandbox
    assert sources["inferd_runtime/__init__.py"] == b""
    runtime = {path for path in sources if path.startswith("inferd_runtime/")}
    assert all(path.startswith("inferd_runtime/sandbox/runner/") or path.endswith("/__init__.py") for path in runtime)


def test_old_entries_go(tmp_path: Path) -> None:
    for age in range(6):
        entry = CacheEntry(tmp_path / f"{age}.wasm")
        entry.put(Path.touch)
    CacheEntry(tmp_path / "0.wasm").touch()
    drop_oldest(tmp_path, "*.wasm", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.wasm", "0.wasm.sha256", "5.wasm", "5.wasm.sha256"]


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(Unavailable, match="machine code"):
        private_folder(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be used"):
        private_folder(tmp_path / "file" / "x")


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    waited: list[bool] = []
    with locked(tmp_path / "lock", lambda: None):
        thread = threading.Thread(target=_hold, args=(tmp_path / "lock", waited))
        thread.start()
        while not waited:
            time.sleep(0.01)
    thread.join(10)
    assert not thread.is_alive()


def test_a_step_that_fails_says_what_it_printed() -> None:
    with pytest.raises(InternalError, match=r"it stumbles failed with exit code 1:") as raised:
        component._run(BuildStep("nonsense", "It stumbles", 1.0), [], lambda progress: None)
    assert "there is no step" in raised.value.detail["output"]


def test_a_build_that_is_interrupted_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            children.append(self)

    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with pytest.raises(KeyboardInterrupt):
        component._run(BuildStep("nonsense", "It is stopped", 1.0), [], interrupt)
    assert [child.returncode is not None for child in children] == [True]


def _hold(path: Path, waited: list[bool]) -> None:
    with locked(path, lambda: waited.append(True)):
        pass
