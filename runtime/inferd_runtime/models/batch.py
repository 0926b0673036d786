"""One forward pass as a driver gets it: what the engine plans in and what the attention lays out. No tensors here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferd_runtime.kv.table import PageCopy

Ids = npt.NDArray[np.int64]
PageData = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence in the batch: its rows ``[first, first + count)``, its pages, and how many tokens came before."""

    first: int
    count: int
    start: int
    pages: Sequence[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """One ragged forward pass. All arrays int64.

    ``tokens``, ``positions``, ``slots`` [T]: input ids, absolute positions, and where each token's K and V go
    (page * page_size + offset). ``logit_rows`` [R]: which rows' logits are wanted.
    """

    tokens: Ids
    positions: Ids
    slots: Ids
    logit_rows: Ids
    spans: Sequence[Span]
    copies: Sequence[PageCopy]
