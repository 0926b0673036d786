"""A step for kernels: rows of fixed shapes that the host does not look at, so that the step can be recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import rms_norm

from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.rows import PagedRows
from inferd_runtime.kernels.suite import KernelSuite
from inferd_runtime.models.passes.step_layout import Angles, ProjectedHeads


@dataclass(frozen=True, slots=True)
class KernelRows:
    """See :class:`~inferd_runtime.models.passes.step_layout.RowOperations`."""

    kernels: KernelSuite

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.RowOperations`."""
        return self.kernels.silu_mul(gate_up)

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.RowOperations`."""
        return rms_norm(rows, weight.shape, weight, eps)


@dataclass(slots=True)
class KernelLayout:
    """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`; for CUDA, through :class:`KernelSuite`.

    Nothing here waits for the device. ``keys`` and ``values``: one cache [pages, page_size, Hkv, D] per layer. K and V are
    written as they come: those of a tenant's adapters, which need bounds, take the other layout.
    """

    rows: PagedRows
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    kernels: KernelSuite
    hidden_rows: Tensor | None = None
    hidden: Tensor | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`."""
        keys, values = self.keys[layer], self.values[layer]
        self.kernels.write_kv(key.contiguous(), value.contiguous(), keys, values, self.rows.slots)
        return self.kernels.paged_attention(query[0].transpose(0, 1).contiguous(), keys, values, self.rows, rule)[None]

    def attend_projected(self, layer: int, qkv: Tensor, angles: Angles, heads: ProjectedHeads) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`."""
        keys, values = self.keys[layer], self.values[layer]
        cos, sin = (angle.squeeze(1) for angle in angles)
        query = self.kernels.rotate_and_write(
            qkv, cos, sin, heads.norm, heads.eps, (heads.queries, heads.keys), keys, values, self.rows.slots
        )
        return self.kernels.paged_attention(query, keys, values, self.rows, heads.rule)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`."""
        return KernelRows(self.kernels).silu_mul(gate_up)

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`."""
        return KernelRows(self.kernels).rms_norm(rows, weight, eps)
