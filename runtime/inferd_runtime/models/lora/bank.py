"""The LoRA adapters that a device holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from inferd_runtime.models.batch import Span
from inferd_runtime.models.lora.files import AdapterFiles, AdapterSize
from inferd_runtime.models.lora.fused import AdaptableFused
from inferd_runtime.models.lora.rows import Adaptable, AdaptablePlain, AdapterRows
from inferd_runtime.models.lora.tensors import Lora, LoraPair, read_lora
from inferd_runtime.models.passes.fused import FusedPass
from inferd_runtime.models.passes.plain import ModelPass
from inferd_runtime.models.shape import KvShape


class LoraBank:
    """Adapters by key, in the model's dtype, applied on the way through the model that ``run`` is."""

    def __init__(self, run: ModelPass, model: nn.Module, kv: KvShape) -> None:
        self._adaptable: Adaptable = (
            AdaptableFused(run, model) if isinstance(run, FusedPass) else AdaptablePlain(model, kv)
        )
        self._like: Tensor = next(model.parameters())
        self._loaded: dict[str, Lora] = {}

    def reader(self) -> Callable[[AdapterFiles], Lora]:
        """Return what reads an adapter into this machine's memory, in any thread. It raises InvalidRequest that names what does
        not fit.
        """
        modules, dtype = self._adaptable.modules, self._like.dtype  # the first look at the modules runs the model
        return lambda files: read_lora(files, modules, dtype)

    @torch.inference_mode()
    def load(self, key: str, lora: Lora) -> AdapterSize:
        """Keep an adapter on the device."""
        device = self._like.device
        self._loaded[key] = {name: LoraPair(pair.down.to(device), pair.up.to(device)) for name, pair in lora.items()}
        return AdapterSize(max(len(pair.down) for pair in lora.values()), sum(pair.bytes for pair in lora.values()))

    def unload(self, key: str) -> None:
        """Forget an adapter."""
        del self._loaded[key]

    def select(self, spans: Sequence[Span]) -> ModelPass | None:
        """Return the pass for a batch in which some sequences have an adapter; None when none has."""
        if not self._loaded:
            return None
        rows: dict[str, list[int]] = {}
        for span in spans:
            if span.adapter:
                rows.setdefault(span.adapter, []).extend(range(span.first, span.first + span.count))
        if not rows:
            return None
        total = sum(span.count for span in spans)
        return self._adaptable.with_adapters([self._part(key, where, total) for key, where in rows.items()])

    def _part(self, key: str, rows: list[int], total: int) -> AdapterRows:
        everything = len(rows) == total
        return AdapterRows(self._loaded[key], None if everything else torch.tensor(rows, device=self._like.device))
