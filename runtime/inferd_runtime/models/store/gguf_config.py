"""The configuration of the model in a GGUF file, in transformers' words. What a file says and this does not read is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from inferd.protocol import InvalidRequest
from inferd_runtime.models.store.gguf_families import (
    ALL,
    FAMILIES,
    NOT_EVERYWHERE,
    READ_APART,
    ROTATION,
    SIZES,
    SOME,
    WITH_EXPERTS,
    WITH_WINDOW,
)

SAME = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What Llama 3's scaling has besides its factor; a file has its result alone."""
YARN = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow", "yarn_attn_factor": "attention_factor"}
PATTERN = "attention.sliding_window_pattern"
KINDS_OF_LAYERS = ("full_attention", "sliding_attention")
UNBOUNDED = {"max_position_embeddings", "num_hidden_layers"}
"""Whole numbers that are no side of a weight."""


class FileConfig:
    """A file's metadata and the shapes of its tensors. ``factors``: its tensors of one dimension that are no weights."""

    unread: set[str]
    """Names of weights that are in the file, and not in the model."""

    def __init__(
        self, metadata: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], factors: Mapping[str, Sequence[float]]
    ) -> None:
        self.architecture = str(metadata.get("general.architecture"))
        if self.architecture not in FAMILIES:
            raise InvalidRequest(
                f"its architecture {self.architecture!r} is not read from GGUF files, only {', '.join(FAMILIES)} are; "
                "llama.cpp serves the file, and a folder in transformers' format is served if docs/models.md has its family"
            )
        start = f"{self.architecture}."
        self._said = {key.removeprefix(start): value for key, value in metadata.items() if key.startswith(start)}
        experts = WITH_EXPERTS if self._said.get("expert_count") else {}
        window = WITH_WINDOW if self._said.get("attention.sliding_window") else {}
        self.family = {**FAMILIES, **experts, **window}[self.architecture]
        self._shapes, self._factors = shapes, factors
        self.unread = {SAME, LONG, SHORT}

    def read(self) -> dict[str, Any]:
        """Return the configuration, without tokens. Raises InvalidRequest, and where numbers do not fit together any error of
        arithmetic.
        """
        layers = self.family.layers(self._said, self._shapes, self._factors) if self.family.layers else None
        if layers:
            self._said, self._factors, self.unread = layers.plain(), {}, {*self.unread, *layers.unread()}
        found = self._read()
        if layers:
            found["rope_parameters"]["full_attention"] |= layers.rotation()
        return found | (layers.settings() if layers else {})

    def _read(self) -> dict[str, Any]:
        self._check_known()
        keys = {**SIZES, **self.family.keys}
        required = {*SIZES, *(key for key in keys if key.endswith("epsilon"))} - NOT_EVERYWHERE
        for key in sorted(required - self._said.keys())[:1]:
            raise InvalidRequest(f"it lacks its setting {self.architecture}.{key}")
        found = {name: self._said[key] for key, name in keys.items() if key in self._said}
        self._check_sizes(found)
        head = self._head(found)
        found |= {"model_type": self.family.model_type, **self.family.usual, **found}
        if self.family.rotated:
            found |= head | {"rope_parameters": self._rotation(found | head)}
        found |= {setting: weight in self._shapes for setting, weight in self.family.told_by.items()}
        found |= self._window(found["num_hidden_layers"]) if self.family.window else {}
        found["vocab_size"] = self._shapes["token_embd.weight"][0]
        return found | {"tie_word_embeddings": "output.weight" not in self._shapes}

    def _check_known(self) -> None:
        known = {*SIZES, *self.family.keys, *self.family.only, *READ_APART, *(ROTATION if self.family.rotated else ())}
        known |= {PATTERN} if self.family.window == SOME else set()
        scaling = "rope.scaling." if self.family.rotated else " "
        said = {key: value for key, value in self._said.items() if not key.startswith(scaling)}
        unknown = [key for key, value in said.items() if key not in known and value not in (0, False, "")]
        other = [
            key
            for key, value in self.family.only.items()
            if not math.isclose(said.get(key, value), value, rel_tol=1e-6)
        ]
        for key in [*unknown, *other][:1]:
            raise InvalidRequest(f"its setting {self.architecture}.{key} ({self._said[key]}) is not read")
        if not self._said.get("attention.causal", True):
            raise InvalidRequest("its attention is not causal")
        window = self._said.get("attention.sliding_window") or 0
        if not self.family.window and 0 < window < self._said.get("context_length", 0):
            raise InvalidRequest(f"its setting {self.architecture}.attention.sliding_window is not read")

    def _check_sizes(self, found: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for sizes that are those of no model with these weights, before anything is made of them."""
        if any(not isinstance(value, int | float) for value in found.values()):
            raise InvalidRequest("its layers differ in their heads or widths")
        if found.get("num_experts_per_tok", 0) > self._said.get("expert_count", 0):
            raise InvalidRequest("it uses more experts than it has")
        layers = len({name.split(".")[1] for name in self._shapes if name.startswith("blk.")})
        if found["num_hidden_layers"] != layers:
            raise InvalidRequest(
                f"it says that it has {found['num_hidden_layers']} layers, and has weights of {layers}"
            )
        longest = max((size for shape in self._shapes.values() for size in shape), default=0)
        sizes = {name: value for name, value in found.items() if type(value) is int and name not in UNBOUNDED}
        for name in [name for name, value in sizes.items() if not 0 < value <= longest][:1]:
            raise InvalidRequest(f"it says that its {name} is {sizes[name]}, and no weight is wider than {longest}")

    def _window(self, layers: int) -> dict[str, Any]:
        """Return the window, and which layers have it, if the file says that."""
        window, every = self._said.get("attention.sliding_window") or None, self._said.get(PATTERN)
        if self.family.window == ALL or (window and every is None):
            return {"sliding_window": window}
        if isinstance(every, int):
            every = [(at + 1) % every != 0 for at in range(layers)]
        has = [
            window is not None and bool(one) for one, _ in zip(every or [False] * layers, range(layers), strict=True)
        ]
        return {"sliding_window": window, "layer_types": [KINDS_OF_LAYERS[one] for one in has]}

    def _head(self, found: Mapping[str, Any]) -> dict[str, Any]:
        heads = found["num_attention_heads"]
        width = self._said.get("attention.key_length") or found["hidden_size"] // heads
        if self._said.get("attention.value_length", width) != width:
            raise InvalidRequest("its values have another width than its keys")
        head: dict[str, Any] = {"head_dim": width, "num_key_value_heads": found.get("num_key_value_heads", heads)}
        keys = 1 if self.family.one_key else heads
        if not self.family.rotated and (width, head["num_key_value_heads"]) != (found["hidden_size"] // heads, keys):
            raise InvalidRequest("its heads are not those of its family")
        if self.family.wide:
            wide = found["num_hidden_layers"] == self.family.wide
            head["query_pre_attn_scalar"] = found["hidden_size"] // heads if wide else width
        return head

    def _rotation(self, found: Mapping[str, Any]) -> dict[str, Any]:
        theta = {"rope_theta": float(self._said.get("rope.freq_base", 10_000.0))}
        rotated = self._said.get("rope.dimension_count", found["head_dim"])
        if rotated != found["head_dim"]:
            if not self.family.partial:
                raise InvalidRequest(f"it rotates {rotated} of {found['head_dim']} numbers of a head")
            theta["partial_rotary_factor"] = rotated / found["head_dim"]
        whole = theta | self._scaling(found)
        if not self.family.by_layer:
            return whole
        base = self._said.get("rope.freq_base_swa") or self.family.local_theta or theta["rope_theta"]
        local = {"rope_type": "default", "rope_theta": base}
        return {"full_attention": whole, "sliding_attention": local}

    def _scaling(self, found: Mapping[str, Any]) -> dict[str, Any]:
        start = "rope.scaling."
        said = {key.removeprefix(start): value for key, value in self._said.items() if key.startswith(start)}
        kind, factor = said.pop("type", "none"), said.pop("factor", 1.0)
        said.pop("finetuned", None)
        original = said.pop("original_context_length", None)
        yarn = {name: float(said.pop(key)) for key, name in YARN.items() if kind == "yarn" and key in said}
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
            scaled = {"factor": float(factor), "original_max_position_embeddings": original}
            return {"rope_type": kind, **scaled, **yarn, **self.family.yarn}
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
