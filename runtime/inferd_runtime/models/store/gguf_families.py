"""What the files of each architecture hold: the settings that are read, and the weights that are not as the model has them.

Settings are by the keys of files, with transformers' names for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inferd_runtime.models.store.gguf_gemma4 import Gemma4Layers

RMS_NORM = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
LAYER_NORM = {"attention.layer_norm_epsilon": "layer_norm_eps"}
GPT2_KEYS = {"attention.layer_norm_epsilon": "layer_norm_epsilon", "feed_forward_length": "n_inner"}
SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
NOT_EVERYWHERE = {"attention.head_count_kv"}
EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
}
SHARED_EXPERT = {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
LOCAL_EXPERTS = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
LOCAL_WIDTH = {"expert_feed_forward_length": "intermediate_size"}
CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
SCALES = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
READ_APART = {
    "vocab_size", "attention.key_length", "attention.value_length", "attention.sliding_window", "attention.causal",
}  # fmt: skip
ROTATION = {"rope.dimension_count", "rope.freq_base", "rope.freq_base_swa"}
SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3
"""What makes weights of the router's scores, as files number it."""


def scored(kind: int) -> Mapping[str, Any]:
    """Return what a file may say of a router besides: its weights add up to 1, and are not scaled."""
    return {"expert_gating_func": kind, "expert_weights_scale": 1.0}


@dataclass(frozen=True)
class Place:
    """Where a weight is in a file that has it in another form.

    ``parts``: their names in the file, without the layer's; none: it has one part, whose name the package gguf knows.
    ``woven``: the outputs of the parts take turns, else they are one below the other; ``turned``: outputs are behind inputs.
    """

    parts: tuple[str, ...] = ()
    woven: bool = False
    turned: bool = False


GATE_UP = {"mlp.experts.gate_up_proj": Place(("ffn_gate_exps.weight", "ffn_up_exps.weight"))}
GPT_OSS = {
    "mlp.experts.gate_up_proj": Place(("ffn_gate_exps.weight", "ffn_up_exps.weight"), woven=True, turned=True),
    "mlp.experts.gate_up_proj_bias": Place(("ffn_gate_exps.bias", "ffn_up_exps.bias"), woven=True),
    "mlp.experts.down_proj": Place(turned=True),
    "mlp.experts.down_proj_bias": Place(("ffn_down_exps.bias",)),
}
GRANITE_MOE = {
    "block_sparse_moe.experts.gate_up_proj": GATE_UP["mlp.experts.gate_up_proj"],
    "block_sparse_moe.experts.down_proj": Place(("ffn_down_exps.weight",)),
    "block_sparse_moe.router.weight": Place(("ffn_gate_inp.weight",)),
}
GPT2 = {f"{name}.weight": Place(turned=True) for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}


ALL, SOME = "all", "some"


@dataclass(frozen=True)
class Family:
    """What files of an architecture hold. ``keys``: settings besides SIZES; ``usual``: what holds where a file does not say it;
    ``only``: settings that are read if they have this value. ``places``: by the weights' names behind those of their layers.
    ``paired``: queries and keys are in the order of rotated pairs; ``offset``: what was added to the weights of norms.
    ``told_by``: settings that hold if a file has a weight. ``rotated``: positions are; ``partial``: a part of each head may be;
    ``yarn``: what YaRN has besides. ``one_key``: all heads share a key. ``window``: which layers may have one: ALL, or SOME,
    where files may say which; ``by_layer``: layers with a window are rotated in a way of their own, from ``local_theta`` or as
    the others; ``wide``: by their number of layers, models whose scores are scaled by the width of all heads together.
    ``layers``: reads settings that differ between layers.
    """

    model_type: str
    keys: Mapping[str, str] = field(default_factory=lambda: RMS_NORM)
    usual: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=lambda: GATE_UP)
    paired: bool = False
    offset: float = 0.0
    rotated: bool = True
    partial: bool = False
    yarn: Mapping[str, Any] = field(default_factory=dict)
    told_by: Mapping[str, str] = field(default_factory=dict)
    one_key: bool = False
    window: str = ""
    by_layer: bool = False
    local_theta: float = 0.0
    wide: int = 0
    layers: type[Gemma4Layers] | None = None


FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", paired=True),
    "granite": Family("granite", {**RMS_NORM, **SCALES}, paired=True),
    "qwen2": Family("qwen2"),
    "qwen2moe": Family("qwen2_moe", {**RMS_NORM, **EXPERTS, **SHARED_EXPERT}, only=scored(SOFTMAX)),
    "qwen3": Family("qwen3"),
    "qwen3moe": Family("qwen3_moe", {**RMS_NORM, **EXPERTS}, {"norm_topk_prob": True}, scored(SOFTMAX)),
    "minimax-m2": Family(
        "minimax_m2", {**RMS_NORM, **LOCAL_EXPERTS, **LOCAL_WIDTH}, only={**scored(SIGMOID), "expert_weights_norm": True},
        places={**GATE_UP, "mlp.e_score_correction_bias": Place(("exp_probs_b.bias",))}, partial=True,
    ),
    "gpt-oss": Family(
        "gpt_oss", {**RMS_NORM, **LOCAL_EXPERTS, **LOCAL_WIDTH}, only=scored(SOFTMAX_OF_CHOSEN), places=GPT_OSS,
        yarn={"truncate": False}, window=SOME,
    ),
    "gpt2": Family("gpt2", GPT2_KEYS, places=GPT2, rotated=False),
    "starcoder": Family("gpt_bigcode", GPT2_KEYS, rotated=False, one_key=True),
    "starcoder2": Family("starcoder2", {"attention.layer_norm_epsilon": "norm_epsilon"}),
    "smollm3": Family("smollm3", paired=True),
    "arcee": Family("arcee", paired=True),
    "seed_oss": Family("seed_oss"),
    "ernie4_5": Family("ernie4_5"),
    "hunyuan-dense": Family("hunyuan_v1_dense"),
    "glm4": Family("glm4", partial=True, told_by={"attention_bias": "blk.0.attn_q.bias"}),
    "exaone4": Family("exaone4", window=SOME),
    "granitemoe": Family(
        "granitemoe", {**RMS_NORM, **SCALES, **LOCAL_EXPERTS}, only=scored(SOFTMAX), places=GRANITE_MOE, paired=True
    ),
    "command-r": Family(
        "cohere", {**LAYER_NORM, "logit_scale": "logit_scale"}, told_by={"use_qk_norm": "blk.0.attn_q_norm.weight"}
    ),
    "cohere2": Family("cohere2", {**LAYER_NORM, "logit_scale": "logit_scale"}, window=SOME),
    "olmo": Family(
        "olmo", {"attention.clamp_kqv": "clip_qkv"}, only={"attention.layer_norm_epsilon": 1e-5}, paired=True
    ),
    "olmo2": Family("olmo2"),
    "olmoe": Family("olmoe", {**RMS_NORM, **EXPERTS}, only=scored(SOFTMAX)),
    "phi2": Family("phi", LAYER_NORM, partial=True),
    "phi3": Family("phi3", partial=True, window=ALL),
    "gemma": Family("gemma", offset=1.0),
    "gemma2": Family("gemma2", {**RMS_NORM, **CAPS}, offset=1.0, window=SOME, wide=46),
    "gemma3": Family(
        "gemma3_text", {**RMS_NORM, **CAPS}, offset=1.0, window=SOME, by_layer=True, local_theta=10_000.0, wide=62
    ),
    "gemma4": Family(
        "gemma4_text", {**RMS_NORM, "final_logit_softcapping": "final_logit_softcapping"}, window=SOME, by_layer=True,
        local_theta=10_000.0, layers=Gemma4Layers,
    ),
}  # fmt: skip
"""By the architecture that a file names."""
WITH_EXPERTS: Mapping[str, Family] = {
    "llama": Family(
        "mixtral", {**RMS_NORM, **LOCAL_EXPERTS}, only={**scored(SOFTMAX), "expert_weights_norm": True}, paired=True
    ),
}
"""Those of a file that says how many experts it has, where they are other models."""
WITH_WINDOW: Mapping[str, Family] = {"olmo2": Family("olmo3", window=SOME, by_layer=True)}
"""Those of a file that has a window, where they are other models."""
