"""What single tokens see of those before them, as runs: one token's row takes memory by its runs, and not by its length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from inferd_runtime.models.batch import Seen

RunEnds = npt.NDArray[np.int32]
"""Where the runs of a row end, ascending: hidden, seen, hidden, ... The last one is the length of the row."""
KeptRow = npt.NDArray[np.int32] | npt.NDArray[np.uint8]
"""A row as it is kept: its :data:`RunEnds`, or bits (uint8) where these are smaller."""


def ends_of(lengths: Sequence[int]) -> RunEnds:
    """Return the ends of runs of these lengths, none below 0: hidden, seen, hidden, ..."""
    return np.fromiter(accumulate(lengths), np.int32, len(lengths))


def ends_of_bools(row: Seen) -> RunEnds:
    """Return the ends of a row's runs, bool[L]."""
    changes = np.flatnonzero(np.diff(row)) + 1
    return np.concatenate([np.zeros(int(row[:1].any())), changes, [row.size]]).astype(np.int32)


def length_of(ends: RunEnds) -> int:
    """Return of how many tokens the row speaks."""
    return int(ends[-1]) if ends.size else 0


def sees(ends: RunEnds, index: int) -> bool:
    """True if the row's token sees token ``index``."""
    return bool(np.searchsorted(ends, index, side="right") % 2) and index < length_of(ends)


def sees_from(ends: RunEnds, index: int) -> bool:
    """True if it sees any token from ``index`` on."""
    return bool((ends[1::2] > np.maximum(ends[: 2 * (ends.size // 2) : 2], index)).any())


def keep(ends: RunEnds, length: int) -> KeptRow | None:
    """Return the row's first ``length`` tokens in the smaller of its two forms; None if all of them are seen."""
    cut = np.minimum(ends, length)
    if int((cut[1::2] - cut[: 2 * (cut.size // 2) : 2]).sum()) == length:
        return None
    return cut if cut.nbytes <= -(-length // 8) else bits_of(cut, length)


def keep_bits(bits: npt.NDArray[np.uint8], length: int) -> KeptRow | None:
    """Return what :func:`keep` does of a row of ``length`` tokens that comes as bits."""
    row = bools_of(bits, length)
    if row.all():
        return None
    ends = ends_of_bools(row)
    return ends if ends.nbytes <= -(-length // 8) else np.packbits(row)


def bits_of(row: KeptRow, length: int) -> npt.NDArray[np.uint8]:
    """Return a kept row of ``length`` tokens as bits."""
    return row.view(np.uint8) if row.dtype == np.uint8 else np.packbits(bools_of(row, length))


def bools_of(row: KeptRow, length: int) -> Seen:
    """Return a kept row of ``length`` tokens as bool[length]."""
    if row.dtype == np.uint8:
        return np.unpackbits(row.view(np.uint8), count=length).view(np.bool_)
    runs = np.diff(row, prepend=0)
    seen = np.repeat(np.arange(runs.size) % 2 == 1, runs)
    return np.concatenate([seen, np.zeros(length - seen.size, np.bool_)])
