"""A model that is divided between two processes, as it is served: the same tokens, what a killed rank does, what is left."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from inferd import protocol as p
from inferd_runtime.draft_models.options import read_drafts
from inferd_runtime.models.adapter_options import read_adapters
from inferd_runtime.models.options import read_models
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession

from .engine_client import SECONDS, Caller, EngineProcess, engine_process, new_engine

TEXT = "The captain noted a light wind. The second engine was stopped for a while. The"
GREEDY, SAMPLED = p.Sampling(), p.Sampling(temperature=0.8, seed=2)
FOLLOWER = "inferd_runtime.server.engine_process.follower_process"


def followers(engine: EngineProcess) -> list[psutil.Process]:
    children = psutil.Process(engine.process.pid).children()
    return [child for child in children if FOLLOWER in child.cmdline()]


def generate(caller: Caller, sampling: p.Sampling, draft: str = "") -> list[int]:
    wishes = p.SpeculationSettings(sources=["draft_model"], draft_model=draft) if draft else None
    request = p.StartGenerate(caller.prompt(TEXT), sampling, 48, system_speculation=bool(draft), speculation=wishes)
    generation = int(caller.call(request).generation)
    tokens: list[int] = []
    while True:
        reply = caller.call(p.NextSteps(generation))
        tokens += [token for step in reply.steps for token in step.tokens]
        if reply.finish:
            return tokens


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """What one process brings, with the fused pass."""
    session = DirectSession(serve_model(EngineSettings(threads=1)))
    tokens = [session.generate(session.text(TEXT), sampling=s, max_tokens=48).tokens for s in (GREEDY, SAMPLED)]
    session.close()
    return tokens


def test_tokens_ports_and_the_end_of_a_rank(
    tmp_path: Path, expected: list[list[int]], capfd: pytest.CaptureFixture[str]
) -> None:
    with engine_process(tmp_path, tensor_parallel=2, draft=read_drafts("tiny-draft"), check=True) as engine:
        ann = engine.session("ann")
        assert [generate(ann, sampling) for sampling in (GREEDY, SAMPLED)] == expected
        assert generate(ann, GREEDY, "tiny-draft") == expected[0]
        assert ann.stats().models[0].speculation.steps > 0
        (rank,) = followers(engine)
        for process in (rank, psutil.Process(engine.process.pid)):
            listening = [c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
            assert set(listening) == {"127.0.0.1"}
        rank.kill()
        assert engine.process.wait(SECONDS) == 2
    error = msgspec.json.decode(capfd.readouterr().err.strip().rpartition("\n")[2], type=p.ErrorInfo).to_exception()
    assert isinstance(error, p.Unavailable)
    assert error.detail == {"process": "follower", "rank": 1}
    assert error.message.startswith("rank 1 of the model ended with code"), "its last words"
    assert "%|" not in error.message, "no progress bar is among them"


def test_ranks_end_with_their_engine_however_that_ends(tmp_path: Path) -> None:
    engine = EngineProcess(tmp_path, tensor_parallel=2)
    engine.session("ann")
    (rank,) = followers(engine)
    os.kill(engine.process.pid, signal.SIGKILL)
    engine.close()
    psutil.wait_procs([rank], SECONDS)
    assert not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model": read_models("tiny;tiny-draft")}, "several models"),
        ({"adapter": read_adapters("a=/nowhere")}, "adapters"),
        ({"fixed_rows": 4}, "--fixed-rows"),
        ({"device": "cuda"}, "not on 'cuda'"),
        ({"kv_dtype": "fp8"}, "--kv-dtype fp8"),
    ],
    ids=["models", "adapters", "fixed-rows", "device", "fp8"],
)
@pytest.mark.long
def test_what_does_not_go_together_is_refused_by_name(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    launch = new_engine(f"ipc://{tmp_path}/engine", EngineSettings(tensor_parallel=2, **settings))
    done = subprocess.run(
        launch.command, input=launch.document(), env=launch.environment, capture_output=True, timeout=SECONDS
    )
    assert done.returncode == 2
    error = msgspec.json.decode(done.stderr.decode().strip().rpartition("\n")[2], type=p.ErrorInfo).to_exception()
    assert isinstance(error, p.InvalidRequest)
    assert reason in error.message
