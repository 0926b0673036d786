"""What a model's name stands for, as far as that can be said before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from inferd.protocol import NotFound
from inferd_runtime.models.store.catalog import KNOWN
from inferd_runtime.models.store.store import ModelStore

EMBEDDED = {"tiny": "tiny/target", "tiny-draft": "tiny/draft"}
"""The embedded models, with their folders in this package."""


def check_names(names: Iterable[str], store: ModelStore | None = None) -> None:
    """Raise NotFound for a path where nothing is, and for a known model that was not pulled. Hub ids are not looked up."""
    store = store or ModelStore()
    for name in names:
        path = Path(name).expanduser()
        if name in EMBEDDED or path.exists() or store.find(name) is not None:
            continue
        if name in KNOWN:
            raise NotFound(f"model {name!r} is not here yet: `inferd pull {name}` brings it")
        if path.is_absolute() or name.startswith(".") or path.suffix == ".gguf":
            raise NotFound(f"model {name!r} cannot be loaded: nothing is at {path.absolute()}")
