"""The blocks of a GGUF file beside the plain numbers that it was converted to: a product's weights are held as they came."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from inferd_runtime.kernels.native.block_forms import FORMS, LANES, unpack
from inferd_runtime.kernels.native.blocks import block_kernels
from inferd_runtime.models.weights.block_products import PackedParts
from inferd_runtime.models.weights.gguf_kinds import AT_ONCE, KINDS, packed_rows
from inferd_runtime.models.weights.stored import HEAD_OWNER, product_owners

FILE = "gguf.blocks"
SYSTEM_ERROR = re.compile(r"os error (\d+)")
Rows = tuple[str, Tensor]
"""The kind of a weight's blocks, and they: uint8[out, bytes]."""


def rows_of(weight: Tensor, kind: str, rows: Tensor) -> Tensor | None:
    """Return the rows of a file's weight in the order of ``weight`` float32[out, in], which is what a reader made of them; None
    where it has other numbers. Readers change the order of a rotary embedding's outputs.
    """
    first = unpack(packed_rows(kind, rows[:, : KINDS[kind].size]))[: len(rows)]
    wanted = weight[:, : first.shape[1]]
    if not torch.equal(first, wanted):
        places = {row: at for at, row in enumerate(_keys(first))}
        found = [places.get(row, 0) for row in _keys(wanted)]
        rows = rows[found]
    parts = zip(torch.split(weight, AT_ONCE), torch.split(rows, AT_ONCE), strict=True)
    same = all(torch.equal(unpack(packed_rows(kind, part))[: len(part)], plain) for plain, part in parts)
    return rows if same else None


def _keys(rows: Tensor) -> Iterator[bytes]:
    return (row.tobytes() for row in (rows + 0.0).numpy())  # without zeros below zero


def keep_rows(folder: Path, found: Mapping[str, Rows]) -> None:
    """Write the rows of modules' weights, by the modules' names. Raises OSError."""
    kinds = {name: kind for name, (kind, _) in found.items()}
    try:
        save_file({name: rows.contiguous() for name, (_, rows) in found.items()}, folder / FILE, metadata=kinds)
    except SafetensorError as error:  # which says what the system said in words
        said = SYSTEM_ERROR.search(str(error))
        raise OSError(int(said[1]) if said else errno.EIO, str(error)) from error


def file_blocks(source: str, layers: int) -> dict[str, PackedParts]:
    """Return the products' weights that were kept in blocks for the model in a folder; none of any other, or without kernels."""
    path, kernels = Path(source) / FILE, block_kernels()
    if not source or kernels is None or not path.is_file():
        return {}
    found = {}
    with safe_open(path, framework="pt") as file:
        kinds: dict[str, str] = file.metadata() or {}
        for name, owners in product_owners(layers):
            if all(owner in kinds and kernels.can(KINDS[kinds[owner]].form) for owner in owners):
                found[name] = _packed([(kinds[owner], file.get_tensor(owner)) for owner in owners])
    return {name: parts for name, parts in found.items() if parts is not None}


def _packed(owners: list[Rows]) -> PackedParts | None:
    """Return weights one below the other, those of a kind as one; None for those that tiles would not hold so."""
    groups = [(kind, torch.cat([rows for _, rows in each])) for kind, each in groupby(owners, lambda one: one[0])]
    if any(len(rows) % LANES for _, rows in groups[:-1]):
        return None
    return tuple(packed_rows(kind, rows) for kind, rows in groups)


def bytes_saved(source: str, tied: bool) -> int:
    """Return how many bytes fewer than in float32 the weights of the model in a folder take that are held in a file's blocks.

    ``tied``: the head's are the embedding's, too, which stays as it is.
    """
    path = Path(source) / FILE
    if block_kernels() is None or not path.is_file():
        return 0
    saved = 0
    with safe_open(path, framework="pt") as file:
        for name, kind in (file.metadata() or {}).items():
            outputs, size = file.get_slice(name).get_shape()
            form = FORMS[KINDS[kind].form]
            inputs, filled = size // KINDS[kind].size * form.span, -(-outputs // LANES) * LANES
            dense = 0 if tied and name == HEAD_OWNER else 4 * outputs * inputs
            saved += dense - form.weight_bytes(filled * inputs)
    return saved
