"""Draft models in a real engine process: two tenants at once, a draft process that is killed, and nothing left running."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import inferd_runtime.models
from inferd import protocol as p
from inferd_runtime.draft_models.options import read_drafts

from .engine_client import SECONDS, Caller, EngineProcess, engine_process

EMBEDDED = Path(inferd_runtime.models.__file__).parent / "tiny"
TEXT = "The captain noted a light wind. The second engine was stopped for a while. The"
GREEDY, SAMPLED = p.Sampling(), p.Sampling(temperature=0.8, seed=2)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def draft_process(engine: EngineProcess) -> int | None:
    """The draft model's process, once it has become itself: first it is the tether."""
    for child in children(engine.process.pid):
        command = Path(f"/proc/{child}/cmdline").read_bytes()
        if b"inferd_runtime.server.engine_process.draft_process" in command:
            return child
    return None


def start(caller: Caller, sampling: p.Sampling, draft: str = "") -> int:
    wishes = p.SpeculationSettings(sources=["draft_model"], draft_model=draft) if draft else None
    context = caller.prompt(TEXT)
    request = p.StartGenerate(context, sampling, 64, system_speculation=bool(draft), speculation=wishes)
    return int(caller.call(request).generation)


def finish(caller: Caller, generation: int) -> list[int]:
    tokens: list[int] = []
    while True:
        reply = caller.call(p.NextSteps(generation))
        tokens += [token for step in reply.steps for token in step.tokens]
        if reply.finish:
            caller.call(p.CloseGenerate(generation))
            return tokens


def test_tokens_are_the_same_with_and_without_for_two_tenants_at_once(tmp_path: Path) -> None:
    apart = str(EMBEDDED / "draft")
    drafts = read_drafts(["tiny-draft", f"{apart},process=true,timeout_ms=100"])
    with engine_process(tmp_path, draft=drafts, check=True) as engine:
        ann, bob = engine.session("ann"), engine.session("bob")
        expected = [finish(ann, start(ann, sampling)) for sampling in (GREEDY, SAMPLED)]
        assert min(map(len, expected)) > 30
        handles = start(ann, GREEDY, "tiny-draft"), start(bob, SAMPLED, apart)
        assert [finish(ann, handles[0]), finish(bob, handles[1])] == expected
        totals = ann.stats().models[0]
        assert totals.speculation.steps > 0
        assert [name for name, draft in totals.draft_models.items() if draft.requests] == ["tiny-draft", apart]
        victim = draft_process(engine)
        assert victim is not None
        handle = start(ann, GREEDY, apart)
        os.kill(victim, signal.SIGKILL)
        assert finish(ann, handle) == expected[0]
        until = time.monotonic() + SECONDS
        while draft_process(engine) in (victim, None):
            finish(ann, start(ann, GREEDY, apart))
            assert time.monotonic() < until, "it is not started again"
        left = draft_process(engine)
    assert left is not None
    assert not Path(f"/proc/{left}").exists(), "it ends with its engine"
