"""Steps of a fixed width: fillers that nobody sees, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inferd.protocol import Sampling
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.fixed_width import widen
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.models.batch import Batch, Outputs, Span
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import Proposal
from inferd_runtime.testing.null_driver import NullDriver

HOT = RowSampler.resolve(Sampling(temperature=1.0), seed=5, lineage=0)
VOCAB = 12


class Widths(NullDriver):
    """Notes how many rows each sequence feeds."""

    def __init__(self, seed: int) -> None:
        super().__init__(vocab_size=VOCAB, pages=40, seed=seed, max_context=100)
        self.counts: list[list[int]] = []

    def forward(self, batch: Batch) -> Outputs:
        self.counts.append([span.count for span in batch.spans])
        assert batch.positions.max() < self.max_context
        return super().forward(batch)


class Repeat(Drafter):
    """Proposes what was said three tokens ago."""

    def __init__(self) -> None:
        self._tokens: list[int] = []

    def observe(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        return Proposal((self._tokens[-3:] * 6)[:limit])


def texts(engine: Engine, *, drafts: bool) -> list[list[int]]:
    generations = []
    for length in (1, 3, 9):
        context = engine.create_context("t")
        context.append([length, 1, 2] * length)
        sources = engine.draft_budget.sources([Repeat()]) if drafts else None
        generations.append(Generation(context, GenerationSpec(HOT, 40, (), None, sources), TextAssembler(str, ())))
        engine.submit(generations[-1])
    while not all(generation.finished() for generation in generations):
        engine.step()
        for generation in generations:
            generation.take()
    found = [generation.context.tokens for generation in generations]
    for generation in generations:
        generation.close()
        generation.context.release()
    return found


@pytest.mark.parametrize("seed", range(4))
def test_every_sequence_feeds_the_same_number_of_rows_and_the_text_stays(seed: int) -> None:
    plain = texts(Engine(Widths(seed)), drafts=False)
    for drafts in (False, True):
        driver = Widths(seed)
        engine = Engine(driver, EngineOptions(fixed_rows=6))
        assert texts(engine, drafts=drafts) == plain
        engine.pool.check_integrity([])
        assert engine.pool.size == driver.pages - 1, "the fillers' page is nobody else's"
        decoding = [count for counts in driver.counts[3:] for count in counts]
        assert set(decoding) == {6}


def test_fillers_stand_behind_their_sequence_on_a_page_of_their_own() -> None:
    batch = Batch(
        tokens=np.array([5, 6, 7, 8, 9]),
        positions=np.array([3, 4, 5, 0, 7]),
        slots=np.array([3, 4, 5, 8, 15]),
        logit_rows=np.array([2, 3, 4]),
        spans=[Span(0, 3, 3, [0, 1]), Span(3, 1, 0, [2]), Span(4, 1, 7, [4, 3])],
    )
    wide = widen(batch, 3, page=9, page_size=4)
    assert wide.tokens.tolist() == [5, 6, 7, 8, 0, 0, 9, 0, 0]
    assert wide.positions.tolist() == [3, 4, 5, 0, 0, 0, 7, 7, 7]
    assert wide.slots.tolist() == [3, 4, 5, 8, 36, 36, 15, 36, 36]
    assert wide.logit_rows.tolist() == [2, 3, 6]
    assert wide.spans == [Span(0, 3, 3, [0, 1]), Span(3, 3, 0, [2]), Span(6, 3, 7, [4, 3, 9])]
    assert widen(batch, 1, page=9, page_size=4) is batch
