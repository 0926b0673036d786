"""Penalties and log-probabilities of the embedded model: transformers' own, and the same with drafts as without."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from inferd import protocol as p
from inferd_runtime.engine.sampling.penalties import History, Penalties, adjust
from inferd_runtime.kernels.sampling import Adjustments, adjusted
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession

PROMPTS = (
    ("Extract the person.", "Zelda Quimby, 51"),
    ("Repeat the text.", "A small green boat left the harbour at 5:45 with 17 goats."),
    ("Replace x by y.", "def add(x, z):\n    return x + z\n"),
)
SAMPLERS = {
    "greedy": p.Sampling(repetition_penalty=1.3),
    "warm": p.Sampling(0.8, 0, 0.95, presence_penalty=0.6, frequency_penalty=0.3),
    "all": p.Sampling(1.0, 20, 1.0, 0.0, None, 1.15, 0.2, 0.4, (5, 40, 260), (1.5, -100.0, -2.0)),
}


@pytest.fixture(scope="module")
def model() -> Any:
    return serve_model(EngineSettings(threads=1))


@pytest.fixture
def session(model: Any) -> Any:
    session = DirectSession(model)
    yield session
    session.close()


@pytest.mark.parametrize("penalty", [0.4, 1.1, 1.3, 7.0])
def test_repetition_is_transformers_processor(penalty: float) -> None:
    """Its arithmetic is float32: equal except the last bit of a quotient or product."""
    processor, generator = RepetitionPenaltyLogitsProcessor(penalty), np.random.default_rng(3)
    for seed in range(20):
        chance = random.Random(seed)
        prompt, output = chance.choices(range(300), k=40), chance.choices(range(300), k=20)
        logits = (generator.standard_normal(300) * 4).astype(np.float32)
        history = History(Penalties(repetition=float(np.float32(penalty))), prompt)
        history.advance(output[:12])
        ours = adjust(logits, history.entries(output[12:]))
        theirs: Any = processor(torch.tensor([prompt + output]), torch.from_numpy(logits.copy())[None])  # type: ignore[arg-type]
        np.testing.assert_allclose(ours, theirs[0].numpy(), rtol=2.5e-7, atol=0)
        assert (ours != logits).any()


@pytest.mark.parametrize("system_speculation", [False, True])
def test_greedy_tokens_with_a_repetition_penalty_are_those_of_transformers_generate(
    session: DirectSession, system_speculation: bool
) -> None:
    plain: Any = AutoModelForCausalLM.from_pretrained(resolve("tiny"), dtype=torch.float32).eval()
    for system, user in PROMPTS:
        context = session.chat(system, user)
        ids = torch.tensor([session.tokens(context)])
        out = plain.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, repetition_penalty=1.3
        )
        fields: dict[str, Any] = {"max_tokens": 40, "sampling": SAMPLERS["greedy"]}
        session.generate(context, system_speculation=system_speculation, **fields)
        held = session.tokens(context)
        assert held == out[0].tolist()[: len(held)]
        assert len(held) > ids.shape[1] + 5


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 30), marks=pytest.mark.long)])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_drafts_change_neither_tokens_nor_what_they_tell(session: DirectSession, sampler: str, seeds: range) -> None:
    """Log-probabilities differ as sums of float32 do, by which rows a pass has."""
    accepted = 0
    for seed in seeds:
        for system, user in PROMPTS:
            sampling = p.Sampling(**{**vars(SAMPLERS[sampler]), "seed": seed})
            fields: dict[str, Any] = {"sampling": sampling, "max_tokens": 32, "logprobs": 2}
            off = session.generate(session.chat(system, user), **fields)
            on = session.generate(session.chat(system, user), system_speculation=True, **fields)
            oracle = session.generate(session.chat(system, user), predicted=off.tokens[:-2], **fields)
            for other in (on, oracle):
                assert other.tokens == off.tokens, (seed, user)
                compare(scores_of(off), scores_of(other))
                accepted += other.accepted
    assert accepted > 20 * len(seeds)


def scores_of(generated: Any) -> list[p.TokenLogprob]:
    return [score for step in generated.steps for score in step.logprobs]


def compare(scores: list[p.TokenLogprob], others: list[p.TokenLogprob]) -> None:
    for one, other in zip(scores, others, strict=True):
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert one.top_logprobs == pytest.approx(other.top_logprobs, abs=1e-3)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_device_reference_adjusts_to_the_same_bits(name: str) -> None:
    """``kernels/sampling.py`` takes the rows' entries behind each other."""
    penalties, generator = Penalties.of(SAMPLERS[name]), np.random.default_rng(5)
    assert penalties is not None
    history = History(penalties, generator.integers(0, 300, 50).tolist())
    history.advance(generator.integers(0, 300, 30).tolist())
    rows = [history.entries(generator.integers(0, 300, count).tolist()) for count in (0, 1, 7, 3)]
    logits = (generator.standard_normal((4, 300)) * 5).astype(np.float32)
    sizes = [0, *np.cumsum([len(row.tokens) for row in rows]).tolist()]
    columns = [torch.from_numpy(np.concatenate(column)) for column in zip(*rows, strict=True)]
    adjustments = Adjustments(torch.tensor(sizes, dtype=torch.int32), columns[0].to(torch.int32), *columns[1:])
    theirs = adjusted(torch.from_numpy(logits), adjustments).numpy()
    assert theirs.tobytes() == np.stack([adjust(*pair) for pair in zip(logits, rows, strict=True)]).tobytes()
