"""Checkpoints in AWQ, GPTQ, compressed-tensors and fp8 are the dense model that they stand for, on the CPU and on a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_checkpoints import GPTQ, LAYOUTS, ct, write_checkpoint

from inferd.protocol import InvalidRequest
from inferd_runtime.engine.drivers.build import DriverOptions, build_driver
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.kernels.native.blocks import block_kernels
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.fitting.inspection import matrix_sizes, measure, tensor_bytes
from inferd_runtime.models.loading import load
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.passes.fused import FusedPass, fuse, probe_logits
from inferd_runtime.models.passes.quantized_product import QuantizedProduct
from inferd_runtime.models.quantized.layout import stored_layout
from inferd_runtime.models.store.pull import Pull
from inferd_runtime.models.store.store import ModelStore
from inferd_runtime.models.weights.block_products import BlockProduct
from inferd_runtime.models.weights.on_device import DeviceHolding

OPTIONS = DriverOptions(pages=32, page_size=16, most_rows=64)


@pytest.mark.parametrize("name", LAYOUTS)
def test_its_weights_are_those_of_the_dense_model(name: str, tmp_path: Path) -> None:
    expected = write_checkpoint(tmp_path, LAYOUTS[name]).state_dict()
    loaded = load(str(tmp_path))
    got = loaded.module.state_dict()
    assert got.keys() == expected.keys()
    for path, weight in expected.items():
        assert torch.equal(got[path], weight), path
    assert bool(loaded.stored) == bool(LAYOUTS[name].held)


@pytest.mark.parametrize("name", ["awq", "gptq", "compressed int4", "compressed fp8"])
def test_it_is_served_on_the_cpu(name: str, tmp_path: Path) -> None:
    """Weights in 4 bits by the CPU's own blocks; what blocks do not hold is dense."""
    dense = write_checkpoint(tmp_path, LAYOUTS[name])
    loaded = load(str(tmp_path))
    driver = build_driver(loaded, OPTIONS)
    assert isinstance(driver, TorchDriver)
    assert isinstance(driver.run, FusedPass)
    products = [product for layer in driver.run.layers for product in layer.products().values()]
    blocks = LAYOUTS[name].held == "int4" and block_kernels() is not None
    assert all(isinstance(product, BlockProduct) is blocks for product in products)
    probed = attach(dense, "dense")
    whole = fuse(dense, probed.kv, probed.rules)
    assert whole is not None
    like = driver.run.embedding
    got, wanted = (probe_logits(run, probed.kv, like) for run in (driver.run, whole))
    assert float((got - wanted).abs().max()) <= 5e-3 * float(wanted.abs().max())


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_device_holds_it_as_it_was_stored(name: str, tmp_path: Path) -> None:
    dense = write_checkpoint(tmp_path, LAYOUTS[name]).bfloat16()
    loaded = load(str(tmp_path), dtype="bfloat16")
    probed = attach(dense, "dense")
    whole = fuse(dense, probed.kv, probed.rules)
    assert whole is not None
    holding = DeviceHolding(name, "", torch.device("cpu"), able=(9, 0))
    run = holding.hold(loaded.module, loaded.probe, loaded.stored or {})
    assert (run is not None) == bool(LAYOUTS[name].held)
    if run is None:
        return
    for layer in run.layers:
        for product in layer.products().values():
            assert isinstance(product, QuantizedProduct)
            assert product.rounds_rows == (LAYOUTS[name].held == "fp8")
    got, wanted = (probe_logits(one, probed.kv, run.embedding) for one in (run, whole))
    assert float((got - wanted).abs().max()) <= 0.05 * float(wanted.abs().max())


@pytest.mark.parametrize("name", LAYOUTS)
def test_its_memory_is_what_was_estimated(name: str, tmp_path: Path) -> None:
    """On the CPU and on a device; what the configuration does not tell is counted as if it were not quantized, and says so."""
    write_checkpoint(tmp_path, LAYOUTS[name])
    loaded = load(str(tmp_path))
    full, size = measure(ModelOptions("tiny")), measure(ModelOptions(str(tmp_path)))
    assert full.quantized == full.held_as == ""
    dense, sizes = tensor_bytes(loaded.module), matrix_sizes(loaded.module)
    assert sizes is not None
    driver = build_driver(loaded, OPTIONS)
    assert isinstance(driver, TorchDriver)
    assert isinstance(driver.run, FusedPass)
    layers = [product for layer in driver.run.layers for product in layer.products().values()]
    blocks = sum(product.bytes for product in layers if isinstance(product, BlockProduct))
    if not blocks:
        assert (size.weight_bytes, size.held_as) == (dense, "")
        assert size.quantized == LAYOUTS[name].config["quant_method"]
        return
    assert size.held_as.endswith("4 bits")
    assert size.weight_bytes == dense - 4 * sizes.layers + blocks


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.held])
def test_a_devices_memory_is_what_was_estimated(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LAYOUTS[name])
    loaded = load(str(tmp_path), dtype="bfloat16")
    sizes = matrix_sizes(loaded.module)
    assert sizes is not None
    holding = DeviceHolding(name, "", torch.device("cpu"), able=(9, 0))
    run = holding.hold(loaded.module, loaded.probe, loaded.stored or {})
    assert run is not None
    taken = sum(product.bytes for layer in run.layers for product in layer.products().values())  # type: ignore[attr-defined]
    config = json.loads((tmp_path / "config.json").read_text())
    layout = stored_layout(name, config)
    assert layout is not None
    if layout.held_bits:
        embedding_and_head = sizes.full(2) - 2 * sizes.layers
        counted = sizes.stored(layout.held_bits, layout.group, 2, "cuda:0") - embedding_and_head
        assert 0.9 < counted / taken < 1.1


# -- What is not read is refused ---------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "awq gemv": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "awq, version gemv"),
    "gptq 3 bits": ({**GPTQ, "bits": 3}, "gptq, in 3 bits"),
    "gptq marlin": ({**GPTQ, "checkpoint_format": "marlin"}, "gptq, format marlin"),
    "gptq dynamic": ({**GPTQ, "dynamic": {"-:lm_head": {}}}, "some modules"),
    "nvfp4": (ct("nvfp4-pack-quantized"), "format nvfp4-pack-quantized"),
    "sparse": ({**ct("pack-quantized"), "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
    "rotated": ({**ct("pack-quantized"), "transform_config": {"config_groups": {"a": {}}}}, "transforms"),
    "aqlm": ({"quant_method": "aqlm"}, "needs the package aqlm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    quantized, reason = REFUSED[name]
    write_checkpoint(tmp_path, LAYOUTS["gptq"])
    config = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": quantized}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidRequest, match=rf"{reason}.*--weights int4"):
        load(str(tmp_path))
    with pytest.raises(InvalidRequest, match=rf"{reason}.*--weights int4"):
        Pull(ModelStore(tmp_path / "store"), str(tmp_path), "mine").run()
    assert ModelStore(tmp_path / "store").find("mine") is None


@pytest.mark.parametrize(
    ("tensor", "change", "named"),
    [
        ("q_proj.scales", lambda old: old[:, :8], "scales"),
        ("q_proj.qweight", lambda old: old.float(), "packed weights of torch.float32"),
        ("q_proj.g_idx", lambda old: old + 100, "groups"),
        ("q_proj.qzeros", None, "qzeros"),
    ],
    ids=["scales", "dtype", "groups", "missing"],
)
def test_a_damaged_weight_is_named(tensor: str, change: Any, named: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_checkpoint(tmp_path, LAYOUTS["gptq"])
    path = f"model.layers.0.self_attn.{tensor}"
    for file in tmp_path.glob("*.safetensors"):
        tensors = load_file(file)
        if path in tensors:
            old = tensors.pop(path)
            tensors |= {} if change is None else {path: change(old).contiguous()}
            save_file(tensors, file)
    with pytest.raises(InvalidRequest, match=rf"model\.layers\.0\.self_attn\.q_proj, quantized by gptq.*{named}"):
        load(str(tmp_path))


def test_a_plain_checkpoint_has_no_layout() -> None:
    assert stored_layout("plain", {"model_type": "llama"}) is None
    assert stored_layout("other", {"quantization_config": {"quant_method": "mxfp4"}}) is None
