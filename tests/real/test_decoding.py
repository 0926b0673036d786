"""Samplers and passes on the pulled model, against transformers' own processors. Skipped where it is not pulled."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TypicalLogitsWarper, UnbatchedClassifierFreeGuidanceLogitsProcessor

from inferd import Candidates, Sampler, protocol as p
from inferd.custom_sampler import candidates_of
from inferd.protocol.floats import unpack_floats
from inferd.samplers import Typical
from inferd_runtime.engine.sampling.host_sampling import RowSampler, candidates
from inferd_runtime.testing.direct import DirectSession

pytestmark = pytest.mark.real
PROMPT = "The three largest rivers of Europe are the"
OTHER = "A list:"
LOGITS = [p.Probe("logits")]


def rows(session: DirectSession, count: int, pick: int = 0, **fields: Any) -> Iterator[tuple[Candidates, list[int]]]:
    """Yield the rows of a generation that takes candidate ``pick`` of each, and the tokens before it."""
    generation = session.call(p.StartGenerate(session.text(PROMPT), max_tokens=count, candidates=0, **fields))
    tokens, token = session.tokens(session.text(PROMPT)), None
    for at in range(count):
        offered = session.call(p.NextSteps(generation.generation, token=token)).candidates[0]
        row = candidates_of(offered, tokens, at)
        yield row, list(tokens)
        token = row.tokens[pick]
        tokens.append(token)
    session.call(p.CloseGenerate(generation.generation))


def logits_behind(session: DirectSession, tokens: list[int]) -> torch.Tensor:
    """The model's logits behind some tokens, by a pass without tokens of its own."""
    context = session.context(p.Part("tokens", tokens=tokens))
    values = session.call(p.Forward(context, [], probes=LOGITS)).rows[0].probes[0].values
    session.call(p.ReleaseContext(context))
    return torch.tensor(values)


def test_candidates_are_the_models_distribution(session: DirectSession) -> None:
    for row, tokens in rows(session, 4, pick=1):
        expected = torch.log_softmax(logits_behind(session, tokens).double(), 0)
        found = torch.full_like(expected, -math.inf)
        found[torch.tensor(row.tokens)] = torch.tensor(row.logprobs, dtype=torch.float64)
        assert torch.allclose(found, expected, atol=2e-5, rtol=1e-5)
        entropy = -(expected.exp() * expected).sum().item()
        assert row.entropy == pytest.approx(entropy, rel=1e-4)


@pytest.mark.parametrize("mass", [0.2, 0.9])
def test_typical_keeps_what_transformers_keeps(session: DirectSession, mass: float) -> None:
    apply = Typical(mass).start()
    for row, _ in rows(session, 4, pick=2):
        scores = torch.full((1, len(row)), -math.inf)
        scores[0, torch.tensor(row.tokens)] = torch.tensor(row.logprobs)
        kept = torch.isfinite(TypicalLogitsWarper(mass)(torch.zeros(1, 1, dtype=torch.long), scores)[0])
        own: Any = apply(row, row.logprobs)
        mine = {token for token, score in zip(row.tokens, own, strict=True) if score > -math.inf}
        theirs = set(torch.nonzero(kept)[:, 0].tolist())
        # Where two tokens are as far from the entropy except for rounding, float32 and float64 may order them otherwise.
        assert len(mine ^ theirs) <= 2
        assert len(theirs) > 2


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_the_engines_typical_keeps_what_transformers_keeps(session: DirectSession, temperature: float) -> None:
    sampler, sizes = RowSampler.resolve(Sampler.typical(temperature, 0.8).sampling, seed=0, lineage=0), list[int]()
    for _, tokens in rows(session, 4, pick=2):
        logits = logits_behind(session, tokens)
        kept = TypicalLogitsWarper(0.8)(torch.zeros(1, 1, dtype=torch.long), logits[None].double() / temperature)[0]
        mine = set(candidates(logits.numpy(), sampler)[0].tolist())
        assert len(mine ^ set(torch.nonzero(torch.isfinite(kept))[:, 0].tolist())) <= 1
        sizes.append(len(mine))
    assert 2 < max(sizes) < logits.numel() // 2


def test_guidance_scores_as_transformers_does(session: DirectSession) -> None:
    other = session.tokens(session.text(OTHER))

    def unconditional(input_ids: torch.Tensor, **_: Any) -> Any:
        class Output:
            logits = logits_behind(session, input_ids[0].tolist())[None, None]
            past_key_values = None

            def get(self, name: str, default: object = None) -> object:
                return getattr(self, name, default)

        return Output()

    processor = UnbatchedClassifierFreeGuidanceLogitsProcessor(
        1.7, unconditional, unconditional_ids=torch.tensor([other]), use_cache=False
    )
    beside = session.context(p.Part("tokens", tokens=other))
    fed: list[int] = []
    for row, tokens in rows(session, 4):
        asked = p.Probe("logprobs", tokens=list(row.tokens))
        low = session.call(p.Forward(beside, fed, probes=[asked])).rows[0].probes[0].values
        mine = np.full(len(row), -np.inf)
        mine[list(row.tokens)] = [weak + 1.7 * (own - weak) for own, weak in zip(row.logprobs, low, strict=True)]
        theirs = processor(torch.tensor([tokens]), logits_behind(session, tokens)[None])[0].double().numpy()
        assert np.allclose(mine, theirs, atol=1e-3)
        assert int(mine.argmax()) == int(theirs.argmax())
        fed = [row.tokens[0]]


def test_probes_of_steps_are_those_of_passes_whatever_is_drafted(session: DirectSession) -> None:
    asked = [p.Probe("distribution", k=8), p.Probe("entropy")]
    plain = session.generate(session.text(PROMPT), max_tokens=16, probes=asked)
    drafted = session.generate(session.text(PROMPT), max_tokens=16, probes=asked, predicted=plain.tokens)
    assert (drafted.tokens, drafted.accepted > 8) == (plain.tokens, True)
    prompt = session.tokens(session.text(PROMPT))
    for made in (plain, drafted):
        found = [each for step in made.steps for each in step.probes]
        for at in (0, 7, 15):
            logprobs = torch.log_softmax(logits_behind(session, [*prompt, *plain.tokens[:at]]).double(), 0)
            assert found[at][0].tokens[0] == plain.tokens[at]
            expected = logprobs[torch.tensor(found[at][0].tokens)].exp().tolist()
            assert found[at][0].values == pytest.approx(expected, rel=1e-3)
            assert unpack_floats(found[at][1].packed)[0] == pytest.approx(
                -(logprobs.exp() * logprobs).sum().item(), rel=1e-3
            )
