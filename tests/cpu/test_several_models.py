"""Several models in one engine process: their own engines, one budget, one refusal; and every dtype on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from inferd import protocol as p
from inferd.protocol import InvalidRequest, LimitExceeded
from inferd_runtime.models import devices
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.server.engine_process import followers, model_loading
from inferd_runtime.server.engine_process.loop import step
from inferd_runtime.server.engine_process.serving import serve_models
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.session import Session
from inferd_runtime.session.state import SessionState
from inferd_runtime.session.step_profile import StepProfile
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession

BOTH = (ModelOptions("tiny"), ModelOptions("tiny-draft", dtype="bfloat16", pages=40))
MIB = 1 << 20


def serve(*models: ModelOptions) -> list[ServedModel]:
    return serve_models(EngineSettings(model=models, threads=1))


@pytest.fixture(scope="module")
def served() -> list[ServedModel]:
    return serve(*BOTH)


def test_each_model_has_its_own_options(served: list[ServedModel]) -> None:
    assert [model.info.name for model in served] == ["tiny", "tiny-draft"]
    assert [model.engine.pool.size for model in served][1] == 40
    assert served[0].info.fingerprint != served[1].info.fingerprint


def test_two_models_generate_at_the_same_time_in_one_session(served: list[ServedModel]) -> None:
    """Each alone first; together, one loop over both engines gives the same tokens."""
    alone = [DirectSession(model) for model in served]
    expected = [caller.generate(caller.text("one two three"), max_tokens=12).tokens for caller in alone]
    assert all(expected)
    for caller in alone:
        caller.close()
    session = Session(SessionState({model.info.name: model for model in served}, "tenant"))
    generations: list[int] = []
    for ticket, model in enumerate(served):
        answers: list[Any] = []
        parts = [p.Part("text", text="one two three")]
        session.handle(ticket, p.CreateContext(model.info.name), answers.append)
        context = answers[0].context
        session.handle(ticket, p.AppendContext(context, parts), answers.append)
        session.handle(ticket, p.StartGenerate(context, max_tokens=12), answers.append)
        generations.append(answers[-1].generation)
    before = [model.engine.steps for model in served]
    while step(served, StepProfile()):
        pass
    assert all(model.engine.steps > steps for model, steps in zip(served, before, strict=True))
    steps: list[Any] = []
    for generation in generations:
        session.handle(9, p.NextSteps(generation), steps.append)
    assert [[token for one in answer.steps for token in one.tokens] for answer in steps] == expected
    for model in served:
        model.engine.pool.check_integrity(session.owned_tables(model))
    session.close()


def test_pages_are_divided_between_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available_host_bytes", lambda: 64 * MIB)
    alone = serve(ModelOptions("tiny"))[0].engine.pool.size
    shared = [model.engine.pool.size for model in serve(ModelOptions("tiny"), ModelOptions("tiny-draft"))]
    assert (alone, shared) == (512, [256, 1024])


def test_what_does_not_fit_is_refused_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available_host_bytes", lambda: 12 * MIB)
    monkeypatch.setattr(model_loading, "load", lambda *args, **kwargs: pytest.fail("weights are read"))
    monkeypatch.setattr(followers, "load", lambda *args, **kwargs: pytest.fail("weights are read"))
    with pytest.raises(LimitExceeded, match=r"model 'tiny' in float32 does not fit cpu: it needs 16\.8 MiB") as caught:
        serve(ModelOptions("tiny"))
    others = "--weights int8 or --weights int4"
    assert caught.value.detail == {"limit": "memory", "value": 12 * MIB, "raise_with": f"--dtype bfloat16 or {others}"}
    with pytest.raises(LimitExceeded, match="'tiny' in bfloat16 does not fit cpu beside tiny-draft"):
        serve(ModelOptions("tiny-draft"), ModelOptions("tiny", dtype="bfloat16"))


def test_pages_beyond_memory_are_refused_by_name() -> None:
    with pytest.raises(LimitExceeded, match="for 999999999 KV pages") as caught:
        serve(ModelOptions("tiny", pages=999_999_999))
    assert caught.value.detail["raise_with"].startswith("--pages ")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_serves_on_the_cpu(dtype: str) -> None:
    session = DirectSession(serve(ModelOptions("tiny", dtype=dtype))[0])
    text = "Ada Lovelace, 36; Zelda Quimby, 51"
    generated = session.generate(session.chat("Repeat the text.", text), max_tokens=32, system_speculation=True)
    assert generated.text == text
    session.close()


def test_kernels_that_nothing_would_use_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="--products kernel is for models on a GPU"):
        serve_models(EngineSettings(threads=1, products="kernel"))
