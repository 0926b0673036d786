"""Matrix products of the fused pass, of weights as the modules hold them; others: :mod:`inferd_runtime.models.weights`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor
from torch.nn.functional import linear

from inferd_runtime.kernels.product import MOST_ROWS


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
