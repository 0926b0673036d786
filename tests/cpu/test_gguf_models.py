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
from inferd_runtime.models.loading import load, resolve
from inferd_runtime.models.store.gguf import convert
from inferd_runtime.models.store.gguf_config import FAMILIES


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
    assert loaded.tokenizer.eos_tokens == (len(TOKENS) - 3, len(TOKENS) - 2)
    assert loaded.max_context <= CONTEXT


def test_every_architecture_that_is_read_is_tested() -> None:
    assert {small.architecture for small in MODELS.values()} == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("llama", {"llama__logit_scale": 2.0}, "llama.logit_scale"),
        ("llama", {"llama__expert_count": 8}, "llama.expert_count"),
        ("llama", {"llama__attention.sliding_window": 16}, "sliding_window"),
        ("llama", {"llama__rope.scaling.type": "longrope"}, "longrope"),
        ("llama", {"llama__rope.dimension_count": 8}, "rotates 8 of 16"),
        ("llama", {"llama__attention.head_count_kv": [2, 4]}, "differ in their heads"),
        ("llama 3", {"llama__rope.freq_base": 10000.0}, "not those of Llama 3"),
        ("qwen2", {"qwen2__rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ("gemma2", {"gemma2__attention.causal": False}, "not causal"),
        ("gemma2", {"gemma2__block_count": None}, "num_hidden_layers"),
        ("llama", {"llama__block_count": 3}, "lacks 9 weights"),
        ("llama", {"llama__block_count": 1}, "is not one of a llama model"),
        ("llama", {"llama__feed_forward_length": 80}, "has the shape"),
        ("llama", {"tokenizer__ggml.model": "llama"}, "no scores"),
        ("llama", {"tokenizer__ggml.tokens": [*TOKENS, "<more>"]}, "wider than its embedding"),
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


def test_an_architecture_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    small = SmallModel("mamba", "llama")
    module = MODELS["llama"].module()
    SmallModel("llama", "llama").write(tmp_path / "small.gguf", module, general__architecture="mamba")
    with pytest.raises(InvalidRequest, match=f"{small.architecture}.*is not read"):
        convert(tmp_path / "small.gguf", tmp_path)
