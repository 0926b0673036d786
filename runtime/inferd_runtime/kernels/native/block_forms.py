"""How weights stand in blocks for `blocks.c`: whole numbers in few bits, with scales and offsets for groups of inputs.

A weight is scale * number + offset. 16 outputs, a tile, stand side by side. A block holds SPAN inputs of a tile: scales, offsets,
and then for each PART inputs the numbers and what scales and offsets are multiplied with for its groups. Where the inputs of a
block are one group, there are no such factors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

LANES, PART = 16, 32
SCALES = 2 * LANES
"""Bytes of a block's scales, and as many of its offsets."""
WORD = 4
"""Bytes of the words that hold the lowest bits of an output's numbers: in one word those of input i are behind those of i - 1."""
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the 16 numbers of GGUF's IQ4 kinds stand for."""


@dataclass(frozen=True)
class BlockForm:
    """A kind of block: numbers of ``bits`` (8: signed, 16: float16 without scales) for ``span`` inputs, ``group`` of which share
    a scale. ``offsets``: they have offsets of their own. ``middle``: which number is zero. ``book``: what each stands for.
    """

    bits: int
    span: int = PART
    group: int = PART
    offsets: bool = False
    middle: int = 0
    book: tuple[int, ...] = ()

    @property
    def low(self) -> int:
        """How many of a number's bits are looked up together; each further one is added by itself."""
        return 2 if self.bits < 4 else 4

    @property
    def factors(self) -> bool:
        """True if the groups of a block have factors."""
        return self.span > PART

    @property
    def heads(self) -> int:
        """How many numbers an output's block begins with: a scale, an offset."""
        return 0 if self.bits == 16 else 1 + self.offsets

    @property
    def part_bytes(self) -> int:
        """Bytes of the numbers of PART inputs, and of their factors."""
        return PART * LANES * self.bits // 8 + (self.heads * PART // self.group * LANES if self.factors else 0)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, by which a packed weight's form is known."""
        return self.heads * SCALES + self.span // PART * self.part_bytes

    def weight_bytes(self, numbers: int) -> int:
        """Return the bytes of so many weights."""
        return numbers * self.block_bytes // (self.span * LANES)

    def defines(self) -> tuple[str, ...]:
        """Return what `blocks.c` is compiled with."""
        values = {"BITS": self.bits, "SPAN": self.span, "GROUP": self.group}
        values |= {"OFFSETS": int(self.offsets), "LISTED": int(bool(self.book))}
        book = ",".join(map(str, self.book or (at % (1 << self.low) - self.middle for at in range(16))))
        return (*(f"-D{name}={value}" for name, value in values.items()), f"-DBOOK={book}")


FORMS = {
    "blocks4": BlockForm(4, offsets=True),
    "blocks8": BlockForm(8),
    "blocks16": BlockForm(16),
    "q5_0": BlockForm(5, middle=16),
    "q5_1": BlockForm(5, offsets=True),
    "q2_k": BlockForm(2, span=256, group=16, offsets=True),
    "q3_k": BlockForm(3, span=256, group=16, middle=4),
    "q4_k": BlockForm(4, span=256, offsets=True),
    "q5_k": BlockForm(5, span=256, offsets=True),
    "q6_k": BlockForm(6, span=256, group=16, middle=32),
    "iq4_nl": BlockForm(4, book=IQ4),
    "iq4_xs": BlockForm(4, span=256, book=IQ4),
}
"""By name; those but the first three hold what GGUF files of that kind do."""
BY_SIZE = {form.block_bytes: name for name, form in FORMS.items()}


def form_of(packed: Tensor) -> str:
    """Return the form of a packed weight."""
    return BY_SIZE[packed.shape[-1]]


@dataclass(frozen=True)
class BlockNumbers:
    """A weight [out, in] in blocks: ``numbers`` [out, in], ``heads``: scales, then offsets, if blocks have those, each
    [out, in / span], which are held as float16, and ``factors`` of each [out, in / group], from -128 to 127.
    """

    numbers: Tensor
    heads: tuple[Tensor, ...] = ()
    factors: tuple[Tensor, ...] = field(default=())


def pack(name: str, weight: BlockNumbers) -> Tensor:
    """Return a weight in tiles: uint8[out / 16, in / span, bytes of a block]."""
    form = FORMS[name]
    tiles, inputs = weight.numbers.shape[0] // LANES, weight.numbers.shape[1]
    shape = (tiles, inputs // form.span, form.span // PART)
    parts = _packed_numbers(form, _tiled(weight.numbers, PART)).reshape(*shape, -1)
    factors = [_tiled(each.to(torch.int8), PART // form.group).reshape(*shape, -1) for each in weight.factors]
    parts = torch.cat([parts, *(each.view(torch.uint8) for each in factors)], -1)
    heads = [_tiled(each.half(), 1).reshape(tiles, -1, LANES).view(torch.uint8) for each in weight.heads]
    return torch.cat([*heads, parts.flatten(2)], -1).contiguous()


def unpack(packed: Tensor) -> Tensor:
    """Return the weight float32[out, in] of tiles: what the kernels multiply with, number by number."""
    form = FORMS[form_of(packed)]
    tiles, blocks = packed.shape[:2]
    heads = packed[..., : form.heads * SCALES].contiguous().view(torch.float16).float()
    heads = heads.view(tiles, blocks, 1, form.heads, 1, LANES)
    parts = packed[..., form.heads * SCALES :].reshape(tiles, blocks, form.span // PART, form.part_bytes)
    numbers = parts[..., : PART * LANES * form.bits // 8].contiguous()
    if form.factors:
        factors = parts[..., numbers.shape[-1] :].contiguous().view(torch.int8).float()
        heads = heads * factors.view(tiles, blocks, -1, form.heads, PART // form.group, LANES)
    dense = _plain_numbers(form, numbers).view(tiles, blocks, -1, PART // form.group, form.group, LANES)
    if form.heads:
        scales = heads[:, :, :, 0, :, None]
        dense = torch.addcmul(heads[:, :, :, 1, :, None], dense, scales) if form.offsets else dense * scales
    return dense.view(tiles, -1, LANES).transpose(1, 2).reshape(tiles * LANES, -1)


def pack4(numbers: Tensor, scales: Tensor, offsets: Tensor) -> Tensor:
    """Return weights scale * number + offset in tiles. ``numbers`` [out, in] from 0 to 15, the others [out, in / 32]."""
    return pack("blocks4", BlockNumbers(numbers.to(torch.uint8), (scales, offsets)))


def pack8(numbers: Tensor, scales: Tensor) -> Tensor:
    """Return weights scale * number in tiles. ``numbers`` [out, in] from -127 to 127, ``scales`` [out, in / 32]."""
    return pack("blocks8", BlockNumbers(numbers.to(torch.int8), (scales,)))


def pack16(weight: Tensor) -> Tensor:
    """Return weights [out, in], rounded to float16, in tiles."""
    return pack("blocks16", BlockNumbers(weight.half()))


def _tiled(numbers: Tensor, each: int) -> Tensor:
    """Return numbers [tiles, n / each, each, LANES] of [out, n]."""
    return numbers.view(numbers.shape[0] // LANES, LANES, -1, each).permute(0, 2, 3, 1).contiguous()


def _packed_numbers(form: BlockForm, numbers: Tensor) -> Tensor:
    """Return numbers [tiles, parts, PART, LANES] as bytes [tiles, parts, bytes]."""
    if form.bits >= 8:
        return numbers.flatten(2).view(torch.uint8)
    lanes = 1 << torch.arange(8, dtype=torch.uint8)
    found = []
    for bit in range(form.low, form.bits):
        found.append((torch.unflatten(numbers >> bit & 1, -1, (-1, 8)) * lanes).sum(-1, dtype=torch.uint8).flatten(2))
    each = 8 // form.low
    apart = torch.unflatten(numbers & (1 << form.low) - 1, 2, (-1, each))
    octets = sum((apart[..., at, :] << form.low * at for at in range(each)), torch.zeros_like(apart[..., 0, :]))
    return torch.cat([*found, torch.unflatten(octets, 2, (-1, WORD)).transpose(-1, -2).flatten(2)], -1)


def _plain_numbers(form: BlockForm, packed: Tensor) -> Tensor:
    """Return what the numbers of bytes [..., bytes] stand for, float32[..., PART, LANES]."""
    if form.bits == 16:
        return torch.unflatten(packed.view(torch.float16).float(), -1, (PART, LANES))
    if form.bits == 8:
        return torch.unflatten(packed.view(torch.int8).float(), -1, (PART, LANES))
    size = PART * LANES // 8
    planes, words = torch.split(packed, [(form.bits - form.low) * size, form.low * size], -1)
    octets = torch.unflatten(words, -1, (-1, LANES, WORD)).transpose(-1, -2).flatten(-3, -2)
    each = torch.arange(0, 8, form.low, dtype=torch.uint8)[:, None]
    found = (octets[..., None, :] >> each & (1 << form.low) - 1).flatten(-3, -2)
    lanes = torch.arange(8, dtype=torch.uint8)
    for bit, plane in enumerate(torch.unflatten(planes, -1, (-1, size)).unbind(-2), form.low):
        bits = (plane[..., None] >> lanes & 1).flatten(-2)
        found |= torch.unflatten(bits, -1, (PART, LANES)) << bit
    return torch.tensor(form.book).float()[found.int()] if form.book else found.float() - form.middle
