"""Gemma 4 in a GGUF file: layers with a window differ from the others in heads and widths, and the last ones share keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferd.protocol import InvalidRequest

FREQUENCIES = "rope_freqs.weight"
PATTERN = "attention.sliding_window_pattern"
SHARED = "attention.shared_kv_layers"
PER_LAYER = "embedding_length_per_layer_input"
OF_WINDOWS = {
    "attention.key_length_swa": "attention.key_length",
    "attention.value_length_swa": "attention.value_length",
    "rope.dimension_count_swa": "rope.dimension_count",
}
UNROTATED = 1e29
"""What a frequency is divided by at least, if its numbers are not rotated."""


class Gemma4Layers:
    """A file's settings. Raises InvalidRequest, or LookupError or ValueError for settings of no model."""

    def __init__(
        self, said: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], factors: Mapping[str, Sequence[float]]
    ) -> None:
        self._said, self._shapes, self._factors = said, shapes, factors
        self._layers, self._shared = len(said[PATTERN]), int(said.get(SHARED, 0))
        if not 0 <= self._shared < self._layers == said["block_count"]:
            raise InvalidRequest(f"it says that {self._shared} of its {self._layers} layers share keys")
        self._full = [at for at, windowed in enumerate(said[PATTERN]) if not windowed]

    def plain(self) -> dict[str, Any]:
        """Return the settings as other families say them, which are those of the layers with a window."""
        left = {key: value for key, value in self._said.items() if key not in (*OF_WINDOWS, SHARED, PER_LAYER)}
        windowed = [at for at in range(self._layers) if at not in self._full]
        return left | {
            **{key: self._said[of_windows] for of_windows, key in OF_WINDOWS.items()},
            "attention.head_count_kv": self._keys(windowed),
            "feed_forward_length": self._widths()[0],
        }

    def settings(self) -> dict[str, Any]:
        """Return what transformers has besides, except the rotation."""
        width, names = self._said["attention.key_length"], self._shapes.keys()
        if {self._said["attention.value_length"], self._said["rope.dimension_count"]} != {width}:
            raise InvalidRequest(
                "its layers without a window have values, or rotate parts, of other widths than their keys"
            )
        per_layer = self._said.get(PER_LAYER, 0)
        kept = [at for at in self._full if at < self._layers - self._shared]
        return {
            "global_head_dim": width,
            "num_global_key_value_heads": self._keys(self._full),
            "attention_k_eq_v": not any(f"blk.{at}.attn_v.weight" in names for at in kept),
            "num_kv_shared_layers": self._shared,
            "use_double_wide_mlp": self._widths()[-1] != self._widths()[0],
            "hidden_size_per_layer_input": per_layer,
            "vocab_size_per_layer_input": self._shapes["per_layer_token_embd.weight"][0] if per_layer else 0,
        }

    def rotation(self) -> dict[str, Any]:
        """Return how layers without a window are rotated: the first frequencies of a head, the others not at all."""
        factors = self._factors[FREQUENCIES]
        rotated = sum(factor == 1.0 for factor in factors)
        if len(factors) * 2 != self._said["attention.key_length"] or any(one < UNROTATED for one in factors[rotated:]):
            raise InvalidRequest("its rotation has factors that are not those of Gemma 4")
        return {"rope_type": "proportional", "partial_rotary_factor": rotated / len(factors)}

    def unread(self) -> set[str]:
        """Return the names of weights that files have and no layer uses: keys and values of layers that share others'."""
        last = range(self._layers - self._shared, self._layers)
        return {f"blk.{at}.{name}.weight" for at in last for name in ("attn_k", "attn_v", "attn_k_norm")}

    def _keys(self, layers: Sequence[int]) -> int:
        said = self._said["attention.head_count_kv"]
        found = {said} if isinstance(said, int) else {said[at] for at in layers}
        if len(found) != 1:
            raise InvalidRequest("its layers of one kind differ in their heads")
        return int(found.pop())

    def _widths(self) -> list[int]:
        said = self._said["feed_forward_length"]
        widths = [said] * self._layers if isinstance(said, int) else list(said)
        wide = [widths[0]] * (self._layers - self._shared) + [2 * widths[0]] * self._shared
        if widths not in ([widths[0]] * self._layers, wide):
            raise InvalidRequest("its layers differ in their widths")
        return widths
