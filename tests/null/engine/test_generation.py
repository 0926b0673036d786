"""A generation on its own: how it is closed, and what it asks its sources and its grammar."""

from __future__ import annotations

from typing import Any

import pytest

from inferd.protocol import Sampling
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.testing.null_driver import NullDriver

GREEDY = RowSampler.resolve(Sampling(), seed=0, lineage=0)


class Forcing:
    """A grammar that leaves no choice about the next two tokens."""

    def forced(self) -> list[int]:
        return [4, 5]

    def completed(self, draft: Any, limit: int) -> Any:
        return draft


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_a_finished_generation_keeps_as_many_tokens_as_asked(keep: int) -> None:
    engine = Engine(NullDriver(vocab_size=16))
    context = engine.create_context()
    context.append([1, 2])
    generation = Generation(context, GenerationSpec(GREEDY, 3, ()), TextAssembler(str, ()))
    engine.submit(generation)
    while not generation.finished():
        engine.step()
    assert sum(len(step.tokens) for step in generation.take()) == 3
    generation.close(keep)
    assert len(context.tokens) == 2 + keep


def test_what_a_grammar_forces_is_drafted_while_the_sources_rest() -> None:
    """Forced tokens cost no guess: a source that is not worth asking must not take them along."""
    engine = Engine(NullDriver(vocab_size=16))
    context = engine.create_context()
    context.append([1])
    sources = engine.draft_budget.sources([Drafter()])
    grammar: Any = Forcing()
    spec = GenerationSpec(GREEDY, 8, (), grammar=grammar, sources=sources)
    generation = Generation(context, spec, TextAssembler(str, ()))
    sources._sources[0].rest_steps = 5
    assert sources.all_resting
    assert list(generation.propose().tokens) == [4, 5]
