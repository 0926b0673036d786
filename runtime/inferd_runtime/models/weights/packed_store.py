"""Weights in blocks, kept on disk for the next start: finding and packing them takes seconds, mapping them nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from inferd.protocol import Unavailable
from inferd_runtime.file_cache import CacheEntry, cache_folder, drop_oldest, private_folder
from inferd_runtime.kept_results import key_of
from inferd_runtime.kernels.native.blocks import kernels_version
from inferd_runtime.models.proved.store import checkpoint_state

ROOMS = ("models/weights", "kernels/native")
"""The code that packs and multiplies."""
MOST_KEPT = 8
MOST_BYTES = 16 << 30
"""Of all that is kept."""


class PackedStore:
    """What is kept of one checkpoint, held as ``weights`` says in one dtype. Of a model without files here nothing is."""

    def __init__(self, source: str, dtype: torch.dtype, weights: str, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "weights"
        state = checkpoint_state(Path(source)) if source else []
        parts = (source, state, str(dtype), weights, kernels_version(), torch.get_num_threads())
        self._entry = CacheEntry(self._folder / f"{key_of(parts, ROOMS)}.blocks") if state else None

    def find(self) -> Mapping[str, Tensor] | None:
        """Return the weights by name, mapped into memory; None where nothing is kept, or it is damaged."""
        if self._entry is None or not self._entry.is_whole():
            return None
        try:
            with safe_open(self._entry.path, framework="pt") as file:
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            self._entry.touch()
        except (OSError, SafetensorError):
            return None
        return found

    def keep(self, weights: Mapping[str, Tensor]) -> None:
        """Write weights, none as well. A folder that cannot be written to keeps none: the next start packs again."""
        if self._entry is None or sum(each.nbytes for each in weights.values()) > MOST_BYTES:
            return
        try:
            private_folder(self._folder)
            self._entry.put(partial(_write, weights))
            drop_oldest(self._folder, "*.blocks", MOST_KEPT, MOST_BYTES)
        except (OSError, SafetensorError, Unavailable):
            return


def _write(weights: Mapping[str, Tensor], path: Path) -> None:
    save_file(dict(weights), path)
