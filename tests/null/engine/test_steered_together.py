"""Texts that are all steered to their ends in one step: each may look for its end for milliseconds, and a thousand of them do not
hold up others.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sampling_driver import SamplingNullDriver

from inferd.protocol import Sampling
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.grammar_masks import OutputMasks
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.scheduling.job_times import MOST_SECONDS
from inferd_runtime.testing.null_driver import NullDriver

from .overlap_cases import FREE_ROWS

MANY, QUICK_TOKENS, TOKENS = 24, 4, 8
SEARCH_SECONDS = 0.02


class SteeredLate(OutputMasks):
    """Looks for an end from some token on, which takes long."""

    def __init__(self, now: list[float]) -> None:
        self._now = now

    @property
    def steers(self) -> bool:
        return True

    def admit(self, tokens: Sequence[int], room: int) -> list[int]:
        if room <= TOKENS - QUICK_TOKENS:
            self._now[0] += SEARCH_SECONDS
        return list(tokens)


def engine_at(now: list[float], driver: type[NullDriver]) -> Engine:
    return Engine(driver(vocab_size=64, pages=256), EngineOptions(64, times=FREE_ROWS, clock=lambda: now[0]))


def generation(engine: Engine, now: list[float], seed: int, tenant: str) -> Generation:
    context = engine.create_context(tenant=tenant)
    context.append([1, 2, 3])
    sampler = RowSampler.resolve(Sampling(temperature=1.0), seed=seed, lineage=0)
    made = Generation(context, GenerationSpec(sampler, TOKENS, [], SteeredLate(now)), TextAssembler(str, ()))
    engine.submit(made)
    return made


def told(generation: Generation) -> list[int]:
    return [token for step in generation.take() for token in step.tokens]


def alone(seed: int) -> list[int]:
    now = [0.0]
    engine = engine_at(now, NullDriver)
    made = generation(engine, now, seed, "alone")
    while not made.finished():
        engine.step()
    return told(made)


@pytest.mark.parametrize("driver", [NullDriver, SamplingNullDriver])
def test_many_that_look_for_their_ends_in_one_step_do_not_hold_up_another_tenant(driver: type[NullDriver]) -> None:
    """1,024 answers of one request took one step of 2.6 s where each came near the end of its tokens."""
    now = [0.0]
    engine = engine_at(now, driver)
    made = [generation(engine, now, seed, "other" if seed == MANY else "many") for seed in range(MANY + 1)]
    longest = 0.0
    while not all(one.finished() for one in made):
        before = now[0]
        engine.step()
        longest = max(longest, now[0] - before)
    assert MOST_SECONDS < longest <= MOST_SECONDS + 2 * SEARCH_SECONDS
    texts = [told(one) for one in made]
    assert texts == [alone(seed) for seed in range(MANY + 1)]
    assert {len(text) for text in texts} == {TOKENS}
