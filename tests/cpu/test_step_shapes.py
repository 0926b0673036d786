"""The shapes of recorded steps, and how a step's rows, tiles and splits are laid out in one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from inferd_runtime.engine.drivers.buckets import (
    CHEAP_ROWS,
    FEW_ROOM,
    MIXED_ROWS,
    MOST_LINES,
    PROMPT_ROOM,
    StepBucket,
    StepShapes,
)
from inferd_runtime.engine.drivers.packing import choose_splits, pack_batch
from inferd_runtime.engine.drivers.staging import fields
from inferd_runtime.engine.scheduling.costs import _batch
from inferd_runtime.kernels.rows import FEW_ROWS, prompt_tile_rows
from inferd_runtime.models.batch import Batch
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.null_driver import NullDriver

LONG = StepShapes(2048, 131_072, group=4)


def of(counts: list[int], logits: int = 1, nodes: int = 0) -> StepBucket | None:
    return LONG.of(counts, logits, nodes)


@pytest.mark.parametrize(
    ("counts", "rows", "batch"),
    [
        ([1], 1, 1), ([1] * 3, 4, 4), ([9], 16, 1), ([2, 1], 4, 2), ([1] * 17, 24, 24), ([1] * 33, 48, 48), ([1] * 65, 96, 96),
        ([1] * 129, 160, 160), ([1] * 161, 192, 192), ([17], 128, 128), ([100, *[1] * 100], 256, 256), ([2048], 2048, 256),
        ([1200], 1536, 256),
    ],
)  # fmt: skip
def test_the_smallest_shape_that_holds_a_step(counts: list[int], rows: int, batch: int) -> None:
    shape = of(counts)
    assert shape is not None
    assert (shape.rows, shape.batch) == (rows, batch)
    assert shape in LONG.recorded()


@pytest.mark.parametrize("counts", [[1] * 257, [16] * 70, [2049], [17, *[1] * 256], [1100]])
def test_what_has_no_shape(counts: list[int]) -> None:
    """The last one: 1,536 rows would be more padding than a launch is worth."""
    assert of(counts) is None


def test_rows_that_are_read_or_drafts_that_are_longer_have_none() -> None:
    assert of([300], logits=256) is not None
    assert of([300], logits=257) is None
    assert of([8], nodes=15) is not None
    assert of([8], nodes=16) is None


def test_decode_rows_beside_prompts_have_tiles_of_their_own_size() -> None:
    plain, drafted, nodes = of([100, 1, 1]), of([100, 1, 3]), of([100, 1, 1], nodes=2)
    assert plain is not None
    assert drafted is not None
    assert (plain.tile_rows, drafted.tile_rows) == (1, FEW_ROWS)
    assert nodes == drafted
    assert plain.prompt_rows == prompt_tile_rows(4) == 32


@pytest.mark.parametrize("group", [*range(1, 13), 16, 32, 71])
def test_tiles_of_prompts_are_powers_of_two(group: int) -> None:
    rows = prompt_tile_rows(group)
    assert rows >= FEW_ROWS
    assert rows & (rows - 1) == 0


def test_no_shape_is_mostly_padding_where_arithmetic_counts() -> None:
    for total in range(17, 2049):
        shape = of([total])
        if shape is not None and shape.rows > CHEAP_ROWS:
            assert 4 * total >= 3 * shape.rows
    assert all(3 * larger <= 6 * smaller for smaller, larger in pairwise(MIXED_ROWS))


def random_counts(chance: random.Random) -> list[int]:
    sizes = [
        chance.choice((1, 1, 1, chance.randrange(1, 17), chance.randrange(17, 400)))
        for _ in range(chance.randrange(1, 90))
    ]
    while sum(sizes) > 2048:
        sizes.pop()
    return sizes


def test_every_step_fits_into_its_shape() -> None:
    """With sequences of any length: no array is longer than what was made room for."""
    chance = random.Random(5)
    driver = NullDriver(pages=1 << 14, page_size=16)
    for group in (1, 4, 8):
        shapes = StepShapes(2048, 40_000, group)
        for _ in range(60):
            counts = random_counts(chance)
            lengths = [chance.choice((0, 900, 5000, 39_000)) for _ in counts]
            batch = _batch(driver, counts, 0)
            spans = [span._replace(start=start) for span, start in zip(batch.spans, lengths, strict=True)]
            given = Batch(batch.tokens, batch.positions, batch.slots, batch.logit_rows[:1], spans)
            ends = [span.start + span.count for span in spans]
            exact = shapes.exact(counts, ends, 1, 0)
            check_fits(given, exact)
            recorded = shapes.of(counts, 1)
            if recorded is not None:
                check_fits(given, recorded)
                assert same_cut(given, exact, recorded)


def check_fits(batch: Batch, shape: StepBucket) -> None:
    rooms = {field.name: field.elements for field in fields(shape)}
    packed = pack_batch(batch, shape)
    for name, array in packed.items():
        assert array.size <= rooms[name], name
    if "split_counts" in packed:
        split = packed["split_counts"] > 1
        lines = [
            (int(first), int(first + count))
            for first, count in zip(packed["split_first"][split], packed["split_counts"][split], strict=True)
        ]
        assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(lines)))
        assert max((end for _, end in lines), default=0) <= shape.split_lines
    check_tiles(batch, shape, packed)


def check_tiles(batch: Batch, shape: StepBucket, packed: dict[str, np.ndarray]) -> None:  # type: ignore[type-arg]
    """Every row is in a tile of its kind, with an entry for each split."""
    splits = packed.get("split_counts", np.ones(len(batch.tokens), np.int32))
    wanted = {
        (at, start, split)
        for at, span in enumerate(batch.spans)
        for start in range(0, span.count, shape.tile_rows if span.count <= FEW_ROWS else shape.prompt_rows)
        for split in range(splits[span.first])
    }
    found = [
        tuple(entry)
        for name in ("tile", "prompt")
        if f"{name}_live" in packed
        for entry in zip(
            *(packed[f"{name}_{part}"].tolist() for part in ("sequences", "starts", "splits")), strict=True
        )
    ]
    assert len(found) == len(set(found)) == sum(int(packed.get(f"{name}_live", [0])[0]) for name in ("tile", "prompt"))
    assert set(found) == wanted
    for name, tiles in (("tile", shape.tiles), ("prompt", shape.prompt_tiles)):
        assert packed.get(f"{name}_splits", np.zeros(0))[tiles:].all()


def same_cut(batch: Batch, *shapes: StepBucket) -> bool:
    """Whether a step is recorded changes no split, and so no bit."""
    one, other = (pack_batch(batch, shape).get("split_counts", np.ones(1)) for shape in shapes)
    return np.array_equal(one, other)


def test_a_sequence_is_cut_by_its_length_alone() -> None:
    shape = LONG.exact([1], [9000], 1, 0)
    assert choose_splits(np.asarray([1]), np.asarray([9000]), shape).tolist() == [9]
    lengths = np.asarray([9000, *range(1000, 1200, 3)])
    beside = choose_splits(np.ones_like(lengths), lengths, LONG.exact([1] * 68, lengths.tolist(), 1, 0))
    assert beside[0] == 9
    assert beside.tolist()[1:] == [-(-length // 1024) for length in lengths[1:]]


def test_a_prompt_with_rows_enough_is_not_cut_and_one_of_few_rows_is() -> None:
    counts, lengths = np.asarray([2000, 40, 1]), np.asarray([50_000, 50_000, 50_000])
    shape = LONG.exact(counts.tolist(), lengths.tolist(), 1, 0)
    assert choose_splits(counts, lengths, shape).tolist() == [1, 49, 49]


def test_of_more_than_there_is_room_for_the_longest_are_cut() -> None:
    lengths = np.asarray([30_000] * 20 + [120_000] * 8 + [60_000] * 20)
    splits = choose_splits(np.ones_like(lengths), lengths, LONG.exact([1] * 48, lengths.tolist(), 1, 0))
    assert (splits[20:28] == 118).all()
    assert splits[:20].max() == 1
    assert (splits - 1).sum() <= FEW_ROOM


def test_memory_for_splits_is_bounded() -> None:
    shapes = LONG.recorded()
    assert max(shape.split_lines for shape in shapes) == MOST_LINES
    assert max(shape.logits for shape in shapes) == 1024
    assert max(shape.tile_room for shape in shapes) == FEW_ROOM
    assert max(shape.prompt_room for shape in shapes) == PROMPT_ROOM
    assert len(shapes) == len(set(shapes)) == 78


def test_a_step_on_a_gpu_is_as_large_as_the_largest_that_is_recorded() -> None:
    settings = EngineSettings()
    assert settings.budget_on("cuda:1") == MIXED_ROWS[-1]
    assert settings.budget_on("cpu") == 512
    assert replace(settings, tensor_parallel=2).budget_on("cuda") == MIXED_ROWS[-1]
    assert replace(settings, fixed_rows=8).budget_on("cuda") * 8 == MIXED_ROWS[-1]
    assert replace(settings, token_budget=8192).budget_on("cuda") == 8192


def steps_of_a_busy_server(streams: int, budget: int, count: int) -> Iterator[list[int]]:
    """Rows of each sequence, step by step: every stream that ends is followed by a prompt of 100 to 1,500 tokens."""
    chance = random.Random(1)

    def new() -> list[int]:
        return [chance.randrange(100, 1500), chance.randrange(50, 400)]

    left = [new() for _ in range(streams)]
    for _ in range(count):
        prompts = [each for each in left if each[0]]
        decoding = [each for each in left if not each[0]][: budget - (budget // 8 if prompts else 0)]
        counts = [1] * len(decoding)
        for each in decoding:
            each[1] -= 1
        for each in prompts:
            fed = min(each[0], budget - sum(counts))
            each[0] -= fed
            counts += [fed] if fed else []
        yield counts
        left = [each if each[1] else new() for each in left]


@pytest.mark.parametrize(("streams", "budget"), [(64, 2048), (256, 512), (256, 2048)])
def test_nearly_every_step_of_a_busy_server_is_recorded(streams: int, budget: int) -> None:
    """Where prompts have no shapes, none of 256 streams' steps of 512 tokens is, and a quarter of those of 2,048."""
    steps = list(steps_of_a_busy_server(streams, budget, 1500))
    found = [(sum(counts), LONG.of(counts, len(counts))) for counts in steps]
    recorded = [(rows, shape) for rows, shape in found if shape is not None]
    assert len(recorded) >= 0.93 * len(found)
    assert sum(rows for rows, _ in recorded) >= 0.9 * sum(shape.rows for _, shape in recorded)
