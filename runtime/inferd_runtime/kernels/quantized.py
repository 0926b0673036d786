"""Products of weights in 8 or 4 bits: how such weights are laid out for a device, and the products in torch.

The reference of :mod:`inferd_runtime.kernels.triton.quantized`. A product multiplies with the numbers as they are, which every
float type holds exactly, adds up in float32, and applies the scales to the sums: nothing of a weight is rounded again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

FEW_ROWS = 64
"""As many rows as a kernel multiplies by numbers of 4 bits or int8; more are multiplied by what they are unpacked to."""
FEW_FP8_ROWS = 16
"""The same for float8: more rows are rounded to float8 themselves, and multiplied by the device's own instruction."""
UNIT = 32
"""Inputs whose numbers of 4 bits stand in UNIT / 2 bytes side by side. Groups are multiples of it."""
LANES = 32
"""Outputs that stand side by side in a tile."""
MIDDLE = 8
FP8 = torch.float8_e4m3fn
FP8_LARGEST = 448.0
LEAST_SCALE = 2.0**-100
"""Of a row of zeros."""
ROW_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class RowScaled(NamedTuple):
    """A weight in 8 bits: ``numbers`` float8_e4m3fn or int8 [out, in] times ``scales`` float32[out]."""

    numbers: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.numbers.shape[0], self.numbers.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return self.numbers.nbytes + self.scales.nbytes

    def dense(self) -> Tensor:
        """Return float32[out, in]."""
        return self.numbers.float() * self.scales[:, None]


class Grouped(NamedTuple):
    """A weight in 4 bits: (number - 8 + middle) * scale. ``out`` and ``in`` are multiples of LANES and UNIT.

    ``numbers`` uint8[out / 32, in / 32, 32, 16]: of the 32 inputs of a unit the j-th in the low half of byte j, and the j+16-th
    in the high one. ``scales`` [out / 32, in / group, 32], float16 or bfloat16; ``middles`` float16 of that shape, None where
    all are zero. ``outputs``: how many of them are the weight's own.
    """

    numbers: Tensor
    scales: Tensor
    middles: Tensor | None
    outputs: int

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.numbers.shape[0] * LANES, self.numbers.shape[1] * UNIT

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return self.numbers.nbytes + self.scales.nbytes + (0 if self.middles is None else self.middles.nbytes)

    def plain_numbers(self) -> Tensor:
        """Return uint8[out, in] from 0 to 15."""
        return torch.cat([self.numbers & 15, self.numbers >> 4], -1).transpose(1, 2).reshape(self.shape)

    def dense(self) -> Tensor:
        """Return float32[out, in]."""
        tiles, units, *_ = self.numbers.shape
        whole = torch.cat([self.numbers & 15, self.numbers >> 4], -1).float() - MIDDLE
        groups = whole.view(tiles, self.scales.shape[1], -1, LANES, UNIT)
        if self.middles is not None:
            groups = groups + self.middles.float()[:, :, None, :, None]
        dense = groups * self.scales.float()[:, :, None, :, None]
        return dense.view(tiles, units, LANES, UNIT).transpose(1, 2).reshape(self.shape)


StoredWeight = RowScaled | Grouped


def grouped(numbers: Tensor, scales: Tensor, middles: Tensor | None) -> Grouped:
    """Lay out numbers uint8[out, in] from 0 to 15 with scales and middles [out, in / group]; see :class:`Grouped`.

    Outputs of zeros are added behind the weight's, up to a multiple of LANES.
    """
    outputs, more = len(numbers), -len(numbers) % LANES
    if more:
        numbers, scales = pad(numbers, (0, 0, 0, more), value=MIDDLE), pad(scales, (0, 0, 0, more))
        middles = None if middles is None else pad(middles, (0, 0, 0, more))
    tiles, units = len(numbers) // LANES, numbers.shape[1] // UNIT
    whole = numbers.view(tiles, LANES, units, UNIT).transpose(1, 2)
    packed = whole[..., : UNIT // 2] | whole[..., UNIT // 2 :] << 4
    return Grouped(packed.contiguous(), _tiled(scales), None if middles is None else _tiled(middles.half()), outputs)


def _tiled(scales: Tensor) -> Tensor:
    return scales.view(-1, LANES, scales.shape[1]).transpose(1, 2).contiguous()


def float8_rows(weight: Tensor) -> RowScaled:
    """Return a weight [out, in] (or rows) rounded to float8_e4m3fn: the largest number of each row is the largest there is."""
    plain = weight.detach().float()
    scales = (plain.abs().amax(1) / FP8_LARGEST).clamp_min(LEAST_SCALE)
    return RowScaled((plain / scales[:, None]).clamp(-FP8_LARGEST, FP8_LARGEST).to(FP8), scales)


def row_scaled_product(rows: Tensor, weight: RowScaled, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """Return ``rows`` [T, in] @ ``weight`` transposed + ``bias`` [out] + ``residual`` [T, out]: [T, out] in the rows' dtype.

    At most FEW_ROWS rows. Sums are float32 and rounded once. A residual is overwritten with the result and returned.
    Raises ValueError for what does not go together.
    """
    check_rows(rows, weight.shape, bias, residual)
    return _finished((rows.float() @ weight.numbers.float().t()) * weight.scales, rows, bias, residual)


def grouped_product(rows: Tensor, weight: Grouped, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """As :func:`row_scaled_product`, of a weight in 4 bits."""
    check_rows(rows, weight.shape, bias, residual)
    return _finished(rows.float() @ weight.dense().t(), rows, bias, residual)


def _finished(sums: Tensor, rows: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    if bias is not None:
        sums = sums + bias.float()
    if residual is None:
        return sums.to(rows.dtype)
    return residual.copy_(sums + residual.float())


def check_rows(rows: Tensor, shape: tuple[int, int], bias: Tensor | None, residual: Tensor | None) -> None:
    """Raise ValueError, by name, for shapes, dtypes and memory that do not go together."""
    count, (out, size) = len(rows), shape
    if count > FEW_ROWS:
        raise ValueError(f"{count} rows for a product of at most {FEW_ROWS}")
    expected = {"rows": (rows, (count, size)), "bias": (bias, (out,)), "residual": (residual, (count, out))}
    for name, (part, wanted) in expected.items():
        if part is not None and part.shape != wanted:
            raise ValueError(f"{name} {list(part.shape)} for {count} rows and a weight {list(shape)}")
        if part is not None and part.dtype != rows.dtype:
            raise ValueError(f"{name} are {part.dtype}, the rows {rows.dtype}")
    if rows.dtype not in ROW_DTYPES:
        raise ValueError(f"a product of rows of {rows.dtype}")
    # Tensors without memory all begin at 0.
    if residual is not None and 0 != rows.data_ptr() == residual.data_ptr():
        raise ValueError("the rows are the residual, which is overwritten")


def many_rows_product(rows: Tensor, weight: RowScaled) -> Tensor:
    """Return ``rows`` @ ``weight`` transposed for a weight in float8_e4m3fn, of rows that are rounded to that themselves."""
    made = float8_rows(rows)
    sums = made.numbers.float() @ weight.numbers.float().t()
    return (sums * made.scales[:, None] * weight.scales).to(rows.dtype)


def unpacked(weight: Grouped, dtype: torch.dtype) -> Tensor:
    """Return a weight in 4 bits as [out, in] in a dtype."""
    return weight.dense().to(dtype)


class QuantizedKernels(NamedTuple):
    """One function per operation, as they are named here."""

    row_scaled_product: Callable[[Tensor, RowScaled, Tensor | None, Tensor | None], Tensor]
    grouped_product: Callable[[Tensor, Grouped, Tensor | None, Tensor | None], Tensor]
    many_rows_product: Callable[[Tensor, RowScaled], Tensor]
    unpacked: Callable[[Grouped, torch.dtype], Tensor]


REFERENCE = QuantizedKernels(row_scaled_product, grouped_product, many_rows_product, unpacked)
