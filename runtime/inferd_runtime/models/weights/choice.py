"""Which way the weights of each shape are held on the CPU, and in which dtype a model computes there, by what was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch

from inferd_runtime.models.weights.host_products import DENSE, Way
from inferd_runtime.models.weights.timing import ROW_COUNTS, TimesWanted, WayTime, times_of

Shape = tuple[int, int]
PLAIN_WAYS = ("dense", "packed")
HALF_WAYS = ("half", "blocks16")
"""Those that hold every number that float16 holds."""
UNSTEADY_GAIN = 2.0
"""A product whose last bits depend on the number of rows has to be so many times faster than one whose do not."""
NARROW_GAIN = 1.15
"""bfloat16, which rounds every result, has to be so many times faster than float32."""


def choose_ways(times: Iterable[WayTime]) -> dict[Shape, Way]:
    """Return the way for each shape: the fastest over all row counts, each counted by its ratio to the best."""
    shapes: dict[Shape, list[WayTime]] = defaultdict(list)
    for one in times:
        shapes[one.shape].append(one)
    return {shape: _fastest(group).way for shape, group in shapes.items()}


def _fastest(group: Sequence[WayTime]) -> WayTime:
    best = [min(one.seconds[index] for one in group) for index in range(len(ROW_COUNTS))]

    def cost(one: WayTime) -> float:
        ratios = sum(mine / least for mine, least in zip(one.seconds, best, strict=True))
        return ratios * (1 if one.steady else UNSTEADY_GAIN)

    return min(group, key=cost)


def ways_of(shapes: Iterable[Sequence[int]], dtype: torch.dtype, names: Sequence[str]) -> Mapping[Shape, Way]:
    """Return the fastest of the ways of these names for each shape of weights; one alone is not measured."""
    wanted = TimesWanted.of(shapes, dtype, names)
    if len(names) == 1:
        return dict.fromkeys(wanted.shapes, Way(names[0]))
    chosen = choose_ways(times_of(wanted))
    return {shape: chosen.get(shape, DENSE) for shape in wanted.shapes}


def choose_dtype(shapes: Sequence[Sequence[int]], stored: torch.dtype) -> torch.dtype:
    """Return the dtype in which a model computes on the CPU. ``shapes``: all its weights, ``stored``: what they are kept in.

    float32 unless they are stored in bfloat16 and that was measured to be faster.
    """
    if stored != torch.bfloat16:
        return torch.float32
    counts: dict[Shape, int] = defaultdict(int)
    for shape in shapes:
        counts[shape[0], shape[1]] += 1
    wide = times_of(TimesWanted.of(shapes, torch.float32, (*PLAIN_WAYS, *HALF_WAYS)))
    narrow = times_of(TimesWanted.of(shapes, torch.bfloat16, PLAIN_WAYS))
    gain = sum(one / other for one, other in zip(_totals(wide, counts), _totals(narrow, counts), strict=True))
    return torch.bfloat16 if gain > NARROW_GAIN * len(ROW_COUNTS) else torch.float32


def _totals(times: Sequence[WayTime], counts: Mapping[Shape, int]) -> list[float]:
    """Return the seconds of all products together for each row count, each shape in the way that is chosen for it."""
    ways = choose_ways(times)
    chosen = [one for one in times if ways[one.shape] == one.way]
    return [sum(counts[one.shape] * one.seconds[index] for one in chosen) for index in range(len(ROW_COUNTS))]
