"""Four pins on a real model with a real cache, in float32: what the fabricBIOS recipe for two engines pins, for trees too.

Verifying a draft in one batch gives what decoding it token by token gives; what is accepted was drafted; a seed's tokens
are the same with any draft; and the cache advances by what was emitted, and holds what plain decoding would have put there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferd.protocol import Sampling
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.scheduling.fairness import StepCost
from inferd_runtime.engine.sequences.positions import tree_placement
from inferd_runtime.engine.stages import Work
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.jinja_template import RenderBudget
from inferd_runtime.models.template_input import TemplateInput
from inferd_runtime.server.engine_process import serving
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.speculation.drafts import ROOT
from inferd_runtime.speculation.ngram import NgramDrafter
from inferd_runtime.speculation.times import StepTimes
from inferd_runtime.testing.speculation import (
    Blind,
    BlindTree,
    GenerationUnderTest,
    Guesser,
    Oracle,
    OracleTree,
    Request,
    Wrong,
)

TOLERANCE = 1e-4
PROMPTS = (
    ("Repeat the text.", "A small green boat left the harbour at 5:45 with 17 goats."),
    ("Extract the person.", "Zelda Quimby, 51"),
)
SAMPLERS = {"argmax": Sampling(), "warm": Sampling(1.0), "filtered": Sampling(0.8, top_k=20, top_p=0.9)}


@pytest.fixture(scope="module")
def model() -> Any:
    """Rows cost next to nothing: whether drafts are worth it on a busy machine is not asked here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "step_costs", lambda model: (StepCost(), StepTimes.linear(1.0, 1e-3)))
        return serve_model(EngineSettings(threads=1))


@pytest.fixture(scope="module")
def requests(model: Any) -> dict[str, list[Request]]:
    """By sampler, with the answers of plain decoding."""
    return {
        name: [request_of(model.engine, model, at, sampling) for at in range(len(PROMPTS))]
        for name, sampling in SAMPLERS.items()
    }


@pytest.fixture(scope="module")
def engine(model: Any) -> Engine:
    found: Engine = model.engine
    return found


def prompt_of(model: Any, at: int) -> tuple[int, ...]:
    messages = [{"role": role, "content": text} for role, text in zip(("system", "user"), PROMPTS[at], strict=True)]
    rendered = model.tokenizer.render(TemplateInput(messages, cue=True), RenderBudget(1.0, 100_000))
    return tuple(model.tokenizer.encode_rendered(rendered))


# -- Batched verification is sequential decoding ---------------------------------------------------------------------


def feed(engine: Engine, table: PageTable, tokens: Sequence[int], parents: Sequence[int] | None = None) -> np.ndarray:
    """Every row's logits, float32[n, V]; the first token and, with ``parents``, a draft behind it."""
    engine.driver.copy_pages(table.reserve(len(tokens)))
    work = Work(tokens, len(tokens))
    if parents is not None:
        work = work._replace(placement=tree_placement(table.length, len(tokens) - len(parents), parents))
    logits = engine.driver.forward(prepare([Planned(None, work, table)], engine.driver.page_size)).logits  # type: ignore[arg-type]
    table.advance(len(tokens))
    return logits


def in_turn(engine: Engine, prompt: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """The logits behind ``tokens``, fed one by one."""
    table = PageTable(engine.pool)
    feed(engine, table, prompt)
    rows = [feed(engine, table, [token])[0] for token in tokens]
    table.release()
    return rows[-1]


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_batched_verification_is_sequential_decoding(engine: Engine, model: Any, kind: str) -> None:
    *prompt, last = prompt_of(model, 0)
    tokens = np.random.default_rng(5).integers(3, 4000, size=7).tolist()
    parents = [*range(ROOT, 6)] if kind == "chain" else [ROOT, 0, 1, 0, ROOT, 4, 4]
    table = PageTable(engine.pool)
    feed(engine, table, prompt)
    rows = feed(engine, table, [last, *tokens], parents)
    table.release()
    for node in range(-1, 7):
        path, at = [], node
        while at != ROOT:
            path, at = [tokens[at], *path], parents[at]
        expected = in_turn(engine, prompt, [last, *path])
        assert np.abs(rows[node + 1] - expected).max() < TOLERANCE
        assert rows[node + 1].argmax() == expected.argmax()


# -- Generations ------------------------------------------------------------------------------------------------------


def request_of(engine: Engine, model: Any, at: int, sampling: Sampling) -> Request:
    """The request with the answer of plain decoding."""
    sampler = RowSampler.resolve(sampling, seed=11 + at, lineage=0)
    request = Request(prompt_of(model, at), sampler, 40, model.info.eos_tokens[0])
    context = engine.create_context()
    context.append(request.prompt)
    one = GenerationUnderTest.submit(engine, context, request, [])
    while not one.generation.finished():
        engine.step()
        one.take()
    one.generation.close()
    context.release()
    return replace(request, tokens=tuple(one.tokens), finish=one.generation.finish)


def name_of(guesser: type[Guesser] | None) -> str:
    return "ngram" if guesser is None else guesser.__name__


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("guesser", [Oracle, OracleTree, Blind, BlindTree, Wrong, None], ids=name_of)
def test_tokens_acceptance_and_the_cache(
    engine: Engine, requests: dict[str, list[Request]], name: str, guesser: type[Guesser] | None
) -> None:
    """All requests at once. Behind every step the cache holds all tokens but the one that was sampled last."""
    running = []
    for seed, request in enumerate(requests[name]):
        context = engine.create_context()
        context.append(request.prompt)
        drafter = guesser(request, 4096, seed) if guesser is not None else NgramDrafter()
        running.append(GenerationUnderTest.submit(engine, context, request, [drafter]))
    while any(not one.generation.finished() for one in running):
        engine.step()
        for one in running:
            check_steps(one)
    for one in running:
        check_steps(one)
        one.check()
        assert guesser not in (Oracle, OracleTree) or one.accepted > len(one.tokens) // 2
        check_cache(engine, one)
        one.generation.close()
        one.generation.context.release()


def check_steps(one: GenerationUnderTest) -> None:
    steps = list(one.generation.outbox)
    assert all(0 <= step.accepted <= step.drafted for step in steps)
    one.take()
    context = one.generation.context
    if one.steps and not one.generation.finished():
        assert len(context.tokens) == len(one.request.prompt) + one.steps + one.accepted - one.truncated
        assert context.table.length == len(context.tokens) - 1


def check_cache(engine: Engine, one: GenerationUnderTest) -> None:
    """Full pages hold the keys and values that reading all tokens at once brings."""
    context, size = one.generation.context, engine.driver.page_size
    full = context.table.length // size
    again = PageTable(engine.pool)
    feed(engine, again, context.tokens[: full * size])
    held, fresh = (
        engine.driver.read_pages(pages[:full]).view(np.float32) for pages in (context.table.pages, again.pages)
    )
    again.release()
    assert full > 1
    assert np.abs(held - fresh).max() < TOLERANCE
