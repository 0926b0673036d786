"""Launches of a layer, compiled: norm and gate in the products, and an early begin. And what goes on beside the steps."""

from __future__ import annotations

import pytest
import torch
from confidence_cases import check_confidence
from elementwise_cases import Heads, check_rotation, ops
from product_cases import Case, check_invariance
from torch import Tensor

from inferd_runtime.engine.drivers.accelerator import CudaAccelerator
from inferd_runtime.kernels.triton import confidence, elementwise, product
from inferd_runtime.kernels.triton.early import starts_early
from inferd_runtime.kernels.triton.product import SERVED, few_rows_product

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("out", "size"), [*SERVED[:3], *SERVED[5:], (70, 1300), (34, 130), (2, 1)], ids=str)
def test_norm_and_gate_are_done_with_the_product(out: int, size: int, dtype: torch.dtype, gated: bool) -> None:
    case = Case(out, size, dtype, bias=not gated, device="cuda", normed=True, gated=gated)
    for count in (1, 5, 16):
        case.check(few_rows_product, count)
    if dtype == torch.bfloat16:
        check_invariance(few_rows_product, case, range(1, 17, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocab", [7, 32_000, 151_936])
def test_how_sure_a_draw_was(vocab: int, dtype: torch.dtype) -> None:
    for masked in (False, True):
        check_confidence(confidence.confidence, [0.0, 1.0, 0.7, 3.0, 0.0], vocab, dtype, masked, "cuda")


def chain(rows: Tensor, weights: list[Tensor], residual: Tensor) -> Tensor:
    """Products of which each reads what the one before wrote, over memory that is used again."""
    for weight in weights:
        rows = few_rows_product(rows, weight, None, None)
        few_rows_product(rows, weight, None, residual)
    return rows


def test_early_launches_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launched one by one and recorded, a hundred times each: a program that did not wait would read what is not there yet."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    weights = [torch.randn(2048, 2048, generator=generator, device=DEVICE).bfloat16() / 2048**0.5 for _ in range(16)]
    start = torch.randn(1, 2048, generator=generator, device=DEVICE).bfloat16()
    residual = torch.zeros(1, 2048, dtype=torch.bfloat16, device=DEVICE)
    with monkeypatch.context() as patched:
        patched.setattr(product, "starts_early", lambda device: False)
        expected, expected_sum = chain(start, weights, residual).clone(), residual.clone()
    accelerator = CudaAccelerator(DEVICE)
    with torch.inference_mode(), accelerator.active():
        replay, recorded = accelerator.record(lambda: chain(start, weights, residual.zero_()))
    for _ in range(100):
        replay()
        assert torch.equal(recorded, expected)
        assert torch.equal(residual, expected_sum)
        residual.zero_()
        assert torch.equal(chain(start, weights, residual), expected)
        assert torch.equal(residual, expected_sum)


def test_a_rotation_waits_for_its_product() -> None:
    for count in (1, 7):
        for _ in range(20):
            slots = [(13 * row) % 144 for row in range(count)]
            check_rotation(ops(elementwise, "cuda"), Heads(32, 8, 128, True, torch.bfloat16, torch.bfloat16), slots)


def test_devices_from_capability_9_on_launch_early() -> None:
    assert starts_early(DEVICE) == (torch.cuda.get_device_capability(DEVICE) >= (9, 0))


# -- Beside the steps -------------------------------------------------------------------------------------------------


def test_a_stream_beside_others_is_its_own_and_comes_first() -> None:
    plain, beside = CudaAccelerator(DEVICE), CudaAccelerator(DEVICE, beside=True)
    with plain.active():
        common = torch.cuda.current_stream()
    with beside.active():
        own = torch.cuda.current_stream()
    assert own != common
    assert own.priority < common.priority


@pytest.mark.parametrize("beside", [False, True], ids=["", "beside"])
def test_what_is_fetched_is_as_it_was_and_what_is_brought_is_there(beside: bool) -> None:
    """While the device is busy, so that a copy which did not wait would show."""
    accelerator = CudaAccelerator(DEVICE, beside=beside)
    with accelerator.active():
        busy = torch.randn(4096, 4096, device=DEVICE)
        pages = torch.zeros(8, 1 << 20, dtype=torch.uint8, device=DEVICE)
        torch.cuda.synchronize()
        for value in range(1, 20):
            for _ in range(4):
                busy = busy @ busy.t() / 4096
            pages.fill_(value)
            arrived = accelerator.fetch((pages[at : at + 2] + 0 for at in range(0, 8, 2)), pages.nbytes)
            pages.fill_(0)
            host = arrived()
            assert host.is_pinned()
            assert bool((host == value).all())
            for source in (host, torch.full((1 << 20,), value, dtype=torch.uint8)):
                back = accelerator.bring(source)
                assert int(back.max()) == int(back.min()) == value
