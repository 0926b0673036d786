"""Random models of transformers written as GGUF files, by what llama.cpp's converter does to each architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

WIDTH, INNER, HEADS, KEYS, LAYERS, CONTEXT, WINDOW = 64, 96, 4, 2, 2, 128, 12
HEAD = WIDTH // HEADS
LETTERS = [*(chr(33 + at) for at in range(91)), "\u0120"]
TOKENS = [*LETTERS, "ab", "<|endoftext|>", "<|end|>", "<|x|>"]
RMS = {"attention.layer_norm_rms_epsilon": 1e-5}
SETTINGS: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KEYS,
    "num_hidden_layers": LAYERS, "max_position_embeddings": CONTEXT, "vocab_size": len(TOKENS), "pad_token_id": 0,
}  # fmt: skip


@dataclass(frozen=True)
class SmallModel:
    """A model: its architecture in GGUF files and in transformers, what both say of it, and tensors beside its weights."""

    architecture: str
    model_type: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, Any] = field(default_factory=lambda: RMS)
    extra: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def module(self) -> Any:
        """Return transformers' model with random weights."""
        torch.manual_seed(3)
        config = AutoConfig.for_model(self.model_type, **{**SETTINGS, **self.settings})
        loader: Any = AutoModelForCausalLM
        module = loader.from_config(config, attn_implementation="eager").eval()
        for name, weight in module.named_parameters():
            spread = 0.3 if weight.ndim > 1 else 0.1
            middle = 1.0 if weight.ndim == 1 and name.endswith("norm.weight") and self._offset() == 0 else 0.0
            torch.nn.init.normal_(weight, middle, spread)
        return module

    def _offset(self) -> float:
        return float(self.architecture.startswith("gemma"))

    def write(self, path: Path, module: Any, **more: Any) -> None:
        """Write the file. ``more``: settings with their full names, "_" for "."; None leaves one out."""
        said = {**self._metadata(), **{name.replace("__", "."): value for name, value in more.items()}}
        write_file(path, self.architecture, said, [*self._weights(module), *self._extra()])

    def write_parts(self, folder: Path, module: Any, count: int) -> list[Path]:
        """Write the model in parts, as llama.cpp's gguf-split does: the first one has the settings."""
        weights = [*self._weights(module), *self._extra()]
        files = [folder / f"small-{at + 1:05}-of-{count:05}.gguf" for at in range(count)]
        for at, file in enumerate(files):
            said = {**(self._metadata() if at == 0 else {}), "split.no": at, "split.count": count}
            write_file(file, self.architecture, {**said, "split.tensors.count": len(weights)}, weights[at::count])
        return files

    def _extra(self) -> list[tuple[str, Tensor]]:
        return [(name, torch.tensor(values)) for name, values in self.extra.items()]

    def _metadata(self) -> dict[str, Any]:
        sizes = {
            "block_count": LAYERS, "context_length": CONTEXT, "embedding_length": WIDTH, "feed_forward_length": INNER,
            "attention.head_count": HEADS, "attention.head_count_kv": KEYS, "rope.freq_base": 10000.0, **self.said,
        }  # fmt: skip
        tokenizer = {
            "model": "gpt2", "pre": "smollm", "tokens": TOKENS, "merges": ["a b"],
            "token_type": [*[1] * (len(TOKENS) - 3), 3, 3, 3], "eos_token_id": len(TOKENS) - 2, "bos_token_id": len(TOKENS) - 3,
        }  # fmt: skip
        said = {f"{self.architecture}.{key}": value for key, value in sizes.items()}
        return said | {f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()}

    def _weights(self, module: Any) -> list[tuple[str, Tensor]]:
        arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == self.architecture)
        names, found = get_tensor_name_map(arch, LAYERS), []
        for name, weight in module.named_parameters():
            plain = weight.detach()
            if name.endswith("experts.gate_up_proj"):
                for part, half in zip(("gate", "up"), plain.chunk(2, dim=1), strict=True):
                    found.append((f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", half))
                continue
            if name.endswith("norm.weight"):
                plain = plain + self._offset()
            if self.architecture in ("llama", "granite") and ("q_proj" in name or "k_proj" in name):
                heads = HEADS if "q_proj" in name else KEYS
                plain = plain.reshape(heads, 2, -1, *plain.shape[1:]).transpose(1, 2).reshape(plain.shape)
            known = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert known is not None, name
            found.append((known if known.endswith((".weight", ".bias")) else f"{known}.weight", plain))
        return found


def write_file(path: Path, architecture: str, said: Mapping[str, Any], weights: Sequence[tuple[str, Tensor]]) -> None:
    """Write a file of settings (None: left out) and weights."""
    writer = GGUFWriter(path, architecture)
    for key, value in said.items():
        if value is not None:
            add(writer, key, value)
    for name, weight in weights:
        writer.add_tensor(name, weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer: GGUFWriter, key: str, value: Any) -> None:
    """Write a setting of any type that files have."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def llama3_factors(factor: float, theta: float, width: int) -> list[float]:
    """Return what a file has of Llama 3's scaling: by how much each frequency is divided."""
    wave = [2 * np.pi * theta ** (2 * at / width) for at in range(width // 2)]
    smooth = [(8192 / one - 1) / 3 for one in wave]
    return [1.0 if s > 1 else factor if s < 0 else 1 / ((1 - s) / factor + s) for s in smooth]


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
SPREAD = [1.0 + 0.25 * at for at in range(HEAD // 2)]
WIDE = [2.0 + 0.5 * at for at in range(HEAD // 2)]
LOCAL = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 32}
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": SPREAD, "long_factor": WIDE,
    "original_max_position_embeddings": 64,
}  # fmt: skip
SCALES = {"attention_multiplier": 0.5, "embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logits_scaling": 4.0}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
HEADED = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": WINDOW}
SAID_HEADED = {**RMS, "attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": WINDOW}
MODELS: Mapping[str, SmallModel] = {
    "llama": SmallModel("llama", "llama", {"rms_norm_eps": 1e-5}, {**RMS, "rope.dimension_count": HEAD}),
    "llama, tied": SmallModel("llama", "llama", {"rms_norm_eps": 1e-5, "tie_word_embeddings": True}),
    "llama 3": SmallModel(
        "llama", "llama", {"rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        {**RMS, "rope.freq_base": 5e5}, {"rope_freqs.weight": llama3_factors(8.0, 5e5, HEAD)},
    ),
    "llama, wide heads": SmallModel(
        "llama", "llama", {"rms_norm_eps": 1e-5, "head_dim": 32},
        {**RMS, "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 32},
    ),
    "llama, linear": SmallModel(
        "llama", "llama", {"rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
        {**RMS, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "granite": SmallModel(
        "granite", "granite",
        {"rms_norm_eps": 1e-5, **SCALES},
        {**RMS, "attention.scale": 0.5, "embedding_scale": 3.0, "residual_scale": 0.3, "logit_scale": 4.0},
    ),
    "qwen2": SmallModel("qwen2", "qwen2", {"rms_norm_eps": 1e-5}),
    "qwen2, yarn": SmallModel(
        "qwen2", "qwen2",
        {"rms_norm_eps": 1e-5, "rope_parameters": YARN},
        {**RMS, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
    ),
    "qwen3": SmallModel(
        "qwen3", "qwen3", {"rms_norm_eps": 1e-5, "head_dim": 32},
        {**RMS, "attention.key_length": 32, "attention.value_length": 32},
    ),
    "qwen3moe": SmallModel(
        "qwen3moe", "qwen3_moe",
        {"rms_norm_eps": 1e-5, "head_dim": HEAD, **EXPERTS},
        {**RMS, "attention.key_length": HEAD, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32},
    ),
    "olmo2": SmallModel("olmo2", "olmo2", {"rms_norm_eps": 1e-5}),
    "phi3": SmallModel(
        "phi3", "phi3", {"rms_norm_eps": 1e-5, "sliding_window": WINDOW},
        {**RMS, "rope.dimension_count": HEAD, "attention.sliding_window": WINDOW},
    ),
    "phi3, half of each head": SmallModel(
        "phi3", "phi3", {"rms_norm_eps": 1e-5, "rope_parameters": HALF},
        {**RMS, "rope.dimension_count": HEAD // 2},
    ),
    "phi3, long": SmallModel(
        "phi3", "phi3",
        {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 64, "rope_parameters": LONG},
        {**RMS, "rope.dimension_count": HEAD, "rope.scaling.original_context_length": 64},
        {"rope_factors_long.weight": WIDE, "rope_factors_short.weight": SPREAD},
    ),
    "gemma": SmallModel(
        "gemma", "gemma", {"rms_norm_eps": 1e-5, "head_dim": 32},
        {**RMS, "attention.key_length": 32, "attention.value_length": 32},
    ),
    "gemma2": SmallModel(
        "gemma2", "gemma2", {"rms_norm_eps": 1e-5, **HEADED, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
        {**SAID_HEADED, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": SmallModel(
        "gemma3", "gemma3_text", {"rms_norm_eps": 1e-5, **HEADED, "rope_parameters": LOCAL},
        {**SAID_HEADED, "rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    "starcoder2": SmallModel(
        "starcoder2", "starcoder2", {"norm_epsilon": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"attention.layer_norm_epsilon": 1e-5, "rope.freq_base": 1e6},
    ),
}  # fmt: skip
"""Each architecture that is read, and what real files of it say besides."""
