"""The reference driver: transformers' modules on any torch device, with our paged attention."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from inferd_runtime.engine.sampling import Logits
from inferd_runtime.models.attention import LAYOUT, lay_out
from inferd_runtime.models.batch import Batch
from inferd_runtime.models.shape import KvShape


class TorchDriver:
    """Holds the model and its KV tensors, one pair per layer: [pages, page_size, kv heads, width].

    ``model`` is a causal language model of transformers whose attention is ``inferd_paged`` (see ``models.loading``).
    """

    def __init__(
        self, model: nn.Module, shape: KvShape, *, vocab_size: int, max_context: int, pages: int, page_size: int = 16
    ) -> None:
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.pages = pages
        self.page_size = page_size
        self._model = model.eval()
        first = next(model.parameters())
        self._device = first.device
        self._keys = [self._cache(heads, width, first.dtype) for heads, width in shape.keys]
        self._values = [self._cache(heads, width, first.dtype) for heads, width in shape.values]

    def _cache(self, heads: int, width: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self.pages, self.page_size, heads, width, dtype=dtype, device=self._device)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Logits:
        """Run one ragged batch. Returns float32[R, V] on the host, R the number of wanted rows (it may be 0)."""
        for copy in batch.copies:
            for cache in (*self._keys, *self._values):
                cache[copy.target].copy_(cache[copy.source])
        rows = torch.from_numpy(batch.logit_rows).to(self._device)
        wanted = rows if len(rows) else rows.new_zeros(1)
        output = self._model(
            input_ids=torch.from_numpy(batch.tokens)[None].to(self._device),
            position_ids=torch.from_numpy(batch.positions)[None].to(self._device),
            use_cache=False,
            logits_to_keep=wanted,
            **{LAYOUT: lay_out(batch, self._keys, self._values, self.page_size)},
        )
        logits: Logits = output.logits[0, : len(rows)].float().cpu().numpy()
        return np.ascontiguousarray(logits)
