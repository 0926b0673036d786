"""How long products of each shape take in each way on this machine: measured once, and kept for this user.

What is measured are random weights of the shape, more of them in turn than a core's own cache holds, so that a result is good
for every model with such weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import torch
from torch import Tensor

from inferd_runtime.file_cache import cache_folder
from inferd_runtime.kept_results import KeptResults, key_of
from inferd_runtime.kernels.native.blocks import kernels_version
from inferd_runtime.models.passes.products import Product
from inferd_runtime.models.weights.block_products import BLOCK_WAYS, BlockProduct, rounded
from inferd_runtime.models.weights.host_products import Way, can_hold, steady_least

logger = logging.getLogger(__name__)
ROW_COUNTS = (1, 8, 32)
REPEATS = 5
SPREAD = 32 << 20
"""Bytes of weights that are multiplied in turn."""
MOST_COPIES = 32
ROOMS = ("models/weights", "kernels/native")
"""The code that multiplies and measures, beside the library's."""


@dataclass(frozen=True)
class WayTime:
    """What was measured of weights [outputs, inputs] held in a way: seconds of a product for each of ROW_COUNTS.

    ``steady``: a row gets the same bits in any company, if ``least`` rows are computed.
    """

    outputs: int
    inputs: int
    name: str
    least: int
    steady: bool
    seconds: tuple[float, ...]

    @property
    def way(self) -> Way:
        """The way that was measured."""
        return Way(self.name, self.least)

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.outputs, self.inputs


@dataclass(frozen=True)
class TimesWanted:
    """Weights of these ``shapes`` (outputs, inputs) and this dtype, held in the ways of these ``names``."""

    shapes: tuple[tuple[int, int], ...]
    dtype: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, shapes: Iterable[Sequence[int]], dtype: torch.dtype, names: Iterable[str]) -> TimesWanted:
        """Return what to measure, each shape once."""
        pairs = {(shape[0], shape[1]) for shape in shapes}
        return cls(tuple(sorted(pairs)), str(dtype).removeprefix("torch."), tuple(names))

    def key(self) -> str:
        """Return a hash of what is measured, the machine, and the versions that multiply."""
        return key_of((self, torch.get_num_threads(), kernels_version()), ROOMS)


def times_of(
    wanted: TimesWanted, folder: Path | None = None, clock: Callable[[], float] = process_time
) -> list[WayTime]:
    """Return what was measured once on this machine, or is measured now. ``folder`` None: in the user's cache folder.

    Time on the processor is compared, which neighbours disturb least. What was chosen once stays: another choice rounds
    otherwise.
    """
    kept = KeptResults(folder or cache_folder() / "products", list[WayTime])
    key = wanted.key()
    found = kept.find(key)
    if found is None:
        found = _measured(wanted, clock)
        kept.keep(key, found)
    return found


def _measured(wanted: TimesWanted, clock: Callable[[], float]) -> list[WayTime]:
    dtype: torch.dtype = getattr(torch, wanted.dtype)
    found = [one for shape in wanted.shapes for one in _measure(shape, wanted.names, dtype, clock)]
    for one in found:
        milliseconds = ", ".join(f"{1e3 * each:.3f}" for each in one.seconds)
        logger.info("%s %s %s: %s ms for %s rows", wanted.dtype, one.shape, one.name, milliseconds, ROW_COUNTS)
    return found


@torch.inference_mode()
def _measure(
    shape: tuple[int, int], names: Sequence[str], dtype: torch.dtype, clock: Callable[[], float]
) -> list[WayTime]:
    """Return the times of a shape in all ways, measured in turn, so that what else the machine does disturbs all alike."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    steady = {name: steady_least(name, shape, dtype) for name in names if can_hold(name, shape, dtype)}
    copies = min(MOST_COPIES, -(-SPREAD // weight.nbytes))
    arms = {name: _copies(Way(name, least or 1), weight, copies) for name, least in steady.items()}
    best = {(name, count): float("inf") for name in arms for count in ROW_COUNTS}
    for name, count in [*best] * REPEATS:
        best[name, count] = min(best[name, count], _seconds(arms[name], weight.new_ones(count, shape[1]), clock))
    return [
        WayTime(*shape, name, least or 1, least is not None, tuple(best[name, count] for count in ROW_COUNTS))
        for name, least in steady.items()
    ]


def _copies(way: Way, weight: Tensor, count: int) -> list[Product]:
    """Return products of so many equal weights that are held apart."""
    if way.name not in BLOCK_WAYS:
        return [way.product(weight.clone()) for _ in range(count)]
    # Zeros are packed in no time, and take as long to multiply.
    packed = rounded(way.name, torch.zeros_like(weight))
    _, row_bits = BLOCK_WAYS[way.name]
    return [BlockProduct((packed.clone(),), len(weight), row_bits=row_bits) for _ in range(count)]


def _seconds(products: Sequence[Product], rows: Tensor, clock: Callable[[], float]) -> float:
    """Return the time of one product, over a round of all of them."""
    start = clock()
    for product in products:
        product(rows)
    return (clock() - start) / len(products)
