"""The configuration of the model in a GGUF file, in transformers' words. What a file says and this does not read is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferd.protocol import InvalidRequest

SAME = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
NORM = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
SCALES = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
READ_APART = {
    "vocab_size", "attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base",
    "rope.freq_base_swa", "attention.sliding_window", "attention.causal",
}  # fmt: skip
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What Llama 3's scaling has besides its factor; a file has its result alone."""


@dataclass(frozen=True)
class Family:
    """What files of an architecture hold. ``keys``: settings by transformers' names for them; ``always``: settings that no file
    has. ``paired``: queries and keys are in the order of rotated pairs; ``offset``: what was added to the weights of norms.
    ``window``: files have one; ``local_theta``: the rotation's base in layers with a window; ``wide``: by their number of
    layers, models whose scores are scaled by the width of all heads together.
    """

    model_type: str
    keys: Mapping[str, str] = field(default_factory=lambda: NORM)
    always: Mapping[str, Any] = field(default_factory=dict)
    paired: bool = False
    offset: float = 0.0
    window: bool = False
    local_theta: float = 0.0
    wide: int = 0


FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", paired=True),
    "granite": Family("granite", {**NORM, **SCALES}, paired=True),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "qwen3moe": Family("qwen3_moe", {**NORM, **EXPERTS}, {"norm_topk_prob": True}),
    "olmo2": Family("olmo2"),
    "phi3": Family("phi3", window=True),
    "gemma": Family("gemma", offset=1.0),
    "gemma2": Family("gemma2", {**NORM, **CAPS}, offset=1.0, window=True, wide=46),
    "gemma3": Family("gemma3_text", {**NORM, **CAPS}, offset=1.0, window=True, local_theta=10_000.0, wide=62),
    "starcoder2": Family("starcoder2", {"attention.layer_norm_epsilon": "norm_epsilon"}),
}
"""By the architecture that a file names."""


class FileConfig:
    """A file's metadata and the shapes of its tensors. ``factors``: its tensors of one dimension that are no weights."""

    def __init__(
        self, metadata: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], factors: Mapping[str, Sequence[float]]
    ) -> None:
        self.architecture = str(metadata.get("general.architecture"))
        if self.architecture not in FAMILIES:
            raise InvalidRequest(
                f"its architecture {self.architecture!r} is not read from GGUF files: {', '.join(FAMILIES)} are"
            )
        self.family = FAMILIES[self.architecture]
        start = f"{self.architecture}."
        self._said = {key.removeprefix(start): value for key, value in metadata.items() if key.startswith(start)}
        self._shapes, self._factors = shapes, factors

    def read(self) -> dict[str, Any]:
        """Return the configuration, without tokens. Raises InvalidRequest."""
        self._check_known()
        found = {name: self._said[key] for key, name in {**SIZES, **self.family.keys}.items() if key in self._said}
        missing = {*SIZES.values(), *NORM.values()} - {*found, "num_key_value_heads", *NORM.values()}
        if missing or any(not isinstance(value, int | float) for value in found.values()):
            raise InvalidRequest(
                f"it lacks {sorted(missing)[0]}" if missing else "its layers differ in their heads or widths"
            )
        found |= self._head(found)
        found |= {"model_type": self.family.model_type, "rope_parameters": self._rotation(found), **self.family.always}
        if self.family.window:
            found["sliding_window"] = self._said.get("attention.sliding_window") or None
        found["vocab_size"] = self._shapes["token_embd.weight"][0]
        return found | {"tie_word_embeddings": "output.weight" not in self._shapes}

    def _check_known(self) -> None:
        known = {*SIZES, *self.family.keys, *READ_APART}
        said = {key: value for key, value in self._said.items() if not key.startswith("rope.scaling.")}
        unknown = [key for key, value in said.items() if key not in known and value not in (0, False, "")]
        if unknown:
            raise InvalidRequest(f"its setting {self.architecture}.{unknown[0]} is not read")
        if not self._said.get("attention.causal", True):
            raise InvalidRequest("its attention is not causal")
        window = self._said.get("attention.sliding_window") or 0
        if not self.family.window and 0 < window < self._said.get("context_length", 0):
            raise InvalidRequest(f"its setting {self.architecture}.attention.sliding_window is not read")

    def _head(self, found: Mapping[str, Any]) -> dict[str, Any]:
        heads = found["num_attention_heads"]
        width = self._said.get("attention.key_length") or found["hidden_size"] // heads
        if self._said.get("attention.value_length", width) != width:
            raise InvalidRequest("its values have another width than its keys")
        head: dict[str, Any] = {"head_dim": width, "num_key_value_heads": found.get("num_key_value_heads", heads)}
        if self.family.wide:
            wide = found["num_hidden_layers"] == self.family.wide
            head["query_pre_attn_scalar"] = found["hidden_size"] // heads if wide else width
        return head

    def _rotation(self, found: Mapping[str, Any]) -> dict[str, Any]:
        theta = {"rope_theta": float(self._said.get("rope.freq_base", 10_000.0))}
        rotated = self._said.get("rope.dimension_count", found["head_dim"])
        if rotated != found["head_dim"]:
            if self.architecture != "phi3":
                raise InvalidRequest(f"it rotates {rotated} of {found['head_dim']} numbers of a head")
            theta["partial_rotary_factor"] = rotated / found["head_dim"]
        whole = theta | self._scaling(found)
        if not self.family.local_theta:
            return whole
        local = {"rope_type": "default", "rope_theta": self._said.get("rope.freq_base_swa", self.family.local_theta)}
        return {"full_attention": whole, "sliding_attention": local}

    def _scaling(self, found: Mapping[str, Any]) -> dict[str, Any]:
        start = "rope.scaling."
        said = {key.removeprefix(start): value for key, value in self._said.items() if key.startswith(start)}
        kind, factor = said.pop("type", "none"), said.pop("factor", 1.0)
        said.pop("finetuned", None)
        original = said.pop("original_context_length", None)
        if LONG in self._factors:
            return self._long(original, said.pop("attn_factor", None), found)
        if said:
            raise InvalidRequest(f"its setting {self.architecture}.{start}{next(iter(said))} is not read")
        if SAME in self._factors:
            return self._llama3(self._factors[SAME], found)
        if kind == "none" or (kind == "linear" and factor == 1.0):
            return {"rope_type": "default"}
        if kind == "linear":
            return {"rope_type": kind, "factor": float(factor)}
        if kind == "yarn" and original:
            return {"rope_type": kind, "factor": float(factor), "original_max_position_embeddings": original}
        raise InvalidRequest(f"its rotation is scaled by {kind!r}, which is not read")

    def _long(self, original: int | None, attention: float | None, found: Mapping[str, Any]) -> dict[str, Any]:
        if not original or SHORT not in self._factors:
            raise InvalidRequest("its rotation has factors for long texts alone")
        scale = found["max_position_embeddings"] / original
        usual = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
        return {
            "rope_type": "longrope",
            "long_factor": list(self._factors[LONG]),
            "short_factor": list(self._factors[SHORT]),
            "original_max_position_embeddings": original,
            "attention_factor": usual if attention is None else attention,
        }

    def _llama3(self, factors: Sequence[float], found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that give these factors, if they are those of Llama 3.1 to 3.3."""
        factor = float(max(factors))
        theta, width = float(self._said.get("rope.freq_base", 10_000.0)), found["head_dim"]
        low, high, original = LLAMA3.values()
        for at, got in enumerate(factors):
            turns = original / (2 * math.pi * theta ** (2 * at / width))
            smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
            if not math.isclose(got, 1 / ((1 - smooth) / factor + smooth), rel_tol=1e-4):
                raise InvalidRequest("its rotation is scaled by factors that are not those of Llama 3")
        return {"rope_type": "llama3", "factor": factor, **LLAMA3}
