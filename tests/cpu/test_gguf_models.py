"""A model that comes as a GGUF file has the logits of the model that the file was made of, and its tokens; or it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_models import CONTEXT, MODELS, TOKENS, WINDOW, SmallModel
from transformers import AutoModelForCausalLM

from inferd.protocol import InvalidRequest
from inferd_runtime.models.loading import load
from inferd_runtime.models.store.gguf import convert
from inferd_runtime.models.store.gguf_families import FAMILIES, WITH_EXPERTS, WITH_WINDOW
from inferd_runtime.models.store.pull import resolve


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERD_CACHE_DIR", str(tmp_path / "cache"))


def logits(module: Any) -> torch.Tensor:
    ids = torch.arange(3 * WINDOW)[None] * 7 % len(TOKENS)
    with torch.no_grad():
        found: torch.Tensor = module(ids).logits
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_a_file_has_the_logits_of_the_model_it_was_made_of(tmp_path: Path, name: str) -> None:
    small = MODELS[name]
    module = small.module()
    small.write(tmp_path / "small.gguf", module)
    loader: Any = AutoModelForCausalLM
    folder = resolve(str(tmp_path / "small.gguf"))
    # `transformers serve` and vLLM find the class by its name.
    assert json.loads(Path(folder, "config.json").read_text())["architectures"] == [type(module).__name__]
    read = loader.from_pretrained(folder, attn_implementation="eager")
    wanted = logits(module)
    assert (logits(read) - wanted).abs().max() < 1e-5 * wanted.abs().max()
    loaded = load(str(tmp_path / "small.gguf"))
    assert loaded.tokenizer.eos_tokens == (len(TOKENS) - 2, len(TOKENS) - 3), "the tokenizer's own comes first"
    assert loaded.max_context <= CONTEXT


def test_every_architecture_that_is_read_is_tested() -> None:
    assert {small.architecture for small in MODELS.values()} == set(FAMILIES)
    read = [*FAMILIES.values(), *WITH_EXPERTS.values(), *WITH_WINDOW.values()]
    assert {small.model_type for small in MODELS.values()} == {family.model_type for family in read}


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("llama", {"llama__logit_scale": 2.0}, "llama.logit_scale"),
        ("qwen2", {"qwen2__expert_count": 8}, "qwen2.expert_count"),
        ("minimax-m2", {"minimax-m2__expert_gating_func": 1}, "expert_gating_func"),
        ("qwen2moe", {"qwen2moe__expert_weights_scale": 2.5}, "expert_weights_scale"),
        ("gpt2", {"gpt2__rope.freq_base": 10000.0}, "gpt2.rope.freq_base"),
        ("llama", {"llama__attention.sliding_window": 16}, "sliding_window"),
        ("llama", {"llama__rope.scaling.type": "longrope"}, "longrope"),
        ("llama", {"llama__rope.dimension_count": 8}, "rotates 8 of 16"),
        ("llama", {"llama__attention.head_count_kv": [2, 4]}, "differ in their heads"),
        ("llama 3", {"llama__rope.freq_base": 10000.0}, "not those of Llama 3"),
        ("qwen2", {"qwen2__rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ("gemma2", {"gemma2__attention.causal": False}, "not causal"),
        ("gemma2", {"gemma2__block_count": None}, "gemma2.block_count"),
        ("qwen2", {"qwen2__attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon"),
        ("llama", {"llama__feed_forward_length": 80}, "has the shape"),
        ("llama", {"tokenizer__ggml.model": "llama"}, "no scores"),
        (
            "llama", {"tokenizer__ggml.tokens": [*TOKENS, "<more>"], "tokenizer__ggml.token_type": None},
            "wider than its embedding",
        ),
    ],
)  # fmt: skip
def test_what_a_file_says_and_nobody_reads_is_refused_by_name(
    tmp_path: Path, name: str, more: dict[str, Any], reason: str
) -> None:
    MODELS[name].write(tmp_path / "small.gguf", MODELS[name].module(), **more)
    with pytest.raises(InvalidRequest, match=reason):
        convert(tmp_path / "small.gguf", tmp_path)


def test_weights_that_a_model_has_no_place_for_are_refused(tmp_path: Path) -> None:
    small = SmallModel("llama", "llama", extra={"blk.0.attn_q.bias": [1.0] * 64})
    small.write(tmp_path / "small.gguf", small.module())
    with pytest.raises(InvalidRequest, match=r"blk\.0\.attn_q\.bias"):
        convert(tmp_path / "small.gguf", tmp_path)


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("mixtral", {"llama__expert_count": 2**31}, "num_local_experts is 2147483648"),
        ("qwen2moe", {"qwen2moe__expert_count": 5}, "has the shape"),
        ("qwen2moe", {"qwen2moe__expert_used_count": 5}, "more experts than it has"),
        ("qwen3moe", {"qwen3moe__expert_feed_forward_length": 31}, "has the shape"),
        ("gpt-oss", {"gpt-oss__block_count": 2**31}, "2147483648 layers, and has weights of 2"),
        ("llama", {"llama__block_count": 1}, "1 layers, and has weights of 2"),
        ("llama", {"llama__attention.head_count": 0}, "num_attention_heads is 0"),
        ("qwen2", {"qwen2__attention.head_count": 48}, "has the shape"),
        ("llama", {"llama__attention.key_length": 2**31}, "rotates 16 of 2147483648"),
        ("qwen3", {"qwen3__attention.key_length": 2**31, "qwen3__attention.value_length": 2**31}, "has the shape"),
        ("gpt2", {"gpt2__attention.head_count": 3}, "no model"),
        ("gpt2", {"gpt2__attention.head_count_kv": 2}, "heads"),
        ("gpt2", {"gpt2__attention.key_length": 8}, "heads"),
        ("gpt2", {"gpt2__context_length": 2**31}, "has the shape"),
        ("llama", {"llama__attention.layer_norm_rms_epsilon": "tiny"}, "differ"),
        ("gemma4", {"gemma4__attention.shared_kv_layers": 2**31}, "2147483648 of its 4 layers"),
        ("gemma4", {"gemma4__attention.sliding_window_pattern": [True]}, "of its 1 layers"),
        ("gemma4", {"gemma4__attention.sliding_window_pattern": None}, "no model"),
        ("gemma4", {"gemma4__feed_forward_length": [96, 96, 96, 192]}, "differ in their widths"),
        ("gemma4", {"gemma4__attention.value_length": 16}, "other widths"),
        ("gemma4", {"gemma4__expert_count": 8}, "gemma4.expert_count"),
    ],
)
def test_sizes_of_no_model_with_these_weights_are_refused(
    tmp_path: Path, name: str, more: dict[str, Any], reason: str
) -> None:
    """What is made before weights are looked at would take the time and memory that a file says."""
    MODELS[name].write(tmp_path / "small.gguf", MODELS[name].module(), **more)
    with pytest.raises(InvalidRequest, match=reason):
        convert(tmp_path / "small.gguf", tmp_path)


@pytest.mark.parametrize(
    ("name", "lost", "reason"),
    [
        ("mixtral", "blk.1.ffn_up_exps.weight", "lacks 1 weights"),
        ("qwen2moe", "blk.0.ffn_gate_inp_shexp.weight", "lacks 1 weights"),
        ("gpt-oss", "blk.0.attn_sinks.weight", "lacks 1 weights"),
        ("gpt2", "token_embd.weight", "no model"),
    ],
)
def test_a_file_that_lacks_a_weight_is_refused(tmp_path: Path, name: str, lost: str, reason: str) -> None:
    small, module = MODELS[name], MODELS[name].module()
    small.write(tmp_path / "small.gguf", module, lost=lost)
    with pytest.raises(InvalidRequest, match=reason):
        convert(tmp_path / "small.gguf", tmp_path)


@pytest.mark.parametrize("architecture", ["mamba", "t5", "falcon", "unheard-of"])
def test_an_architecture_that_is_not_read_is_refused_by_name_and_with_what_serves_it(
    tmp_path: Path, architecture: str
) -> None:
    MODELS["llama"].write(tmp_path / "small.gguf", MODELS["llama"].module(), general__architecture=architecture)
    with pytest.raises(InvalidRequest, match=f"{architecture}.*is not read.*llama\\.cpp serves"):
        convert(tmp_path / "small.gguf", tmp_path)
