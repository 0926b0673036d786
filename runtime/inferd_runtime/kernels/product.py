"""A matrix product for few rows, which is bound by reading the weight: once, whatever the number of rows.

The reference of :mod:`inferd_runtime.kernels.triton.product`, in torch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

MOST_ROWS = 16
"""As many rows as the narrowest matrix instruction takes."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def few_rows_product(rows: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """Return ``rows`` [T, in] @ ``weight`` [out, in] transposed + ``bias`` [out] + ``residual`` [T, out]: [T, out].

    All of one dtype, float32, float16 or bfloat16; 0 to 16 rows. Sums are float32, and rounded once (here a bias is rounded
    before a residual is added). A residual is overwritten with the result and returned; without one the result is new.
    A residual that begins where ``rows`` does is refused: it would be overwritten while it is read.

    Raises ValueError for what does not go together.
    """
    check_product(rows, weight, bias, residual)
    if residual is None:
        return linear(rows, weight, bias)
    if bias is None:
        return residual.addmm_(rows, weight.t())
    return residual.add_(linear(rows, weight, bias))


def check_product(rows: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> None:
    """Raise ValueError, by name, for shapes, dtypes and memory that do not go together."""
    if len(rows) > MOST_ROWS:
        raise ValueError(f"{len(rows)} rows for a product of at most {MOST_ROWS}")
    count, (out, size) = len(rows), weight.shape
    expected = {"rows": (rows, (count, size)), "bias": (bias, (out,)), "residual": (residual, (count, out))}
    for name, (part, shape) in expected.items():
        if part is not None and part.shape != shape:
            raise ValueError(f"{name} {list(part.shape)} for {count} rows and a weight {list(weight.shape)}")
    given = {part.dtype for part in (rows, weight, bias, residual) if part is not None}
    if len(given) > 1 or weight.dtype not in DTYPES:
        raise ValueError(f"a product of {', '.join(sorted(map(str, given)))}")
    # Tensors without memory all begin at 0.
    if residual is not None and 0 != rows.data_ptr() == residual.data_ptr():
        raise ValueError("the rows are the residual, which is overwritten")
