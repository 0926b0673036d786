"""One forward pass as a driver gets it: what the engine plans in and what the attention lays out. No tensors here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
PageData = npt.NDArray[np.uint8]
Seen = npt.NDArray[np.bool_]
FloatRows = npt.NDArray[np.float32]
NO_ROWS: Ids = np.empty(0, np.int64)


class Placement(NamedTuple):
    """Explicit positions and visibility of one sequence, whose L = start + count tokens the pass reads or writes.

    ``positions`` int64[L] for the model's position encoding and for windows, of the cached tokens too. ``visible``
    bool[count, L]: which tokens, by index in the cache, each fed token attends to; itself always, never one behind it.
    """

    positions: Ids
    visible: Seen


class Span(NamedTuple):
    """One sequence in the batch: its rows ``[first, first + count)``, its pages, and how many tokens came before.

    ``adapter`` is the key of the LoRA adapter that its rows are computed with; "" is none.
    """

    first: int
    count: int  # type: ignore[assignment] # tuple.count is of no use here
    start: int
    pages: Sequence[int]
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """One ragged forward pass. All arrays int64.

    ``tokens``, ``positions``, ``slots`` [T]: input ids, absolute positions, and where each token's K and V go
    (page * page_size + offset). ``logit_rows`` [R]: which rows' logits are wanted;
    ``hidden_rows`` [H]: which rows' final hidden states. ``placements``: by :attr:`Span.first`, of the sequences whose
    positions are not their indices in the cache or that do not attend to all before. ``carried`` [T] (empty: none is): which
    sequence that the step launched before samples a row goes on behind, -1: none. Its first row, whose token is -1, feeds the
    last token that is emitted there. All of its rows stand where they do if the whole draft there stands, else by as many places
    before that as tokens fall.
    """

    tokens: Ids
    positions: Ids
    slots: Ids
    logit_rows: Ids
    spans: Sequence[Span]
    hidden_rows: Ids = field(default_factory=lambda: NO_ROWS)
    placements: Mapping[int, Placement] = field(default_factory=dict)
    carried: Ids = field(default_factory=lambda: NO_ROWS)


class Outputs(NamedTuple):
    """What a pass brings to the host: ``logits`` float32[R, V]; ``hidden`` float32[H, E], after the final norm."""

    logits: FloatRows
    hidden: FloatRows
