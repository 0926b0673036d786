"""The fused pass over paged rows against the reference driver: prefill in chunks, decoding, ragged batches, trees, padding."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from families import VOCAB, make

from inferd.protocol import InvalidRequest
from inferd_runtime.engine.drivers.buckets import StepShapes
from inferd_runtime.engine.drivers.packing import pack_batch
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.sequences.positions import tree_placement
from inferd_runtime.engine.stages import Work
from inferd_runtime.kernels import product
from inferd_runtime.kernels.cache import CacheBlock
from inferd_runtime.kernels.rows import KeySplits, PagedRows, Tiles
from inferd_runtime.kernels.suite import KernelSuite, reference_kernels
from inferd_runtime.kernels.triton import elementwise as triton_elementwise, product as triton_product
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.batch import Batch
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.passes import fused, products
from inferd_runtime.models.passes.device import device_pass
from inferd_runtime.models.passes.fused import FusedPass, fuse
from inferd_runtime.models.passes.kernel_layout import KernelLayout
from inferd_runtime.models.passes.products import DenseProduct, FewRows, FewRowsProduct
from inferd_runtime.models.weights.held import HoldingPlan, hold
from inferd_runtime.models.weights.host_products import Way
from inferd_runtime.testing.recorded_host import RecordedHost

TOLERANCE = 1e-4
PAGE_SIZE, PAGES = 4, 128
REFERENCE = reference_kernels()
WITH_TRITON = REFERENCE._replace(
    rotate_and_write=triton_elementwise.rotate_and_write, silu_mul=triton_elementwise.silu_mul
)
FAMILIES = sorted(fused.FAMILIES)


def fused_of(family: str) -> tuple[FusedPass, TorchDriver, torch.nn.Module]:
    """The fused pass of a tiny model, a reference driver that runs it, and the model."""
    model = make(family)
    probed = attach(model, family)
    run = fuse(model, probed.kv, probed.rules)
    assert isinstance(run, FusedPass)
    like = next(model.parameters())
    driver = TorchDriver(run, like, probed.kv, vocab_size=VOCAB, max_context=256, pages=PAGES, page_size=PAGE_SIZE)
    return run, driver, model


class Counted:
    """A product for few rows that notes how many they are."""

    def __init__(self, few_rows: FewRows) -> None:
        self._few_rows = few_rows
        self.counts: list[int] = []

    def __call__(self, rows: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
        self.counts.append(len(rows))
        return self._few_rows(rows, *others)  # type: ignore[arg-type]

    def change(self, dense: DenseProduct) -> DenseProduct:
        """What a device serves the product with."""
        return FewRowsProduct(dense.weight, dense.bias, self)


class Bench:
    """Both over the same pages, each with a cache of its own. ``padding``: rows, sequences and tiles of nobody's."""

    def __init__(
        self, family: str, kernels: KernelSuite = REFERENCE, padding: int = 3, counted: Counted | None = None
    ) -> None:
        fused_pass, self.driver, self.model = fused_of(family)
        self.run = device_pass(fused_pass, None if counted is None else counted.change)
        self.kernels = kernels
        shapes = [[tuple(cache.shape[2:]) for cache in caches] for caches in (self.driver._keys, self.driver._values)]
        self.block = CacheBlock(*shapes, torch.float32, PAGES, PAGE_SIZE, "cpu")
        self.pool = PagePool(PAGES, PAGE_SIZE)
        self.padding = padding

    def feed(self, parts: Sequence[tuple[PageTable, Work]]) -> float:
        """Run one batch both ways: the largest difference between all rows' logits, and hidden states."""
        for table, work in parts:
            self.driver.copy_pages(table.reserve(len(work.tokens)))
        batch = prepare([Planned(None, work, table) for table, work in parts], PAGE_SIZE)  # type: ignore[arg-type]
        expected = self.driver.forward(batch)
        with torch.inference_mode():
            inputs = self.inputs(batch)
            logits, hidden = self.run(*inputs), inputs[2].hidden
        for table, work in parts:
            table.advance(len(work.tokens))
        assert logits.shape == expected.logits.shape
        off = np.abs(logits.numpy() - expected.logits).max()
        if hidden is not None:
            assert hidden.shape == expected.hidden.shape
            off = max(off, np.abs(hidden.numpy() - expected.hidden).max())
        return float(off)

    def inputs(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, KernelLayout, torch.Tensor]:
        """What the pass takes, with padding behind everything."""
        pad = self.padding
        fill = {"slots": -1, "tile_sequences": -1, "counts": 0, "lengths": 0, "tails": 0}
        counts, lengths = [span.count for span in batch.spans], [span.start + span.count for span in batch.spans]
        shape = StepShapes(max(counts), max(lengths)).exact(counts, lengths, 1, 0)
        packed = pack_batch(batch, shape)
        live = {name: torch.from_numpy(packed.pop(name)) for name in [*packed] if name.endswith("_live")}
        arrays = {"seen": np.zeros(len(batch.tokens), np.int64), **packed}
        columns = {
            name: torch.from_numpy(np.pad(array, (0, pad), constant_values=fill.get(name, 0)))
            for name, array in arrays.items()
        }
        pages = torch.zeros(len(batch.spans) + pad, PAGES, dtype=torch.int32)
        for index, span in enumerate(batch.spans):
            pages[index, : len(span.pages)] = torch.tensor(span.pages)
        tokens = columns.pop("tokens")
        few = [columns.pop(f"tile_{name}") for name in ("sequences", "starts", "splits")]
        tiles = [Tiles(*few, live["tile_live"], shape.tile_rows, len(few[0]))]
        if shape.prompt_tiles:
            prompts = [columns.pop(f"prompt_{name}") for name in ("sequences", "starts", "splits")]
            tiles.append(Tiles(*prompts, live["prompt_live"], shape.prompt_rows, len(prompts[0])))
        ones = torch.ones(len(tokens), dtype=torch.int32)
        rows = PagedRows(pages=pages, tiles=tuple(tiles), splits=KeySplits(ones, ones, ones, ones, 0, 1024), **columns)
        hidden_rows = torch.from_numpy(batch.hidden_rows) if len(batch.hidden_rows) else None
        layout = KernelLayout(rows, self.block.keys, self.block.values, self.kernels, hidden_rows)
        return tokens, rows.positions, layout, torch.from_numpy(batch.logit_rows)


@pytest.fixture(scope="module", params=FAMILIES)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB), k=count)


def work(tokens: list[int], hidden: int = 0) -> Work:
    """All rows' logits."""
    return Work(tokens, len(tokens), hidden=hidden)


def test_prefill_in_chunks_and_decode_steps_equal_the_reference(bench: Bench) -> None:
    tokens, table = random_tokens(50, 1), PageTable(bench.pool)
    for part in (tokens[:17], tokens[17:31], *([token] for token in tokens[31:])):
        assert bench.feed([(table, work(part, hidden=1))]) < TOLERANCE
    table.release()


def test_a_ragged_batch_equals_the_reference(bench: Bench) -> None:
    """Prefill chunks, decode rows and draft chains of several sequences share each batch, shuffled anew every step."""
    order = random.Random(7)
    texts = [random_tokens(length, seed) for seed, length in enumerate((45, 9, 33, 18))]
    tables = [PageTable(bench.pool) for _ in texts]
    while live := [i for i, text in enumerate(texts) if tables[i].length < len(text)]:
        order.shuffle(live)
        parts = [(tables[i], work(texts[i][tables[i].length :][: order.choice((1, 1, 5, 17))])) for i in live]
        assert bench.feed(parts) < TOLERANCE
    for table in tables:
        table.release()


def test_a_draft_tree_equals_the_reference(bench: Bench) -> None:
    prompt, tokens = random_tokens(13, 6), random_tokens(6, 7)
    table, other = PageTable(bench.pool), PageTable(bench.pool)
    assert bench.feed([(table, work(prompt[:-1])), (other, work(prompt[:5]))]) < TOLERANCE
    placement = tree_placement(len(prompt) - 1, 1, [-1, 0, 0, 2, -1, 4])
    tree = Work([prompt[-1], *tokens], 1 + len(tokens), placement=placement)
    assert bench.feed([(other, work(tokens[:2])), (table, tree)]) < TOLERANCE
    table.release()
    other.release()


def test_padding_is_written_nowhere() -> None:
    bench = Bench("qwen3")
    table = PageTable(bench.pool)
    bench.block.flat.fill_(0x11)
    assert bench.feed([(table, work(random_tokens(5, 2)))]) < TOLERANCE
    slots = [page * PAGE_SIZE + offset for page in table.pages for offset in range(PAGE_SIZE)][:5]
    for part in bench.block.parts():
        written = (part.view(PAGES * PAGE_SIZE, -1) != 0x11).any(1).nonzero()[:, 0]
        assert sorted(written.tolist()) == sorted(slots)
    table.release()


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_the_kernels_equal_the_reference(family: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here")
    bench = Bench(family, WITH_TRITON)
    table = PageTable(bench.pool)
    for part in (random_tokens(9, 3), random_tokens(1, 4), random_tokens(4, 5)):
        assert bench.feed([(table, work(part))]) < TOLERANCE
    table.release()


@pytest.mark.parametrize("module", [product, triton_product], ids=["reference", "triton"])
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_few_rows_are_multiplied_by_a_kernel_and_more_are_not(family: str, module: object) -> None:
    """With biases (qwen2) and without."""
    if module is triton_product and torch.cuda.is_available():
        pytest.skip("kernels are compiled here")
    counted = Counted(module.few_rows_product)  # type: ignore[attr-defined]
    bench = Bench(family, padding=3, counted=counted)
    table = PageTable(bench.pool)
    each = 4 * len(bench.run.layers)
    for count, heads in ((20, 0), (13, 1), (1, 1), (4, 1)):
        counted.counts.clear()
        assert bench.feed([(table, Work(random_tokens(count, count), count))]) < TOLERANCE
        few = [count + 3] * each if count + 3 <= 16 else []
        assert counted.counts == few + [count] * heads
    table.release()


@pytest.mark.parametrize("counted", [None, Counted(product.few_rows_product)], ids=["dense", "few rows"])
def test_a_recorded_pass_computes_other_tokens_as_well(counted: Counted | None) -> None:
    """Nothing in it is decided on the host."""
    bench = Bench("qwen3", counted=counted)
    tables = [PageTable(bench.pool), PageTable(bench.pool)]
    batches = []
    for table, seed in zip(tables, (8, 9), strict=True):
        table.reserve(6)
        planned = Planned(None, work(random_tokens(6, seed)), table)  # type: ignore[arg-type]
        batches.append(prepare([planned], PAGE_SIZE))
    first, second = (bench.inputs(batch) for batch in batches)
    with torch.inference_mode():
        replay, logits = RecordedHost().record(lambda: bench.run(*first))
    old, new = first[2].rows, second[2].rows
    first[0].copy_(second[0])
    for name in ("slots", "pages", "first", "counts", "lengths", "tails", "seen"):
        getattr(old, name).copy_(getattr(new, name))
    replay()
    assert np.abs(logits.numpy() - bench.driver.forward(batches[1]).logits).max() < TOLERANCE


def test_weights_are_shared() -> None:
    fused_pass, _, model = fused_of("llama")
    run = device_pass(fused_pass)
    held = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    layer = run.layers[0]
    for dense in (layer.qkv, layer.out, layer.gate_up, layer.down, run.head):
        assert isinstance(dense, products.DenseProduct)
        assert dense.weight.untyped_storage().data_ptr() in held


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "proportional"])
def test_a_rotation_that_depends_on_the_step_is_refused(kind: str) -> None:
    fused_pass, _, _ = fused_of("llama")
    fused_pass.rotary.rope_type = kind
    with pytest.raises(InvalidRequest, match=kind):
        device_pass(fused_pass)


def test_packed_weights_are_refused() -> None:
    dense, _, model = fused_of("llama")
    fused_pass = hold(dense, model, HoldingPlan.uniform(dense, Way("packed")))
    with pytest.raises(InvalidRequest, match="layer 0: qkv is a PackedProduct"):
        device_pass(fused_pass)


def test_odd_heads_are_refused() -> None:
    fused_pass, _, _ = fused_of("llama")
    odd = [replace(layer, heads=replace(layer.heads, width=7)) for layer in fused_pass.layers]
    with pytest.raises(InvalidRequest, match="heads of 7"):
        device_pass(fused_pass.with_layers(odd))
