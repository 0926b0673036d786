"""What a pass is given for one step beside the model: the seam between the two passes and the two kinds of attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from inferd_runtime.kernels.attention_rule import AttentionRule

Angles = tuple[Tensor, Tensor]
"""cos and sin [T, 1, D] of each row's position, the sign of the rotation in sin."""


@dataclass(frozen=True, slots=True)
class ProjectedHeads:
    """How q, k and v of a layer stand in the rows of one product, head by head, and what is done to them before attention.

    ``norm`` [queries + keys, width] scales q and k behind an RMS norm with ``eps``; None: they are not normed.
    """

    rule: AttentionRule
    queries: int
    keys: int
    width: int
    norm: Tensor | None
    eps: float


class RowOperations(Protocol):
    """What a layer does to rows beside products and attention, as PyTorch operations or as kernels."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up [T, F] of ``gate_up`` [T, 2 F], gate before up."""

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return rows [T, E], each divided by its root mean square, times ``weight`` [E]."""


class StepLayout(RowOperations, Protocol):
    """Where one step's K and V are, and the operations on them, as PyTorch operations or as kernels.

    Where ``hidden_rows`` int64[H] is given, the pass leaves those rows' final hidden states [H, E] in ``hidden``.
    """

    hidden_rows: Tensor | None
    hidden: Tensor | None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Write k [T, Hkv, D] and v [T, Hkv, Dv] to the cache, then attend with q [1, H, T, D]: [1, T, H, Dv]."""

    def attend_projected(self, layer: int, qkv: Tensor, angles: Angles, heads: ProjectedHeads) -> Tensor:
        """Norm and rotate the q and k of ``qkv`` [T, (H + 2 Hkv) D], then do as :meth:`attend`: [T, H, D]."""
