"""The reference driver: PyTorch on any device, with our paged attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from inferd.protocol import InvalidRequest
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import Batch, FloatRows, Outputs, PageData
from inferd_runtime.models.host_memory import populate_later, zeros
from inferd_runtime.models.lora.bank import LoraBank
from inferd_runtime.models.lora.files import AdapterFiles, AdapterSize
from inferd_runtime.models.lora.tensors import Lora
from inferd_runtime.models.passes.attention import BOUND, GroupedLayout, Scratch, lay_out
from inferd_runtime.models.passes.fused import FusedPass
from inferd_runtime.models.passes.host_layers import host_layers
from inferd_runtime.models.passes.host_layout import HostLayout, host_kernels
from inferd_runtime.models.passes.plain import ModelPass
from inferd_runtime.models.shape import KvShape


class TorchDriver:
    """Holds the model and its KV tensors, one pair per layer: [pages, page_size, kv heads, width].

    ``run`` is the plain or the fused pass through the model. ``adapters``
    (None: there are never any) belong to the same one. ``key_multiple``: attention reads a multiple of that many keys, the rest
    masked; together with steps of a fixed width, a row's logits then do not depend on what else is computed. ``caches``: the
    K and V of another driver, to work on. ``kv_dtype`` None is the model's own; float8_e4m3fn halves the cache and rounds.
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
        adapters: LoraBank | None = None,
        key_multiple: int = 0,
        caches: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        if key_multiple % page_size:
            raise ValueError(f"key_multiple {key_multiple} is no multiple of the page size {page_size}")
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.pages = pages
        self.page_size = page_size
        self._adapters = adapters
        self._key_multiple = key_multiple
        self._device = like.device
        self._scratch = Scratch()
        dtype = kv_dtype or like.dtype
        self._keys, self._values = caches or (
            [self._cache(heads, width, dtype) for heads, width in shape.keys],
            [self._cache(heads, width, dtype) for heads, width in shape.values],
        )
        if caches is None and self._device.type == "cpu":
            populate_later(list(self._caches()))
        self.run = run
        self._at_once: ModelPass = run
        self._host_kernels = None
        if isinstance(run, FusedPass) and not key_multiple:
            self._host_kernels = host_kernels([layer.heads for layer in run.layers], self._keys)
            layers = self._host_kernels and host_layers(self._host_kernels, run.layers, self._keys, self._values)
            self._at_once = run.with_layers_together(layers.run) if layers else run
        self.token_bytes: Sequence[int] = [cache[0, 0].numel() * cache.element_size() for cache in self._caches()]
        self.page_bytes = sum(self.token_bytes) * page_size
        self.kv_layout = f"{str(self._keys[0].dtype).removeprefix('torch.')}/{page_size}/{shape.digest()}"

    def compute_by(self, run: ModelPass) -> None:
        """Compute by this pass from now on."""
        self.run = self._at_once = run

    def adapter_reader(self) -> Callable[[AdapterFiles], Lora]:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`."""
        if self._adapters is None:
            raise InvalidRequest("this model is served without adapters")
        return self._adapters.reader()

    def load_adapter(self, key: str, read: Lora) -> AdapterSize:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`."""
        assert self._adapters is not None, "nothing was read"
        return self._adapters.load(key, read)

    def unload_adapter(self, key: str) -> None:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`."""
        if self._adapters is not None:
            self._adapters.unload(key)

    @torch.inference_mode()
    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        for copy in copies:
            for cache in self._caches():
                cache[copy.target].copy_(cache[copy.source])

    @torch.inference_mode()
    def move_tokens(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        origin = torch.as_tensor(list(sources), dtype=torch.int64, device=self._device)
        where = torch.as_tensor(list(targets), dtype=torch.int64, device=self._device)
        for cache in self._caches():
            rows = cache.view(torch.uint8).view(self.pages * self.page_size, -1)
            rows.index_copy_(0, where, rows.index_select(0, origin))

    @torch.inference_mode()
    def read_pages(self, pages: Sequence[int]) -> PageData:
        """Return the pages of layer 0's K, layer 0's V, layer 1's K, ... behind each other: uint8[n, page_bytes]."""
        where = torch.as_tensor(list(pages), dtype=torch.int64, device=self._device)
        parts = [cache.view(torch.uint8).index_select(0, where).reshape(len(pages), -1) for cache in self._caches()]
        host: PageData = torch.cat(parts, dim=1).cpu().numpy()
        return host

    @torch.inference_mode()
    def bearable(self, data: PageData) -> bool:
        """True if every number in pages from outside is finite and within what adapters may write, too."""
        first = 0
        for cache in self._caches():
            size = cache[0].numel() * cache.element_size()
            part = torch.from_numpy(np.ascontiguousarray(data[:, first : first + size])).view(cache.dtype)
            # Not a number compares as false.
            if not bool((part.float().abs() <= BOUND).all()):
                return False
            first += size
        return True

    @torch.inference_mode()
    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """Put back what :meth:`read_pages` gave."""
        where = torch.as_tensor(list(pages), dtype=torch.int64, device=self._device)
        first = 0
        for cache in self._caches():
            size = cache[0].numel() * cache.element_size()
            part = torch.from_numpy(np.ascontiguousarray(data[:, first : first + size])).to(self._device)
            cache.view(torch.uint8).view(self.pages, -1).index_copy_(0, where, part)
            first += size

    def _caches(self) -> Iterator[Tensor]:
        for pair in zip(self._keys, self._values, strict=True):
            yield from pair

    def _cache(self, heads: int, width: int, dtype: torch.dtype) -> Tensor:
        shape = (self.pages, self.page_size, heads, width)
        return (
            zeros(shape, dtype) if self._device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=self._device)
        )

    def forward(self, batch: Batch) -> Outputs:
        """Run one ragged batch. Logits are float32[R, V] on the host, R the number of wanted rows (it may be 0)."""
        logits, hidden = self.compute(batch)
        return Outputs(_to_host(logits), _to_host(logits.new_empty(0, 0) if hidden is None else hidden))

    @torch.inference_mode()
    def compute(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Run one ragged batch: logits [R, V] and, where any are wanted, hidden states [H, E], both on the device."""
        rows = torch.from_numpy(batch.logit_rows).to(self._device)
        layout = self._layout(batch)
        run = self._adapters.select(batch.spans) if self._adapters is not None else None
        layout.bounded = run is not None
        logits = (run or self._at_once)(
            torch.from_numpy(batch.tokens).to(self._device),
            torch.from_numpy(batch.positions).to(self._device),
            layout,
            rows if len(rows) else rows.new_zeros(1),
        )
        return logits[: len(rows)], layout.hidden

    def _layout(self, batch: Batch) -> HostLayout | GroupedLayout:
        if self._host_kernels is not None:
            return HostLayout.of(self._host_kernels, batch, self._keys, self._values, self.page_size)
        return lay_out(batch, self._keys, self._values, self.page_size, self._scratch, self._key_multiple)


def _to_host(rows: Tensor) -> FloatRows:
    return np.ascontiguousarray(rows.float().cpu().numpy())
