"""Weights in forms of their own on the CPU: their products against dense ones, a row's bits, and who holds them then."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from families import VOCAB, make
from torch import nn

from inferd.protocol import InvalidRequest
from inferd_runtime.engine.drivers.build import DriverOptions, build_driver
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.stages import Work
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.fitting.inspection import measure
from inferd_runtime.models.loading import load
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.passes.fused import FusedPass, fuse
from inferd_runtime.models.passes.products import DenseProduct
from inferd_runtime.models.weights.held import HoldingPlan, fits_half, held_bytes, hold, plan_holding
from inferd_runtime.models.weights.host_products import MAKERS, Way, can_hold, held, kept_of, steady_least
from inferd_runtime.models.weights.quantize import Blocks, channels_of

HERE = [name for name in MAKERS if can_hold(name, (64, 64), torch.float32)]
NARROW_PACKED = pytest.param(
    "packed",
    marks=pytest.mark.skipif(
        not can_hold("packed", (64, 64), torch.bfloat16), reason="oneDNN has no bfloat16 for this processor"
    ),
)
ROWS = (1, 2, 3, 4, 5, 7, 17, 33, 200)
SHAPE = (1024, 512)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0]))


@pytest.mark.parametrize("bias", [None, random(1024)])
@pytest.mark.parametrize("name", HERE)
def test_a_held_product_multiplies_what_is_left_of_the_weight(name: str, bias: torch.Tensor | None) -> None:
    weight = random(*SHAPE)
    product, dense = held(Way(name, 4), weight, bias), DenseProduct(kept_of(name, weight), bias)
    assert product is not None
    with torch.inference_mode():
        for count in ROWS:
            rows = random(count, 512)
            assert product(rows).shape == (count, 1024)
            assert product(rows).dtype == torch.float32
            assert (product(rows) - dense(rows)).abs().max() < (1e-3 if name == "packed" else 2.0)


@pytest.mark.parametrize("name", HERE)
def test_a_residual_rides_on_every_product(name: str) -> None:
    weight = random(*SHAPE)
    product = MAKERS[name](weight, None, 1)
    with torch.inference_mode():
        rows, residual = random(5, 512), random(5, 1024)
        assert torch.equal(product.onto(rows, residual.clone()), residual + product(rows))


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("shape", [SHAPE, (576, 576), (576, 1536), (64, 64)], ids=str)
def test_a_row_has_the_same_bits_in_any_company(name: str, shape: tuple[int, int]) -> None:
    least = steady_least(name, shape, torch.float32)
    if name == "half" and least is None:
        pytest.skip("FBGEMM adds a row up in another order in other company on this processor")
    assert least is not None
    weight = random(*shape)
    product, rows = MAKERS[name](weight, None, least), random(150, shape[1])
    with torch.inference_mode():
        whole = product(rows)
        for first, count in ((3, 1), (7, 2), (0, 9), (11, 31), (40, 90)):
            assert torch.equal(product(rows[first : first + count]), whole[first : first + count])


@pytest.mark.parametrize("name", [NARROW_PACKED, "int8", "int4"])
def test_weights_in_bfloat16_are_held_too(name: str) -> None:
    weight = random(*SHAPE).bfloat16()
    product, rows = held(Way(name), weight), random(5, 512).bfloat16()
    assert product is not None
    with torch.inference_mode():
        assert product(rows).dtype == torch.bfloat16
        assert product.onto(rows, torch.zeros(5, 1024).bfloat16()).dtype == torch.bfloat16


def test_a_processor_for_which_onednn_has_no_bfloat16_serves_it_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert can_hold("packed", SHAPE, torch.float32)
    assert not can_hold("packed", SHAPE, torch.bfloat16)


def test_a_product_that_multiplies_otherwise_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MAKERS["int4"], "__call__", lambda product, rows: rows.new_zeros(len(rows), 1024))
    assert held(Way("int4"), random(*SHAPE)) is None


# -- Whole numbers ----------------------------------------------------------------------------------------------------


def test_blocks_of_a_gguf_file_with_offsets_stay_what_they_were() -> None:
    """Q4_1: 32 numbers of 4 bits, a scale and an offset in half precision; the least and the greatest number are there."""
    numbers = torch.randint(0, 16, (64, 4, 32), generator=torch.Generator().manual_seed(0))
    numbers[..., 0], numbers[..., 5] = 0, 15
    scales, offsets = ((random(*(64, 4)).abs() + 0.01).half().float() for _ in range(2))
    blocks = Blocks.of((numbers * scales[..., None] - offsets[..., None]).reshape(64, 128))
    assert torch.equal(blocks.numbers.reshape(numbers.shape).long(), numbers)


def test_blocks_of_a_gguf_file_without_offsets_keep_their_values() -> None:
    """Q4_0: of numbers from -8 to 7, in which -8 is there and 7 need not be."""
    numbers = torch.randint(0, 13, (64, 4, 32), generator=torch.Generator().manual_seed(0))
    numbers[..., 3] = 0
    scales = torch.where(random(64, 4) > 0, 1, -1) * 2.0 ** torch.randint(-6, 2, (64, 4))
    weight = ((numbers - 8) * scales[..., None]).reshape(64, 128)
    assert torch.equal(Blocks.of(weight).dense(), weight)


def test_rounding_is_to_the_nearest_step() -> None:
    weight = random(64, 128)
    channels, blocks = channels_of(weight), Blocks.of(weight)
    assert ((channels.dense() - weight).abs() <= channels.scales[:, None] * 0.51).all()
    # The ends of a range may be cut off: most numbers are within half a step all the same.
    off = (blocks.dense() - weight).abs() / blocks.scales.repeat_interleave(32, 1).abs()
    assert off.median() < 0.3
    assert off.max() < 2


def test_a_weight_of_zeros_is_held() -> None:
    weight = torch.zeros(64, 128)
    assert Blocks.of(weight).dense().abs().max() < 1e-15
    assert torch.equal(channels_of(weight).dense(), weight)


@pytest.mark.parametrize(("number", "fits"), [(1.0, True), (1e-9, True), (1 + 2**-11, False), (1e5, False)])
def test_what_float16_holds_exactly(number: float, fits: bool) -> None:
    """Numbers too small for it count as zero, which is below what a sum of the row's others rounds."""
    assert fits_half(torch.tensor([0.5, number])) is fits


# -- A whole model ----------------------------------------------------------------------------------------------------


def wide(tied: bool = True) -> nn.Module:
    return make("llama", hidden_size=64, intermediate_size=128, head_dim=32, tie_word_embeddings=tied)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("weights", ["packed", "half", "int8", "int4"])
def test_a_weight_is_held_once_but_for_a_packed_tied_head(weights: str, tied: bool) -> None:
    model = wide(tied)
    probed = attach(model, "wide")
    dense = fuse(model, probed.kv, probed.rules)
    assert dense is not None
    plan = HoldingPlan.uniform(dense, Way("packed")) if weights == "packed" else plan_holding(dense, weights)
    run = hold(dense, model, plan)
    large = {name for name, weight in model.named_parameters() if weight.ndim == 2}
    assert large == ({"model.embed_tokens.weight"} if weights == "packed" else set())
    assert run.embedding.dtype == (torch.float32 if weights == "packed" else torch.float16)


def test_a_shape_that_cannot_be_held_is_refused_by_name() -> None:
    model = make("llama", hidden_size=32, intermediate_size=48)
    probed = attach(model, "odd")
    dense = fuse(model, probed.kv, probed.rules)
    assert dense is not None
    with pytest.raises(InvalidRequest, match=r"weights of \[32, 48\] cannot be held as int4"):
        plan_holding(dense, "int4")


class Steps:
    """A model behind the reference driver, one sequence at a time."""

    def __init__(self, weights: str, dtype: torch.dtype) -> None:
        model = copy.deepcopy(wide()).to(dtype)
        probed = attach(model, "wide")
        dense = fuse(model, probed.kv, probed.rules)
        assert isinstance(dense, FusedPass)
        like = next(model.parameters())
        plan = HoldingPlan.uniform(dense, Way("packed", 2)) if weights == "packed" else plan_holding(dense, weights)
        self.driver = TorchDriver(
            hold(dense, model, plan), like, probed.kv, vocab_size=VOCAB, max_context=512, pages=64, page_size=16
        )
        self.pool = PagePool(64, 16)

    def logits(self, tokens: list[int], counts: list[int]) -> np.ndarray:
        """The logits of a text that is computed in steps of so many rows."""
        table, got, first = PageTable(self.pool), [], 0
        for count in counts:
            part = tokens[first : first + count]
            self.driver.copy_pages(table.reserve(count))
            got.append(self.driver.forward(prepare([Planned(None, Work(part, count), table)], 16)).logits)  # type: ignore[arg-type]
            table.advance(count)
            first += count
        table.release()
        return np.concatenate(got)


@pytest.mark.parametrize(
    ("weights", "dtype"),
    [
        *[(name, torch.float32) for name in ("packed", "int8", "int4")],
        pytest.param("packed", torch.bfloat16, marks=NARROW_PACKED.marks),
        *[(name, torch.bfloat16) for name in ("int8", "int4")],
    ],
    ids=str,
)
def test_no_bit_of_a_logit_depends_on_the_rows_of_its_step(weights: str, dtype: torch.dtype) -> None:
    """One by one, with drafts of up to 16 tokens, and behind prompts in chunks."""
    steps = Steps(weights, dtype)
    tokens = torch.randint(VOCAB, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    alone = steps.logits(tokens, [1] * 150)
    for counts in ([17, 1, 5, 9, 17, 3, 17, 16, 2, 13, 17, 17, 16], [30, 20, 12, 1, 7, 30, 33, 17]):
        assert sum(counts) == 150
        assert (steps.logits(tokens, counts) == alone).all()


@pytest.mark.parametrize(
    ("weights", "dtype"),
    [("half", "float32"), ("int8", "float32"), ("int4", "float32"), ("int8", "bfloat16"), ("int4", "bfloat16")],
)
def test_the_memory_is_what_was_estimated(weights: str, dtype: str) -> None:
    loaded = load("tiny", dtype=dtype)
    matrices = sum(one.nbytes for one in {id(one): one for one in loaded.module.parameters()}.values() if one.ndim == 2)
    driver = build_driver(loaded, DriverOptions(pages=16, page_size=16, most_rows=64, weights=weights))
    assert isinstance(driver, TorchDriver)
    assert isinstance(driver.run, FusedPass)
    full = measure(ModelOptions("tiny", dtype)).weight_bytes
    size = measure(ModelOptions("tiny", dtype, weights=weights)).weight_bytes
    # Of two forms of 8 bits the one that takes more is counted, and the faster one is taken.
    assert 0 <= size - (full - matrices + held_bytes(driver.run)) <= 0.05 * full
    assert size < full


def test_a_driver_on_the_cpu_holds_weights_as_is_fastest_here() -> None:
    options = DriverOptions(pages=64, page_size=16, most_rows=64)
    loaded = load("tiny")
    driver = build_driver(loaded, options)
    assert isinstance(driver, TorchDriver)
    assert isinstance(driver.run, FusedPass)
