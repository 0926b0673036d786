"""One weight of a quantized checkpoint, from the tensors of its module, by the formats' own documentation:

- AWQ, version gemm (AutoAWQ, ``WQLinear_GEMM``): ``qweight`` int32[in, out / 8], ``qzeros`` int32[in / group, out / 8],
  ``scales`` [in / group, out]; of eight outputs in a word the i-th half byte holds number 0, 2, 4, 6, 1, 3, 5, 7.
- GPTQ (AutoGPTQ, GPTQModel): ``qweight`` int32[in / 8, out], ``qzeros`` int32[groups, out / 8], which are one less than the zeros
  but in version 2, ``scales`` [groups, out], ``g_idx`` int32[in], the group of each input.
- compressed-tensors: ``weight_packed`` int32[out, in / 8] of numbers + 8, ``weight_scale`` [out, groups], ``weight_zero_point``
  int32[out / 8, groups] + 8, ``weight_g_idx``; or ``weight`` in float8 or int8 with a ``weight_scale`` for the tensor, each
  output or each block.
- fp8 of transformers: ``weight`` in float8 with a ``weight_scale_inv`` for the tensor or each block, which it is multiplied by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from inferd_runtime.kernels.quantized import FP8, MIDDLE, UNIT, RowScaled, StoredWeight, grouped
from inferd_runtime.models.quantized import layout
from inferd_runtime.models.quantized.layout import StoredLayout

WORD = 32
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Of each of eight outputs, in their order, the half byte of the word that holds it."""
MARKS = ("qweight", "weight_packed", "weight_scale", "weight_scale_inv")
"""A module with one of these is quantized."""
LEFT_OUT = (
    "qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale", "weight_scale_inv", "weight_zero_point",
    "weight_shape", "weight_g_idx", "input_scale", "input_zero_point", "activation_scale", "input_scale_ub", "k_scale",
    "v_scale", "q_scale", "output_scale",
)  # fmt: skip
"""What is no parameter of the model. Activations are rounded by the runtime's own rules, or not at all."""


@dataclass(frozen=True)
class Unpacked:
    """A weight: (``numbers`` [out, in] - ``zeros``) * ``scales``, both [out, groups]. ``groups`` int64[in]: of each input."""

    numbers: Tensor
    scales: Tensor
    zeros: Tensor
    groups: Tensor
    bits: int

    def dense(self) -> Tensor:
        """Return float32[out, in]."""
        whole = self.numbers.float() - self.zeros.float()[:, self.groups]
        return whole * self.scales.float()[:, self.groups]

    def stored(self) -> StoredWeight | None:
        """Return it as it is multiplied with; None where only dense numbers hold it exactly."""
        outputs, inputs = self.numbers.shape
        count = self.scales.shape[1]
        in_order = torch.equal(self.groups, torch.arange(inputs) // -(-inputs // count))
        if not in_order or inputs % count:
            return None
        if self.bits == 4 and inputs // count % UNIT == 0:
            middles = MIDDLE - self.zeros
            return grouped(self.numbers.to(torch.uint8), _half(self.scales), middles if bool(middles.any()) else None)
        if count == 1 and outputs % 16 == 0 and inputs % 16 == 0:
            whole = self.numbers.int() - self.zeros
            if int(whole.min()) >= -128 and int(whole.max()) <= 127:
                return RowScaled(whole.to(torch.int8), self.scales[:, 0].float())
        return None


@dataclass(frozen=True)
class Floats:
    """A weight: ``numbers`` [out, in] in float8 times ``scales``: of all, of each output [out, 1], or of each block."""

    numbers: Tensor
    scales: Tensor

    def dense(self) -> Tensor:
        """Return float32[out, in]."""
        outputs, inputs = self.numbers.shape
        rows, columns = self.scales.shape
        wide = self.scales.repeat_interleave(-(-outputs // rows), 0)[:outputs]
        return self.numbers.float() * wide.repeat_interleave(-(-inputs // columns), 1)[:, :inputs]

    def stored(self) -> StoredWeight | None:
        """As :meth:`Unpacked.stored`."""
        outputs, inputs = self.numbers.shape
        if self.scales.shape not in ((1, 1), (outputs, 1)) or outputs % 16 or inputs % 16 or self.numbers.dtype != FP8:
            return None
        return RowScaled(self.numbers, self.scales[:, 0].expand(outputs).contiguous())


def unpack(tensors: Mapping[str, Tensor], stored: StoredLayout) -> Unpacked | Floats:
    """Return the weight of a module from its tensors by the ends of their names.

    Raises KeyError for one that is not there, ValueError for shapes that do not go together.
    """
    if stored.method == layout.AWQ:
        return _awq(tensors)
    if stored.method == layout.GPTQ:
        return _gptq(tensors, stored)
    return _compressed(tensors) if "weight_packed" in tensors else _scaled(tensors)


def _awq(tensors: Mapping[str, Tensor]) -> Unpacked:
    numbers = _words(tensors["qweight"], 4)[..., AWQ_PLACES].flatten(1).t()
    zeros = _words(tensors["qzeros"], 4)[..., AWQ_PLACES].flatten(1).t()
    return _checked(numbers, tensors["scales"].t(), zeros, None, 4)


def _gptq(tensors: Mapping[str, Tensor], stored: StoredLayout) -> Unpacked:
    numbers = _words(tensors["qweight"].t(), stored.bits).flatten(1)
    zeros = _words(tensors["qzeros"], stored.bits).flatten(1).t().int() + stored.added
    return _checked(numbers, tensors["scales"].t(), zeros, tensors.get("g_idx"), stored.bits)


def _compressed(tensors: Mapping[str, Tensor]) -> Unpacked:
    packed, (outputs, inputs) = tensors["weight_packed"], tensors["weight_shape"].tolist()
    bits = next((bits for bits in (4, 8) if -(-inputs // (WORD // bits)) == packed.shape[1]), 0)
    if not bits:
        raise ValueError(f"{packed.shape[1]} words for {inputs} inputs are neither 4 nor 8 bits each")
    numbers = _words(packed, bits).flatten(1)[:, :inputs]
    zero = tensors.get("weight_zero_point")
    if zero is None:
        zeros = torch.full_like(tensors["weight_scale"], 1 << bits - 1, dtype=torch.int32)
    else:
        zeros = _words(zero.t(), bits).flatten(1).t()[:outputs]
    return _checked(numbers, tensors["weight_scale"], zeros, tensors.get("weight_g_idx"), bits)


def _scaled(tensors: Mapping[str, Tensor]) -> Unpacked | Floats:
    """Return a weight that is stored number by number."""
    numbers = tensors["weight"]
    scales = (tensors["weight_scale"] if "weight_scale" in tensors else tensors["weight_scale_inv"]).float()
    scales = scales[:, None] if scales.dim() == 1 else scales.reshape(1, 1) if scales.dim() == 0 else scales
    if numbers.dtype == torch.int8 and len(scales) in (1, len(numbers)):
        scales = scales.expand(len(numbers), -1)
        zero = tensors.get("weight_zero_point")
        zeros = torch.zeros_like(scales, dtype=torch.int32) if zero is None else zero.int().expand(scales.shape)
        return _checked(numbers, scales, zeros, None, 8)
    if numbers.dtype != FP8:
        raise ValueError(f"a weight of {numbers.dtype} with scales")
    if bool(numbers.view(torch.uint8).bitwise_and(0x7F).eq(0x7F).any()):
        raise ValueError("a weight that is not a number")
    return Floats(numbers, scales)


def _checked(numbers: Tensor, scales: Tensor, zeros: Tensor, groups: Tensor | None, bits: int) -> Unpacked:
    """Return the parts. Raises ValueError where they do not go together."""
    outputs, inputs = numbers.shape
    count = scales.shape[1]
    if scales.shape != (outputs, count) or zeros.shape != scales.shape or not count:
        raise ValueError(f"scales {list(scales.shape)} and zeros {list(zeros.shape)} for a weight {[outputs, inputs]}")
    if groups is None:
        groups = torch.arange(inputs) // -(-inputs // count)
    groups = groups.long()
    if groups.shape != (inputs,) or int(groups.min()) < 0 or int(groups.max()) >= count:
        raise ValueError(f"groups {list(groups.shape)} of {inputs} inputs are not among {count}")
    return Unpacked(numbers, scales.contiguous(), zeros.int().contiguous(), groups, bits)


def _words(packed: Tensor, bits: int) -> Tensor:
    """Return the numbers of int32[..., words] as uint8[..., words, 32 / bits], the lowest bits first."""
    if packed.dtype != torch.int32:
        raise ValueError(f"packed weights of {packed.dtype}")
    parts = [(packed >> shift & (1 << bits) - 1).to(torch.uint8) for shift in range(0, WORD, bits)]
    return torch.stack(parts, -1)


def _half(scales: Tensor) -> Tensor:
    return scales if scales.dtype in (torch.float16, torch.bfloat16) else scales.half()
