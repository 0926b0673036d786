"""A draft engine of its own beside a real engine process: the same tokens while it is there, gone, and there again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_until

from inferd_runtime.draft_models.options import read_drafts
from inferd_runtime.server.engine_process.command import DraftSecrets
from inferd_runtime.speculation.counters import DraftModelCounters

from .engine_client import SECONDS, Caller, engine_process
from .test_draft_models import GREEDY, SAMPLED, finish, start

KEY = "the key of a test, of more than enough kinds 0123456789"


def draft_engine(tmp_path: Path, port: int) -> subprocess.Popen[str]:
    """``inferd serve-draft`` with the embedded draft model, loaded and listening."""
    key = tmp_path / "draft.key"
    key.write_text(KEY)
    key.chmod(0o600)
    command = [
        sys.executable,
        "-m",
        "inferd_runtime.cli",
        "serve-draft",
        "--model",
        "tiny-draft",
        "--threads",
        "1",
        "--json",
    ]
    command += ["--listen", f"127.0.0.1:{port}", "--draft-key-file", str(key)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["port"] == port
    return process


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def figures(caller: Caller) -> DraftModelCounters:
    return caller.stats().models[0].draft_models["tiny-draft"]


def connected(caller: Caller, count: int) -> None:
    wait_until(lambda: figures(caller).connections >= count, "it does not connect", SECONDS)


def end(process: subprocess.Popen[str], how: int) -> None:
    os.kill(process.pid, how)
    process.wait(SECONDS)
    assert process.stdout is not None
    process.stdout.close()


def test_a_server_starts_without_its_draft_engine_which_joins_later_and_is_killed(tmp_path: Path) -> None:
    port = free_port()
    options = read_drafts(f"tiny-draft,at=127.0.0.1:{port}")
    with engine_process(tmp_path, draft=options, check=True, drafts=DraftSecrets(KEY)) as engine:
        caller = engine.session("ann")
        expected = [finish(caller, start(caller, one)) for one in (GREEDY, SAMPLED)]
        assert finish(caller, start(caller, GREEDY, "tiny-draft")) == expected[0]
        assert figures(caller).requests == 0, "nobody is there"
        process = draft_engine(tmp_path, port)
        connected(caller, 1)
        assert [finish(caller, start(caller, one, "tiny-draft")) for one in (GREEDY, SAMPLED)] == expected
        assert figures(caller).requests > 0
        assert figures(caller).failures == 0
        generation = start(caller, GREEDY, "tiny-draft")
        end(process, signal.SIGKILL)
        assert finish(caller, generation) == expected[0]
        assert finish(caller, start(caller, SAMPLED, "tiny-draft")) == expected[1]


@pytest.mark.long
def test_a_draft_engine_that_comes_back_is_used_again_for_as_often_as_it_is_killed(tmp_path: Path) -> None:
    port = free_port()
    process = draft_engine(tmp_path, port)
    options = read_drafts(f"tiny-draft,at=127.0.0.1:{port}")
    with engine_process(tmp_path, draft=options, check=True, drafts=DraftSecrets(KEY)) as engine:
        caller = engine.session("ann")
        expected = finish(caller, start(caller, SAMPLED))
        for life in range(1, 5):
            connected(caller, life)
            before, until = figures(caller).requests, time.monotonic() + SECONDS
            while figures(caller).requests == before:
                assert time.monotonic() < until, "it is not even tried"
                assert finish(caller, start(caller, SAMPLED, "tiny-draft")) == expected
            generation = start(caller, SAMPLED, "tiny-draft")
            end(process, signal.SIGKILL if life % 2 else signal.SIGTERM)
            assert process.returncode == (-signal.SIGKILL if life % 2 else 0)
            assert finish(caller, generation) == expected
            process = draft_engine(tmp_path, port)
        end(process, signal.SIGTERM)
