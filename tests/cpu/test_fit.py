"""The estimate from a configuration alone against models that are really loaded: equal, not close."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from family_table import HERE, SERVED
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.cli.models import models
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.devices import available_bytes, check_device
from inferd_runtime.models.fitting.inspection import kv_shape, measure, tensor_bytes
from inferd_runtime.models.fitting.memory import available_host_bytes
from inferd_runtime.models.loaded import DTYPES
from inferd_runtime.models.loading import load
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.store.pull import resolve

NEED_DATA = {"jetmoe", "longcat_flash"}
"""Their code reads values on its way through the layers, which are not there on the meta device."""
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 1, "attention_bias": True},
    "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16, "num_hidden_layers": 5},
    "mixtral": {"num_local_experts": 4},
}


def config_of(family: str) -> Any:
    common = {
        "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip
    return AutoConfig.for_model(family, **{**common, **CONFIGS[family]})


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["tiny", "tiny-draft"])
def test_the_embedded_models_are_as_large_as_estimated(name: str, dtype: str) -> None:
    size, loaded = measure(ModelOptions(name, dtype)), load(name, dtype=dtype)
    assert size.parameters == parameters(loaded.module)
    assert size.weight_bytes == tensor_bytes(loaded.module)
    assert size.kv_token_bytes == loaded.probe.kv.bytes_per_token(DTYPES[dtype].itemsize)
    assert (size.max_context, size.dtype, size.kv_source) == (loaded.max_context, dtype, "layers")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("family", CONFIGS)
def test_random_models_are_as_large_as_estimated(family: str, dtype: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config_of(family), dtype=torch.float32).save_pretrained(tmp_path)
    size = measure(ModelOptions(str(tmp_path), dtype))
    module = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=DTYPES[dtype]).eval()
    assert size.parameters == parameters(module)
    assert size.weight_bytes == tensor_bytes(module)
    assert size.kv_token_bytes == attach(module, family).kv.bytes_per_token(DTYPES[dtype].itemsize)
    assert size.kv_source == "layers"


def test_no_weights_are_needed_nor_touched(tmp_path: Path) -> None:
    shutil.copy(Path(resolve("tiny")) / "config.json", tmp_path)
    assert measure(ModelOptions(str(tmp_path))).parameters == measure(ModelOptions("tiny")).parameters


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"num_hidden_layers": 1_000_000}, "its num_hidden_layers is 1000000"),
        ({"model_type": "mixtral", "num_local_experts": 100_000}, "its num_local_experts is 100000"),
        ({"hidden_size": 1 << 62}, "its configuration is that of no model"),
        ({"attn_implementation": "stranger/kernel"}, "names kernels of 'stranger/kernel'"),
        ({"_attn_implementation": {"": "paged|stranger/kernel"}}, "names kernels of"),
        ({"text_config": {"experts_implementation": "stranger/kernel"}}, "names kernels of"),
    ],
)
def test_a_strangers_configuration_neither_hangs_an_estimate_nor_runs_code_nor_is_a_bug(
    tmp_path: Path, said: dict[str, Any], why: str
) -> None:
    """A million layers were built one by one, for more than 40 s. Kernels of a hub's repository would have been fetched
    and run where the package `kernels` is installed.
    """
    config = config_of("llama").to_dict() | said
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidRequest, match=why):
        measure(ModelOptions(str(tmp_path)))


def test_a_quantized_checkpoint_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((Path(resolve("tiny")) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    assert measure(ModelOptions(str(tmp_path))) == dataclasses.replace(
        measure(ModelOptions("tiny")), name=str(tmp_path), quantized="fp8"
    )
    assert "as if not quantized: fp8" in fit(capsys, str(tmp_path))[1]


def test_a_model_whose_layers_keep_to_themselves_counts_by_its_configuration() -> None:
    config = AutoConfig.for_model("bloom", hidden_size=32, n_layer=2, n_head=4, vocab_size=97)
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    kv, source = kv_shape(module)
    assert (kv.keys, source) == (((4, 8), (4, 8)), "config")


@pytest.mark.parametrize("family", HERE)
def test_every_family_is_as_large_as_estimated(family: str) -> None:
    entry = SERVED[family]
    config = AutoConfig.for_model(family, **{**entry.base, **entry.settings})
    module = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.device("meta"):
        blueprint = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    assert (parameters(blueprint), tensor_bytes(blueprint)) == (parameters(module), tensor_bytes(module))
    kv, source = kv_shape(blueprint)
    assert source == ("config" if family in NEED_DATA else "layers")
    if source == "layers":
        assert kv == attach(module, family).kv


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no-such-folder"):
        measure(ModelOptions(str(tmp_path / "no-such-folder")))


def test_a_model_without_attention_is_refused_by_name(tmp_path: Path) -> None:
    AutoConfig.for_model("mamba", hidden_size=32, num_hidden_layers=2, vocab_size=97).save_pretrained(tmp_path)
    with pytest.raises(InvalidRequest, match="cannot be served: its configuration names no"):
        measure(ModelOptions(str(tmp_path)))


def test_code_of_a_models_repository_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\n")
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises((NotFound, InvalidRequest), match=str(tmp_path)):
        measure(ModelOptions(str(tmp_path)))
    assert not (tmp_path / "ran").exists()


def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_device("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidRequest, match=r"device 'cuda' is not there: torch sees cpu$"):
        check_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (check_device("cuda"), check_device("cuda:1")) == ("cuda:0", "cuda:1")
    with pytest.raises(InvalidRequest, match=r"device 'cuda:2' is not there: torch sees cpu, cuda:0, cuda:1$"):
        check_device("cuda:2")
    with pytest.raises(InvalidRequest, match="'tpu' is not one of cpu, cuda, cuda:N"):
        check_device("tpu")


def test_a_gpus_free_memory_is_what_its_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that were measured and thrown away do not count a second time: what PyTorch keeps of them is given back first."""
    kept = [100]
    monkeypatch.setattr(torch.cuda, "empty_cache", kept.clear)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: {"cuda:1": (123 - sum(kept), 456)}[device])
    assert available_bytes("cuda:1") == 123
    assert 0 < available_bytes("cpu") < 2 * available_host_bytes()


def fit(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = models(["fit", *arguments])
    return code, capsys.readouterr().out


def test_the_command_says_what_fits_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = fit(capsys, "tiny", "--dtype", "bfloat16")
    assert code == 0
    assert text.splitlines()[0].split() == ["tiny", "bfloat16", "on", "cpu"]
    assert "2,558,144" in text
    assert text.endswith("\nfits\n")
    assert "fits, served with --pages 16640\n" in fit(capsys, "tiny", "--streams", "65")[1]


def test_the_command_says_what_does_not_fit_why_and_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = fit(capsys, "tiny", "--context", "4096", "--streams", "100000000")
    assert code == 1
    assert "does not fit: needs" in text
    assert "--streams" in text
    code, text = fit(capsys, "tiny", "--pages", "99999999999", "--json")
    value = json.loads(text)
    assert (code, value["fits"], value["kv_token_bytes"]) == (1, False, 4096)
    assert value["needs_bytes"] > value["available_bytes"]
    assert value["advice"] == [
        f"--pages {(value['available_bytes'] - value['weight_bytes'] - value['step_bytes']) >> 16}"
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["tiny", "--context", "4097"], "--context 4097 is more than the model's 4096"),
        (["tiny", "--context", "0"], "positive whole number, got '0'"),
        (["tiny", "--pages", "3", "--streams", "2"], "not both"),
        (["tiny", "--dtype", "int8"], "int8"),
        (["tiny,device=tpu"], "tpu"),
        ([], "NAME"),
    ],
)
def test_the_command_refuses_by_name(arguments: list[str], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        models(["fit", *arguments])
