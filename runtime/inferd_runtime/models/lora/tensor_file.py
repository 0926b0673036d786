"""The tensors of a safetensors file that lies in memory, where they lie.

The package's own ``load`` copies the file with the interpreter's lock held, 0.2 s for 200 MiB, in which no other thread goes on.
The format: https://github.com/huggingface/safetensors#format. What it says of a tensor is believed only where it adds up.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import torch
from torch import Tensor

from inferd.protocol import InvalidRequest, shown

LENGTH_BYTES = 8
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
METADATA = "__metadata__"
Natural = Annotated[int, msgspec.Meta(ge=0)]
Shape = Annotated[list[Annotated[int, msgspec.Meta(ge=1)]], msgspec.Meta(max_length=8)]
"""No weights are empty, or have more dimensions: what torch makes of such shapes is not asked."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: Shape
    data_offsets: tuple[Natural, Natural]


def tensors_of(file: bytearray, what: str, most_header: int) -> dict[str, Tensor]:
    """Return views of the file by name, of any floating-point type.

    ``what`` names it in errors; its header may have ``most_header`` bytes. Raises InvalidRequest for a file that does not add up.
    """
    start = LENGTH_BYTES + int.from_bytes(file[:LENGTH_BYTES], "little")
    if start - LENGTH_BYTES > most_header:
        raise InvalidRequest(
            f"{what}: its header takes more than {most_header} bytes, which this model's modules do not need"
        )
    try:
        text = file[LENGTH_BYTES:start].decode()  # all of it: what is passed over could be no UTF-8
        header = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        entries = {key: msgspec.json.decode(raw, type=_Entry) for key, raw in header.items() if key != METADATA}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{what}: its header cannot be read: {error}") from None
    end = 0
    for key, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        _check(entry, end, f"{what}: {shown(key)}")
        end = entry.data_offsets[1]
    if start + end != len(file):
        raise InvalidRequest(f"{what}: its tensors take {end} bytes, and {len(file) - start} follow its header")
    return {key: _view(file, start, entry) for key, entry in entries.items()}


def _check(entry: _Entry, begin: int, what: str) -> None:
    """Raise InvalidRequest unless a tensor begins behind the one before it, and is as long as its type and shape say."""
    if entry.dtype not in DTYPES:
        raise InvalidRequest(f"{what} is {shown(entry.dtype)}, which is not supported")
    size = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
    if entry.data_offsets != (begin, begin + size):
        raise InvalidRequest(f"{what} takes {size} bytes from {begin} on, but its offsets say {entry.data_offsets}")


def _view(file: bytearray, start: int, entry: _Entry) -> Tensor:
    dtype, count = DTYPES[entry.dtype], math.prod(entry.shape)
    at = start + entry.data_offsets[0]
    if at % dtype.itemsize:  # no file that a library wrote
        return torch.frombuffer(file[at : at + count * dtype.itemsize], dtype=dtype).reshape(entry.shape)
    return torch.frombuffer(file, dtype=dtype, count=count, offset=at).reshape(entry.shape)
