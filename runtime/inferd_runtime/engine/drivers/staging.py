"""The inputs of a step in one block of memory, which is filled on the host and copied to the device at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inferd_runtime.engine.drivers.accelerator import Accelerator
from inferd_runtime.engine.drivers.buckets import StepBucket

ALIGNED = 16
SIZES = {"int64": 8, "int32": 4, "float64": 8}
TYPES = {"int64": torch.int64, "int32": torch.int32, "float64": torch.float64, "float32": torch.float32}
FIRST_ENTRIES = 1 << 16
"""Bytes of entries that there is room for at first."""


class StagedField(NamedTuple):
    """One array of the block: so many ``elements`` in ``shape``, from byte ``start`` to ``end``, which is the next one's start.
    ``filler`` is what it holds where nothing is said.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    start: int
    end: int
    filler: int


@lru_cache(maxsize=256)
def fields(shape: StepBucket) -> tuple[StagedField, ...]:
    """Return the arrays of a step of this shape; page numbers and masks, whose sizes vary, follow behind."""
    rows, batch, logits, nodes = (shape.rows,), (shape.batch,), (shape.logits,), (shape.batch, shape.nodes)
    tiles, prompts = (shape.tiles + shape.tile_room,), (shape.prompt_tiles + shape.prompt_room,)
    found, start = [], 0
    for name, dtype, sizes, filler in (
        ("tokens", "int64", rows, 0),
        ("carried", "int64", rows, -1),
        ("positions", "int64", rows, 0),
        ("slots", "int64", rows, -1),
        ("seen", "int64", rows, 0),
        ("logit_rows", "int64", logits, 0),
        ("temperature", "float64", logits, 0),
        ("top_p", "float64", logits, 1),
        ("min_p", "float64", logits, 0),
        ("top_k", "int64", logits, 0),
        ("keys", "int64", logits, 0),
        ("sampled_positions", "int64", logits, 0),
        ("mask_rows", "int32", logits, -1),
        ("first", "int32", batch, 0),
        ("counts", "int32", batch, 0),
        ("lengths", "int32", batch, 0),
        ("tails", "int32", batch, 0),
        ("page_first", "int32", batch, 0),
        ("tile_sequences", "int32", tiles, -1),
        ("tile_starts", "int32", tiles, 0),
        ("tile_splits", "int32", tiles, 0),
        ("tile_live", "int32", (1,), 0),
        ("prompt_sequences", "int32", prompts, -1),
        ("prompt_starts", "int32", prompts, 0),
        ("prompt_splits", "int32", prompts, 0),
        ("prompt_live", "int32", (1,), 0),
        ("split_counts", "int32", rows, 1),
        ("split_first", "int32", rows, 0),
        ("split_rows", "int32", (shape.split_rows,), -1),
        ("split_live", "int32", (1,), 0),
        ("draft_first", "int32", batch, 0),
        ("draft_lengths", "int32", batch, -1),
        ("draft_tokens", "int32", nodes, -1),
        ("draft_parents", "int32", nodes, -1),
    ):
        count = math.prod(sizes)
        end = start + -(-count * SIZES[dtype] // ALIGNED) * ALIGNED
        found.append(StagedField(name, dtype, sizes, count, start, end, filler))
        start = end
    return tuple(found)


@lru_cache(maxsize=256)
def _fields_by_name(shape: StepBucket) -> dict[str, StagedField]:
    return {field.name: field for field in fields(shape)}


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step's arrays on the device, views of one ``block``: one for each of its :func:`fields`, by name; ``pages`` int32[F], all
    sequences' page numbers behind each other, and ``masks`` int32[M, W].
    """

    shape: StepBucket
    block: Tensor
    masks: Tensor

    def __getattr__(self, name: str) -> Tensor:
        field = _fields_by_name(self.shape)[name]
        flat = self.block[field.start : field.end].view(TYPES[field.dtype])
        return flat[: field.elements].view(field.shape)

    @property
    def pages(self) -> Tensor:
        """The numbers of all pages."""
        behind = self.block[fields(self.shape)[-1].end :]
        return behind[: len(behind) // 4 * 4].view(torch.int32)


class Staging:
    """The block on the device, and two of its kind on the host: one is filled while the other may still be copied.

    Steps of all shapes use the same memory. ``page_entries``: page numbers in a step, at most; ``masks``: rows of masks.
    """

    def __init__(
        self, accelerator: Accelerator, *, largest: Sequence[StepBucket], page_entries: int, masks: int, mask_words: int
    ) -> None:
        self.mask_words = mask_words
        self._accelerator = accelerator
        self._fixed = max(fields(shape)[-1].end for shape in largest)
        size = self._fixed + page_entries * 4
        self._device = torch.zeros(size, dtype=torch.uint8, device=accelerator.device)
        self._masks = torch.zeros(masks, mask_words, dtype=torch.int32, device=accelerator.device)
        self._hosts = [accelerator.staging(size) for _ in range(2)]
        self._mask_hosts = [accelerator.staging(masks * mask_words * 4) for _ in range(2)]
        self._copied: list[Callable[[], None]] = [_nothing, _nothing]
        self._turn = 0

    def inputs(self, shape: StepBucket) -> StepInputs:
        """Return the device's arrays for steps of this shape. They are views of one block, the same at every call."""
        return StepInputs(shape, self._device, self._masks)

    def upload(
        self,
        shape: StepBucket,
        values: dict[str, npt.NDArray[Any]],
        pages: npt.NDArray[np.int32],
        masks: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.uint8]:
        """Queue the copy of a step's values, each in the front of its array, fillers behind.

        Returns the block, for :meth:`put` of another rank; it stays as it is until the next call but one.
        Raises ValueError for a step that is larger than what was made room for.
        """
        host = self._next_host()
        end = self._fill(host.numpy(), shape, values, pages)
        self._device[:end].copy_(host[:end], non_blocking=True)
        if len(masks):
            self._upload_masks(masks)
        self._copied[self._turn] = self._accelerator.mark()
        return host[:end].numpy()

    def put(self, block: bytes) -> None:
        """Queue the copy of a block that another rank has filled."""
        host = self._next_host()[: len(block)]
        host.numpy()[:] = np.frombuffer(block, np.uint8)
        self._device[: len(block)].copy_(host, non_blocking=True)
        self._copied[self._turn] = self._accelerator.mark()

    def _next_host(self) -> Tensor:
        """Return the block on the host that is filled next, once it has been copied."""
        self._turn = 1 - self._turn
        self._copied[self._turn]()
        return self._hosts[self._turn]

    def _fill(
        self,
        host: npt.NDArray[np.uint8],
        shape: StepBucket,
        values: dict[str, npt.NDArray[Any]],
        pages: npt.NDArray[np.int32],
    ) -> int:
        """Write a step into a host block. Returns how many bytes of it are in use."""
        for field in fields(shape):
            array = host[field.start : field.end].view(field.dtype)[: field.elements]
            _put(array, values.get(field.name), field)
        at = fields(shape)[-1].end
        if at + pages.nbytes > len(host):
            raise ValueError(f"a step of {len(pages)} page numbers is larger than what was made room for")
        host[at : at + pages.nbytes].view(np.int32)[:] = pages
        return at + pages.nbytes

    def _upload_masks(self, masks: npt.NDArray[np.int32]) -> None:
        host = self._mask_hosts[self._turn][: masks.nbytes].view(torch.int32).view(masks.shape)
        host.numpy()[:] = masks
        self._masks[: len(masks)].copy_(host, non_blocking=True)


class EntryStaging:
    """Blocks for penalties, biases and places in the cache, whose number differs: two on the host, used in turn, which grow.

    A copy from memory that the device does not know would wait for everything that is queued.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._hosts = [accelerator.staging(FIRST_ENTRIES) for _ in range(2)]
        self._copied: list[Callable[[], None]] = [_nothing, _nothing]
        self._turn = 0

    def upload(self, columns: Sequence[npt.NDArray[Any]]) -> list[Tensor]:
        """Queue the copy of arrays of the dtypes in TYPES, and return them on the device."""
        self._turn = 1 - self._turn
        self._copied[self._turn]()
        # Aligned, as kernels are compiled for aligned columns.
        starts = [0, *accumulate(-(-column.nbytes // ALIGNED) * ALIGNED for column in columns)]
        places = [slice(start, start + column.nbytes) for start, column in zip(starts, columns, strict=False)]
        if starts[-1] > len(self._hosts[self._turn]):
            self._hosts[self._turn] = self._accelerator.staging(1 << starts[-1].bit_length())
        host = self._hosts[self._turn][: starts[-1]]
        for column, place in zip(columns, places, strict=True):
            host.numpy()[place].view(column.dtype)[:] = column
        block = torch.empty(starts[-1], dtype=torch.uint8, device=self._accelerator.device)
        block.copy_(host, non_blocking=True)
        self._copied[self._turn] = self._accelerator.mark()
        return [block[place].view(TYPES[str(column.dtype)]) for column, place in zip(columns, places, strict=True)]


def _put(array: npt.NDArray[Any], value: npt.NDArray[Any] | None, field: StagedField) -> None:
    """Write the value into the front of a flat array, and the filler into the rest."""
    if value is None or value.ndim > 1:
        array.fill(field.filler)
    if value is None:
        return
    if value.ndim > 1:
        array.reshape(field.shape)[: value.shape[0], : value.shape[1]] = value
        return
    array[: len(value)] = value
    if len(value) < field.elements:
        array[len(value) :] = field.filler


def _nothing() -> None:
    """Do nothing: nothing has been copied yet."""
