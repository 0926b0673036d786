"""LoRA adapters against transformers' own logits with the adapter merged into the weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from families import VOCAB, make
from lora_files import make_adapter, merged
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.engine.plan import Planned, Work, prepare
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.adapter_files import AdapterFiles
from inferd_runtime.models.fused import fuse
from inferd_runtime.models.lora_bank import LoraBank
from inferd_runtime.models.passes import ModelPass, PlainPass
from inferd_runtime.models.probe import attach

TOLERANCE = 1e-4
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
MLA = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
TOKENS = [5, 17, 3, 44, 9, 23, 61, 8, 8, 90, 12, 33, 7]


class Bench:
    """One model behind the driver, beside an untouched copy of it."""

    def __init__(self, model: nn.Module, *, fast: bool = False) -> None:
        self.plain = model
        served = copy.deepcopy(model)
        probed = attach(served, "a model")
        run: ModelPass | None = fuse(served, probed.kv, probed.rules) if fast else PlainPass(served)
        assert run is not None
        self.driver = TorchDriver(
            run, next(served.parameters()), probed.kv, vocab_size=VOCAB, max_context=256, pages=64, page_size=4,
            adapters=LoraBank(run, served, probed.kv),
        )  # fmt: skip
        self.pool = PagePool(self.driver.pages, self.driver.page_size)

    def feed(self, parts: Sequence[tuple[str, PageTable, list[int]]]) -> list[np.ndarray]:
        """Run one batch of (adapter, table, tokens); every row's logits, part by part."""
        plan = [
            Planned(None, Work(tokens, len(tokens)), table, table.reserve(len(tokens)), adapter)  # type: ignore[arg-type]
            for adapter, table, tokens in parts
        ]
        rows = self.driver.forward(prepare(plan, self.driver.page_size)).logits
        for _, table, tokens in parts:
            table.advance(len(tokens))
        return np.split(rows, np.cumsum([len(tokens) for _, _, tokens in parts])[:-1])

    def alone(self, adapter: str, tokens: list[int]) -> np.ndarray:
        """The logits of one text, computed in two chunks and one decode row."""
        table = PageTable(self.pool)
        got = [self.feed([(adapter, table, part)])[0] for part in (tokens[:5], tokens[5:-1], tokens[-1:])]
        table.release()
        return np.concatenate(got)

    def expected(self, files: AdapterFiles | None, tokens: list[int]) -> np.ndarray:
        model = self.plain if files is None else merged(self.plain, files)
        with torch.inference_mode():
            return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def make_special(family: str) -> nn.Module:
    """Tiny random models that the common table does not have."""
    settings = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "max_position_embeddings": 64, "moe_intermediate_size": 16, "n_routed_experts": 4,
        "num_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "head_dim": 8,
        "first_k_dense_replace": 1, "q_lora_rank": 12, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
        "v_head_dim": 10, "pad_token_id": 0, "tie_word_embeddings": False,
    }  # fmt: skip
    if family == "deepseek_v3":
        del settings["head_dim"]
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
    return model


KINDS = {
    "llama-plain": (lambda: make("llama"), False, ALL),
    "llama-fused": (lambda: make("llama"), True, ALL),
    "qwen2-fused-some": (lambda: make("qwen2"), True, ("k_proj", "v_proj", "up_proj")),
    "gpt2-conv1d": (lambda: make("gpt2"), False, ("c_attn", "c_proj", "c_fc")),
    "gemma2": (lambda: make("gemma2"), False, ("q_proj", "down_proj")),
    "qwen3-moe": (lambda: make_special("qwen3_moe"), False, ATTENTION),
    "deepseek-mla": (lambda: make_special("deepseek_v3"), False, MLA),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_equals_the_merged_weights(kind: str) -> None:
    make_model, fast, targets = KINDS[kind]
    bench = Bench(make_model(), fast=fast)
    files = make_adapter(bench.plain, targets, seed=1)
    bench.driver.load_adapter("a", files)
    got, expected = bench.alone("a", TOKENS), bench.expected(files, TOKENS)
    assert np.abs(expected - bench.expected(None, TOKENS)).max() > 0.1, "the adapter changes nothing"
    assert np.abs(got - expected).max() < TOLERANCE
    assert np.abs(bench.alone("", TOKENS) - bench.expected(None, TOKENS)).max() < TOLERANCE
