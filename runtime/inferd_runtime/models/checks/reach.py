"""Which keys a layer sees, read off the mask function that the model gives to transformers.

A model describes its mask as a function of (query position, key position). Evaluating that function at far positions tells a
window of 4,096 tokens from full attention without a prompt of that length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from inferd.protocol import InvalidRequest

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
NEAR = 8
SPREAD = 64


class UnsupportedAttention(InvalidRequest):
    """Raised for a model whose attention is not supported. The message is the reason, without the model's name."""


@dataclass(frozen=True, slots=True)
class Reach:
    """A causal layer's keys: the last ``window`` tokens, or those of the query's own ``chunk``; None: no such bound."""

    window: int | None = None
    chunk: int | None = None

    def first(self, query: int) -> int:
        """Return the first key position that a query sees."""
        first = 0 if self.window is None else max(0, query - self.window + 1)
        return first if self.chunk is None else max(first, query // self.chunk * self.chunk)


def read_reach(function: MaskFunction, context: int, device: torch.device) -> Reach:
    """Return the reach that equals the mask function for every query below ``context``, checked at chosen rows.

    A bound that no query below ``context`` meets is left out. Raises UnsupportedAttention for any other kind of mask.
    """
    last = context - 1
    edge = _first_seen(function, last, device)
    for reach in _candidates(function, edge, context, device):
        if all(_holds(reach, function, row, device) for row in _rows(reach, edge, last)):
            return reach
    raise UnsupportedAttention("its mask is neither causal, nor a sliding window, nor chunks")


def _candidates(function: MaskFunction, edge: int, context: int, device: torch.device) -> list[Reach]:
    """Return the reaches that fit the last query's first key: a window, or a chunk that starts there."""
    if edge == 0:
        return [Reach()]
    return [Reach(window=context - edge), Reach(chunk=edge - _first_seen(function, edge - 1, device))]


def _rows(reach: Reach, edge: int, last: int) -> list[int]:
    """Return queries near every place where the reach bends, and some all over the context."""
    size = reach.window or reach.chunk or 0
    bends = (0, size, 2 * size, edge, last // 2, last)
    near = {row for bend in bends for row in range(bend - 2, bend + NEAR) if 0 <= row <= last}
    return sorted(near.union(range(0, last, last // SPREAD + 1)))


def _seen(function: MaskFunction, query: int, device: torch.device) -> Tensor:
    """Return bool[query + 2]: the keys that a query sees, one future key included."""
    keys = torch.arange(query + 2, device=device)
    zero = torch.zeros((), dtype=torch.int64, device=device)
    return torch.broadcast_to(function(zero, zero, torch.full_like(keys, query), keys), keys.shape)


def _first_seen(function: MaskFunction, query: int, device: torch.device) -> int:
    return int(_seen(function, query, device).to(torch.uint8).argmax())


def _holds(reach: Reach, function: MaskFunction, query: int, device: torch.device) -> bool:
    keys = torch.arange(query + 2, device=device)
    return torch.equal(_seen(function, query, device), (keys >= reach.first(query)) & (keys <= query))
