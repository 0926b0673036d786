"""Tiny random models of several families, made on the spot."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 97
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "tie_word_embeddings": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 12},
    "gemma2": {"sliding_window": 12, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256},
}


def make(family: str, seed: int = 0, **changes: Any) -> nn.Module:
    """A random float32 model; larger weights than usual, so that differences show."""
    torch.manual_seed(seed)
    settings = {**COMMON, **FAMILIES[family], **changes}
    if family == "gpt2":
        settings = {key: settings[key] for key in (*FAMILIES["gpt2"], "vocab_size", "bos_token_id", "eos_token_id")}
    config = AutoConfig.for_model(family, **settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
    return model
