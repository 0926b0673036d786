"""Products of weights that are held in a form of their own on the CPU: oneDNN's blocks, half precision, 8 and 4 bits.

The BLAS behind ``linear`` repacks a float32 weight in every call, and its last bit depends on the number of rows. Every product
here is packed once, and gives a row the same bits whatever the number of rows beside it, once it has its least number of rows
(:func:`steady_least` finds that).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from inferd_runtime.kernels.native.blocks import block_kernels
from inferd_runtime.models.passes.products import DenseProduct, Product
from inferd_runtime.models.weights.block_products import BLOCK_WAYS, block_product, kept_in_blocks
from inferd_runtime.models.weights.held_product import HeldProduct, filled, finished
from inferd_runtime.models.weights.quantize import Blocks, channels_of

PLANNED_ROWS = 32
"""oneDNN's blocks are chosen for so many rows; those for one row are a third slower from two rows on (measured)."""
LEAST_ROWS = (1, 2, 4)
TRIED_ROWS = (1, 2, 3, 4, 5, 8, 16, 17, 33, 64)
MOST_TRIED = 100
MOST_PARTS = 10
MOST_OUTPUTS = 4096
COMPARED_OUTPUTS = 256
TOLERANCES = {
    "packed": 1e-4,
    "half": 2e-3,
    "int8": 2e-2,
    "int4": 2e-2,
    "blocks16": 1e-4,
    "blocks8": 1e-4,
    "blocks4": 1e-4,
    "w8a16": 1e-3,
    "w4a16": 1e-3,
    "w8a8": 5e-2,
    "w4a8": 5e-2,
}
"""How far a product may be from the dense one of the same weight (of what is left of it), as a share of the largest output."""
ROUNDED = 2e-2
"""The same for weights and rows in 16 bits."""
NARROW = torch.bfloat16
"""What the rows of 8 and 4 bit products are rounded to: PyTorch multiplies others without vector instructions."""


class PackedProduct(HeldProduct):
    """The weight in oneDNN's blocks, float32 or bfloat16. Fewer than ``least`` rows are filled up."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, least: int = 1) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PLANNED_ROWS)
        self._bias = bias
        self._least = least
        self.bytes = weight.numel() * weight.element_size()
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        count = rows.shape[0]
        if count < self._least:
            rows = rows.expand(self._least, -1) if count == 1 else pad(rows, (0, 0, 0, self._least - count))
        out: Tensor = self._multiply(rows, self._weight, self._bias, "none", [], "")
        return out[:count]


class HalfProduct(HeldProduct):
    """The weight in float16 (FBGEMM), rows and sums in float32: exact for weights that float16 holds."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, least: int = 1) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that operators for this are to move to torchao
            self._weight = torch.ops.quantized.linear_prepack_fp16(weight.detach().float(), bias)
        self.bytes = weight.numel() * 2
        self._multiply = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        out: Tensor = self._multiply(rows.contiguous(), self._weight)
        return out


class Int8Product(HeldProduct):
    """Whole numbers of 8 bits with a scale for each output; rows and results in bfloat16, sums in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, least: int = 1) -> None:
        made = channels_of(filled(weight))
        self._outputs = len(weight)
        self._numbers, self._scales, self._bias = made.numbers, made.scales.to(NARROW), bias
        self.bytes = made.numbers.numel() + 2 * made.scales.numel()

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        out = torch._weight_int8pack_mm(rows.to(NARROW).contiguous(), self._numbers, self._scales)
        return finished(out[:, : self._outputs], rows, self._bias)


class Int4Product(HeldProduct):
    """Whole numbers of 4 bits, with a scale and an offset for each group of inputs; rows and results as in 8 bits."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, least: int = 1) -> None:
        made = Blocks.of(filled(weight))
        self._outputs = len(weight)
        self._numbers = torch.ops.aten._convert_weight_to_int4pack_for_cpu(made.numbers.int(), 1)
        self._scales = torch.stack([made.scales, made.middles], -1).transpose(0, 1).contiguous().to(NARROW)
        self._group, self._bias = made.group, bias
        self.bytes = weight.numel() // 2 + 2 * self._scales.numel()
        self._multiply = torch.ops.aten._weight_int4pack_mm_for_cpu.default

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        out = self._multiply(rows.to(NARROW).contiguous(), self._numbers, self._group, self._scales)
        return finished(out[:, : self._outputs], rows, self._bias)


def _in_blocks(name: str, weight: Tensor, bias: Tensor | None, least: int) -> HeldProduct:
    return block_product(name, weight, bias)


@dataclass(frozen=True)
class Way:
    """How weights of one shape are held: a name of :data:`MAKERS`, and how many rows its product computes at least."""

    name: str
    least: int = 1

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """Return the product of a weight that is held in this way."""
        return DenseProduct(weight, bias) if self.name == DENSE.name else MAKERS[self.name](weight, bias, self.least)


DENSE = Way("dense")
"""The weight as the module holds it."""
MAKERS: dict[str, Callable[[Tensor, Tensor | None, int], HeldProduct]] = {
    "packed": PackedProduct, "half": HalfProduct, "int8": Int8Product, "int4": Int4Product,
} | {name: partial(_in_blocks, name) for name in BLOCK_WAYS}  # fmt: skip


def can_hold(name: str, shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """True if weights of this shape and dtype can be held in the way of this name by this build of PyTorch on this processor."""
    _, inputs = shape
    if name == "packed":
        if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return False
        return dtype == torch.float32 or (dtype == NARROW and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if name == "half":
        return dtype == torch.float32 and "fbgemm" in torch.backends.quantized.supported_engines
    if name in BLOCK_WAYS and (block_kernels() is None or (name == "blocks16" and dtype != torch.float32)):
        return False
    return name == "dense" or inputs % Blocks.LEAST_GROUP == 0


@torch.inference_mode()
def steady_least(name: str, shape: tuple[int, int], dtype: torch.dtype) -> int | None:
    """Return the least number of rows with which every row gets the same bits in any company; None if there is none.

    Tried with random weights [out, in] and rows whose sums are zero except for rounding: elsewhere a result in 16 bits rarely
    shows in which order it was added up.
    """
    outputs = min(shape[0], MOST_OUTPUTS)
    weight, rows = (_cancelling(count, shape[1], seed).to(dtype) for seed, count in enumerate((outputs, MOST_TRIED)))
    rows[:, shape[1] // 2 :] *= -1
    for least in LEAST_ROWS if name == "packed" else LEAST_ROWS[:1]:
        if _is_steady(Way(name, least).product(weight), rows, weight.new_zeros(MOST_TRIED, outputs)):
            return least
    return None


def _cancelling(count: int, width: int, seed: int) -> Tensor:
    """Return random rows [count, width] whose second half is the first one backwards, with the other sign."""
    half = torch.randn(count, width // 2, generator=torch.Generator().manual_seed(seed))
    return torch.cat([half, -half.flip(1), half.new_zeros(count, width % 2)], 1)


def _is_steady(product: Product, rows: Tensor, residual: Tensor) -> bool:
    """True if parts of the rows have the bits that they have among all."""
    whole, onto = product(rows), product.onto(rows, residual.clone())
    for count in TRIED_ROWS:
        for first in range(0, len(rows) - count + 1, max(count, len(rows) // MOST_PARTS)):
            part = slice(first, first + count)
            if not torch.equal(product(rows[part]), whole[part]):
                return False
            if not torch.equal(product.onto(rows[part], residual[part].clone()), onto[part]):
                return False
    return True


@torch.inference_mode()
def held(way: Way, weight: Tensor, bias: Tensor | None = None) -> HeldProduct | None:
    """Return the product of a weight held in this way; None if it does not multiply as it should."""
    product = MAKERS[way.name](weight, bias, way.least)
    rows = torch.randn(LEAST_ROWS[-1] + 1, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    seen = slice(COMPARED_OUTPUTS)
    expected = linear(rows, kept_of(way.name, weight[seen]), None if bias is None else bias[seen]).float()
    found = (product(rows[:count])[:, seen].float() for count in (1, len(rows)))
    off = max(float((part - expected[: len(part)]).abs().max()) for part in found)
    allowed = TOLERANCES[way.name] if weight.dtype == torch.float32 else ROUNDED
    return product if off <= allowed * float(expected.abs().max()) else None


def kept_of(name: str, weight: Tensor) -> Tensor:
    """Return what is left of a weight that is held so, as plain numbers."""
    if name in BLOCK_WAYS:
        return kept_in_blocks(name, weight)
    if name == "int8":
        return channels_of(weight).dense().to(weight.dtype)
    return Blocks.of(weight).dense().to(weight.dtype) if name == "int4" else weight
