"""Pie's masks: run lengths that begin with a run of False: ``[2, 3, 1]`` is 0 0 1 1 1 0."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import cycle

from inferd.masks import TokenMask, pack_bits

RUN = re.compile("0+|1+")


def number_of(runs: Sequence[int]) -> int:
    """Return a mask as a number: bit ``i`` is its place ``i``. Raises ValueError for a run that is no length."""
    if any(type(run) is not int or run < 0 for run in runs):
        raise ValueError(f"a mask holds run lengths, whole numbers of at least 0, not {list(runs)[:8]!r}")
    written = "".join(bit * run for bit, run in zip(cycle("01"), runs, strict=False))
    return int(written[::-1] or "0", 2)


def runs_of(number: int, size: int) -> list[int]:
    """Return the run lengths of a mask of ``size`` places."""
    written = f"{number:0{size}b}"[::-1] if size else ""
    lengths = [len(run) for run in RUN.findall(written)]
    return [0, *lengths] if written.startswith("1") else lengths


def intersection(masks: Iterable[Sequence[int]]) -> int | None:
    """Return what all masks allow, as a number. An empty mask restricts nothing; None where none does."""
    allowed: int | None = None
    for runs in masks:
        if len(runs):
            number = number_of(runs)
            allowed = number if allowed is None else allowed & number
    return allowed


def token_mask(number: int) -> TokenMask:
    """Return a mask as the set of token ids that inferd takes."""
    return TokenMask.from_wire([], pack_bits(number.to_bytes((number.bit_length() + 7) // 8, "little")))
