"""What a program may ask of a model, asked of one behind the fast driver and of one behind the reference: the same answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferd import protocol as p
from inferd.protocol.floats import unpack_floats
from inferd_runtime.engine.drivers import build
from inferd_runtime.engine.drivers.cuda_driver import CudaDriver
from inferd_runtime.engine.scheduling.fairness import StepCost
from inferd_runtime.kernels.suite import reference_kernels
from inferd_runtime.models.passes.fused import fuse
from inferd_runtime.server.engine_process import model_loading, serving
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.speculation.times import StepTimes
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.recorded_host import RecordedHost

TOLERANCE = 1e-3
EXTRACT = ("Extract the person.", "Zelda Quimby, 51")
REPEAT = ("Repeat the text.", "A small green boat left at 5:45.")
HOT = p.Sampling(temperature=0.9, top_k=50, top_p=0.95, seed=4)
SCHEMA = '{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]}'


def fast(loaded: Any, options: Any) -> CudaDriver:
    fused = fuse(loaded.module, loaded.probe.kv, loaded.probe.rules)
    # Prompts are recorded elsewhere: twins attend to whole page tables, which are long here.
    few = replace(options, most_rows=100)
    return build.fast_driver(loaded, fused, few, reference_kernels(), RecordedHost())


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    """Behind the reference, and behind the fast driver."""
    with pytest.MonkeyPatch.context() as patch:
        # What a step of the twins in torch costs is of no interest.
        patch.setattr(serving, "step_costs", lambda model: (StepCost(), StepTimes.linear(1.0, 1e-3)))
        settings = EngineSettings(threads=1, pages=64, token_budget=100)
        reference = serve_model(settings)
        patch.setattr(model_loading, "build_driver", fast)
        return reference, serve_model(settings)


@pytest.fixture
def sessions(models: tuple[Any, Any]) -> Any:
    found = [DirectSession(model) for model in models]
    yield found
    for session in found:
        session.close()


def constrained(session: DirectSession) -> Any:
    grammar = p.ConstraintSpec("json_schema", SCHEMA)
    done = session.generate(session.chat(*EXTRACT), constraint=grammar, max_tokens=40, system_speculation=True)
    return done.text


def copied(session: DirectSession) -> Any:
    """N-gram drafts."""
    done = session.generate(session.chat(*REPEAT), max_tokens=30, system_speculation=True)
    return done.tokens, done.finish


def sampled(session: DirectSession) -> Any:
    sampling = p.Sampling(0.9, top_p=0.95, seed=3, repetition_penalty=1.2, bias_tokens=(300,), bias_values=(1.5,))
    return session.generate(session.chat(*REPEAT), sampling=sampling, max_tokens=20).tokens


def together(session: DirectSession) -> Any:
    contexts = [session.text(text) for text in ("one", "The second is longer than", "3")]
    return session.together(contexts, sampling=HOT, max_tokens=12)


def forked(session: DirectSession) -> Any:
    context = session.text("The harbour was")
    session.generate(context, sampling=HOT, max_tokens=6)
    fork = session.call(p.ForkContext(context)).context
    return [session.generate(one, sampling=HOT, max_tokens=8).tokens for one in (context, fork)]


def masked(session: DirectSession) -> Any:
    """A program's own attention mask and positions: no kernel does that."""
    tokens = [5, 17, 300, 44, 9]
    rows = [[0, 1, 4], [0, 2, 3], [0, 1, 1, 1, 2], [1, 3, 1], [0, 5]]
    reply = session.call(p.Forward(session.context(), tokens, top=3, attention_mask=rows, positions=[0, 1, 2, 3, 9]))
    return [row.token for row in reply.rows]


@pytest.mark.parametrize("ask", [constrained, copied, sampled, together, forked, masked], ids=lambda ask: ask.__name__)
def test_the_tokens_are_the_same(sessions: list[DirectSession], ask: Callable[[DirectSession], Any]) -> None:
    expected, got = (ask(session) for session in sessions)
    assert got == expected


def scored(session: DirectSession) -> list[float]:
    context = session.text("A")
    reply = session.call(p.PromptLogprobs(context, [300, 17, 5, 900], top=2))
    return [one.logprob for one in reply.tokens]


def embedded(session: DirectSession) -> list[float]:
    reply = session.call(p.Embed(texts=["a small boat", "17 goats"]))
    return [float(number) for packed in reply.packed for number in unpack_floats(packed)]


def logprobs(session: DirectSession) -> list[float]:
    done = session.generate(session.chat(*REPEAT), max_tokens=8, logprobs=2, system_speculation=True)
    return [one.logprob for step in done.steps for one in step.logprobs]


@pytest.mark.parametrize("ask", [scored, embedded, logprobs], ids=lambda ask: ask.__name__)
def test_the_numbers_are_the_same(sessions: list[DirectSession], ask: Callable[[DirectSession], list[float]]) -> None:
    expected, got = (np.asarray(ask(session)) for session in sessions)
    assert len(expected) > 3
    assert np.abs(got - expected).max() < TOLERANCE


def test_steps_were_recorded(models: tuple[Any, Any]) -> None:
    driver = models[1].engine.driver
    assert isinstance(driver, CudaDriver)
    assert driver._accelerator.replays > 50  # type: ignore[attr-defined]
