"""The product of a weight in 8 or 4 bits on a device."""

from __future__ import annotations

from copy import copy

from torch import Tensor
from torch.nn.functional import linear, pad

from inferd_runtime.kernels.quantized import (
    FEW_FP8_ROWS,
    FEW_ROWS,
    FP8,
    REFERENCE,
    Grouped,
    QuantizedKernels,
    RowScaled,
    StoredWeight,
)


class QuantizedProduct:
    """See :class:`~inferd_runtime.models.passes.products.Product`. ``outputs``: how many of the weight's are its own, all if 0.

    Few rows are multiplied by a kernel that reads the weight as it is held. More are rounded to float8 themselves, where the
    weight is in that; else the weight is unpacked for them.
    """

    def __init__(self, weight: StoredWeight, outputs: int = 0, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bytes = weight.nbytes
        self._kernels: QuantizedKernels = REFERENCE
        self._width = weight.shape[0]
        self._outputs = outputs or self._width
        self._bias = None if bias is None else pad(bias.detach(), (0, self._width - self._outputs))
        self._few = FEW_FP8_ROWS if self.rounds_rows else FEW_ROWS

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs), without what was added to the outputs."""
        return self._outputs, self.weight.shape[1]

    @property
    def rounds_rows(self) -> bool:
        """True if many rows are rounded to float8, as the weight is."""
        return isinstance(self.weight, RowScaled) and self.weight.numbers.dtype == FP8

    def with_kernels(self, kernels: QuantizedKernels) -> QuantizedProduct:
        """Return the same product by other kernels."""
        other = copy(self)
        other._kernels = kernels
        return other

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        if len(rows) <= self._few:
            return self._of_few(rows, self._bias, None)[:, : self._outputs]
        out = self._of_many(rows)
        return (out if self._bias is None else out.add_(self._bias))[:, : self._outputs]

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        if len(rows) > self._few or self._width != self._outputs:
            return residual.add_(self(rows))
        return self._of_few(rows, None, residual)

    def _of_few(self, rows: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        if isinstance(self.weight, Grouped):
            return self._kernels.grouped_product(rows, self.weight, bias, residual)
        return self._kernels.row_scaled_product(rows, self.weight, bias, residual)

    def _of_many(self, rows: Tensor) -> Tensor:
        if isinstance(self.weight, Grouped):
            return linear(rows, self._kernels.unpacked(self.weight, rows.dtype))
        if self.weight.numbers.dtype == FP8:
            return self._kernels.many_rows_product(rows, self.weight)
        # Its scales are bfloat16's, so that only the products with them are rounded.
        return linear(rows, self.weight.numbers.to(rows.dtype).mul_(self.weight.scales[:, None].to(rows.dtype)))
