"""What a step tells a driver that samples, laid out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferd.protocol import Sampling
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.sampling.device_sampling import greedy_inputs, host_inputs, sampling_inputs
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sampling.penalties import Entries
from inferd_runtime.engine.stages import Work
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.batch import Batch, Span
from inferd_runtime.speculation.drafts import Draft

WARM = RowSampler.resolve(Sampling(0.5, top_k=3, top_p=0.9, min_p=0.1), seed=1, lineage=0)
GREEDY = RowSampler.resolve(Sampling(), seed=2, lineage=0)
PROBABILITIES = np.asarray([[0.5, 0.25, 0.25, 0], [0, 0, 0, 1], [0.25] * 4], np.float32)


def planned(work: Work, length: int = 0) -> Planned:
    table = PageTable(PagePool(8, 4))
    table.reserve(length)
    table.advance(length)
    job: Any = None
    return Planned(job, work, table)


def test_rows_of_all_kinds_are_laid_out_behind_each_other() -> None:
    tree = Draft([4, 5, 6], [-1, 0, 0], ["a"] * 3, [1.0] * 3)
    cut = Draft([1, 2], [-1, 0], ["b"] * 2, [1.0] * 2, PROBABILITIES, refused=3)
    whole = Draft([2], [-1], ["b"], [1.0], PROBABILITIES[:1])
    plan = [
        planned(Work([9, 4, 5, 6], 4, tree, sampler=GREEDY), 5),
        planned(Work([9], 1, sampler=WARM, scored=True)),
        planned(Work([8, 1, 2], 3, cut, sampler=WARM), 2),
        planned(Work([7, 2], 2, whole, sampler=WARM)),
        planned(Work([7, 7])),
    ]
    inputs = sampling_inputs(plan, 4)
    assert (inputs.rows.tolist(), inputs.host_rows.tolist()) == ([0, 1, 2, 3, 5, 6, 7, 8, 9], [4])
    assert inputs.positions.tolist() == [6, 7, 8, 8, 3, 4, 5, 1, 2]
    assert (inputs.first.tolist(), inputs.lengths.tolist()) == ([0, 4, 7], [3, 0, 0])
    assert (inputs.tokens[0].tolist(), inputs.parents[0].tolist()) == ([4, 5, 6], [-1, 0, 0])
    assert inputs.temperature.tolist() == [0.0] * 4 + [0.5] * 5
    assert inputs.top_k.tolist() == [0] * 4 + [3] * 5
    assert (inputs.top_p[4:].tolist(), inputs.min_p[4:].tolist()) == ([0.9] * 5, [0.1] * 5)
    assert inputs.mask_rows.tolist() == [-1] * 9
    rejecting = inputs.rejecting
    assert rejecting is not None
    assert (rejecting.at.tolist(), rejecting.rows.tolist(), rejecting.lengths.tolist()) == ([1, 2], [3, 2], [3, 1])
    assert (rejecting.tokens[0].tolist(), rejecting.tokens[1, :1].tolist()) == ([1, 2, 3], [2])
    assert (rejecting.probabilities[0] == PROBABILITIES).all()
    assert (rejecting.probabilities[1] == [PROBABILITIES[0], [0] * 4, [0] * 4]).all()


def test_trial_steps_are_greedy_chains() -> None:
    spans = [Span(0, 3, 5, [0, 1]), Span(3, 1, 2, [2])]
    batch = Batch(np.arange(4), np.asarray([5, 6, 7, 2]), np.arange(4), np.arange(4), spans)
    inputs = greedy_inputs(batch, 40)
    assert (inputs.first.tolist(), inputs.lengths.tolist()) == ([0, 3], [2, 0])
    assert (inputs.tokens.tolist(), inputs.parents.tolist()) == ([[0, 0]] * 2, [[-1, 0]] * 2)
    assert inputs.positions.tolist() == [6, 7, 8, 3]
    assert (inputs.rows.tolist(), inputs.host_rows.tolist(), inputs.masks.shape) == ([0, 1, 2, 3], [], (0, 2))
    assert (inputs.temperature.tolist(), inputs.top_p.tolist(), inputs.mask_rows.tolist()) == (
        [0.0] * 4,
        [1.0] * 4,
        [-1] * 4,
    )


def test_inputs_for_the_host_sample_nothing() -> None:
    inputs = host_inputs(3, 40)
    assert (inputs.rows.tolist(), inputs.host_rows.tolist(), inputs.first.tolist()) == ([], [0, 1, 2], [])


def test_entries_below_a_width_are_kept() -> None:
    entries = Entries(np.asarray([7, 2, 8]), np.asarray([1, 2, 3], np.float32), np.asarray([4, 5, 6], np.float32))
    assert [column.tolist() for column in entries.below(8)] == [[7, 2], [1, 2], [4, 5]]
