"""A draft engine without weights, and a generation on a target without weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from inferd.protocol import Sampling
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.testing.byte_tokenizer import ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver

Poll = Callable[[], object]
NO_END = 1 << 20


def sampler_of(temperature: float = 0.0, seed: int = 0) -> RowSampler:
    return RowSampler.resolve(Sampling(temperature=temperature), seed=seed, lineage=0)


class Target:
    """A target engine whose logits follow from ``seed``; the draft engine of the same seed always agrees."""

    def __init__(self, seed: int = 0, *, vocab: int = 12, scale: float = 2.0) -> None:
        self.engine = Engine(NullDriver(vocab_size=vocab, scale=scale, seed=seed), EngineOptions(token_budget=32))

    def generate(
        self, prompt: Sequence[int], sampler: RowSampler, drafter: Drafter | None = None,
        *, max_tokens: int = 40, poll: Poll = lambda: None, patience: int = 200_000,
    ) -> tuple[list[int], Generation]:  # fmt: skip
        """The tokens of one generation; ``poll`` is called where the step loop would rest."""
        context = self.engine.create_context("tenant")
        context.append(list(prompt))
        sources = None if drafter is None else self.engine.draft_budget.sources([drafter])
        spec = GenerationSpec(sampler, max_tokens, [NO_END], None, sources)
        generation = Generation(context, spec, TextAssembler(ByteTokenizer().stream(), ()))
        self.engine.submit(generation)
        tokens: list[int] = []
        while not generation.finished() or generation.outbox:
            tokens += [token for step in generation.take() for token in step.tokens]
            poll()
            self.engine.step()
            patience -= 1
            assert patience, "the generation hangs"
        assert generation.error is None
        generation.close()
        context.release()
        self.engine.check_integrity()
        return tokens, generation


@pytest.fixture
def draft_driver() -> type[NullDriver]:
    """What runs a draft model; the host draws its tokens."""
    return NullDriver


@pytest.fixture
def make_host(draft_driver: type[NullDriver]) -> Callable[..., DraftHost]:
    """``make_host(seed, eos=..., most=..., **driver)``: a draft model."""

    def make(seed: int = 0, eos: Sequence[int] = (), most: int = 64, **driver: Any) -> DraftHost:
        settings = {"vocab_size": 12, **driver}
        return DraftHost(
            Engine(draft_driver(seed=seed, **settings), EngineOptions(token_budget=32, swap_bytes=0)), eos, most=most
        )

    return make


@pytest.fixture
def make_target() -> Callable[..., Target]:
    """``make_target(seed)``: see :class:`Target`."""
    return Target


@pytest.fixture
def sampler() -> Callable[..., RowSampler]:
    """``sampler(temperature, seed)``."""
    return sampler_of
