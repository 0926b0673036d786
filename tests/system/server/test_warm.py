"""Servers that end by themselves when nobody needs them, and that `inferd run` finds or leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from inferd_runtime.cli import warm as warm_servers
from inferd_runtime.cli.client import Server
from inferd_runtime.isolation.settings_json import decode_settings
from inferd_runtime.settings.settings import Settings
from inferd_runtime.settings.sources import Sources, resolve

from .conftest import CommandLine

HELLO = "def main(name: str = 'you') -> str:\n    print('greeting')\n    return f'hello {name}'\n"


@pytest.fixture
def hello(tmp_path: Path) -> str:
    path = tmp_path / "hello.py"
    path.write_text(HELLO.replace("def main", "async def main"))
    return str(path)


def warm(inferd: CommandLine) -> list[dict[str, Any]]:
    shown = inferd("ps", "--json")
    found: list[dict[str, Any]] = json.loads(shown.stdout)["warm"] if shown.returncode == 0 else []
    return found


@contextmanager
def ended_at_last(inferd: CommandLine) -> Iterator[None]:
    try:
        yield
    finally:
        for server in warm(inferd):
            process = psutil.Process(server["pid"])
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def test_a_second_run_finds_the_model_that_the_first_kept_warm(inferd: CommandLine, hello: str) -> None:
    with ended_at_last(inferd):
        first = inferd("run", "--keep-warm", "5", hello, "--name", "ann")
        assert (first.returncode, first.stdout) == (0, 'greeting\n"hello ann"\n'), first.stderr
        [server] = warm(inferd)
        assert (server["models"], server["idle_minutes"]) == (["tiny"], 5)
        assert "warm: tiny" in inferd("ps").stdout
        second = inferd("run", "--timings", "--keep-warm", "5", "--json", hello)
        assert re.search(r"^inferd: command \S+ \S+, server \S+ \S+, run ", second.stderr, re.MULTILINE), second.stderr
        assert "HTTP" not in second.stderr
        assert json.loads(second.stdout)["result"] == "hello you"
        assert warm(inferd) == [server]
        third = inferd("run", hello)
        assert third.stdout == 'greeting\n"hello you"\n'
        assert [os.path.basename(str(path)) for path in psutil.Process(server["pid"]).cmdline()[-1:]] == ["--warm"]
        other = inferd("run", "--pages", "99", "--keep-warm", "5", hello)
        assert other.returncode == 0, other.stderr
        assert len(warm(inferd)) == 2
    assert warm(inferd) == []


def test_a_warm_server_keeps_contexts_where_a_run_alone_would_find_them(
    inferd: CommandLine, hello: str, tmp_path: Path
) -> None:
    settings = resolve(Sources({}, inferd.environment))
    with ended_at_last(inferd):
        for folder in (settings.data_dir, tmp_path / "elsewhere"):
            assert inferd("run", "--keep-warm", "5", "--data-dir", str(folder), hello).returncode == 0
        notes = (settings.state_dir / warm_servers.FOLDER).glob(f"*/{warm_servers.NOTE}")
        kept = {decode_settings(note.read_bytes(), Settings).contexts for note in notes}
    assert kept == {settings.contexts, tmp_path / "elsewhere" / "snapshots"}


def test_a_program_that_fails_on_a_warm_server_says_so_as_it_does_alone(inferd: CommandLine, tmp_path: Path) -> None:
    program = tmp_path / "fails.py"
    program.write_text("async def main():\n    raise ValueError('no')\n")
    alone = inferd("run", str(program))
    with ended_at_last(inferd):
        on_server = inferd("run", "--keep-warm", "5", str(program))
    assert alone.returncode == on_server.returncode == 1
    assert "ValueError: no" in alone.stderr
    assert "ValueError: no" in on_server.stderr


def test_a_program_that_was_edited_runs_on_a_warm_server_under_the_same_version(
    inferd: CommandLine, tmp_path: Path
) -> None:
    program, head = tmp_path / "edited.py", '# /// script\n# [tool.inferd]\n# version = "1.0.0"\n# ///\n'
    with ended_at_last(inferd):
        for number in range(2):
            program.write_text(f"{head}async def main():\n    return {number}\n")
            done = inferd("run", "--keep-warm", "5", str(program))
            assert done.stdout == f"{number}\n", done.stderr


def test_nobody_is_waited_for_who_could_not_reach_a_run_on_a_warm_server(inferd: CommandLine, tmp_path: Path) -> None:
    program = tmp_path / "once.py"
    program.write_text("import worker\nasync def main():\n    return await worker.ask()\n")
    with ended_at_last(inferd):
        unread = inferd("run", "--keep-warm", "5", "--json", "--no-input", str(program))
    assert json.loads(unread.stdout)["error"]["message"] == "no more", "`inferd send` does not find such a server"


def test_a_server_that_does_not_start_is_unavailable_with_its_last_words(inferd: CommandLine, hello: str) -> None:
    ended = inferd.but(INFERD_FAKE_ENGINE="--fail")("run", "--keep-warm", "5", hello)
    assert ended.returncode == 5
    assert "did not start" in ended.stderr
    assert warm(inferd) == []


@pytest.mark.parametrize(("asked", "found"), [("auto", True), ("own", False)])
def test_a_server_that_is_up_is_used_where_that_is_asked(
    inferd: CommandLine, hello: str, asked: str, found: bool
) -> None:
    with inferd.start("serve", "--port", "0", "--json") as server:
        assert server.stdout is not None
        models = json.loads(server.stdout.readline())["models"]
        ran = inferd("run", "--server", asked, "--model", models[0], hello)
        assert (ran.returncode, ran.stdout) == (0, 'greeting\n"hello you"\n'), ran.stderr
        assert len(json.loads(inferd("ps", "--json").stdout)["runs"]) == found
        there = Server.of(resolve(Sources({}, inferd.environment))).get("/v1/programs")
        assert there["programs"] == [], "what was run once is not uploaded"
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


def test_a_server_of_another_model_is_not_used(inferd: CommandLine, hello: str) -> None:
    with inferd.start("serve", "--port", "0", "--json") as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert inferd("run", "--server", "auto", "--model", "another", hello).returncode == 0
        assert json.loads(inferd("ps", "--json").stdout)["runs"] == []
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


@pytest.mark.parametrize(("asked", "used"), [("a", True), ("a;c", True), ("b", False), ("a;x", False)])
def test_a_server_that_has_further_models_is_used_and_no_second_one_started(
    asked: str, used: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Up:
        def get(self, path: str) -> dict[str, Any]:
            models = [{"name": name, "vocab_size": 256, "max_context": 64} for name in "abc"]
            return {"ready": True, "models": models}

    monkeypatch.setattr(Server, "of", lambda settings: Up())
    chosen = {"INFERD_SERVER": "auto", "INFERD_MODEL": asked, "INFERD_STATE_DIR": str(tmp_path)}
    assert (warm_servers.find_server(resolve(Sources({}, chosen))) is not None) == used


def test_an_idle_server_ends_by_itself_but_not_under_a_run(inferd: CommandLine) -> None:
    waits = "import worker\nasync def main():\n    return await worker.receive()\n"
    with inferd.start("serve", "--port", "0", "--json", "--idle-minutes", "0.05") as process:
        assert process.stdout is not None
        process.stdout.readline()
        server = Server.of(resolve(Sources({}, inferd.environment)))
        program = server.post("/v1/programs", {"files": {"main.py": waits}, "name": "waits"})["id"]
        run = server.post("/v1/runs", {"program": program})["id"]
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)
        assert server.get(f"/v1/runs/{run}")["state"] == "running"
        server.post(f"/v1/runs/{run}/cancel")
        assert process.wait(30) == 0
