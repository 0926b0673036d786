"""What a generation's drafts may not do to anybody: take pages or rows that others need, or change what a context keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inferd.protocol import InternalError, InvalidRequest, Sampling
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.scheduling.tenants import Tenancy, TenantLimits
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import Draft, Proposal
from inferd_runtime.testing.null_driver import NullDriver

VOCAB = 32
GREEDY = RowSampler.resolve(Sampling(), seed=0, lineage=0)


class Long(Drafter):
    """Always proposes as much as it may, and is sure of it."""

    source, insists = "program", True

    def __init__(self, *, sampled: bool = False) -> None:
        self._sampled = sampled

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        count = min(limit, 16)
        rows = np.eye(VOCAB, dtype=np.float32)[[1] * count] if self._sampled else None
        return Proposal([1] * count, confidence=[0.95] * count, probabilities=rows)


class Known(Drafter):
    """Proposes a text that is known beforehand."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens, self._seen = tokens, 0

    def observe(self, tokens: Sequence[int]) -> None:
        self._seen += len(tokens)

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        return Proposal(self._tokens[self._seen : self._seen + limit])


def start(
    engine: Engine, prompt: list[int], max_tokens: int, drafter: Drafter | None = None, eos: int = 99
) -> Generation:
    context = engine.create_context("t")
    context.append(prompt)
    sources = None if drafter is None else engine.draft_budget.sources([drafter])
    spec = GenerationSpec(GREEDY, max_tokens, [eos], None, sources)
    generation = Generation(context, spec, TextAssembler(str, ()))
    engine.submit(generation)
    return generation


@pytest.mark.parametrize("pages", [6, 7, 8])
@pytest.mark.parametrize("drafter", [None, Long()])
def test_a_draft_takes_no_page_that_another_generation_needs(pages: int, drafter: Drafter | None) -> None:
    """Neither of the tenant's quota nor of a small cache: the other one failed, or waited."""
    for options, size in ((EngineOptions(tenancy=Tenancy(TenantLimits(kv_pages=pages))), 64), (EngineOptions(), pages)):
        engine = Engine(NullDriver(vocab_size=VOCAB, pages=size), options)
        first = start(engine, [2] * 5, 6, drafter)
        second = start(engine, [3] * 6, 6)
        steps = 0
        while not (first.finished() and second.finished()):
            engine.step()
            steps += 1
            first.take(), second.take()
        assert (first.error, second.error) == (None, None)
        assert steps <= 7


def test_sampled_drafts_leave_a_row_for_everybody() -> None:
    engine = Engine(NullDriver(vocab_size=VOCAB, pages=4096), EngineOptions(token_budget=32))
    running = [start(engine, [5], 400, Long(sampled=True)) for _ in range(8)] + [
        start(engine, [5], 400) for _ in range(4)
    ]
    engine.step()
    for _ in range(20):
        engine.step()
        assert all(generation.take() for generation in running), "somebody was left out"


def test_leaving_at_the_last_token_keeps_the_same_tokens_with_and_without_drafts() -> None:
    """With a draft the end of text comes in the step of the last token; whoever leaves there has not seen it."""
    for seed in range(40):
        kept = []
        known: list[int] = []
        for drafts in (False, True):
            engine = Engine(NullDriver(vocab_size=VOCAB, seed=seed))
            generation = start(engine, [1, 2], 60, Known(known) if drafts else None, eos=3)
            tokens: list[int] = []
            while not generation.finished():
                engine.step()
                tokens += [token for step in generation.take() for token in step.tokens]
            known = generation.context.tokens
            generation.close(len(tokens))
            kept.append(list(generation.context.tokens))
        assert kept[0] == kept[1] == [1, 2, *tokens]
    assert generation.counters.accepted > 0


def test_closing_without_a_number_keeps_the_end_of_text() -> None:
    engine = Engine(NullDriver(vocab_size=4, seed=1))
    generation = start(engine, [1, 2], 60, eos=3)
    while not generation.finished():
        engine.step()
        generation.take()
    assert generation.finish == "stop"
    generation.close()
    assert generation.context.tokens[-1] == 3


def test_a_refused_close_leaves_the_drafts_on() -> None:
    engine = Engine(NullDriver(vocab_size=VOCAB))
    generation = start(engine, [1, 2], 40, Long())
    engine.step()
    for keep in (5, -2):
        with pytest.raises(InvalidRequest):
            generation.close(keep)
    engine.step()
    assert generation.counters.drafted > 0


class FailsToGuess(Generation):
    def propose(self) -> Draft:
        raise RuntimeError("a bug")


def test_a_job_that_fails_while_it_guesses_is_not_run() -> None:
    engine = Engine(NullDriver(vocab_size=VOCAB))
    context = engine.create_context("t")
    context.append([1])
    spec = GenerationSpec(GREEDY, 9, (), None, engine.draft_budget.sources([Long()]))
    failing = FailsToGuess(context, spec, TextAssembler(str, ()))
    engine.submit(failing)
    other = start(engine, [1], 3)
    while not other.finished():
        engine.step()
    assert isinstance(failing.error, InternalError)
    assert (context.tokens, list(failing.outbox)) == ([1], [])
