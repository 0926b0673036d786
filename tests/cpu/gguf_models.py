"""Random models of transformers written as GGUF files, by what llama.cpp's converter does to each architecture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
PAIRED = ("llama", "granite", "granitemoe", "smollm3", "arcee", "olmo")
TURNED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
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
        for name, weight in numbers(module):
            spread = 0.3 if weight.ndim > 1 else 0.1
            middle = 1.0 if weight.ndim == 1 and name.endswith("norm.weight") and self._offset() == 0 else 0.0
            torch.nn.init.normal_(weight, middle, spread)
        return module

    def _offset(self) -> float:
        return float(self.architecture in ("gemma", "gemma2", "gemma3"))

    def write(self, path: Path, module: Any, *, lost: str = "", **more: Any) -> None:
        """Write the file. ``more``: settings with their full names, "_" for "."; None leaves one out. ``lost``: a weight that is
        left out.
        """
        said = {**self._metadata(), **{name.replace("__", "."): value for name, value in more.items()}}
        weights = [*self._weights(module), *self._extra()]
        write_file(path, self.architecture, said, [(name, weight) for name, weight in weights if name != lost])

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
        names, found = get_tensor_name_map(arch, 2 * LAYERS), []
        for name, weight in numbers(module):
            plain = weight.detach()
            apart = list(self._apart(name, plain))
            if apart:
                found += [(f"blk.{name.split('.')[2]}.{part}", one) for part, one in apart]
                continue
            if self.architecture == "gpt2" and name.endswith(TURNED):
                plain = plain.T
            if name.endswith("norm.weight"):
                plain = plain + self._offset()
            if self.architecture in PAIRED and ("q_proj" in name or "k_proj" in name):
                heads = HEADS if "q_proj" in name else KEYS
                plain = plain.reshape(heads, 2, -1, *plain.shape[1:]).transpose(1, 2).reshape(plain.shape)
            known = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert known is not None, name
            found.append((known if known.endswith((".weight", ".bias")) else f"{known}.weight", plain))
        return found

    def _apart(self, name: str, plain: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield a layer's weight in the parts that the converter makes of it."""
        oss, end = self.architecture == "gpt-oss", "bias" if name.endswith("_bias") else "weight"
        plain = plain.transpose(-1, -2) if oss and end == "weight" and ".experts." in name else plain
        if ".experts.gate_up_proj" in name:
            halves = (plain[:, ::2], plain[:, 1::2]) if oss else plain.chunk(2, dim=1)
            yield from ((f"ffn_{part}_exps.{end}", half) for part, half in zip(("gate", "up"), halves, strict=True))
        elif ".experts.down_proj" in name:
            yield f"ffn_down_exps.{end}", plain
        elif name.endswith("block_sparse_moe.router.weight"):
            yield "ffn_gate_inp.weight", plain
        elif name.endswith("e_score_correction_bias"):
            yield "exp_probs_b.bias", plain


def numbers(module: Any) -> list[tuple[str, Tensor]]:
    """Return a module's weights, and buffers that belong to them."""
    buffers = ((name, buffer) for name, buffer in module.named_buffers() if name in module.state_dict())
    return [*module.named_parameters(), *buffers]


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


RMS_SET = {"rms_norm_eps": 1e-5}
ROTATED = {"rope_type": "default", "rope_theta": 1e4}
COHERE = {"layer_norm_eps": 1e-5, "logit_scale": 0.5, "tie_word_embeddings": True, "rope_parameters": ROTATED}
ONE_OF_TWO = ["sliding_attention", "full_attention"]
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
SHARED = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
SAID_EXPERTS = {**RMS, "expert_count": 4, "expert_used_count": 2}
YARN_OSS = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 32,
}  # fmt: skip
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
HEADED = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": WINDOW}
SAID_HEADED = {**RMS, "attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": WINDOW}
GEMMA4 = {
    **RMS_SET, "head_dim": HEAD, "global_head_dim": 32, "sliding_window": WINDOW, "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "final_logit_softcapping": 3.0, "tie_word_embeddings": True,
}  # fmt: skip
SAID_GEMMA4 = {
    **RMS, "attention.key_length": 32, "attention.value_length": 32, "attention.key_length_swa": HEAD,
    "attention.value_length_swa": HEAD, "rope.dimension_count": 32, "rope.dimension_count_swa": HEAD, "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4, "attention.sliding_window": WINDOW, "final_logit_softcapping": 3.0, "block_count": 4,
    "attention.sliding_window_pattern": [True, False, True, False],
}  # fmt: skip
MODELS: Mapping[str, SmallModel] = {
    "llama": SmallModel("llama", "llama", RMS_SET, {**RMS, "rope.dimension_count": HEAD}),
    "llama, tied": SmallModel("llama", "llama", {**RMS_SET, "tie_word_embeddings": True}),
    "llama 3": SmallModel(
        "llama", "llama", {**RMS_SET, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        {**RMS, "rope.freq_base": 5e5}, {"rope_freqs.weight": llama3_factors(8.0, 5e5, HEAD)},
    ),
    "llama, wide heads": SmallModel(
        "llama", "llama", {**RMS_SET, "head_dim": 32},
        {**RMS, "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 32},
    ),
    "llama, linear": SmallModel(
        "llama", "llama", {**RMS_SET, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
        {**RMS, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "mixtral": SmallModel(
        "llama", "mixtral", {**RMS_SET, **LOCAL, "rope_parameters": ROTATED},
        {**SAID_EXPERTS, "rope.dimension_count": HEAD},
    ),
    "granite": SmallModel(
        "granite", "granite",
        {**RMS_SET, **SCALES},
        {**RMS, "attention.scale": 0.5, "embedding_scale": 3.0, "residual_scale": 0.3, "logit_scale": 4.0},
    ),
    "qwen2": SmallModel("qwen2", "qwen2", RMS_SET),
    "qwen2, yarn": SmallModel(
        "qwen2", "qwen2",
        {**RMS_SET, "rope_parameters": YARN},
        {**RMS, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
    ),
    "qwen2moe": SmallModel(
        "qwen2moe", "qwen2_moe", {**RMS_SET, **SHARED},
        {**SAID_EXPERTS, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 48},
    ),
    "qwen3": SmallModel(
        "qwen3", "qwen3", {**RMS_SET, "head_dim": 32},
        {**RMS, "attention.key_length": 32, "attention.value_length": 32},
    ),
    "qwen3moe": SmallModel(
        "qwen3moe", "qwen3_moe",
        {**RMS_SET, "head_dim": HEAD, **EXPERTS},
        {**RMS, "attention.key_length": HEAD, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32},
    ),
    "minimax-m2": SmallModel(
        "minimax-m2", "minimax_m2", {**RMS_SET, **LOCAL, "head_dim": 32, "rope_parameters": HALF},
        {
            **SAID_EXPERTS, "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 16,
            "expert_feed_forward_length": INNER, "expert_gating_func": 2,
        },
    ),
    "gpt-oss": SmallModel(
        "gpt-oss", "gpt_oss",
        {**RMS_SET, **LOCAL, "head_dim": 32, "sliding_window": WINDOW, "rope_parameters": YARN_OSS},
        {
            **SAID_EXPERTS, "attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": WINDOW,
            "expert_feed_forward_length": INNER, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32, "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
        },
    ),
    "gpt2": SmallModel(
        "gpt2", "gpt2", {"n_inner": INNER, "layer_norm_epsilon": 1e-5},
        {"attention.layer_norm_epsilon": 1e-5, "rope.freq_base": None, "attention.head_count_kv": None},
    ),
    "starcoder": SmallModel(
        "starcoder", "gpt_bigcode", {"n_inner": INNER, "layer_norm_epsilon": 1e-5, "num_key_value_heads": 1},
        {"attention.layer_norm_epsilon": 1e-5, "rope.freq_base": None, "attention.head_count_kv": 1},
    ),
    "smollm3": SmallModel(
        "smollm3", "smollm3",
        {**RMS_SET, "tie_word_embeddings": True, "rope_parameters": ROTATED, "num_hidden_layers": 4},
        {**RMS, "rope.dimension_count": HEAD, "block_count": 4},
    ),
    "arcee": SmallModel("arcee", "arcee", RMS_SET),
    "seed_oss": SmallModel(
        "seed_oss", "seed_oss", {**RMS_SET, "head_dim": 32}, {**RMS, "attention.key_length": 32, "attention.value_length": 32}
    ),
    "ernie4_5": SmallModel(
        "ernie4_5", "ernie4_5", {**RMS_SET, "head_dim": 32, "tie_word_embeddings": True, "rope_parameters": ROTATED},
        {**RMS, "attention.key_length": 32, "attention.value_length": 32},
    ),
    "hunyuan-dense": SmallModel(
        "hunyuan-dense", "hunyuan_v1_dense", {**RMS_SET, "head_dim": 32},
        {
            **RMS, "attention.key_length": 32, "attention.value_length": 32, "rope.scaling.type": "none",
            "rope.scaling.factor": 1.0, "rope.scaling.original_context_length": 262144,
        },
    ),
    "glm4": SmallModel(
        "glm4", "glm4", {**RMS_SET, "head_dim": 32, "attention_bias": False, "rope_parameters": HALF},
        {**RMS, "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 16},
    ),
    "glm4, biased": SmallModel(
        "glm4", "glm4", {**RMS_SET, "head_dim": 32, "attention_bias": True, "rope_parameters": HALF},
        {**RMS, "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 16},
    ),
    "exaone4": SmallModel(
        "exaone4", "exaone4", {**RMS_SET, "sliding_window": WINDOW, "layer_types": ONE_OF_TWO},
        {**RMS, "attention.sliding_window": WINDOW, "attention.sliding_window_pattern": [True, False]},
    ),
    "exaone4, no window": SmallModel(
        "exaone4", "exaone4",
        {
            **RMS_SET, "sliding_window": None, "layer_types": ["full_attention"] * 2,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
        },
        {**RMS, "rope.freq_base": 5e5}, {"rope_freqs.weight": llama3_factors(8.0, 5e5, HEAD)},
    ),
    "granitemoe": SmallModel(
        "granitemoe", "granitemoe", {**RMS_SET, **SCALES, **LOCAL},
        {**SAID_EXPERTS, "attention.scale": 0.5, "embedding_scale": 3.0, "residual_scale": 0.3, "logit_scale": 4.0},
    ),
    "command-r": SmallModel(
        "command-r", "cohere", COHERE,
        {"attention.layer_norm_epsilon": 1e-5, "logit_scale": 0.5, "rope.scaling.type": "none"},
    ),
    "command-r, normed": SmallModel(
        "command-r", "cohere", {**COHERE, "use_qk_norm": True},
        {"attention.layer_norm_epsilon": 1e-5, "logit_scale": 0.5, "rope.scaling.type": "none"},
    ),
    "cohere2": SmallModel(
        "cohere2", "cohere2",
        {
            **COHERE, "sliding_window": WINDOW, "num_hidden_layers": 4,
        },
        {
            "attention.layer_norm_epsilon": 1e-5, "logit_scale": 0.5, "rope.scaling.type": "none", "block_count": 4,
            "attention.sliding_window": WINDOW, "rope.dimension_count": HEAD,
        },
    ),
    "olmo": SmallModel("olmo", "olmo", {"clip_qkv": 2.0}, {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": 2.0}),
    "olmoe": SmallModel(
        "olmoe", "olmoe", {**RMS_SET, "num_experts": 4, "num_experts_per_tok": 2}, SAID_EXPERTS
    ),
    "olmo3": SmallModel(
        "olmo2", "olmo3",
        {
            **RMS_SET, "sliding_window": WINDOW, "layer_types": ONE_OF_TWO,
            "rope_parameters": {"full_attention": YARN, "sliding_attention": ROTATED},
        },
        {
            **RMS, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_attn_factor": 1.1386294361, "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": [True, False],
        },
    ),
    "phi2": SmallModel(
        "phi2", "phi", {"layer_norm_eps": 1e-5, "rope_parameters": HALF},
        {"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": HEAD // 2, "rope.freq_base": None},
    ),
    "olmo2": SmallModel("olmo2", "olmo2", RMS_SET),
    "phi3": SmallModel(
        "phi3", "phi3", {**RMS_SET, "sliding_window": WINDOW},
        {**RMS, "rope.dimension_count": HEAD, "attention.sliding_window": WINDOW},
    ),
    "phi3, half of each head": SmallModel(
        "phi3", "phi3", {**RMS_SET, "rope_parameters": HALF},
        {**RMS, "rope.dimension_count": HEAD // 2},
    ),
    "phi3, long": SmallModel(
        "phi3", "phi3",
        {**RMS_SET, "original_max_position_embeddings": 64, "rope_parameters": LONG},
        {**RMS, "rope.dimension_count": HEAD, "rope.scaling.original_context_length": 64},
        {"rope_factors_long.weight": WIDE, "rope_factors_short.weight": SPREAD},
    ),
    "gemma": SmallModel(
        "gemma", "gemma", {**RMS_SET, "head_dim": 32},
        {**RMS, "attention.key_length": 32, "attention.value_length": 32},
    ),
    "gemma2": SmallModel(
        "gemma2", "gemma2", {**RMS_SET, **HEADED, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
        {**SAID_HEADED, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": SmallModel(
        "gemma3", "gemma3_text", {**RMS_SET, **HEADED, "rope_parameters": LOCAL},
        {**SAID_HEADED, "rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    "gemma4": SmallModel(
        "gemma4", "gemma4_text",
        {
            **GEMMA4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": len(TOKENS),
        },
        {
            **SAID_GEMMA4, "attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 8,
            "feed_forward_length": [INNER, INNER, 2 * INNER, 2 * INNER],
        },
        {"rope_freqs.weight": [1.0] * 4 + [1e30] * 12, "blk.3.attn_k_norm.weight": [1.0] * 32},
    ),
    "gemma4, keys are values": SmallModel(
        "gemma4", "gemma4_text",
        {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0},
        {**SAID_GEMMA4, "attention.head_count_kv": [KEYS, 1, KEYS, 1], "embedding_length_per_layer_input": 0},
        {"rope_freqs.weight": [1.0] * 4 + [1e30] * 12},
    ),
    "starcoder2": SmallModel(
        "starcoder2", "starcoder2", {"norm_epsilon": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"attention.layer_norm_epsilon": 1e-5, "rope.freq_base": 1e6},
    ),
}  # fmt: skip
"""Each architecture that is read, and what real files of it say besides."""
