"""Matrix products of the fused pass: dense ones, and weights that oneDNN has packed into its own blocks.

On one core the BLAS behind ``linear`` reads a large float32 weight at less than half of the memory's bandwidth for one row, and
reaches about half of the core's arithmetic for 2 to 40 rows, because it repacks the weight in every call. Packed once at load,
the same product runs at the bandwidth for few rows and at nine tenths of the arithmetic for many (``docs/benchmarks.md``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from inferd_runtime.kernels.product import MOST_ROWS

# Below this many elements a weight stays in a core's cache, where the BLAS is as fast and costs less to call.
PACKED_FROM = 1 << 19
# The blocks were chosen for more rows than one; fewer than these are padded, which is faster (measured).
LEAST_ROWS = 4
PLANNED_ROWS = 32
TOLERANCE = 1e-4


class Product(Protocol):
    """A weight [out, in] to multiply rows with."""

    def __call__(self, rows: Tensor) -> Tensor:
        """rows [T, in] -> [T, out]."""
        ...

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """Add the product of rows [T, in] to residual [T, out] in its place, and return that. The weight has no bias."""
        ...


class DenseProduct:
    """The weight as the module holds it."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`Product`."""
        return linear(rows, self.weight, self.bias)

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """See :class:`Product`."""
        return residual.addmm_(rows, self.weight.t())


FewRows = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]
"""See :func:`inferd_runtime.kernels.product.few_rows_product`."""


class FewRowsProduct(DenseProduct):
    """The same weight, by which up to 16 rows are multiplied by a kernel that reads it once; more go through PyTorch.

    Among 1 to 16 rows a row's result does not depend on how many they are.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, few_rows: FewRows) -> None:
        super().__init__(weight, bias)
        self._few_rows = few_rows

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`Product`."""
        return super().__call__(rows) if len(rows) > MOST_ROWS else self._few_rows(rows, self.weight, self.bias, None)

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """See :class:`Product`."""
        if len(rows) > MOST_ROWS:
            return super().onto(rows, residual)
        return self._few_rows(rows, self.weight, None, residual)


class PackedProduct:
    """The weight in oneDNN's blocks. Needs float32 on the CPU and a PyTorch with oneDNN: see :func:`can_pack`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PLANNED_ROWS)
        self._bias = bias
        self.bytes = weight.numel() * weight.element_size()
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`Product`."""
        count = rows.shape[0]
        if count < LEAST_ROWS:
            rows = rows.expand(LEAST_ROWS, -1) if count == 1 else pad(rows, (0, 0, 0, LEAST_ROWS - count))
        out: Tensor = self._multiply(rows, self._weight, self._bias, "none", [], "")
        return out[:count]

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """See :class:`Product`."""
        return residual.add_(self(rows))


def can_pack(weight: Tensor) -> bool:
    """True if packing this weight is possible here, and worth it."""
    fits = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= PACKED_FROM
    return fits and torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@torch.inference_mode()
def pack(weight: Tensor, bias: Tensor | None = None) -> PackedProduct | None:
    """Return the packed product of a weight, if it can be packed and multiplies as the dense one does."""
    if not can_pack(weight):
        return None
    product = PackedProduct(weight, bias)
    rows = torch.randn(LEAST_ROWS + 1, weight.shape[1], generator=torch.Generator().manual_seed(0))
    expected = linear(rows, weight, bias)
    off = max(float((product(rows[:count]) - expected[:count]).abs().max()) for count in (1, LEAST_ROWS + 1))
    return product if off <= TOLERANCE * float(expected.abs().max()) else None
