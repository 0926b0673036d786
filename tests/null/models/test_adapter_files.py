"""Adapter configurations and options as text: PEFT's rules for names, and the operator's command line. No tensors."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from inferd.protocol import InvalidRequest
from inferd_runtime.isolation.settings_json import decode_settings, encode_settings
from inferd_runtime.models.adapter_options import AdapterOptions, read_adapters
from inferd_runtime.models.lora.files import AdapterFiles, LoraConfig

Q0, Q1, Q10 = (f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 1, 10))
UP = "model.layers.1.mlp.up_proj"


def parse(trusted: bool = True, **fields: Any) -> LoraConfig:
    whole = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **fields}
    return LoraConfig.parse(AdapterFiles(json.dumps(whole).encode(), bytearray(), trusted))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, {Q0, Q1, Q10}),
        ({"target_modules": ["self_attn.q_proj", "mlp.up_proj"]}, {Q0, Q1, Q10, UP}),
        ({"target_modules": ["proj", "attn.q_proj", "layers.1"]}, set()),
        ({"target_modules": [Q1]}, {Q1}),
        ({"target_modules": "all-linear"}, {Q0, Q1, Q10, UP}),
        ({"target_modules": r".*\.1\..*"}, {Q1, UP}),
        ({"target_modules": r"layers\.1\."}, set()),
        ({"target_modules": "all-linear", "exclude_modules": ["q_proj"]}, {UP}),
        ({"target_modules": "all-linear", "exclude_modules": r".*\.1\..*"}, {Q0, Q10}),
        ({"target_modules": ["q_proj", "up_proj"], "layers_to_transform": 1}, {Q1, UP}),
        ({"layers_to_transform": [0, 10]}, {Q0, Q10}),
        ({"layers_to_transform": []}, {Q0, Q1, Q10}),
        ({"target_modules": r".*q_proj", "layers_to_transform": [1]}, {Q0, Q1, Q10}),
    ],
)
def test_which_modules_are_named(fields: dict[str, Any], named: set[str]) -> None:
    config = parse(**fields)
    assert {module for module in (Q0, Q1, Q10, UP) if config.names(module)} == named


def test_rank_and_scaling() -> None:
    assert (parse().rank_of(Q0), parse().scaling_of(Q0)) == (4, 2.0)
    assert parse(use_rslora=True).scaling_of(Q0) == 4.0
    patterns = {
        "rank_pattern": {"q_proj": 2, Q1: 16, r".*\.10\..*": 8},
        "alpha_pattern": {r"layers\.1\.\w+\.q_proj": 1},
    }
    config = parse(**patterns)
    assert [config.rank_of(module) for module in (Q0, Q1, Q10, UP)] == [2, 2, 2, 4], "the first key counts"
    assert [config.scaling_of(module) for module in (Q0, Q1)] == [4.0, 0.5]
    assert config.max_rank == 16
    assert parse(rank_pattern={r".*\.10\..*": 8, "q_proj": 2}).rank_of(Q10) == 8


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": "(a+)+$"},
        {"exclude_modules": ".*"},
        {"rank_pattern": {"a|b": 1}},
        {"alpha_pattern": {"(a*)*": 1}},
    ],
)
def test_expressions_of_strangers_are_refused(fields: dict[str, Any]) -> None:
    parse(**fields)
    with pytest.raises(
        InvalidRequest, match=rf"{next(iter(fields))}.* is a regular expression; name the modules instead"
    ):
        parse(trusted=False, **fields)


def test_many_names_cost_no_more_than_few() -> None:
    config = parse(
        False, rank_pattern={f"m{i}": 2 for i in range(100_000)}, target_modules=[f"m{i}" for i in range(100_000)]
    )
    before = time.process_time()
    for layer in range(1000):
        assert config.rank_of(f"model.layers.{layer}.m77") == 2
        assert config.names(f"model.layers.{layer}.m77")
    assert time.process_time() - before < 0.5


def test_what_tells_of_the_training_is_allowed() -> None:
    parse(
        task_type="SEQ_CLS", lora_dropout=0.1, inference_mode=True, base_model_name_or_path="x", peft_version="0.21",
        init_lora_weights="gaussian", megatron_core="megatron.core", qalora_group_size=16, use_qalora=False, eva_config=None,
    )  # fmt: skip


def test_options_of_the_command_line() -> None:
    whole = AdapterOptions("a", Path("/x/y=z,w"), "org/model")
    assert AdapterOptions.parse("a=/x/y=z,w,model=org/model") == whole
    assert decode_settings(encode_settings(whole), AdapterOptions) == whole
    assert AdapterOptions.parse("a=rel") == AdapterOptions("a", Path("rel"))
    assert read_adapters("a=x; b=y;") == (AdapterOptions("a", Path("x")), AdapterOptions("b", Path("y")))
    assert read_adapters([{"name": "a", "folder": "x", "model": "m"}, "a=x"])[0] == AdapterOptions("a", Path("x"), "m")
    assert read_adapters([]) == ()


@pytest.mark.parametrize(
    "value", ["a", "=x", "a=", "a=x,model=", "a=x;a=y", [3], [{"name": "a"}], [{"name": "a", "folder": "x", "y": 1}], 3]
)
def test_options_that_are_none(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"adapter|NAME=FOLDER"):
        read_adapters(value)


@pytest.mark.parametrize("value", ["[" + "1e308," * 500_000 + "1]", "[" + "[]," * 500_000 + "1]"])
def test_a_configuration_that_takes_long_to_read_is_refused(value: str) -> None:
    """It is read in the engine's step loop: eight megabytes of the first took 20 s."""
    began = time.process_time()
    with pytest.raises(InvalidRequest, match=r"adapter_config\.json"):
        LoraConfig.parse(AdapterFiles(b'{"peft_type":"LORA","loftq_config":' + value.encode() + b"}", bytearray()))
    assert time.process_time() - began < 0.5
