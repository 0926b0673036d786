"""Where the rows of one step stand, as tensors of fixed shapes: what every attention kernel reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

SPLIT_KEYS = 1024
"""Keys of a split: what one program attends to where a sequence has more."""

FEW_ROWS = 16
"""Rows of a tile of sequences that have so few: decode rows and drafts. More are a prompt."""
PROMPT_QUERIES = 128
"""Queries of a program of a prompt: rows times the query heads of a key head."""


def prompt_tile_rows(group: int) -> int:
    """Return the rows of a tile of prompts, a power of two, for so many query heads per key head: what one program takes."""
    return max(FEW_ROWS, 1 << (PROMPT_QUERIES // group).bit_length() - 1)


class Tiles(NamedTuple):
    """What one launch attends to: of the N entries the first ``live`` int32[1].

    An entry is up to ``rows`` rows, a power of two, of one sequence, and one split of its keys: ``sequences``, ``starts`` (the
    first row, among the sequence's own) and ``splits`` int32[N]. Sequence -1: nothing. All splits of a tile have entries; its
    first one is among the first ``tiles`` of all.
    """

    sequences: Tensor
    starts: Tensor
    splits: Tensor
    live: Tensor
    rows: int
    tiles: int


class KeySplits(NamedTuple):
    """Into how many splits of ``keys`` keys each row's keys are cut, and where the sums of each split are kept.

    ``counts`` int32[T]: 1: one program attends to all keys of the row, however many. ``first`` int32[T]: of a row with more, the
    line of its first split's sums, of ``lines`` in all; the others follow. The last split goes on to the last key. ``rows``
    int32[M], of which the first ``live`` int32[1] count: the rows with more than one. How a sequence is cut depends on its
    length alone, not on what else is in the step, as long as there are lines for all.
    """

    counts: Tensor
    first: Tensor
    rows: Tensor
    live: Tensor
    lines: int
    keys: int


@dataclass(frozen=True, slots=True)
class PagedRows:
    """T rows of B sequences; every shape may be larger than what is in use.

    ``slots`` int64[T]: where a row's K and V go (page * page_size + offset); -1: padding, which is written nowhere.
    ``positions`` int64[T]: for windows and chunks. ``pages`` int32[B, P]: the page tables. ``first`` and ``counts`` int32[B]:
    sequence b's rows are ``first[b]`` and the ``counts[b] - 1`` behind it (0: a padding sequence). ``lengths`` int32[B]: its
    keys, those rows' own included: row i of its rows is key ``lengths - counts + i``, and sees the keys up to itself.

    ``tails`` int32[B] and ``seen`` int64[T]: of the keys from ``tails[b]`` on, which is no less than ``lengths - counts``, a row
    sees key ``tails[b] + j`` only if bit j of its ``seen`` is set: the ancestors in a draft tree. ``tails == lengths``: no tree.
    A key before ``tails`` stands at the position of its index, any other where its row does.

    ``tiles``: each row of a sequence is in a tile of one of them: a launch for sequences of few rows, another for prompts.
    """

    slots: Tensor
    positions: Tensor
    pages: Tensor
    first: Tensor
    counts: Tensor
    lengths: Tensor
    tails: Tensor
    seen: Tensor
    tiles: tuple[Tiles, ...]
    splits: KeySplits
