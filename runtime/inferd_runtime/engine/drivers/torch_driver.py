"""The reference driver: PyTorch on any device, with our paged attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from inferd_runtime.engine.sampling import Logits
from inferd_runtime.models.attention import lay_out
from inferd_runtime.models.batch import Batch, PageData
from inferd_runtime.models.passes import ModelPass
from inferd_runtime.models.shape import KvShape


class TorchDriver:
    """Holds the model and its KV tensors, one pair per layer: [pages, page_size, kv heads, width].

    ``run`` is the way through the model: transformers' modules with our attention, or the fused twin of them.
    """

    def __init__(
        self,
        run: ModelPass,
        like: Tensor,
        shape: KvShape,
        *,
        vocab_size: int,
        max_context: int,
        pages: int,
        page_size: int = 16,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.pages = pages
        self.page_size = page_size
        self._run = run
        self._device = like.device
        self._keys = [self._cache(heads, width, like.dtype) for heads, width in shape.keys]
        self._values = [self._cache(heads, width, like.dtype) for heads, width in shape.values]
        self.page_bytes = shape.bytes_per_token(like.element_size()) * page_size
        self.kv_layout = f"{str(like.dtype).removeprefix('torch.')}/{page_size}/{shape.digest()}"

    @torch.inference_mode()
    def read_pages(self, pages: Sequence[int]) -> PageData:
        """The pages of layer 0's K, layer 0's V, layer 1's K, ... behind each other: uint8[n, page_bytes]."""
        where = torch.as_tensor(list(pages), dtype=torch.int64, device=self._device)
        parts = [cache.index_select(0, where).view(torch.uint8).reshape(len(pages), -1) for cache in self._caches()]
        host: PageData = torch.cat(parts, dim=1).cpu().numpy()
        return host

    @torch.inference_mode()
    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """Put back what :meth:`read_pages` gave."""
        where = torch.as_tensor(list(pages), dtype=torch.int64, device=self._device)
        first = 0
        for cache in self._caches():
            size = cache[0].numel() * cache.element_size()
            part = torch.from_numpy(np.ascontiguousarray(data[:, first : first + size])).to(self._device)
            cache.index_copy_(0, where, part.view(cache.dtype).view(len(pages), *cache.shape[1:]))
            first += size

    def _caches(self) -> Iterator[Tensor]:
        for pair in zip(self._keys, self._values, strict=True):
            yield from pair

    def _cache(self, heads: int, width: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self.pages, self.page_size, heads, width, dtype=dtype, device=self._device)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Logits:
        """Run one ragged batch. Returns float32[R, V] on the host, R the number of wanted rows (it may be 0)."""
        for copy in batch.copies:
            for cache in self._caches():
                cache[copy.target].copy_(cache[copy.source])
        rows = torch.from_numpy(batch.logit_rows).to(self._device)
        logits = self._run(
            torch.from_numpy(batch.tokens).to(self._device),
            torch.from_numpy(batch.positions).to(self._device),
            lay_out(batch, self._keys, self._values, self.page_size),
            rows if len(rows) else rows.new_zeros(1),
        )
        host: Logits = logits[: len(rows)].float().cpu().numpy()
        return np.ascontiguousarray(host)
