"""Weights in blocks, kept on disk for the next start: finding and packing them takes seconds, mapping them nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from inferd.protocol import Unavailable
from inferd_runtime.file_cache import CacheEntry, cache_folder, drop_oldest, private_folder
from inferd_runtime.kept_results import key_of
from inferd_runtime.kernels.native.block_forms import form_of
from inferd_runtime.kernels.native.blocks import block_kernels, kernels_version
from inferd_runtime.models.proved.store import checkpoint_state
from inferd_runtime.models.weights.block_products import PackedParts

ROOMS = ("models/weights", "kernels/native")
"""The code that packs and multiplies."""
PART_OF = "/"
"""Between a weight's name and the number of one of its parts, of which there are fewer than ten."""
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

    def find(self) -> Mapping[str, PackedParts] | None:
        """Return the weights by name, mapped into memory; None where nothing is kept, or it is damaged, or
        a form of theirs cannot be multiplied any more.
        """
        if self._entry is None or not self._entry.is_whole():
            return None
        try:
            with safe_open(self._entry.path, framework="pt") as file:
                found: dict[str, PackedParts] = {}
                for key in sorted(file.keys()):
                    name = key.partition(PART_OF)[0]
                    found[name] = (*found.get(name, ()), file.get_tensor(key))
            self._entry.touch()
        except (OSError, SafetensorError):
            return None
        kernels = block_kernels()
        forms = {form_of(part) for parts in found.values() for part in parts}
        return found if not forms or (kernels is not None and all(map(kernels.can, forms))) else None

    def keep(self, weights: Mapping[str, PackedParts]) -> None:
        """Write weights, none as well. A folder that cannot be written to keeps none: the next start packs again."""
        if self._entry is None or sum(part.nbytes for parts in weights.values() for part in parts) > MOST_BYTES:
            return
        try:
            private_folder(self._folder)
            self._entry.put(partial(_write, weights))
            drop_oldest(self._folder, "*.blocks", MOST_KEPT, MOST_BYTES)
        except (OSError, SafetensorError, Unavailable):
            return


def _write(weights: Mapping[str, PackedParts], path: Path) -> None:
    named = {f"{name}{PART_OF}{at}": part for name, parts in weights.items() for at, part in enumerate(parts)}
    save_file(named, path)
