"""Decode with weights in fp8 and int4 at batch 1 and 32, beside what reading the held weights would allow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpu_bench import Bench, Budget, Report
from gpu_ceilings import Ceilings
from gpu_model import PAGE_SIZE, DriverArm, StreamArm, fused_unchecked, random_llama
from measure import interleaved

from inferd_runtime.engine.drivers.build import DriverOptions, fast_driver, logit_difference
from inferd_runtime.engine.drivers.cuda_driver import CudaDriver
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.passes.fused import FusedPass
from inferd_runtime.models.passes.quantized_product import QuantizedProduct
from inferd_runtime.models.weights.on_device import DeviceHolding, capability

FORMS = ("fp8", "int4")
BATCHES = (1, 32)
PAGES = 1024
"""Of 16 tokens: 32 streams need a quarter of them."""
STAND_IN = (9, 0)
"""What is called the compute capability where there is no device."""


def measure_weights(bench: Bench, report: Report, budget: Budget, ceilings: Ceilings) -> None:
    """Tokens per second by form and batch. On an H200: 15 s to make, round and record each model, 3 s a batch: 40 s."""
    for form in FORMS:
        if budget.allows(form):
            one_form(bench, report, ceilings, form)


def one_form(bench: Bench, report: Report, ceilings: Ceilings, form: str) -> None:
    """One model, whose dense weights are gone when it is measured."""
    driver, held, difference = held_driver(bench, form)
    size, sizes = held_weights(held), bench.sizes
    report.value(f"weights_{form}_gb", size / 1e9)
    report.value(f"weights_{form}_difference", difference)
    print(f"\n== weights in {form}: {size / 1e9:.2f} GB a step; kernels and reference differ by {difference:.4f} ==")
    context = sizes.prompt + sizes.new_tokens // 2
    for batch in BATCHES:
        floor = batch * ceilings.bandwidth / (size + batch * context * sum(driver.token_bytes))
        report.value(f"weights_{form}_b{batch}_floor_tok_s", floor)
        engine = StreamArm(driver)
        arms: dict[str, Callable[[], float]] = {
            "engine": partial(engine.decode_rate, sizes.model.vocab, batch, sizes.prompt, sizes.new_tokens),
            "driver_ahead": DriverArm(driver, batch, context, sizes.new_tokens, ahead=True).rate,
        }
        for name, samples in interleaved(arms, bench.rounds).items():
            found = report.add(f"weights_{form}_b{batch}_{name}_tok_s", samples)
            share = report.value(f"weights_{form}_b{batch}_{name}_of_floor", found.median / floor)
            print(f"  batch {batch}, {name:<14}{found} tok/s, {share:.3f} of what reading allows ({floor:,.0f})")


def held_driver(bench: Bench, form: str) -> tuple[CudaDriver, FusedPass, float]:
    """A random model with weights in a form behind the fast driver, and how far its kernels are from the reference."""
    sizes = bench.sizes
    model = random_llama(sizes.model, bench.device, sizes.dtype)
    probed = attach(model, "random")
    able = capability(bench.device) if bench.on_device else STAND_IN
    holding = DeviceHolding("random", form, bench.device, able)
    held = holding.hold_fused(fused_unchecked(model, probed), model, probed, {})
    assert held is not None
    loaded = LoadedModel("random", model, None, probed, sizes.model.vocab, probed.context, "", held=held)  # type: ignore[arg-type]
    options = DriverOptions(min(PAGES, sizes.pages), PAGE_SIZE, min(1024, sizes.most_rows), weights=form)
    driver = fast_driver(loaded, held, options, bench.kernels, bench.accelerator)
    return driver, held, logit_difference(driver, driver.plain)


def held_weights(held: FusedPass) -> int:
    """Bytes of the weights that a step reads."""
    products = [product for layer in held.layers for product in layer.products().values()] + [held.head]
    return sum(product.bytes for product in products if isinstance(product, QuantizedProduct))
