"""From a loaded model to the driver that runs it: the fast one on a CUDA device, the reference everywhere else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from inferd.protocol import InvalidRequest
from inferd_runtime.engine.driver import Driver
from inferd_runtime.engine.drivers.accelerator import Accelerator, CudaAccelerator
from inferd_runtime.engine.drivers.cuda_driver import CudaDriver, CudaOptions
from inferd_runtime.engine.drivers.product_choice import ProductChange, choose_products
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.engine.drivers.watched_kernels import launch_marks, may_record, watched
from inferd_runtime.kernels.cache import FP8, CacheBlock
from inferd_runtime.kernels.failures import kernel_failures
from inferd_runtime.kernels.native.blocks import WHOLE
from inferd_runtime.kernels.native.compiler import hindrance
from inferd_runtime.kernels.suite import KernelSuite, triton_kernels
from inferd_runtime.launch_marks import LaunchMarks
from inferd_runtime.models.batch import Batch, FloatRows, Ids, Span
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.lora.bank import LoraBank
from inferd_runtime.models.passes.device import DeviceProduct, device_pass, device_products
from inferd_runtime.models.passes.divided import DividedPass, LedPass
from inferd_runtime.models.passes.fused import FusedPass, fuse, runs_in_a_layer
from inferd_runtime.models.passes.kernel_layout import KernelRows
from inferd_runtime.models.passes.plain import ModelPass, PlainPass
from inferd_runtime.models.passes.products import DenseProduct, Product
from inferd_runtime.models.passes.quantized_product import QuantizedProduct
from inferd_runtime.models.passes.ranks import ranks_agree
from inferd_runtime.models.weights.held import hold_as, row_bits_of
from inferd_runtime.models.weights.packed_store import PackedStore
from inferd_runtime.models.weights.stored import host_blocks

logger = logging.getLogger(__name__)
KEY_MULTIPLE = 512
"""As many keys as PyTorch's attention on the CPU adds up at a time."""
TRIAL = 300
"""Tokens of the trial that the fast driver has to pass: more than two tiles of the attention hold."""
EXACT = 1e-3
ROUNDED = 0.2
ROUNDED_FP8 = 0.4
"""Of weights in float8: more than 16 rows are rounded to 3 bits of mantissa, and what differs in the last bit before may differ
by a sixteenth behind it."""


@dataclass(frozen=True)
class DriverOptions:
    """``most_rows``: rows of a step, at most. ``plain``: transformers' own modules instead of the fused pass. ``fixed_rows``:
    see :class:`~inferd_runtime.engine.engine.EngineOptions`. ``kv_dtype`` "" is the model's own, or fp8. ``graphs``: whether
    steps are recorded as CUDA graphs. ``products``: how few rows are multiplied, see
    :func:`~inferd_runtime.engine.drivers.product_choice.choose_products`. ``weights``: how they are held on the CPU, see
    :func:`~inferd_runtime.models.weights.held.plan_holding`, as ``row_bits``; 8 of them are never more. ``beside``: steps run
    beside another model's on the same GPU, on a stream of their own, and before what waits there.
    """

    pages: int
    page_size: int
    most_rows: int
    plain: bool = False
    fixed_rows: int = 0
    kv_dtype: str = ""
    graphs: bool = True
    products: str = "auto"
    weights: str = ""
    row_bits: int = WHOLE
    beside: bool = False


DeviceDriver = TorchDriver | CudaDriver


def build_driver(loaded: LoadedModel, options: DriverOptions) -> DeviceDriver:
    """Return the driver of a model on its device; the reference where the fast driver gives other logits than that.

    Of a divided model all ranks call this together, and get the same kind.
    """
    fused = fused_pass(loaded, options)
    like = next(loaded.module.parameters())
    if like.device.type != "cuda":
        return reference_driver(loaded, fused, options)
    accelerator = CudaAccelerator(like.device, beside=options.beside)
    marks = launch_marks(like.device)
    with _noted(marks, loaded):
        return proven_driver(loaded, fused, options, triton_kernels(), accelerator, marks)


def proven_driver(
    loaded: LoadedModel, fused: ModelPass | None, options: DriverOptions, kernels: KernelSuite,
    accelerator: Accelerator, marks: LaunchMarks,
) -> DeviceDriver:  # fmt: skip
    """Return the fast driver once all of its kernels have run, or the reference where it gives other logits than that."""
    if isinstance(loaded.part, DividedPass):
        able = _rehearsed(loaded, loaded.part, options, kernels, accelerator, marks)
        if able is None:
            return reference_driver(loaded, fused, options)
        options = able
    fast = fast_driver(loaded, fused, options, kernels, accelerator, marks)
    trusted = _holds(loaded, lambda: _difference(fast, loaded, allowed_difference(loaded, options), accelerator))
    # Only then, as all ranks of a divided model take part in each recording.
    return fast if trusted and _holds(loaded, lambda: _make_ready(fast)) else fast.plain


def _rehearsed(
    loaded: LoadedModel, part: DividedPass, options: DriverOptions, kernels: KernelSuite, accelerator: Accelerator,
    marks: LaunchMarks,
) -> DriverOptions | None:  # fmt: skip
    """Return the options with which all ranks can serve over kernels; None where one cannot. Each tries its part while nobody
    waits for it: one that failed later, alone, would leave the others in a sum.
    """
    few, _ = _few_pages(loaded, options)
    recorded: list[bool] = []

    def rehearse() -> str:
        driver = fast_driver(loaded, part.alone(), few, kernels, accelerator, marks)
        _try_largest(driver, loaded, few)
        _make_ready(driver)
        recorded.append(driver.records)
        return ""

    if not _holds(loaded, rehearse):
        return None
    return replace(options, graphs=_in_all_ranks(loaded, all(recorded)))


def _difference(fast: CudaDriver, loaded: LoadedModel, allowed: float, accelerator: Accelerator) -> str:
    """Return by how much the kernels' logits differ from the reference's if that is too much, else ""."""
    with accelerator.active():
        found = logit_difference(fast, fast.plain)
    logger.info("model %s: kernels and reference differ by %.4f, of %g allowed", loaded.name, found, allowed)
    fine = found <= allowed
    return "" if fine else f"their logits differ from the reference's by {found:.3f}, of {allowed} allowed"


def _make_ready(fast: CudaDriver) -> str:
    fast.record_all()
    fast.compile_all()
    return ""


def _holds(loaded: LoadedModel, check: Callable[[], str]) -> bool:
    """Return whether a check finds nothing wrong with kernels, of a divided model in any rank. What it finds is a warning."""
    try:
        wrong = check()
    except kernel_failures() as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        logger.warning("model %s is served without kernels: %s", loaded.name, wrong)
    return _in_all_ranks(loaded, not wrong)


def _in_all_ranks(loaded: LoadedModel, holds: bool) -> bool:
    """True if it holds, of a divided model in every rank."""
    part = loaded.part
    return ranks_agree(holds, part.embedding, part.ranks) if isinstance(part, DividedPass) else holds


def _noted(marks: LaunchMarks, loaded: LoadedModel) -> AbstractContextManager[None]:
    """Return the context in which kernels are noted: of a divided model's ranks, which end together, the first one's."""
    follows = isinstance(loaded.part, DividedPass) and loaded.part.ranks.rank > 0
    return nullcontext() if follows else marks.writing()


def step_bytes(loaded: LoadedModel, options: DriverOptions) -> int:
    """Return the device memory, in bytes, of the largest step and all recorded ones beside weights and cache; 0 on the CPU."""
    device = next(loaded.module.parameters()).device
    if device.type != "cuda":
        return 0
    fused, marks = fused_pass(loaded, options), launch_marks(device)
    if isinstance(fused, DividedPass):
        fused = fused.alone()  # a rank whose kernels fail measures without them: the others must not wait for it
    with _noted(marks, loaded):
        return measured_step_bytes(loaded, fused, options, triton_kernels(), CudaAccelerator(device), marks)


def fused_pass(loaded: LoadedModel, options: DriverOptions) -> ModelPass | None:
    """Return the fused pass, or None where the model has none or ``options`` want the plain one.

    Raises InvalidRequest for weights that this model or its device cannot hold as ``options`` say.
    """
    if loaded.held is not None or loaded.part is not None:
        return loaded.held or loaded.part
    fused = None if options.plain else fuse(loaded.module, loaded.probe.kv, loaded.probe.rules)
    on_cpu = next(loaded.module.parameters()).device.type == "cpu"
    if options.weights and (fused is None or not on_cpu):
        where = "the fused pass, which this model has not" if on_cpu else "one device, by the fused pass"
        raise InvalidRequest(f"model {loaded.name!r}: weights can be held as {options.weights} only on {where}")
    if options.row_bits == 8 and not on_cpu:
        raise InvalidRequest(f"model {loaded.name!r}: activations can be int8 only on the CPU")
    if fused is not None:
        loaded.keep_proof()
    held = _held_on_cpu(loaded, fused, options) if fused is not None and on_cpu else fused
    bits = 0 if held is None else row_bits_of(held)
    if options.row_bits == 8 and bits != 8:
        others = "for weights of 8 bits the processor has not the instructions (VNNI); --weights int4 does without"
        none = "no weight of it is in blocks of few bits; --weights int4 or int8 brings them into those"
        why = hindrance() or (others if bits else none)
        raise InvalidRequest(f"model {loaded.name!r}: activations cannot be int8: {why}")
    return held


def _held_on_cpu(loaded: LoadedModel, fused: FusedPass, options: DriverOptions) -> FusedPass:
    # What was kept for other rows may have left in float32 what blocks hold exactly.
    held_as = f"{options.weights}, rows of 8 bits" if options.row_bits == 8 else options.weights
    store = PackedStore(loaded.source, next(loaded.module.parameters()).dtype, held_as)
    blocks = host_blocks(len(fused.layers), loaded.stored or {})
    return hold_as(fused, loaded.module, options.weights, store, blocks, loaded.source, row_bits=options.row_bits)


def measured_step_bytes(
    loaded: LoadedModel,
    fused: ModelPass | None,
    options: DriverOptions,
    kernels: KernelSuite,
    accelerator: Accelerator,
    marks: LaunchMarks | None = None,
) -> int:
    """Return the device memory of steps, measured with a driver of the fewest pages, which is thrown away."""
    few, cache = _few_pages(loaded, options)
    made: list[CudaDriver] = []

    def try_step() -> None:
        made.append(fast_driver(loaded, fused, few, kernels, accelerator, marks))
        _try_largest(made[-1], loaded, few)

    try:
        # Apart: recording begins with giving back what the largest step has left in reserve.
        step = accelerator.footprint(try_step)
        recorded = accelerator.footprint(lambda: [one.record_all() for one in made])
        return max(0, step + recorded - cache)
    except kernel_failures() as error:
        logger.warning(
            "steps of model %s are measured without kernels: %s: %s", loaded.name, type(error).__name__, error
        )
        made.clear()
        return reference_step_bytes(loaded, fused, options, accelerator)


def reference_step_bytes(
    loaded: LoadedModel, fused: ModelPass | None, options: DriverOptions, accelerator: Accelerator
) -> int:
    """Return the same of the reference driver."""
    few, cache = _few_pages(loaded, options)
    taken = accelerator.footprint(lambda: _try_largest(reference_driver(loaded, fused, few), loaded, few))
    return max(0, taken - cache)


def _few_pages(loaded: LoadedModel, options: DriverOptions) -> tuple[DriverOptions, int]:
    """Return the options with pages for the largest step alone, and the bytes of those."""
    few = replace(options, pages=-(-_largest(loaded, options) // options.page_size) + 1)
    token_bytes = loaded.probe.kv.bytes_per_token(element_size(loaded, options))
    return few, token_bytes * options.page_size * few.pages


def _largest(loaded: LoadedModel, options: DriverOptions) -> int:
    return min(options.most_rows, loaded.max_context)


def _try_largest(driver: Driver, loaded: LoadedModel, options: DriverOptions) -> None:
    driver.forward(trial_batch(np.zeros(_largest(loaded, options), np.int64), 0, options.page_size))


def element_size(loaded: LoadedModel, options: DriverOptions) -> int:
    """Return the bytes of one number in the cache."""
    return (cache_dtype(options.kv_dtype) or next(loaded.module.parameters()).dtype).itemsize


def reference_driver(
    loaded: LoadedModel, fused: ModelPass | None, options: DriverOptions, block: CacheBlock | None = None
) -> TorchDriver:
    """Return the driver that runs on PyTorch alone. ``block``: the cache to work on, else it makes its own."""
    kv, run = loaded.probe.kv, fused or PlainPass(loaded.module)
    divided = isinstance(fused, DividedPass)
    return TorchDriver(
        run, next(loaded.module.parameters()), kv, vocab_size=loaded.vocab_size, max_context=loaded.max_context,
        pages=options.pages, page_size=options.page_size, adapters=None if divided else LoraBank(run, loaded.module, kv),
        key_multiple=KEY_MULTIPLE if options.fixed_rows else 0,
        caches=None if block is None else (block.keys, block.values), kv_dtype=cache_dtype(options.kv_dtype),
    )  # fmt: skip


def cache_dtype(name: str) -> torch.dtype | None:
    """Return the cache's dtype where an option names one; None is the model's own."""
    return FP8 if name == "fp8" else None


def fast_driver(
    loaded: LoadedModel, fused: ModelPass | None, options: DriverOptions, kernels: KernelSuite, accelerator: Accelerator,
    marks: LaunchMarks | None = None,
) -> CudaDriver:  # fmt: skip
    """Return the driver that runs kernels and recorded steps; without those that ``marks`` say ended a process before."""
    if marks is not None:
        options = replace(options, graphs=options.graphs and may_record(marks))
        kernels = watched(kernels, marks, accelerator)
    kv, like = loaded.probe.kv, next(loaded.module.parameters())
    dtype = cache_dtype(options.kv_dtype) or like.dtype
    with accelerator.active():
        block = CacheBlock(kv.keys, kv.values, dtype, options.pages, options.page_size, accelerator.device)
        plain = reference_driver(loaded, fused, options, block)
        chosen = CudaOptions(
            options.most_rows, _group(loaded), record=options.graphs, fixed_rows=options.fixed_rows, marks=marks,
            first=fused.ranks.first if isinstance(fused, DividedPass) else None,
        )  # fmt: skip
        run = kernel_pass(loaded, fused, kernels, options, accelerator)
        return CudaDriver(run, plain, block, kernels, accelerator, chosen)


def _group(loaded: LoadedModel) -> int:
    """Return the query heads per key head, which is the same in all ranks of a divided model."""
    if loaded.part is not None:
        heads = loaded.part.layers[0].heads
        return heads.queries // heads.keys
    queries = int(loaded.module.config.num_attention_heads)  # type: ignore[union-attr, arg-type]
    return max(1, queries // max(1, max(count for count, _ in loaded.probe.kv.keys)))


def kernel_pass(
    loaded: LoadedModel, fused: ModelPass | None, kernels: KernelSuite, options: DriverOptions, accelerator: Accelerator
) -> ModelPass:
    """Return the pass that runs over kernels: the fused one where it can be recorded, else transformers' modules."""
    if isinstance(fused, FusedPass):
        try:
            dense = [product for product in device_products(fused) if isinstance(product, DenseProduct)]
            runs = runs_in_a_layer(fused, KernelRows(kernels))
            change = choose_products(dense, kernels.few_rows_product, options.products, accelerator, runs=runs)
            served = device_pass(fused, partial(_served_product, change, kernels))
            return LedPass(served, fused.ranks) if isinstance(fused, DividedPass) else served
        except InvalidRequest as reason:
            logger.info("model %s runs through transformers' modules: %s", loaded.name, reason)
    return PlainPass(loaded.module)


def _served_product(change: ProductChange, kernels: KernelSuite, product: DeviceProduct) -> Product:
    """Return the product by these kernels: a dense one as ``change`` chose it."""
    return change(product) if isinstance(product, DenseProduct) else product.with_kernels(kernels.quantized)


def allowed_difference(loaded: LoadedModel, options: DriverOptions) -> float:
    """Return by what share of their spread the kernels' logits may differ from the reference's, over the same weights."""
    held = loaded.held.layers[0].products().values() if loaded.held is not None else ()
    if any(isinstance(one, QuantizedProduct) and one.rounds_rows for one in held):
        return ROUNDED_FP8
    exact = next(loaded.module.parameters()).dtype == torch.float32 and not options.kv_dtype
    return EXACT if exact else ROUNDED


def logit_difference(fast: CudaDriver, reference: Driver) -> float:
    """Return the largest difference of two drivers over one cache, in shares of their logits' spread: of a chunk of random
    tokens, a few behind it, and a decode row. Writes into the first pages, so nothing may be in them yet.
    """
    longest = min(TRIAL, fast.max_context, fast.pages * fast.page_size, fast.most_rows)
    tokens = np.random.default_rng(0).integers(min(fast.vocab_size, 1000), size=longest)
    return max(
        relative_difference(*(driver.forward(batch).logits for driver in (reference, fast)))
        for batch in (
            trial_batch(tokens[a:b], a, fast.page_size) for a, b in pairwise((0, longest - 9, longest - 1, longest))
        )
    )


def trial_batch(tokens: Ids, start: int, page_size: int) -> Batch:
    """Return a batch of one sequence's tokens from ``start`` on, all logits wanted, on the first pages."""
    at = np.arange(start, start + len(tokens))
    pages = range(-(-int(at[-1] + 1) // page_size))
    return Batch(tokens, at, at, np.arange(len(at)), [Span(0, len(at), start, pages)])


def relative_difference(expected: FloatRows, got: FloatRows) -> float:
    """Return the 90th percentile over rows of logits float32[R, V] of difference / spread; infinite if it is not a number."""
    spread = np.maximum(np.abs(expected - expected.mean(-1, keepdims=True)).max(-1), 1e-6)
    each = np.sort(np.abs(got - expected).max(-1) / spread)
    found = float(each[-1 - len(each) // 10])
    return found if np.isfinite(found) else float("inf")
