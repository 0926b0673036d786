"""Matrix products of the fused pass, of weights as the modules hold them; others: :mod:`inferd_runtime.models.weights`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from inferd_runtime.kernels.product import MOST_ROWS, RowNorm


class Product(Protocol):
    """A weight [out, in] to multiply rows with."""

    def __call__(self, rows: Tensor) -> Tensor:
        """rows [T, in] -> [T, out]."""

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """Return residual [T, out] with the product of rows [T, in] added, in its place or not. The weight has no bias."""


class DenseProduct:
    """The weight as the module holds it."""

    weight: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    @property
    def shape(self) -> tuple[int, int]:
        """Return (outputs, inputs)."""
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Return the weight's."""
        return self.weight.dtype

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`Product`."""
        return linear(rows, self.weight, self.bias)

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """See :class:`Product`."""
        return residual.addmm_(rows, self.weight.t())


class JoinedProduct(DenseProduct):
    """The weights of several projections, one below the other: joined when they are first asked for, because a start that finds
    them in another form never asks. The modules' own weights become views, so that nothing is held twice.
    """

    def __init__(self, projections: Sequence[Any], bias: Tensor | None = None) -> None:
        self._projections = projections
        self.bias = bias

    @property
    def shape(self) -> tuple[int, int]:
        """Return (outputs, inputs)."""
        return sum(each.out_features for each in self._projections), self._projections[0].in_features

    @property
    def dtype(self) -> torch.dtype:
        """Return the weight's."""
        dtype: torch.dtype = self._projections[0].weight.dtype
        return dtype

    @cached_property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Return the joined weight [out, in]."""
        joined = torch.cat([projection.weight.data for projection in self._projections])
        first = 0
        for projection in self._projections:
            projection.weight.data = joined[first : first + projection.out_features]
            first += projection.out_features
        return joined


FewRows = Callable[..., Tensor]
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

    def normed(self, rows: Tensor, norm: RowNorm) -> Tensor:
        """Return the product of up to 16 rows behind a norm."""
        return self._few_rows(rows, self.weight, self.bias, None, norm)

    def gated(self, rows: Tensor, norm: RowNorm) -> Tensor:
        """Return silu(gate) * up [T, out / 2] of up to 16 rows behind a norm, whose product is gate and up."""
        return self._few_rows(rows, self.weight, None, None, norm, True)
