"""Rows behind drafts that fell: what a device does with a staged step is what its plain twin says."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from run_ahead_cases import BYTES

from inferd_runtime.engine.carried_rows import resolve, sampled_there
from inferd_runtime.engine.drivers.buckets import StepBucket
from inferd_runtime.engine.drivers.carried import move_back
from inferd_runtime.engine.drivers.packing import pack_batch, pack_pages, pack_sampling
from inferd_runtime.engine.drivers.staging import Staging
from inferd_runtime.engine.sampling.device_sampling import greedy_inputs
from inferd_runtime.models.batch import Batch, Span
from inferd_runtime.testing.recorded_host import RecordedHost

PAGE_SIZE = 4
SHAPE = StepBucket(64, 16, 64, 15, tiles=16, tile_rows=16)
MOVED = ("positions", "slots", "lengths", "tails", "sampled_positions")


def random_batch(chance: random.Random) -> tuple[Batch, list[int]]:
    """Sequences in pages of their own, some of which go on behind one of eight of the step before; how much of that fell."""
    spans, tokens, positions, slots, carried = list[Span](), list[int](), list[int](), list[int](), list[int]()
    rejected = [chance.randrange(8) for _ in range(8)]
    free = chance.sample(range(1, 200), 199)
    for behind in [*chance.sample(range(8), 6), -1, -1, -1]:
        count, start = chance.randint(1, 6), chance.randint(8, 30)
        pages = [free.pop() for _ in range(-(-(start + count) // PAGE_SIZE))]
        spans.append(Span(len(tokens), count, start, pages))
        at = range(start, start + count)
        tokens += [-1 if behind >= 0 else 5, *[7] * (count - 1)]
        positions += at
        slots += [pages[place // PAGE_SIZE] * PAGE_SIZE + place % PAGE_SIZE for place in at]
        carried += [behind] * count
    columns = (np.asarray(column, np.int64) for column in (tokens, positions, slots, range(len(tokens))))
    return Batch(*columns, spans, carried=np.asarray(carried, np.int64)), rejected


@pytest.mark.parametrize("seed", range(20))
def test_rows_move_as_the_plain_twin_says(seed: int) -> None:
    batch, rejected = random_batch(random.Random(seed))
    staging = Staging(RecordedHost(), largest=[SHAPE], page_entries=256, masks=1, mask_words=-(-BYTES // 32))
    sampling = greedy_inputs(batch, BYTES)
    packed = {**pack_batch(batch, SHAPE), **pack_sampling(sampling), "logit_rows": batch.logit_rows}
    pages, packed["page_first"] = pack_pages(batch.spans, PAGE_SIZE)
    staging.upload(SHAPE, packed, pages, sampling.masks)
    inputs = staging.inputs(SHAPE)
    move_back(inputs, torch.tensor([*rejected, *[0] * 24]), PAGE_SIZE)

    known = resolve(batch, np.full(8, 9), np.asarray(rejected), PAGE_SIZE)
    there = sampled_there(sampling, batch, np.asarray(rejected))
    expected = {**pack_batch(known, SHAPE), **pack_sampling(there)}
    for name in MOVED:
        assert getattr(inputs, name)[: len(expected[name])].tolist() == expected[name].tolist(), name
    rows = len(batch.tokens)
    assert inputs.slots[rows:].tolist() == [-1] * (SHAPE.rows - rows), "padding is written nowhere"
    assert inputs.lengths[len(batch.spans) :].count_nonzero() == 0
    assert known.tokens[batch.tokens < 0].tolist() == [9] * 6
