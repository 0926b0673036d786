"""LoRA adapters against transformers' own logits with the adapter merged into the weights."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from families import VOCAB, make
from lora_files import files_of, make_adapter, make_config, make_tensors, merged
from safetensors.torch import load
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.stages import Work
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.lora.bank import LoraBank
from inferd_runtime.models.lora.files import AdapterFiles, AdapterSize
from inferd_runtime.models.passes.fused import fuse
from inferd_runtime.models.passes.plain import ModelPass, PlainPass
from inferd_runtime.models.weights.held import HoldingPlan, hold
from inferd_runtime.models.weights.host_products import LEAST_ROWS, Way, kept_of

TOLERANCE = 1e-4
ROUNDED = 3e-2
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
MLA = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
TOKENS = [5, 17, 3, 44, 9, 23, 61, 8, 8, 90, 12, 33, 7]


class Bench:
    """One model behind the driver, beside an untouched copy of it."""

    def __init__(self, model: nn.Module, *, fast: bool = False, held: str = "") -> None:
        self.plain = model
        served = self.served = copy.deepcopy(model)
        probed = attach(served, "a model")
        run: ModelPass = PlainPass(served)
        if fast:
            dense = fuse(served, probed.kv, probed.rules)
            assert dense is not None
            run = (
                hold(dense, served, HoldingPlan.uniform(dense, Way(held or "packed", LEAST_ROWS[-1])))
                if held
                else dense
            )
        self.driver = TorchDriver(
            run, next(served.parameters()), probed.kv, vocab_size=VOCAB, max_context=256, pages=64, page_size=4,
            adapters=LoraBank(run, served, probed.kv),
        )  # fmt: skip
        self.pool = PagePool(self.driver.pages, self.driver.page_size)

    def load(self, key: str, files: AdapterFiles) -> AdapterSize:
        """Read an adapter and load it."""
        return self.driver.load_adapter(key, self.driver.adapter_reader()(files))

    def feed(self, parts: Sequence[tuple[str, PageTable, list[int]]]) -> list[np.ndarray]:
        """Run one batch of (adapter, table, tokens); every row's logits, part by part."""
        for _, table, tokens in parts:
            self.driver.copy_pages(table.reserve(len(tokens)))
        plan = [
            Planned(None, Work(tokens, len(tokens)), table, adapter)  # type: ignore[arg-type]
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
    bench.load("a", files)
    got, expected = bench.alone("a", TOKENS), bench.expected(files, TOKENS)
    assert np.abs(expected - bench.expected(None, TOKENS)).max() > 0.1, "the adapter changes nothing"
    assert np.abs(got - expected).max() < TOLERANCE
    assert np.abs(bench.alone("", TOKENS) - bench.expected(None, TOKENS)).max() < TOLERANCE


@pytest.mark.parametrize("held", ["packed", "half", "int8", "int4"])
def test_a_fused_model_whose_weights_are_held_otherwise_takes_adapters(held: str) -> None:
    """What the adapter adds is what it adds to dense weights, whatever is left of the weights themselves."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama", vocab_size=VOCAB, hidden_size=512, intermediate_size=1536, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    bench = Bench(AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval(), fast=True, held=held)
    assert all(part.weight.numel() == 0 for part in bench.served.modules() if isinstance(part, nn.Linear))
    with torch.no_grad():
        for part in bench.plain.modules():
            if isinstance(part, nn.Linear):
                part.weight.copy_(kept_of(held, part.weight))
    files = make_adapter(bench.plain, ALL, seed=1)
    bench.load("a", files)
    exact = held == "packed"
    for adapter, given in (("a", files), ("", None)):
        expected = bench.expected(given, TOKENS)
        allowed = (TOLERANCE if exact else ROUNDED) * max(1.0, np.abs(expected).max())
        assert np.abs(bench.alone(adapter, TOKENS) - expected).max() < allowed


OPTIONS = {
    "rslora": {"use_rslora": True, "lora_alpha": 3},
    "patterns": {"rank_pattern": {"k_proj": 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 11}},
    "fan_in_fan_out": {"fan_in_fan_out": True},
    "regular expressions": {
        "target_modules": r".*\.(q_proj|k_proj|v_proj|o_proj)",
        "exclude_modules": r".*\.gate_proj",
    },
    "some layers": {"layers_to_transform": [0, 1, 2], "exclude_modules": ["down_proj"]},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options_mean_what_they_mean_in_peft(options: str) -> None:
    bench = Bench(make("llama"))
    files = make_adapter(bench.plain, ATTENTION, seed=2, **OPTIONS[options])
    size = bench.load("a", files)
    assert size.rank == 4
    assert size.bytes == sum(4 * part.numel() for part in load(bytes(files.weights)).values())
    expected = bench.expected(files, TOKENS)
    assert np.abs(bench.alone("a", TOKENS) - expected).max() < TOLERANCE
    assert np.abs(expected - bench.expected(None, TOKENS)).max() > 0.1


@pytest.mark.parametrize("fast", [False, True])
def test_three_adapters_and_none_in_one_ragged_batch_equal_each_alone(fast: bool) -> None:
    """Prefill chunks and decode rows of texts with different adapters share each batch, shuffled anew every step."""
    bench = Bench(make("qwen3"), fast=fast)
    files = {
        "a": make_adapter(bench.plain, ALL, seed=1),
        "b": make_adapter(bench.plain, ("q_proj", "down_proj"), seed=2, r=1),
        "c": make_adapter(bench.plain, ATTENTION, seed=3, r=7, use_rslora=True),
    }
    for key, each in files.items():
        bench.load(key, each)
    order = random.Random(4)
    texts = [(key, order.choices(range(3, VOCAB), k=order.randrange(9, 40))) for key in ("a", "", "b", "a", "c", "")]
    tables = [PageTable(bench.pool) for _ in texts]
    got: list[list[np.ndarray]] = [[] for _ in texts]
    while live := [i for i, (_, text) in enumerate(texts) if tables[i].length < len(text)]:
        order.shuffle(live)
        parts = [(texts[i][0], tables[i], texts[i][1][tables[i].length :][: order.choice((1, 1, 5, 17))]) for i in live]
        for i, rows in zip(live, bench.feed(parts), strict=True):
            got[i].append(rows)
    for (key, text), rows, table in zip(texts, got, tables, strict=True):
        table.release()
        assert np.abs(np.concatenate(rows) - bench.expected(files.get(key), text)).max() < TOLERANCE, key
    bench.pool.check_integrity([])


def test_an_unloaded_adapter_leaves_no_trace() -> None:
    bench = Bench(make("llama"))
    before = bench.alone("", TOKENS)
    bench.load("a", make_adapter(bench.plain, ALL, seed=1))
    bench.alone("a", TOKENS)
    bench.driver.unload_adapter("a")
    assert (bench.alone("", TOKENS) == before).all()
    assert not any(module._forward_hooks for module in bench.served.modules())


def hostile(model: nn.Module) -> AdapterFiles:
    """Finite weights that overflow everything behind them."""
    tensors = make_tensors(model, ALL, seed=1)
    return files_of(make_config(ALL), {key: part * (1e30 if "lora_B" in key else 1) for key, part in tensors.items()})


@pytest.mark.parametrize("fast", [False, True])
def test_what_a_hostile_adapter_leaves_in_the_cache_harms_nobody(fast: bool) -> None:
    """Short texts read, masked, what the pages that they got held before."""
    bench = Bench(make("llama"), fast=fast)
    bench.load("bad", hostile(bench.plain))
    tables = [PageTable(bench.pool) for _ in range(8)]
    bench.feed([("bad", table, [5] * 32) for table in tables])
    assert not bench.pool.available
    for table in tables:
        table.release()
    texts = [TOKENS[first : first + 5 + first % 3] for first in range(6)]
    tables = [PageTable(bench.pool) for _ in texts]
    bench.feed([("", table, text[:-1]) for table, text in zip(tables, texts, strict=True)])
    got = bench.feed([("", table, text[-1:]) for table, text in zip(tables, texts, strict=True)])
    for rows, text in zip(got, texts, strict=True):
        assert np.abs(rows[0] - bench.expected(None, text)[-1]).max() < TOLERANCE


def test_a_hostile_adapter_beside_others_spoils_its_own_rows_only() -> None:
    bench = Bench(make("llama"))
    bench.load("bad", hostile(bench.plain))
    tables = [PageTable(bench.pool) for _ in range(3)]
    parts = [(key, table, TOKENS) for key, table in zip(("", "bad", ""), tables, strict=True)]
    got = bench.feed(parts)
    for rows in (got[0], got[2]):
        assert np.abs(rows - bench.expected(None, TOKENS)).max() < TOLERANCE


def test_a_bfloat16_adapter_is_served_in_the_models_dtype() -> None:
    bench = Bench(make("llama"))
    tensors = {key: part.bfloat16() for key, part in make_tensors(bench.plain, ATTENTION, seed=1).items()}
    files = files_of(make_config(ATTENTION), tensors)
    bench.load("a", files)
    assert np.abs(bench.alone("a", TOKENS) - bench.expected(files, TOKENS)).max() < TOLERANCE


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(make("llama"))


REFUSED_OPTIONS = {
    "peft_type 'IA3'": {"peft_type": "IA3"},
    "use_dora": {"use_dora": True},
    "bias 'all'": {"bias": "all"},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "init_lora_weights 'pissa'": {"init_lora_weights": "pissa"},
    "target_parameters": {"target_parameters": ["mlp.experts.gate_up_proj"]},
    "trainable_token_indices": {"trainable_token_indices": [1]},
    "layer_replication": {"layer_replication": [[0, 2]]},
    "lora_bias": {"lora_bias": True},
    "some_new_option": {"some_new_option": 3},
    "target_modules names no module": {"target_modules": []},
    r"Expected `int` >= 1 - at `\$.r`": {"r": 0},
    "lora_alpha": {"lora_alpha": "much"},
    "is no regular expression": {"target_modules": "(q_proj"},
    "'model.layers.0.mlp.up_proj', and there are no weights": {"target_modules": [*ATTENTION, "up_proj"]},
    "'lm_head', and there are no weights": {"target_modules": [*ATTENTION, "lm_head"]},
    "which target_modules does not name": {"target_modules": ["q_proj", "k_proj", "v_proj"]},
    "this model and rank need": {"r": 5},
}


@pytest.mark.parametrize("reason", REFUSED_OPTIONS)
def test_what_is_not_supported_is_refused_by_name(bench: Bench, reason: str) -> None:
    tensors = make_tensors(bench.plain, ATTENTION, seed=1)
    with pytest.raises(InvalidRequest, match=reason):
        bench.load("bad", files_of(make_config(**{"targets": ATTENTION, **REFUSED_OPTIONS[reason]}), tensors))


Q = "base_model.model.model.layers.1.self_attn.q_proj"
HEAD = "base_model.model.lm_head"


def without(tensors: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name: part for name, part in tensors.items() if name != key}


REFUSED_TENSORS: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "q_proj.lora_B.weight' is missing": lambda t: without(t, f"{Q}.lora_B.weight"),
    "q_proj.lora_A.weight' is missing": lambda t: without(t, f"{Q}.lora_A.weight"),
    r"is \[4, 33\], this model and rank need \[4, 32\]": lambda t: {**t, f"{Q}.lora_A.weight": torch.ones(4, 33)},
    r"is \[4\], this model and rank need": lambda t: {**t, f"{Q}.lora_A.weight": torch.ones(4)},
    "'model.layers.1.self_attn.q_proj' are not finite": lambda t: {
        **t, f"{Q}.lora_A.weight": torch.full((4, 32), float("nan"))
    },
    "q_proj' are not finite": lambda t: {**t, f"{Q}.lora_B.weight": torch.full((32, 4), float("inf"))},
    "'I8', which is not supported": lambda t: {**t, f"{Q}.lora_A.weight": torch.ones(4, 32, dtype=torch.int8)},
    "lora_magnitude_vector.weight' is not supported": lambda t: {**t, f"{Q}.lora_magnitude_vector.weight": torch.ones(4)},
    "lora_embedding_A' is not supported": lambda t: {**t, "base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4)},
    "'classifier.weight' is not supported": lambda t: {**t, "classifier.weight": torch.ones(4)},
    "'model.layers.9.self_attn.q_proj': this model has no such": lambda t: {
        **t, f"{Q}.lora_A.weight".replace("1", "9", 1): torch.ones(4, 32)
    },
    "'lm_head': LoRA is not supported": lambda t: {
        **t, f"{HEAD}.lora_A.weight": torch.ones(4, 32), f"{HEAD}.lora_B.weight": torch.ones(VOCAB, 4)
    },
    "holds no weights": lambda t: {},
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED_TENSORS)
def test_weights_that_do_not_fit_are_refused_by_name(bench: Bench, reason: str) -> None:
    tensors = REFUSED_TENSORS[reason](make_tensors(bench.plain, ATTENTION, seed=1))
    with pytest.raises(InvalidRequest, match=reason):
        bench.load("bad", files_of(make_config(ATTENTION), tensors))


@pytest.mark.parametrize("part", ["gate", "experts"])
def test_routers_and_experts_are_refused_by_name(part: str) -> None:
    bench = Bench(make_special("deepseek_v3"))
    name = f"base_model.model.model.layers.1.mlp.{part}"
    tensors = {f"{name}.lora_A.weight": torch.ones(4, 32), f"{name}.lora_B.weight": torch.ones(4, 4)}
    with pytest.raises(InvalidRequest, match=rf"'model.layers.1.mlp.{part}': this model has no such linear module"):
        bench.load("bad", files_of(make_config((part,)), tensors))


@pytest.mark.parametrize("size", [1 << 17, 1 << 60])
def test_a_header_of_more_than_the_models_modules_need_is_not_read(bench: Bench, size: int) -> None:
    files = AdapterFiles(
        json.dumps(make_config(ATTENTION)).encode(), bytearray(size.to_bytes(8, "little") + b"{" * (1 << 17))
    )
    with pytest.raises(InvalidRequest, match="its header takes more than"):
        bench.load("bad", files)


@pytest.mark.parametrize("data", [b"", b"\x80\x04pickle", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0{}      more"])
def test_bytes_that_are_no_safetensors(bench: Bench, data: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"adapter_model\.safetensors"):
        bench.load("bad", AdapterFiles(json.dumps(make_config(ATTENTION)).encode(), bytearray(data)))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"r": 8}', b"[" * 100000])
def test_configurations_that_are_none(bench: Bench, data: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"adapter_config\.json"):
        bench.load("bad", AdapterFiles(data, bytearray()))


def test_a_strangers_regular_expression_is_not_evaluated(bench: Bench) -> None:
    tensors = make_tensors(bench.plain, ATTENTION, seed=1)
    for options in ({"targets": "(a+)+$"}, {"alpha_pattern": {"(a+)+b": 3}}, {"rank_pattern": {".*q_proj": 4}}):
        files = files_of(make_config(**{"targets": ATTENTION, **options}), tensors, trusted=False)
        with pytest.raises(InvalidRequest, match=r"is a regular expression; name the modules instead"):
            bench.load("bad", files)


def test_a_folder_without_safetensors_is_never_unpickled(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no adapter_config"):
        AdapterFiles.read(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps(make_config(ATTENTION)))
    with pytest.raises(InvalidRequest, match=r"has no adapter_model\.safetensors$"):
        AdapterFiles.read(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(InvalidRequest, match="is a pickle"):
        AdapterFiles.read(tmp_path)
