"""Which way few rows are multiplied on a device: PyTorch's (cuBLAS) or the kernel of :mod:`inferd_runtime.kernels.product`.

Which one reads a weight faster depends on its shape and on the device, so both are timed when a model is loaded. A weight has
one way for all row counts up to 16: with the kernel a row's result does not depend on how many others there are, and a
way that changed with their number would give that up. What is nearly as fast may be chosen otherwise at the next start, and
then rounds otherwise: the settings "torch" and "kernel" keep the bits the same.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from inferd_runtime.engine.drivers.accelerator import Accelerator
from inferd_runtime.kernels.failures import kernel_failures
from inferd_runtime.models.passes.fused import ProductRun
from inferd_runtime.models.passes.products import DenseProduct, FewRows, FewRowsProduct, Product

logger = logging.getLogger(__name__)
WAYS = ("auto", "torch", "kernel")
ROW_COUNTS = (1, 8, 16)
"""Timed; the sum decides."""
REPEATS = 5
ProductChange = Callable[[DenseProduct], DenseProduct]
WeightShape = tuple[int, ...]
NO_RUNS: Mapping[WeightShape, ProductRun] = {}


def choose_products(
    products: Sequence[DenseProduct],
    few_rows: FewRows,
    way: str,
    accelerator: Accelerator,
    clock: Callable[[], float] = perf_counter,
    runs: Mapping[WeightShape, ProductRun] = NO_RUNS,
) -> ProductChange:
    """Return a function from each product to the one that is served: itself, or one that multiplies few rows by ``few_rows``.

    ``way``: "torch" or "kernel" for all weights, or "auto": both are timed for every shape of a weight, in seconds of ``clock``,
    with what a layer does around products of that shape (``runs``), of which the kernel does some. Raises ValueError for another.
    """
    if way not in WAYS:
        raise ValueError(f"products {way!r} is none of {', '.join(WAYS)}")

    def by_kernel(product: DenseProduct) -> DenseProduct:
        return FewRowsProduct(product.weight, product.bias, few_rows)

    shapes: dict[WeightShape, list[DenseProduct]] = defaultdict(list)
    for product in products:
        shapes[tuple(product.weight.shape)].append(product)
    chosen = {
        shape for shape, group in shapes.items()
        if way == "kernel"
        or (way == "auto" and _faster(group, [by_kernel(one) for one in group], accelerator, clock, runs.get(shape, _alone)))
    }  # fmt: skip
    return lambda product: by_kernel(product) if tuple(product.weight.shape) in chosen else product


def _alone(product: Product, rows: Tensor) -> Tensor:
    return product(rows)


def _faster(
    ours: Sequence[DenseProduct], kernels: Sequence[DenseProduct], accelerator: Accelerator, clock: Callable[[], float],
    run: ProductRun,
) -> bool:  # fmt: skip
    """True if the kernels are faster than PyTorch; False where they cannot be recorded."""
    weight = ours[0].weight
    try:
        plain, kernel = (
            sum(_seconds(group, count, accelerator, clock, run) for count in ROW_COUNTS) for group in (ours, kernels)
        )
    except kernel_failures() as error:
        logger.warning("products with a weight %s go through PyTorch: %s", list(weight.shape), error)
        return False
    each = 1e6 / (len(ours) * len(ROW_COUNTS))
    logger.info("weight %s: PyTorch %.1f us, the kernel %.1f us", list(weight.shape), plain * each, kernel * each)
    return kernel < plain


@torch.inference_mode()
def _seconds(
    products: Sequence[DenseProduct], count: int, accelerator: Accelerator, clock: Callable[[], float], run: ProductRun
) -> float:
    """Return the median time of all these products, one behind the other, of ``count`` rows.

    Recorded, as in a step: launching one takes the host longer than computing it takes the device. Weights of all layers in
    turn, so that the L2 cache does not hold what is read.
    """
    rows = products[0].weight.new_ones(count, products[0].weight.shape[1])

    def run_all() -> Tensor:
        out = rows
        for product in products:
            out = run(product, rows)
        return out

    with accelerator.active():
        replay, _ = accelerator.record(run_all)

        def once() -> float:
            start = clock()
            replay()
            accelerator.mark()()
            return clock() - start

        once()
        return median(once() for _ in range(REPEATS))
