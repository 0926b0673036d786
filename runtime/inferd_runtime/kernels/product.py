"""A matrix product for few rows, which is bound by reading the weight: once, whatever the number of rows.

The reference of :mod:`inferd_runtime.kernels.triton.product`, in torch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm

from inferd_runtime.kernels.elementwise import silu_mul

MOST_ROWS = 16
"""As many rows as the narrowest matrix instruction takes."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class RowNorm(NamedTuple):
    """An RMS norm before a product: each row over its root mean square (``eps`` is added to the mean), times ``weight`` [in]."""

    weight: Tensor
    eps: float


def few_rows_product(
    rows: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, norm: RowNorm | None = None,
    gated: bool = False,
) -> Tensor:  # fmt: skip
    """Return ``rows`` [T, in] @ ``weight`` [out, in] transposed + ``bias`` [out] + ``residual`` [T, out]: [T, out].

    ``norm``: the rows go through it first. ``gated``: the outputs are gate and up, one half each, and what is returned is
    silu(gate) * up [T, out / 2]; there is no bias and no residual then.

    All of one dtype, float32, float16 or bfloat16; 0 to 16 rows. Sums are float32, and rounded once (here a bias is rounded
    before a residual is added). A residual is overwritten with the result and returned; without one the result is new.
    A residual that begins where ``rows`` does is refused: it would be overwritten while it is read.

    Raises ValueError for what does not go together.
    """
    check_product(rows, weight, bias, residual, norm, gated)
    if norm is not None:
        rows = rms_norm(rows, norm.weight.shape, norm.weight, norm.eps)
    if gated:
        return silu_mul(linear(rows, weight))
    if residual is None:
        return linear(rows, weight, bias)
    if bias is None:
        return residual.addmm_(rows, weight.t())
    return residual.add_(linear(rows, weight, bias))


def check_product(
    rows: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, norm: RowNorm | None = None,
    gated: bool = False,
) -> None:  # fmt: skip
    """Raise ValueError, by name, for shapes, dtypes and memory that do not go together."""
    if len(rows) > MOST_ROWS:
        raise ValueError(f"{len(rows)} rows for a product of at most {MOST_ROWS}")
    count, (out, size) = len(rows), weight.shape
    scale = None if norm is None else norm.weight
    expected = {
        "rows": (rows, (count, size)), "bias": (bias, (out,)), "residual": (residual, (count, out)), "norm": (scale, (size,)),
    }  # fmt: skip
    for name, (part, shape) in expected.items():
        if part is not None and part.shape != shape:
            raise ValueError(f"{name} {list(part.shape)} for {count} rows and a weight {list(weight.shape)}")
    if gated and (out % 2 or bias is not None or residual is not None):
        raise ValueError(f"gate and up of {out} outputs, without bias and residual")
    given = {part.dtype for part in (rows, weight, bias, residual, scale) if part is not None}
    if len(given) > 1 or weight.dtype not in DTYPES:
        raise ValueError(f"a product of {', '.join(sorted(map(str, given)))}")
    # Tensors without memory all begin at 0.
    if residual is not None and 0 != rows.data_ptr() == residual.data_ptr():
        raise ValueError("the rows are the residual, which is overwritten")
