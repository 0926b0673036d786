"""Where the rows of one step stand, as tensors of fixed shapes: what every attention kernel reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PagedRows:
    """T rows of B sequences, cut into N tiles; every shape may be larger than what is in use.

    ``slots`` int64[T]: where a row's K and V go (page * page_size + offset); -1: padding, which is written nowhere.
    ``positions`` int64[T]: for windows and chunks. ``pages`` int32[B, P]: the page tables. ``first`` and ``counts`` int32[B]:
    sequence b's rows are ``first[b]`` and the ``counts[b] - 1`` behind it (0: a padding sequence). ``lengths`` int32[B]: its
    keys, those rows' own included: row i of its rows is key ``lengths - counts + i``, and sees the keys up to itself.

    ``tails`` int32[B] and ``seen`` int64[T]: of the keys from ``tails[b]`` on, which is no less than ``lengths - counts``, a row
    sees key ``tails[b] + j`` only if bit j of its ``seen`` is set: the ancestors in a draft tree. ``tails == lengths``: no tree.
    A key before ``tails`` stands at the position of its index, any other where its row does.

    ``tile_sequences`` and ``tile_starts`` int32[N]: tile n holds up to ``tile_rows`` rows of that sequence, from that row of its
    own on; sequence -1: a padding tile. ``tile_rows`` is a power of two. ``splits``: into how many parts the keys of a
    sequence are cut, to be attended to side by side.
    """

    slots: Tensor
    positions: Tensor
    pages: Tensor
    first: Tensor
    counts: Tensor
    lengths: Tensor
    tails: Tensor
    seen: Tensor
    tile_sequences: Tensor
    tile_starts: Tensor
    tile_rows: int
    splits: int
