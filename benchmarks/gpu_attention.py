"""Attention over pages: how much of the bandwidth it reaches, and what rows of a draft add to a decode step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from gpu_bench import Bench, Budget, Call, Report, compare
from gpu_ceilings import Ceilings
from gpu_model import PAGE_SIZE
from measure import ratios
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from inferd_runtime.engine.drivers.buckets import StepShapes
from inferd_runtime.engine.drivers.captured import paged_rows
from inferd_runtime.engine.drivers.packing import pack_batch, pack_pages
from inferd_runtime.engine.drivers.staging import Staging
from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.cache import FP8, narrowed
from inferd_runtime.kernels.rows import FEW_ROWS, PagedRows
from inferd_runtime.models.batch import Batch, Placement, Span

RULE = AttentionRule(None, None, None)
TARGET_K = 8
TARGET = 1.15


@dataclass(frozen=True)
class Layers:
    """Caches of several layers for ``batch`` sequences of ``context`` tokens and some more, so many that none stays in the
    device's cache. All of them have the same ``pages`` [batch][each].
    """

    batch: int
    context: int
    pages: Sequence[Sequence[int]]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]

    @property
    def read(self) -> int:
        """Bytes of K and V that attending to ``context`` tokens reads, in one layer."""
        heads, width = self.keys[0].shape[2:]
        return 2 * self.batch * self.context * heads * width * self.keys[0].element_size()


def make_layers(bench: Bench, batch: int, context: int, dtype: torch.dtype) -> Layers:
    """Random K and V on scattered pages."""
    shape = bench.sizes.model
    each = -(-(context + FEW_ROWS + 1) // PAGE_SIZE)
    size = batch * each * PAGE_SIZE * shape.kv_heads * shape.width
    count = bench.copies(2 * size * dtype.itemsize)
    caches = [
        narrowed(
            torch.randn(
                batch * each, PAGE_SIZE, shape.kv_heads, shape.width, device=bench.device, dtype=torch.bfloat16
            ),
            dtype,
        )
        for _ in range(2 * count)
    ]
    scattered = np.random.default_rng(0).permutation(batch * each).reshape(batch, each)
    return Layers(batch, context, scattered.tolist(), caches[::2], caches[1::2])


def laid_out(bench: Bench, layers: Layers, rows: int, *, tree: bool = False) -> PagedRows:
    """``rows`` tokens of every sequence, the first of which stands behind ``context - 1`` others, in the driver's tiles and
    splits. ``tree``: a binary one, else a chain.
    """
    model, start = bench.sizes.model, layers.context - 1
    batch = rows_batch(layers, rows, start, tree)
    counts, lengths = [rows] * layers.batch, [start + rows] * layers.batch
    shape = StepShapes(sum(counts), max(lengths), model.heads // model.kv_heads).exact(counts, lengths, 1, 0)
    pages, page_first = pack_pages(batch.spans, PAGE_SIZE)
    staging = Staging(bench.accelerator, largest=[shape], page_entries=len(pages), masks=1, mask_words=1)
    staging.upload(shape, {**pack_batch(batch, shape), "page_first": page_first}, pages, np.empty((0, 1), np.int32))
    columns = torch.arange(len(pages) // layers.batch, dtype=torch.int32, device=bench.device)
    return paged_rows(staging.inputs(shape), shape, columns)


def rows_batch(layers: Layers, rows: int, start: int, tree: bool) -> Batch:
    """The step that feeds them."""
    index = np.arange(start, start + rows)
    spans = [Span(at * rows, rows, start, pages) for at, pages in enumerate(layers.pages)]
    slots = np.concatenate(
        [np.asarray(pages)[index // PAGE_SIZE] * PAGE_SIZE + index % PAGE_SIZE for pages in layers.pages]
    )
    everywhere = np.tile(index, layers.batch)
    placements = {span.first: binary_tree(rows, start) for span in spans} if tree else {}
    return Batch(everywhere, everywhere, slots, np.arange(len(slots)), spans, placements=placements)


def binary_tree(rows: int, start: int) -> Placement:
    """Row 0 is the committed token, row i > 0 a node whose parent is row (i - 1) // 2."""
    visible = np.zeros((rows, start + rows), np.bool_)
    visible[:, :start] = True
    positions = np.arange(start + rows)
    for row in range(rows):
        parent = (row - 1) // 2
        if row:
            visible[row, start:] = visible[parent, start:]
            positions[start + row] = positions[start + parent] + 1
        visible[row, start + row] = True
    return Placement(positions, visible)


def attend(bench: Bench, layers: Layers, rows: int, *, tree: bool = False) -> list[Call]:
    """A call per layer."""
    shape = bench.sizes.model
    query = torch.randn(layers.batch * rows, shape.heads, shape.width, device=bench.device).to(bench.sizes.dtype)
    where = laid_out(bench, layers, rows, tree=tree)
    return [
        partial(bench.kernels.paged_attention, query, keys, values, where, RULE)
        for keys, values in zip(layers.keys, layers.values, strict=True)
    ]


def contiguous_peer(bench: Bench, layers: Layers) -> list[Call]:
    """PyTorch's attention of one row per sequence over K and V that lie behind each other, without pages."""
    shape = bench.sizes.model
    size = (layers.batch, shape.kv_heads, layers.context, shape.width)
    query = torch.randn(layers.batch, shape.heads, 1, shape.width, device=bench.device).to(bench.sizes.dtype)
    caches = [torch.randn(size, device=bench.device, dtype=bench.sizes.dtype) for _ in range(2 * len(layers.keys))]
    return [
        partial(scaled_dot_product_attention, query, k, v, enable_gqa=True)
        for k, v in zip(caches[::2], caches[1::2], strict=True)
    ]


def measure_attention(bench: Bench, report: Report, budget: Budget, ceilings: Ceilings) -> None:
    """Decode rows by context and batch, in graphs over several layers: bfloat16 beside fp8, and beside PyTorch's attention.

    On an H200: at most 2.1 GB a layer, 0.5 ms; a replay over all layers takes at most 4 ms. Eight points of three arms in 20 s,
    most of which is drawing K and V, and compiling.
    """
    print("\n== attention: decode rows, one layer ==")
    for context in bench.sizes.contexts:
        for batch in bench.sizes.attended:
            if budget.allows(f"context {context}, batch {batch}"):
                one_context(bench, report, ceilings, batch, context)


def one_context(bench: Bench, report: Report, ceilings: Ceilings, batch: int, context: int) -> None:
    """Both dtypes of the cache, and the peer."""
    prefix = f"attention_{context}_b{batch}"
    layers, narrow = (make_layers(bench, batch, context, dtype) for dtype in (bench.sizes.dtype, FP8))
    arms: dict[str, Callable[[], float] | None] = {
        "bf16": bench.graph_arm(attend(bench, layers, 1)),
        "fp8": bench.graph_arm(attend(bench, narrow, 1)),
        "torch": report.attempt(f"{prefix}: torch", lambda: bench.graph_arm(contiguous_peer(bench, layers))),
    }
    print(
        f"\ncontext {context}, batch {batch}: {layers.read / 1e6:.1f} MB, read in {layers.read / ceilings.bandwidth * 1e6:.1f} us"
    )
    found = compare(bench, report, arms, prefix)
    for name, each in (("bf16", layers), ("fp8", narrow)):
        share = report.add(
            f"{prefix}_{name}_of_bandwidth", [each.read / ceilings.bandwidth / one for one in found[name]]
        )
        print(f"  {name}: {share} of the copy bandwidth")
    report.add(f"{prefix}_fp8_vs_bf16", ratios(found["bf16"], found["fp8"]))
    if "torch" in found:
        report.add(f"{prefix}_vs_torch", ratios(found["torch"], found["bf16"]))


def measure_verify(bench: Bench, report: Report, budget: Budget, ceilings: Ceilings) -> None:
    """What k drafted rows more cost the attention: chains and binary trees, over a decode row.

    On an H200: 15 to 150 us a call, 32 calls a replay; four points of 14 arms in 25 s, most of it compiling.
    """
    print("\n== attention: k drafted rows beside none ==")
    for context in bench.sizes.verify_contexts:
        for batch in bench.sizes.attended:
            if budget.allows(f"context {context}, batch {batch}"):
                one_verify(bench, report, batch, context)
    del ceilings


def one_verify(bench: Bench, report: Report, batch: int, context: int) -> None:
    """All k, interleaved."""
    prefix = f"verify_{context}_b{batch}"
    print(f"\ncontext {context}, batch {batch}")
    layers = make_layers(bench, batch, context, bench.sizes.dtype)
    arms: dict[str, Callable[[], float] | None] = {"k0": bench.graph_arm(attend(bench, layers, 1))}
    for k in bench.sizes.verified:
        arms[f"chain_k{k}"] = bench.graph_arm(attend(bench, layers, k + 1))
        arms[f"tree_k{k}"] = bench.graph_arm(attend(bench, layers, k + 1, tree=True))
    found = compare(bench, report, arms, prefix)
    for name in found.keys() - {"k0"}:
        report.add(f"{prefix}_{name}_vs_k0", ratios(found[name], found["k0"]))
    wanted = f"{prefix}_chain_k{TARGET_K}_vs_k0"
    if wanted in report.figures:
        print(
            f"  k = {TARGET_K} over none: {report.figures[wanted]:.3f} for a layer's attention; target {TARGET} for a step"
        )
