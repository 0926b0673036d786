"""What is kept of a proof, and when it still counts.

The proof at load (:mod:`~inferd_runtime.models.checks`) needs transformers' modules, which take seconds to import, build and run.
What it finds depends on the checkpoint's files, the packages, our own code and the processor alone. So it is kept under a hash of
all of them, and a start that finds it builds the model from the files: see :mod:`~inferd_runtime.models.proved.decoder`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inferd_runtime.file_cache import cache_folder
from inferd_runtime.kept_results import KeptResults, key_of
from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.models.fitting.fit import ModelSize
from inferd_runtime.models.shape import KvShape

CHECKPOINT = ("*.json", "*.safetensors", "*.jinja", "*.model")
ROOMS = ("models", "kernels")
"""Whose code a proof depends on."""


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
    heads: int
    head_dim: int
    rope_type: str
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
    """The proofs that this user's cache folder holds."""

    def __init__(self, folder: Path | None = None) -> None:
        self._kept = KeptResults(folder or cache_folder() / "proved", KeptProof)
        self._found: dict[str, KeptProof | None] = {}

    def find(self, source: str, dtype: str) -> KeptProof | None:
        """Return what was proved of the checkpoint in a folder, as it is now, with weights in ``dtype``."""
        key = _key(Path(source), dtype)
        if key not in self._found:
            self._found[key] = self._kept.find(key)
        return self._found[key]

    def keep(self, source: str, dtype: str, proof: KeptProof) -> None:
        """Keep a proof."""
        key = _key(Path(source), dtype)
        self._found[key] = proof
        self._kept.keep(key, proof)


def _key(folder: Path, dtype: str) -> str:
    """Return a hash of all that the proof depends on."""
    return key_of((str(folder.resolve()), dtype, checkpoint_state(folder)), ROOMS)


def checkpoint_state(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, size in bytes and time of change of each file of a checkpoint.

    Reading gigabytes would cost what is to be saved.
    """
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in _files(folder)]


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for pattern in CHECKPOINT for path in folder.glob(pattern))
