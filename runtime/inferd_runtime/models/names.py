"""What a model's name stands for, as far as that can be said before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from inferd.protocol import NotFound
from inferd_runtime.models.store.catalog import KNOWN
from inferd_runtime.models.store.store import ModelStore

EMBEDDED = {"tiny": "tiny/target", "tiny-draft": "tiny/draft"}
"""The embedded models, with their folders in this package. No other model may have their names."""
GGUF = ".gguf"
MAGIC = b"GGUF"
"""What such a file begins with, whatever it is called."""


def check_names(names: Iterable[str], store: ModelStore | None = None) -> None:
    """Raise NotFound for a path where nothing is, and for a known model that was not pulled. Hub ids are not looked up."""
    store = store or ModelStore()
    for name in names:
        path = path_of(name)
        if name in EMBEDDED or os.path.exists(path) or store.find(name) is not None:
            continue
        if name in KNOWN:
            raise NotFound(f"model {name!r} is not here yet: `inferd pull {name}` brings it")
        if path.is_absolute() or name.startswith(".") or path.suffix.lower() == GGUF:
            raise NotFound(f"model {name!r} cannot be loaded: nothing is at {path.absolute()}")


def path_of(name: str) -> Path:
    """Return the path that a model's name may be."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # "~somebody" who is not known here
        return Path(name)


def is_gguf(path: Path) -> bool:
    """Return True for a GGUF file, and for what is called like one but is not there."""
    if path.suffix.lower() == GGUF:
        return not os.path.isdir(path)
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # no such file, or no path at all
        return False
