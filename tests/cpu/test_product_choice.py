"""How a device's products of few rows are chosen, by a clock that the products turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from inferd_runtime.draft_models.options import DraftOptions
from inferd_runtime.engine.drivers.build import DriverOptions, fast_driver, logit_difference
from inferd_runtime.engine.drivers.product_choice import ROW_COUNTS, WAYS, choose_products
from inferd_runtime.isolation.settings_json import decode_settings, encode_settings
from inferd_runtime.kernels.product import few_rows_product
from inferd_runtime.kernels.suite import reference_kernels
from inferd_runtime.models.loading import load
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.passes.fused import FusedPass, fuse, runs_in_a_layer
from inferd_runtime.models.passes.kernel_layout import KernelRows
from inferd_runtime.models.passes.products import DenseProduct, FewRowsProduct, Product
from inferd_runtime.server.engine_process.command import EngineStart
from inferd_runtime.server.engine_process.draft_models import draft_process_settings
from inferd_runtime.server.engine_process.model_loading import driver_options
from inferd_runtime.server.supervisor.commands import default_commands
from inferd_runtime.settings.settings import EngineSettings, Settings
from inferd_runtime.settings.sources import Sources, resolve
from inferd_runtime.testing.recorded_host import RecordedHost

LARGE, SMALL = (64, 16), (8, 16)


class Device:
    """Work is queued when it is replayed, and takes its time when somebody waits for it."""

    device = torch.device("cpu")
    processors = 1

    def __init__(self, hiccups: int = 0) -> None:
        self.now = 0.0
        self.queued = 0.0
        self.recordings = 0
        self.read: list[int] = []
        self._hiccups = hiccups

    def active(self) -> AbstractContextManager[object]:
        return nullcontext()

    def work(self, weight: Tensor, seconds: float) -> None:
        """What a product costs."""
        self.queued += seconds
        self.read.append(weight.data_ptr())

    def record(self, body: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.recordings += 1
        result = body()
        self.queued = 0.0

        def replay() -> None:
            body()

        return replay, result

    def mark(self) -> Callable[[], None]:
        """Twice in a measurement something else runs, too."""
        self._hiccups -= 1

        def wait() -> None:
            self.now += self.queued + (1000.0 if 0 <= self._hiccups < 2 else 0.0)
            self.queued = 0.0

        return wait

    def staging(self, size: int) -> Tensor:
        raise NotImplementedError

    def footprint(self, body: Callable[[], object]) -> int:
        raise NotImplementedError


class Timed(DenseProduct):
    """PyTorch's, which takes a second."""

    def __init__(self, shape: tuple[int, int], device: Device) -> None:
        super().__init__(torch.ones(shape))
        self.device = device

    def __call__(self, rows: Tensor) -> Tensor:
        self.device.work(self.weight, 1.0)
        return super().__call__(rows)


def kernel_of(device: Device, seconds: Callable[[Tensor, int], float]) -> Callable[..., Tensor]:
    def few_rows(rows: Tensor, weight: Tensor, *others: Tensor | None) -> Tensor:
        device.work(weight, seconds(weight, len(rows)))
        return few_rows_product(rows, weight, *others)  # type: ignore[arg-type]

    return few_rows


def chosen(device: Device, seconds: Callable[[Tensor, int], float], way: str = "auto") -> dict[tuple[int, ...], bool]:
    """Which of two shapes, of which there are three weights each, go through the kernel; all weights of a shape go one way."""
    given = [Timed(shape, device) for shape in (LARGE, SMALL, LARGE, SMALL, SMALL, LARGE)]
    change = choose_products(given, kernel_of(device, seconds), way, device, clock=lambda: device.now)
    ways: dict[tuple[int, ...], set[bool]] = {}
    for product in given:
        changed = change(product)
        assert changed.weight is product.weight
        ways.setdefault(tuple(product.weight.shape), set()).add(isinstance(changed, FewRowsProduct))
        assert isinstance(changed, FewRowsProduct) or changed is product
    assert all(len(found) == 1 for found in ways.values())
    return {shape: found.pop() for shape, found in ways.items()}


def test_the_faster_is_taken_for_each_shape() -> None:
    device = Device()
    assert chosen(device, lambda weight, count: 0.9 if len(weight) == 64 else 1.1) == {LARGE: True, SMALL: False}
    assert device.recordings == 2 * 2 * len(ROW_COUNTS)


def test_what_a_layer_does_around_a_product_counts() -> None:
    """A norm that the kernel does, too, is launched beside PyTorch's product."""
    device = Device()

    def run(product: Product, rows: Tensor) -> Tensor:
        if not isinstance(product, FewRowsProduct):
            device.queued += 0.2
        return product(rows)

    given = [Timed(shape, device) for shape in (LARGE, SMALL)]
    few_rows = kernel_of(device, lambda weight, count: 1.1)
    change = choose_products(given, few_rows, "auto", device, clock=lambda: device.now, runs={LARGE: run})
    assert [isinstance(change(product), FewRowsProduct) for product in given] == [True, False]


@pytest.mark.parametrize("way", ["torch", "kernel"])
@torch.inference_mode()
def test_products_are_timed_as_a_layer_runs_them(way: str) -> None:
    loaded = load("tiny")
    run = fuse(loaded.module, loaded.probe.kv, loaded.probe.rules)
    assert isinstance(run, FusedPass)
    layer, kernels = run.layers[0], reference_kernels()
    runs = runs_in_a_layer(run, KernelRows(kernels))
    rows = torch.randn(3, layer.input_norm.shape[0])
    for product in (layer.qkv, layer.gate_up, run.head):
        assert isinstance(product, DenseProduct)
        served = product if way == "torch" else FewRowsProduct(product.weight, product.bias, few_rows_product)
        expected = product(torch.nn.functional.rms_norm(rows, rows.shape[1:], layer.post_norm, layer.eps))
        expected = kernels.silu_mul(expected) if product is layer.gate_up else expected
        assert torch.allclose(runs[product.shape](served, rows), expected, atol=1e-5)
    assert layer.down.shape not in runs  # type: ignore[attr-defined]


def test_one_row_count_does_not_get_a_way_of_its_own() -> None:
    assert chosen(Device(), lambda weight, count: 1.5 if count == 1 else 0.5) == {LARGE: True, SMALL: True}
    assert chosen(Device(), lambda weight, count: 0.9 if count == 1 else 1.5) == {LARGE: False, SMALL: False}


@pytest.mark.parametrize("hiccups", range(2, 30, 5))
def test_a_measurement_that_somebody_disturbed_decides_nothing(hiccups: int) -> None:
    assert chosen(Device(hiccups), lambda weight, count: 0.9) == {LARGE: True, SMALL: True}
    assert chosen(Device(hiccups), lambda weight, count: 1.1) == {LARGE: False, SMALL: False}


def test_weights_of_all_layers_are_read_in_turn() -> None:
    device = Device()
    chosen(device, lambda weight, count: 1.0)
    assert all(len({*device.read[at : at + 3]}) == 3 for at in range(0, len(device.read), 3))


def test_what_is_set_is_not_timed() -> None:
    device = Device()
    assert chosen(device, lambda weight, count: 9.0, "kernel") == {LARGE: True, SMALL: True}
    assert chosen(device, lambda weight, count: 0.0, "torch") == {LARGE: False, SMALL: False}
    assert device.recordings == 0
    with pytest.raises(ValueError, match="'fastest' is none of auto, torch, kernel"):
        chosen(device, lambda weight, count: 1.0, "fastest")


def test_a_kernel_that_cannot_be_recorded_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    def broken(weight: Tensor, count: int) -> float:
        if len(weight) == 64:
            raise RuntimeError("no such instruction")
        return 0.5

    assert chosen(Device(), broken) == {LARGE: False, SMALL: True}
    assert "[64, 16] go through PyTorch: no such instruction" in caplog.text


@pytest.mark.parametrize("way", WAYS)
def test_a_driver_is_built_with_what_is_set(way: str) -> None:
    """And gives the reference's logits, recorded."""
    loaded = load("tiny")
    fused = fuse(loaded.module, loaded.probe.kv, loaded.probe.rules)
    calls: list[int] = []

    def few_rows(rows: Tensor, *others: Tensor | None) -> Tensor:
        calls.append(len(rows))
        return few_rows_product(rows, *others)  # type: ignore[arg-type]

    kernels = reference_kernels()._replace(few_rows_product=few_rows)
    options = DriverOptions(pages=64, page_size=16, most_rows=64, products=way)
    driver = fast_driver(loaded, fused, options, kernels, RecordedHost())
    run = driver._body._run
    assert isinstance(run, FusedPass)
    ours = {isinstance(product, FewRowsProduct) for layer in run.layers for product in (layer.qkv, layer.down)}
    assert way == "auto" or ours == {way == "kernel"}
    calls.clear()
    assert logit_difference(driver, driver.plain) <= 1e-3
    assert way == "auto" or bool(calls) == (way == "kernel")


def test_the_operators_choice_reaches_every_driver() -> None:
    """From the environment to the driver, and to draft models of other processes."""
    assert resolve(Sources({}, {"INFERD_PRODUCTS": "torch"})).engine.products == "torch"
    settings = EngineSettings(products="kernel")
    told = encode_settings(default_commands(Settings(engine=settings)).engine("ipc://nowhere", "key").settings)
    assert decode_settings(told, EngineStart).settings.products == "kernel"
    assert driver_options(settings, 1).products == "kernel"
    for device, way in (("cuda", "kernel"), ("cpu", "auto")):
        own = draft_process_settings(settings, DraftOptions(ModelOptions("tiny", device=device)))
        assert own.products == way
