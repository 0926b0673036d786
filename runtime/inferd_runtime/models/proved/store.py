"""What is kept of a proof, and when it still counts.

The proof at load (:mod:`~inferd_runtime.models.checks`) needs transformers' modules, which take seconds to import, build and run.
What it finds depends on the checkpoint's files, the packages, our own code and the processor alone. So it is kept under a hash of
all of them, and a start that finds it builds the model from the files: see :mod:`~inferd_runtime.models.proved.decoder`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from inferd.protocol import Unavailable
from inferd_runtime.file_cache import CacheEntry, cache_folder, drop_oldest, private_folder, processor
from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.models.fitting.fit import ModelSize
from inferd_runtime.models.shape import KvShape

CHECKPOINT = ("*.json", "*.safetensors", "*.jinja", "*.model")
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")
ROOMS = ("models", "kernels")
"""Folders of this package whose code a proof depends on."""
MOST_KEPT = 32


@dataclass(frozen=True)
class KeptRule:
    """An :class:`~inferd_runtime.kernels.attention_rule.AttentionRule` without sinks."""

    scaling: float | None
    window: int | None
    softcap: float | None
    chunk: int | None

    def rule(self) -> AttentionRule:
        """Return the rule."""
        return AttentionRule(self.scaling, self.window, self.softcap, self.chunk)


@dataclass(frozen=True)
class KeptDecoder:
    """What a Llama-shaped decoder computes with beside its weights. ``frequencies`` float32[head_dim / 2] and
    ``rope_scaling`` are the rotary embedding's.
    """

    model_type: str
    eps: float
    head_dim: int
    frequencies: tuple[float, ...]
    rope_scaling: float


@dataclass(frozen=True)
class KeptTokenizer:
    """See :class:`~inferd_runtime.models.tokenizer.HubTokenizer`."""

    json: str
    chat_template: str
    special: dict[str, str]


@dataclass(frozen=True)
class KeptProof:
    """A model that was proved, without its weights."""

    size: ModelSize
    kv: KvShape
    rules: tuple[KeptRule, ...]
    decoder: KeptDecoder
    tokenizer: KeptTokenizer
    eos_tokens: tuple[int, ...]
    vocab_size: int
    context: int
    fingerprint: str


class ProofStore:
    """The proofs that this user's cache folder holds; a file each."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "proved"
        self._found: dict[str, KeptProof | None] = {}

    def find(self, source: str, dtype: str) -> KeptProof | None:
        """Return what was proved of the checkpoint in a folder, as it is now, with weights in ``dtype``."""
        key = _key(Path(source), dtype)
        if key not in self._found:
            self._found[key] = _read(self._entry(key))
        return self._found[key]

    def keep(self, source: str, dtype: str, proof: KeptProof) -> None:
        """Write a proof. A folder that cannot be written to keeps none: the next start proves again."""
        key = _key(Path(source), dtype)
        self._found[key] = proof
        try:
            private_folder(self._folder)
            self._entry(key).put(partial(_write, proof))
            drop_oldest(self._folder, "*.json", MOST_KEPT)
        except (OSError, Unavailable):
            return

    def _entry(self, key: str) -> CacheEntry:
        return CacheEntry(self._folder / f"{key}.json")


def _write(proof: KeptProof, path: Path) -> None:
    path.write_bytes(msgspec.json.encode(proof))


def _read(entry: CacheEntry) -> KeptProof | None:
    try:
        proof = msgspec.json.decode(entry.path.read_bytes(), type=KeptProof) if entry.is_whole() else None
        if proof is not None:
            entry.touch()
    except (OSError, msgspec.MsgspecError):
        return None
    return proof


def _key(folder: Path, dtype: str) -> str:
    """Return a hash of all that the proof depends on.

    A checkpoint's files count by name, size and time of change: reading gigabytes would cost what is to be saved.
    """
    digest = hashlib.sha256(repr((str(folder.resolve()), dtype, processor(), _versions())).encode())
    for path in _files(folder, CHECKPOINT):
        about = path.stat()
        digest.update(repr((path.name, about.st_size, about.st_mtime_ns)).encode())
    package = Path(__file__).parents[2]
    for path in (file for room in ROOMS for file in sorted((package / room).rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _files(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    yield from sorted(path for pattern in patterns for path in folder.glob(pattern))


def _versions() -> list[str]:
    return [importlib.metadata.version(name) for name in PACKAGES]
