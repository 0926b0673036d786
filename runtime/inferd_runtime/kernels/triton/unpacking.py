"""Numbers of 8 and 4 bits to floats in registers, for the products of :mod:`inferd_runtime.kernels.triton.quantized`."""

from __future__ import annotations

import triton
import triton.language as tl

E4M3_TO_BF16 = """
{
.reg .b32 a, b, s, m;
prmt.b32 a, $2, 0, 0x1404;
prmt.b32 b, $2, 0, 0x3424;
and.b32 s, a, 0x80008000;
and.b32 a, a, 0x7f007f00;
shr.u32 a, a, 4;
or.b32 a, a, s;
and.b32 s, b, 0x80008000;
and.b32 b, b, 0x7f007f00;
shr.u32 b, b, 4;
or.b32 b, b, s;
mov.b32 s, 0x80008000;
mov.b32 m, 0x7b807b80;
fma.rn.bf16x2 $0, a, m, s;
fma.rn.bf16x2 $1, b, m, s;
}
"""
"""Four bytes to the upper halves of four words; 4 and 3 bits of exponent and mantissa move to where bfloat16's begin, which is
2 ** -120 times the number (what is subnormal stays so); -0 is added so that zeros keep their sign."""
NIBBLES_TO_BF16 = """
{
.reg .b32 n, a, b, one, off;
%s
and.b32 n, n, 0x0f0f0f0f;
prmt.b32 a, n, 0x43434343, 0x4140;
prmt.b32 b, n, 0x43434343, 0x4342;
mov.b32 one, 0x3f803f80;
mov.b32 off, 0xc308c308;
fma.rn.bf16x2 $0, a, one, off;
fma.rn.bf16x2 $1, b, one, off;
}
"""
"""0x4300 is bfloat16's 128, whose last place is 1: with a number in it, it is 128 more. 136 of that are taken off."""
LOW_TO_BF16 = tl.constexpr(NIBBLES_TO_BF16 % "mov.b32 n, $2;")
HIGH_TO_BF16 = tl.constexpr(NIBBLES_TO_BF16 % "shr.u32 n, $2, 4;")
BYTES_TO_BF16 = tl.constexpr(E4M3_TO_BF16)


@triton.jit
def decoded(numbers: tl.tensor, dtype: tl.constexpr, fp8: tl.constexpr, packed: tl.constexpr):
    """Return 8-bit numbers as floats; float8 comes as bytes. ``packed``: as bfloat16, by the instructions above."""
    if not fp8:
        return numbers.to(tl.float32).to(dtype)
    if packed:
        return tl.inline_asm_elementwise(BYTES_TO_BF16, "=r,=r,r", [numbers], dtype=tl.bfloat16, is_pure=True, pack=4)
    wide = numbers.to(tl.uint32)
    bits = ((wide & 0x80) << 24) | ((wide & 0x7F) << 20)
    return (bits.to(tl.float32, bitcast=True) * 1.329227995784916e36).to(dtype)  # 2 ** 120


@triton.jit
def halves(numbers: tl.tensor, dtype: tl.constexpr, packed: tl.constexpr):
    """Return the numbers of 4 bits less 8, of the low halves of bytes and of the high ones."""
    if packed:
        low = tl.inline_asm_elementwise(LOW_TO_BF16, "=r,=r,r", [numbers], dtype=tl.bfloat16, is_pure=True, pack=4)
        high = tl.inline_asm_elementwise(HIGH_TO_BF16, "=r,=r,r", [numbers], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        low = ((numbers & 15).to(tl.float32) - 8.0).to(dtype)
        high = ((numbers >> 4).to(tl.float32) - 8.0).to(dtype)
    return low, high
