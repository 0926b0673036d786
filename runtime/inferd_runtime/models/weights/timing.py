"""How long products of each shape take in each way on this machine: measured once, and kept for this user.

What is measured are random weights of the shape, more of them in turn than a core's own cache holds, so that a result is good
for every model with such weights.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import msgspec
import torch
from torch import Tensor

from inferd.protocol import Unavailable
from inferd_runtime.file_cache import CacheEntry, cache_folder, private_folder, processor
from inferd_runtime.models.passes.products import Product
from inferd_runtime.models.weights.host_products import Way, can_hold, steady_least

logger = logging.getLogger(__name__)
ROW_COUNTS = (1, 8, 32)
REPEATS = 3
SPREAD = 32 << 20
"""Bytes of weights that are multiplied in turn."""
MOST_COPIES = 32
FORMAT = 1
"""Raised when what is measured changes."""
Clock = Callable[[], float]


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

    def digest(self) -> str:
        """Return a hash of what is measured, the machine, and the versions that multiply."""
        where = [processor(), torch.get_num_threads(), torch.__version__, version("inferd"), FORMAT]
        return hashlib.sha256(json.dumps([asdict(self), where]).encode()).hexdigest()


def times_of(wanted: TimesWanted, folder: Path | None = None, clock: Clock = perf_counter) -> list[WayTime]:
    """Return what was measured once on this machine, or is measured now. ``folder`` None: in the user's cache folder."""
    try:
        entry = CacheEntry(private_folder(folder or cache_folder() / "products") / f"{wanted.digest()}.json")
        if entry.is_whole():
            return msgspec.json.decode(entry.path.read_bytes(), type=list[WayTime])
        found = _measured(wanted, clock)
        entry.put(lambda path: _write(path, found))
    except (OSError, Unavailable, msgspec.MsgspecError) as error:
        logger.warning("times of products are not kept: %s", error)
        return _measured(wanted, clock)
    return found


def _write(path: Path, found: list[WayTime]) -> None:
    path.write_bytes(msgspec.json.encode(found))


def _measured(wanted: TimesWanted, clock: Clock) -> list[WayTime]:
    dtype: torch.dtype = getattr(torch, wanted.dtype)
    found = [
        _measure(shape, name, dtype, clock)
        for shape in wanted.shapes
        for name in wanted.names
        if can_hold(name, shape, dtype)
    ]
    for one in found:
        milliseconds = ", ".join(f"{1e3 * each:.3f}" for each in one.seconds)
        logger.info("%s %s %s: %s ms for %s rows", wanted.dtype, one.shape, one.name, milliseconds, ROW_COUNTS)
    return found


@torch.inference_mode()
def _measure(shape: tuple[int, int], name: str, dtype: torch.dtype, clock: Clock) -> WayTime:
    size = shape[0] * shape[1] * dtype.itemsize
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    least = steady_least(name, weight)
    way = Way(name, least or 1)
    products = [way.product(weight.clone()) for _ in range(min(MOST_COPIES, -(-SPREAD // size)))]
    seconds = tuple(_seconds(products, weight.new_ones(count, shape[1]), clock) for count in ROW_COUNTS)
    return WayTime(*shape, name, way.least, least is not None, seconds)


def _seconds(products: Sequence[Product], rows: Tensor, clock: Clock) -> float:
    """Return the least disturbed time of one product, of a few rounds over all of them."""
    best = float("inf")
    for _ in range(REPEATS + 1):
        start = clock()
        for product in products:
            product(rows)
        best = min(best, clock() - start)
    return best / len(products)
