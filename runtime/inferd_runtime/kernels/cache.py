"""The KV cache as one allocation, and what is done to it besides attention: writing, moving, copying, reading out.

The functions are the reference of :mod:`inferd_runtime.kernels.triton.cache`, one signature each. None of them asks the host
for a value that is on the device, so that a recorded step may hold them. Indices are int64 on the cache's device and are not
checked there: pages and slots have to be inside the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

import torch
from torch import Tensor

ALIGNMENT = 16
"""Every cache begins at a multiple of that many bytes: the widest load there is."""
FP8 = torch.float8_e4m3fn
FP8_LARGEST = 448.0
DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16, FP8})


class CacheBlock:
    """K and V of all layers in one allocation, ``flat`` uint8: layer 0's K, layer 0's V, layer 1's K, and so on; C caches.

    ``keys`` and ``values``: a view [pages, page_size, heads, width] per layer. ``token_sizes``: the bytes of a token, per
    cache; ``page_bytes``: those of a page over all caches. ``unit``: the widest of 8, 4, 2, 1 bytes that divides them all.

    On the device, int64[C]: ``offsets`` in bytes of each cache in ``flat``, ``token_bytes`` (= ``token_sizes``), and
    ``page_starts``, where each cache's part begins in a page that is read out. All is zero at first: what attention masks
    is multiplied by zero, and has to be finite.
    """

    def __init__(
        self,
        keys: Sequence[tuple[int, int]],
        values: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        pages: int,
        page_size: int,
        device: torch.device | str,
    ) -> None:
        """``keys`` and ``values``: (heads, width) per layer. Raises ValueError for a dtype that no kernel writes."""
        if dtype not in DTYPES:
            raise ValueError(f"a KV cache cannot be {dtype}: " + ", ".join(sorted(str(known) for known in DTYPES)))
        shapes = list(chain.from_iterable(zip(keys, values, strict=True)))
        self.dtype = dtype
        self.pages = pages
        self.page_size = page_size
        self.token_sizes = tuple(heads * width * dtype.itemsize for heads, width in shapes)
        self.page_bytes = sum(self.token_sizes) * page_size
        self.unit = next(unit for unit in (8, 4, 2, 1) if all(size % unit == 0 for size in self.token_sizes))
        sizes = [-(-size * page_size * pages // ALIGNMENT) * ALIGNMENT for size in self.token_sizes]
        offsets = list(accumulate(sizes, initial=0))
        self.flat = torch.zeros(offsets.pop(), dtype=torch.uint8, device=device)
        self.offsets = torch.tensor(offsets, device=device)
        self.token_bytes = torch.tensor(self.token_sizes, device=device)
        self.page_starts = (self.token_bytes.cumsum(0) - self.token_bytes) * page_size
        caches = [self._cache(*shape, offset) for shape, offset in zip(shapes, offsets, strict=True)]
        self.keys, self.values = caches[::2], caches[1::2]

    def parts(self) -> list[Tensor]:
        """Return the bytes of each cache, uint8[pages, page_size * token bytes]; views."""
        caches = chain.from_iterable(zip(self.keys, self.values, strict=True))
        return [cache.view(torch.uint8).view(self.pages, -1) for cache in caches]

    def _cache(self, heads: int, width: int, offset: int) -> Tensor:
        shape = (self.pages, self.page_size, heads, width)
        size = self.pages * self.page_size * heads * width * self.dtype.itemsize
        return self.flat[offset : offset + size].view(self.dtype).view(shape)


def write_kv(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Write key [T, Hkv, D] and value [T, Hkv, Dv] to slots int64[T] (page * page_size + offset) of one layer's caches.

    Slot -1 is padding and written nowhere; other slots must differ. The caches have the dtype of the rows, or float8_e4m3fn:
    then what is beyond +-448, infinity included, becomes +-448, and only NaN stays NaN. Raises ValueError for other dtypes.
    """
    for states, cache in ((key, keys), (value, values)):
        check_written(states, cache)
    if len(slots):
        rows, where, some = _without_padding(slots, slots)
        for states, cache in ((key, keys), (value, values)):
            new = narrowed(states.index_select(0, rows), cache.dtype)
            _put(cache.view(-1, *cache.shape[2:]), where, new, some)


def check_written(states: Tensor, cache: Tensor) -> None:
    """Raise ValueError where rows cannot be written to a cache."""
    if cache.dtype not in (states.dtype, FP8):
        raise ValueError(f"rows of {states.dtype} for a cache of {cache.dtype}")
    if states.shape[1:] != cache.shape[2:] or not cache.is_contiguous():
        raise ValueError(f"rows {list(states.shape)} for a cache {list(cache.shape)}, which has to be contiguous")


def narrowed(states: Tensor, dtype: torch.dtype) -> Tensor:
    """In the cache's dtype, rounded to nearest even. float8_e4m3fn has no infinity: there it is the largest number."""
    return states.float().clamp(-FP8_LARGEST, FP8_LARGEST).to(dtype) if dtype == FP8 else states.to(dtype)


def move_tokens(block: CacheBlock, sources: Tensor, targets: Tensor) -> None:
    """Copy K and V of single tokens between slots over all caches, all read before any is written.

    sources and targets int64[M]; where one of the two is negative, nothing is moved. Targets must differ.
    """
    tokens = [part.view(block.pages * block.page_size, -1) for part in block.parts()]
    _move_rows(tokens, sources, targets)


def copy_pages(block: CacheBlock, sources: Tensor, targets: Tensor) -> None:
    """Copy whole pages, all read before any is written: copies in order go through :func:`resolve_copies` before.

    sources and targets int64[M] as for :func:`move_tokens`.
    """
    _move_rows(block.parts(), sources, targets)


def resolve_copies(copies: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sequential (source, target) copies as equivalent copies that all read before any writes.

    Every target comes once, with the page whose content it has in the end; one that has its own again is left out.
    """
    holds: dict[int, int] = {}
    for source, target in copies:
        holds[target] = holds.get(source, source)
    return [(source, target) for target, source in holds.items() if source != target]


def gather_pages(block: CacheBlock, pages: Tensor) -> Tensor:
    """Return whole pages int64[n] as uint8[n, page_bytes]: of layer 0's K, layer 0's V, layer 1's K, ... behind each other."""
    return torch.cat([part.index_select(0, pages) for part in block.parts()], dim=1)


def scatter_pages(block: CacheBlock, pages: Tensor, data: Tensor) -> None:
    """Write what :func:`gather_pages` gave, uint8[n, page_bytes], to pages int64[n], which must differ."""
    check_pages(block, pages, data)
    sizes = [size * block.page_size for size in block.token_sizes]
    for part, new in zip(block.parts(), torch.split(data, sizes, 1), strict=True):
        part.index_copy_(0, pages, new)


def check_pages(block: CacheBlock, pages: Tensor, data: Tensor) -> None:
    """Raise ValueError for data that are not these pages'."""
    if data.dtype != torch.uint8 or data.shape != (len(pages), block.page_bytes):
        raise ValueError(f"{data.dtype}{list(data.shape)} are not {len(pages)} pages of {block.page_bytes} bytes")


def _move_rows(parts: Iterable[Tensor], sources: Tensor, targets: Tensor) -> None:
    if len(sources):
        rows, where, some = _without_padding(torch.minimum(sources, targets), targets)
        origin = sources.index_select(0, rows).clamp(min=0)
        for part in parts:
            _put(part, where, part.index_select(0, origin), some)


def _without_padding(used: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return which row each row stands for, where it goes, and whether there is any with ``used`` >= 0.

    The others repeat one that is used: it is written twice, but with the same content. Without any, all rows go to 0.
    """
    rows = torch.where(used >= 0, torch.arange(len(used), device=used.device), used.argmax())
    return rows, targets.index_select(0, rows).clamp(min=0), used.amax() >= 0


def _put(cache: Tensor, where: Tensor, new: Tensor, some: Tensor) -> None:
    """Write rows; where there are none, what is at ``where`` is written once more. As bytes: float8 has few operations."""
    cache, new = cache.view(torch.uint8), new.view(torch.uint8)
    cache.index_copy_(0, where, torch.where(some, new, cache.index_select(0, where)))
