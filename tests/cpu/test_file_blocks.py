"""Blocks of GGUF files are held on the CPU as they came: every kind to the bit, and what a model in them needs and gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from gguf_files import SmallFile, random_blocks

from inferd_runtime.engine.drivers.build import DriverOptions, build_driver
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.kernels.native.block_forms import form_of, unpack
from inferd_runtime.kernels.native.blocks import block_kernels
from inferd_runtime.models.loading import load, size_of
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.passes.fused import FusedPass, fuse, probe_logits
from inferd_runtime.models.passes.products import DenseProduct, Product
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.models.weights.block_products import BlockProduct
from inferd_runtime.models.weights.file_blocks import FILE, rows_of
from inferd_runtime.models.weights.gguf_kinds import KINDS, packed_rows
from inferd_runtime.models.weights.held import held_bytes

needs_kernels = pytest.mark.skipif(block_kernels() is None, reason="no compiler, or a processor without AVX2")
OPTIONS = DriverOptions(pages=32, page_size=16, most_rows=64)
MIXED = SmallFile("Q4_K", 256, 512, 4, {"attn_v": "Q6_K", "token_embd": "Q6_K"})
"""As files called Q4_K_M are."""


def rows_and_dense(kind: str, outputs: int = 70) -> tuple[torch.Tensor, torch.Tensor]:
    rows = random_blocks(kind, (outputs, 512), np.random.default_rng(3))
    return torch.from_numpy(rows), torch.from_numpy(quants.dequantize(rows, GGMLQuantizationType[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_held_to_the_bit(kind: str) -> None:
    rows, dense = rows_and_dense(kind)
    found = unpack(packed_rows(kind, rows))
    assert len(found) == 80
    assert torch.equal(found[:70], dense)
    assert not found[70:].any()


def test_rows_are_found_in_the_order_that_a_reader_gave_them() -> None:
    rows, dense = rows_and_dense("Q5_K")
    rows[3] = rows[9] = 0
    dense[3] = dense[9] = 0
    order = torch.randperm(70, generator=torch.Generator().manual_seed(1))
    found = rows_of(dense[order], "Q5_K", rows)
    assert found is not None
    assert torch.equal(found, rows[order])


@pytest.mark.parametrize("at", [(0, 0), (69, 511)])
def test_a_weight_with_other_numbers_is_not_taken_for_the_files(at: tuple[int, int]) -> None:
    rows, dense = rows_and_dense("Q6_K")
    dense[at] += 1e-3
    assert rows_of(dense, "Q6_K", rows) is None


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is converted and packed is kept apart; what is compiled is not."""
    for user in ("store.store", "weights.packed_store"):
        monkeypatch.setattr(f"inferd_runtime.models.{user}.cache_folder", lambda: tmp_path / "cache")


def served(tmp_path: Path, small: SmallFile) -> tuple[str, FusedPass, FusedPass]:
    """Return the file, the pass that serves it, and the same over plain numbers."""
    file = str(tmp_path / "small.gguf")
    small.write(Path(file))
    loaded = load(file)
    dense = fuse(loaded.module, loaded.probe.kv, loaded.probe.rules)
    assert dense is not None
    for product in all_products(dense).values():
        assert isinstance(product, DenseProduct)
        product.weight = product.weight.clone()
    driver = build_driver(loaded, OPTIONS)
    assert isinstance(driver, TorchDriver)
    assert isinstance(driver.run, FusedPass)
    return file, driver.run, dense


def all_products(run: FusedPass) -> dict[str, Product]:
    found = {f"{at}.{name}": each for at, layer in enumerate(run.layers) for name, each in layer.products().items()}
    return found | {"head": run.head}


@needs_kernels
@pytest.mark.parametrize("head", [False, True])
def test_a_model_in_blocks_is_served_from_them(tmp_path: Path, head: bool) -> None:
    """With a head of its own, and with the embedding's; queries and keys are in the order of transformers' rotation."""
    small = SmallFile("Q4_K", 256, 512, 4, {"attn_v": "Q6_K", "output": "Q5_0", "token_embd": "Q6_K"}, head)
    file, run, dense = served(tmp_path, small)
    plain = all_products(dense)
    forms = {}
    for name, product in all_products(run).items():
        assert isinstance(product, BlockProduct), name
        other = plain[name]
        assert isinstance(other, DenseProduct)
        assert torch.equal(torch.cat([unpack(part) for part in product.packed])[: other.shape[0]], other.weight)
        forms[name] = [form_of(part) for part in product.packed]
    assert forms["0.qkv"] == ["q4_k", "q6_k"]
    assert forms["1.gate_up"] == forms["1.down"] == ["q4_k"]
    assert forms["head"] == ["q5_0" if head else "q6_k"]
    assert size_of(ModelOptions(file)).weight_bytes - held_bytes(run) == 4 * (5 * 256 + 2 * 32)  # norms, rotation
    assert size_of(ModelOptions(file)).held_as == "the file's blocks"


@needs_kernels
def test_logits_in_blocks_are_those_of_the_plain_numbers(tmp_path: Path) -> None:
    _, run, dense = served(tmp_path, MIXED)
    kv = load(str(tmp_path / "small.gguf")).probe.kv
    got, wanted = (probe_logits(each, kv, dense.embedding) for each in (run, dense))
    assert (got - wanted).abs().max() < 1e-4 * wanted.abs().max()


@needs_kernels
def test_a_kind_that_blocks_do_not_hold_is_plain_numbers(tmp_path: Path) -> None:
    small = SmallFile("Q4_K", 256, 512, 4, {"attn_v": "TQ1_0", "token_embd": "F16"})
    _, run, _ = served(tmp_path, small)
    blocks = {name for name, product in all_products(run).items() if isinstance(product, BlockProduct)}
    assert {"0.out", "0.gate_up", "0.down"} <= blocks
    assert "0.qkv" not in blocks


def test_without_blocks_beside_it_a_model_is_served_from_its_numbers(tmp_path: Path) -> None:
    """A folder that an earlier version has converted, or a machine without kernels."""
    file = tmp_path / "small.gguf"
    MIXED.write(file)
    whole = size_of(ModelOptions(str(file))).weight_bytes
    (Path(resolve(str(file))) / FILE).unlink()
    loaded = load(str(file))
    assert isinstance(build_driver(loaded, OPTIONS), TorchDriver)
    assert size_of(ModelOptions(str(file))).weight_bytes >= whole
