"""Every model family that is tried, as a tiny configuration: what is served exactly, and what is refused with which reason.

``docs/models.md`` is rendered from these tables by ``test_families.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import transformers
from packaging import version
from transformers.models.auto import CONFIG_MAPPING

VOCAB = 97
WINDOW = 12
BASE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 256,
    "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA: dict[str, Any] = {"intermediate_size": 48, "num_key_value_heads": 2}
HEADS: dict[str, Any] = {**LLAMA, "head_dim": 8}
ALTERNATE = ["sliding_attention", "full_attention", "sliding_attention"]
SLIDING: dict[str, Any] = {**HEADS, "sliding_window": WINDOW, "layer_types": ALTERNATE}
MLA: dict[str, Any] = {
    "intermediate_size": 48, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8, "v_head_dim": 10,
}  # fmt: skip
TWO_OF_FOUR: dict[str, Any] = {"num_experts_per_tok": 2, "num_local_experts": 4}
ROUTED: dict[str, Any] = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 16,
    "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED: dict[str, Any] = {**EXPERTS, "shared_expert_intermediate_size": 16}
DENSE_FIRST = ["dense", "sparse", "sparse"]
FOUR_LAYERS: dict[str, Any] = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
PER_LAYER: dict[str, Any] = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB}
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "vocab_size": VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Served:
    """A family whose logits must equal transformers'. ``features``: what the probe must find, see ``test_families.py``.

    ``since``: the first release of transformers with which it is served; with older ones it is refused.
    """

    settings: dict[str, Any]
    features: tuple[str, ...] = ()
    note: str = ""
    base: dict[str, Any] = field(default_factory=lambda: BASE)
    since: str = ""

    @property
    def here(self) -> bool:
        """True if the installed transformers is new enough."""
        return not self.since or version.parse(transformers.__version__) >= version.parse(self.since)


@dataclass(frozen=True)
class Refused:
    """A family that is not served. ``reason``: a part of the message, and what the page says."""

    settings: dict[str, Any]
    reason: str
    base: dict[str, Any] = field(default_factory=lambda: BASE)


PART_ROTATED = "part of a head is rotated, since transformers 5.24"
VISION: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
SERVED: dict[str, Served] = {
    "afmoe": Served({**SLIDING, **EXPERTS, "num_dense_layers": 1}, ("GQA", "window", "MoE"), "gated attention"),
    "apertus": Served(LLAMA, ("GQA",)),
    "arcee": Served(LLAMA, ("GQA",)),
    "aria_text": Served({**LLAMA, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1}, ("GQA", "MoE")),
    "axk1": Served({**MLA, **ROUTED}, ("value width", "MoE"), "MLA"),
    "beam": Served(SLIDING, ("GQA", "window")),
    "bert": Served({"intermediate_size": 48, "is_decoder": True}, (), "with `is_decoder` in its configuration"),
    "biogpt": Served({"intermediate_size": 48}, (), "learned positions"),
    "bitnet": Served(LLAMA, ("GQA",), "weights unpacked"),
    "codegen": Served({"rotary_dim": 4}, (), PART_ROTATED, base=GPT2, since="5.24"),
    "cohere": Served({**LLAMA, "logit_scale": 1.0}, ("GQA",), "parallel residual, scaled logits"),
    "cohere2": Served({**SLIDING, "logit_scale": 1.0}, ("GQA", "window"), "full layers without RoPE"),
    "cohere2_moe": Served(
        {**SLIDING, "logit_scale": 1.0, "num_experts": 4, "num_experts_per_tok": 2}, ("GQA", "window", "MoE")
    ),
    "ctrl": Served(
        {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256, "dff": 48},
        (),
        "sinusoidal positions",
        base={},
    ),
    "cwm": Served(SLIDING, ("GQA", "window")),
    "deepseek_v2": Served(
        {**MLA, **ROUTED, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1},
        ("value width", "MoE"),
        "MLA, keys and values are cached in full width",
    ),
    "deepseek_v3": Served({**MLA, **ROUTED}, ("value width", "MoE"), "MLA, keys and values are cached in full width"),
    "dots1": Served({**HEADS, **ROUTED}, ("GQA", "MoE")),
    "ernie4_5": Served(HEADS, ("GQA",)),
    "ernie4_5_moe": Served(
        {
            **LLAMA,
            "moe_intermediate_size": 16,
            "moe_k": 2,
            "moe_num_experts": 4,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
        },
        ("GQA", "MoE"),
    ),
    "exaone4": Served(SLIDING, ("GQA", "window"), "full layers without RoPE"),
    "exaone_moe": Served(
        {
            **SLIDING,
            **EXPERTS,
            "num_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "is_moe_layer": [False, True, True],
            "mlp_layer_types": DENSE_FIRST,
        },
        ("GQA", "window", "MoE"),
    ),
    "flex_olmo": Served({**LLAMA, "num_experts": 4, "num_experts_per_tok": 2}, ("GQA", "MoE")),
    "gemma": Served(HEADS, ("GQA",)),
    "gemma2": Served(
        {**SLIDING, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0},
        ("GQA", "window", "soft-cap"),
        "soft-cap of the logits, too",
    ),
    "gemma3_text": Served({**SLIDING, "query_pre_attn_scalar": 8}, ("GQA", "window"), "two RoPE bases"),
    "gemma4_text": Served(
        {**SLIDING, "global_head_dim": 16, "num_kv_shared_layers": 1, **PER_LAYER, **FOUR_LAYERS},
        ("GQA", "window"),
        "the last layers share keys",
    ),
    "gemma3n_text": Served(
        {
            **SLIDING,
            "num_kv_shared_layers": 2,
            **FOUR_LAYERS,
            **PER_LAYER,
            "laurel_rank": 4,
            "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        },
        ("GQA", "window"),
        "the last layers share keys",
    ),
    "glm": Served(HEADS, ("GQA",), "half of each head rotates"),
    "glm4": Served(HEADS, ("GQA",)),
    "glm4_moe": Served({**HEADS, **ROUTED}, ("GQA", "MoE")),
    "glm4_moe_lite": Served({**MLA, **ROUTED}, ("value width", "MoE"), "MLA"),
    "gpt2": Served({}, (), "learned positions", base=GPT2),
    "gpt_bigcode": Served({"n_inner": 48, "multi_query": True}, ("GQA",), "one key head", base=GPT2),
    "gpt_neox": Served({"intermediate_size": 48}, (), "parallel residual"),
    "gptj": Served({"rotary_dim": 4}, (), PART_ROTATED, base=GPT2, since="5.24"),
    "gpt_oss": Served({**SLIDING, **TWO_OF_FOUR}, ("GQA", "window", "sinks", "MoE")),
    "granite": Served({**LLAMA, "attention_multiplier": 0.3}, ("GQA",), "own score scale"),
    "granite_swa": Served(SLIDING, ("GQA", "window", "sinks")),
    "granitemoe": Served({**LLAMA, **TWO_OF_FOUR}, ("GQA", "MoE")),
    "granitemoe_swa": Served({**SLIDING, **TWO_OF_FOUR}, ("GQA", "window", "sinks", "MoE")),
    "granitemoeshared": Served({**LLAMA, **TWO_OF_FOUR, "shared_intermediate_size": 16}, ("GQA", "MoE")),
    "helium": Served(HEADS, ("GQA",)),
    "hunyuan_v1_dense": Served(HEADS, ("GQA",)),
    "hunyuan_v1_moe": Served({**HEADS, "num_experts": 4, "moe_topk": 2}, ("GQA", "MoE")),
    "hyperclovax": Served(LLAMA, ("GQA",)),
    "jais2": Served(HEADS, ("GQA",)),
    "jetmoe": Served(
        {"num_key_value_heads": 2, "kv_channels": 8, "intermediate_size": 48, **TWO_OF_FOUR},
        ("MoE",),
        "experts in the attention",
    ),
    "llama": Served(LLAMA, ("GQA",)),
    "llama4_text": Served(
        {
            **HEADS,
            **TWO_OF_FOUR,
            "attention_chunk_size": 8,
            "intermediate_size_mlp": 48,
            "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
            "no_rope_layers": [1, 0, 1],
        },
        ("GQA", "chunks", "MoE"),
        "full layers without RoPE; up to the first position whose queries are scaled",
    ),
    "longcat_flash": Served(
        {
            **{k: v for k, v in MLA.items() if k != "intermediate_size"},
            "num_layers": 2,
            "num_hidden_layers": 4,
            "ffn_hidden_size": 48,
            "expert_ffn_hidden_size": 16,
            "n_routed_experts": 4,
            "moe_topk": 2,
            "zero_expert_num": 1,
            "head_dim": 4,
        },
        ("value width", "MoE"),
        "MLA, two attentions per layer",
    ),
    "mimo_v2_flash": Served(
        {
            **SLIDING,
            "v_head_dim": 6,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "n_group": 1,
            "topk_group": 1,
        },
        ("GQA", "window", "sinks", "value width", "MoE"),
    ),
    "minicpm3": Served(MLA, ("value width",), "MLA"),
    "minimax_m2": Served({**HEADS, **TWO_OF_FOUR}, ("GQA", "MoE")),
    "ministral": Served(SLIDING, ("GQA", "window")),
    "ministral3": Served(
        {**HEADS, "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.1}}, ("GQA",), "queries scaled by position"
    ),
    "mistral": Served({**HEADS, "sliding_window": WINDOW}, ("GQA", "window")),
    "mixtral": Served({**HEADS, **TWO_OF_FOUR, "sliding_window": WINDOW}, ("GQA", "window", "MoE")),
    "modernbert-decoder": Served(
        {"intermediate_size": 48, "local_attention": 2 * WINDOW, "layer_types": ALTERNATE}, ("window",)
    ),
    "nanochat": Served(LLAMA, ("GQA",), "soft-cap of the logits"),
    "olmo": Served(LLAMA, ("GQA",)),
    "olmo2": Served(LLAMA, ("GQA",)),
    "olmo3": Served({**LLAMA, "sliding_window": WINDOW, "layer_types": ALTERNATE}, ("GQA", "window")),
    "olmoe": Served({**LLAMA, "num_experts": 4, "num_experts_per_tok": 2}, ("GQA", "MoE")),
    "opt": Served({"ffn_dim": 48, "word_embed_proj_dim": 32}, (), "learned positions"),
    "persimmon": Served({"intermediate_size": 48}),
    "phi": Served(LLAMA, ("GQA",)),
    "phi3": Served({**LLAMA, "sliding_window": WINDOW}, ("GQA", "window")),
    "phimoe": Served({**LLAMA, **TWO_OF_FOUR, "sliding_window": WINDOW}, ("GQA", "window", "MoE")),
    "qwen2": Served(LLAMA, ("GQA",)),
    "qwen2_moe": Served({**LLAMA, **SHARED}, ("GQA", "MoE")),
    "qwen3": Served(HEADS, ("GQA",)),
    "qwen3_moe": Served({**HEADS, **EXPERTS}, ("GQA", "MoE")),
    "seed_oss": Served(HEADS, ("GQA",)),
    "smollm3": Served({**LLAMA, "no_rope_layers": [1, 1, 0]}, ("GQA",), "some layers without RoPE"),
    "solar_open": Served({**HEADS, **ROUTED}, ("GQA", "MoE")),
    "starcoder2": Served({**LLAMA, "sliding_window": WINDOW}, ("GQA", "window")),
    "vaultgemma": Served(
        {**SLIDING, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0}, ("GQA", "window", "soft-cap")
    ),
    "youtu": Served(MLA, ("value width",), "MLA"),
    "laguna": Served(
        {
            **HEADS,
            "sliding_window": WINDOW,
            "layer_types": ALTERNATE,
            **SHARED,
            "num_attention_heads_per_layer": [4, 4, 4],
            "mlp_layer_types": DENSE_FIRST,
        },
        ("GQA", "window", "MoE"),
    ),
    "mellum": Served({**SLIDING, **EXPERTS}, ("GQA", "window", "MoE")),
    "hy_v3": Served({**HEADS, **EXPERTS}, ("GQA", "MoE")),
    "kolibri1": Served({**SLIDING, **EXPERTS}, ("GQA", "window", "MoE")),
}

# The text halves of models that see and hear; their configurations hold that of the text model.
TEXT_ONLY = "text only"
SERVED |= {
    "gemma3": Served(
        {"text_config": {**BASE, **SERVED["gemma3_text"].settings}, "vision_config": VISION, "mm_tokens_per_image": 4},
        SERVED["gemma3_text"].features, TEXT_ONLY, base={"image_token_index": 0},
    ),
    "gemma4": Served(
        {"text_config": {**BASE, **SERVED["gemma4_text"].settings}, "vision_config": None, "audio_config": None},
        SERVED["gemma4_text"].features, TEXT_ONLY, base={"image_token_id": 0},
    ),
    "llama4": Served(
        {"text_config": {**BASE, **SERVED["llama4_text"].settings}, "vision_config": VISION},
        SERVED["llama4_text"].features, TEXT_ONLY, base={},
    ),
}  # fmt: skip

ALL = "layers 0, 1, 2"
IGNORED = "do not use the attention interface"
UNREACHED = "does not get the keyword arguments of the forward pass"
STATE = "it carries state beside attention, or counts positions by itself"
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
}
DELTA: dict[str, Any] = {
    **HEADS,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}
HERE = [family for family, entry in SERVED.items() if family in CONFIG_MAPPING and entry.here]
"""Those that can be served with the installed transformers: its oldest that is supported lacks some."""
REFUSED: dict[str, Refused] = {
    "bamba": Refused({**LLAMA, **MAMBA, "attn_layer_indices": [1]}, f"layers 0, 2 (BambaMixer) {IGNORED}"),
    "bert": Refused(
        {"intermediate_size": 48, "is_decoder": False},
        "layer 0 (BertSelfAttention): its mask is neither causal, nor a sliding window, nor chunks",
    ),
    "bloom": Refused(
        {}, f"{ALL} (BloomAttention) {IGNORED}", {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 3, "n_head": 4}
    ),
    "deepseek_v32": Refused(
        {**MLA, **ROUTED, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4},
        "layer 0 (DeepseekV32Attention): attention arguments indices are not supported",
    ),
    "diffllama": Refused(LLAMA, "layer 0 (DiffLlamaAttention) attends twice, or shares its number with another layer"),
    "doge": Refused(LLAMA, "layer 0 (DogeAttention): it makes an attention_mask of its own"),
    "falcon": Refused({}, f"{ALL} (FalconAttention) {IGNORED}"),
    "falcon_h1": Refused({**LLAMA, **MAMBA, "mamba_d_ssm": 64}, STATE),
    "falcon_mamba": Refused({"state_size": 8}, f"{ALL} (FalconMambaMixer) {IGNORED}"),
    "gpt_neo": Refused(
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
        f"layers 0, 1 {IGNORED}",
        {"vocab_size": VOCAB, "hidden_size": 32},
    ),
    "granitemoehybrid": Refused(
        {**LLAMA, **MAMBA, **TWO_OF_FOUR, "layer_types": ["mamba", "attention", "mamba"]},
        f"layers 0, 2 (GraniteMoeHybridMambaLayer) {IGNORED}",
    ),
    "inkling_text": Refused(
        {**SLIDING, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        "layer 0 (InklingAttention): attention arguments position_bias are not supported",
    ),
    "jamba": Refused(
        {**LLAMA, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8},
        f"layers 0, 2 (JambaMambaMixer) {IGNORED}",
    ),
    "lfm2": Refused(
        {**LLAMA, "layer_types": ["conv", "full_attention", "conv"]}, f"layers 0, 2 (Lfm2ShortConv) {IGNORED}"
    ),
    "mamba": Refused({"state_size": 8}, f"{ALL} (MambaMixer) {IGNORED}"),
    "mamba2": Refused(
        {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1}, f"{ALL} (Mamba2Mixer) {IGNORED}"
    ),
    "minimax": Refused(
        {**HEADS, **TWO_OF_FOUR, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        f"layers 0, 2 (MiniMaxLightningAttention) {IGNORED}",
    ),
    "mpt": Refused(
        {}, f"{ALL} (MptAttention) {IGNORED}", {"vocab_size": VOCAB, "d_model": 32, "n_layers": 3, "n_heads": 4}
    ),
    "nemotron": Refused(LLAMA, f"layer 0 (NemotronAttention) {UNREACHED}"),
    "nemotron_h": Refused({}, f"layers 0, 1, 3 (NemotronHBlock, NemotronHMamba2Mixer) {IGNORED}"),
    "olmo_hybrid": Refused(LLAMA, f"layers 0, 1 (OlmoHybridGatedDeltaNet) {IGNORED}"),
    "openai-gpt": Refused({}, f"{ALL} {IGNORED}", GPT2),
    "qwen3_5_text": Refused(DELTA, f"layers 0, 1 (Qwen3_5GatedDeltaNet) {IGNORED}"),
    "qwen3_next": Refused({**DELTA, **SHARED}, f"layers 0, 1 (Qwen3NextGatedDeltaNet) {IGNORED}"),
    "recurrent_gemma": Refused(LLAMA, f"layers 0, 1 {IGNORED}"),
    "roberta": Refused({"intermediate_size": 48, "is_decoder": True}, STATE),
    "rwkv": Refused({}, f"{ALL} {IGNORED}"),
    "stablelm": Refused(LLAMA, f"layer 0 (StableLmAttention) {UNREACHED}"),
    "xglm": Refused(
        {},
        f"{ALL} (XGLMAttention) {IGNORED}",
        {"vocab_size": VOCAB, "d_model": 32, "num_layers": 3, "attention_heads": 4, "ffn_dim": 48},
    ),
    "zaya": Refused(HEADS, STATE),
}
