"""The switch that has Triton's kernels run in its interpreter, on the CPU: ``TRITON_INTERPRET=1``, read at their import."""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)


@triton.jit
def product(a: tl.tensor, b: tl.tensor, interpreted: tl.constexpr):
    """Return ``a @ b`` accumulated in float32; in the interpreter in float64, rounded once.

    The interpreter keeps bfloat16 as bare bits and would multiply those. Its sums are made by the machine's BLAS, where
    a row's float32 sum can depend on the row's place.
    """
    if interpreted:
        return tl.dot(a.to(tl.float64), b.to(tl.float64), out_dtype=tl.float64).to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")
