"""Results that are costly to find and depend on files, code, packages and processor alone: kept for the next start."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from inferd.protocol import Unavailable
from inferd_runtime.file_cache import CacheEntry, cache_folder, drop_oldest, private_folder, processor

T = TypeVar("T")
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")
CODE = frozenset({".py", ".c", ".h"})
MOST_KEPT = 32


class KeptResults(Generic[T]):
    """Results of one type, in a folder of the user's cache: a file of JSON each, under a hash of what it depends on."""

    def __init__(self, folder: Path, kind: type[T]) -> None:
        self._folder = folder
        self._kind = kind

    @classmethod
    def named(cls, name: str, kind: type[T]) -> KeptResults[T]:
        """Return the results of this name in the cache folder."""
        return cls(cache_folder() / name, kind)

    def find(self, key: str) -> T | None:
        """Return what is kept; None where nothing is, or it is damaged."""
        entry = self._entry(key)
        if not entry.is_whole():
            return None
        try:
            found = msgspec.json.decode(entry.path.read_bytes(), type=self._kind)
            entry.touch()
        except (OSError, msgspec.MsgspecError):
            return None
        return found

    def keep(self, key: str, result: T) -> None:
        """Write a result. A folder that cannot be written to keeps none: the next start finds it again."""
        try:
            private_folder(self._folder)
            self._entry(key).put(partial(_write, msgspec.json.encode(result)))
            drop_oldest(self._folder, "*.json", MOST_KEPT)
        except (OSError, Unavailable):
            return

    def _entry(self, key: str) -> CacheEntry:
        return CacheEntry(self._folder / f"{key}.json")


def _write(data: bytes, path: Path) -> None:
    path.write_bytes(data)


def key_of(parts: Iterable[object], rooms: Iterable[str]) -> str:
    """Return a hash of ``parts`` (by their repr), the packages' versions, the processor, and the code in ``rooms``.

    A room is a folder of this package.
    """
    versions = [importlib.metadata.version(name) for name in PACKAGES]
    digest = hashlib.sha256(repr((list(parts), versions, processor())).encode())
    package = Path(__file__).parent
    for path in (file for room in rooms for file in sorted((package / room).rglob("*.*"))):
        if path.suffix in CODE:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
