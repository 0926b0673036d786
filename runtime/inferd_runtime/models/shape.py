"""What the probe learns of a model: how much KV it keeps per token, layer by layer, and how every layer attends."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from inferd_runtime.kernels.attention_rule import AttentionRule


@dataclass(frozen=True, slots=True)
class KvShape:
    """(heads, width) of keys and of values for every layer, as the probe saw them."""

    keys: tuple[tuple[int, int], ...]
    values: tuple[tuple[int, int], ...]

    def bytes_per_token(self, item_size: int) -> int:
        """Return the bytes that one token's K and V take in all layers."""
        return sum(heads * width for heads, width in (*self.keys, *self.values)) * item_size

    def digest(self) -> str:
        """Return a short name of the shape, for telling whose pages fit whose."""
        return hashlib.sha256(repr((self.keys, self.values)).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Probed:
    """What the probe learned: the KV shape, how each layer attends, and how many positions can be served."""

    kv: KvShape
    rules: tuple[AttentionRule, ...]
    context: int
