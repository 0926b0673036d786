"""A step that is recorded without a device: what a CUDA graph would refuse is refused, whichever way it is written."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import numpy as np
import pytest
import torch
from torch import Tensor

from inferd_runtime.testing.recorded_host import RecordedHost

READ: dict[str, Callable[[Tensor], object]] = {
    "Tensor.tolist": lambda x: x.tolist(),
    "Tensor.numpy": lambda x: x.numpy(),
    "Tensor.cpu": lambda x: x.cpu(),
    "Tensor.__array__": lambda x: np.asarray(x),
    "Tensor.__dlpack__": lambda x: np.from_dlpack(x),
    r"Tensor.to\('cpu'\)": lambda x: x.to("cpu"),
    r"Tensor.to\('cpu'\) ": lambda x: x.to(device="cpu"),
    "aten.(_local_scalar_dense|item)": lambda x: x[0].item(),
    "aten.(_local_scalar_dense|item) ": lambda x: int(x[0]),
    "aten.(_local_scalar_dense|item)  ": lambda x: torch.full((2,), x[0]),
    "aten.(_local_scalar_dense|is_nonzero)": lambda x: bool(x[0] > 0),
    "aten.nonzero": lambda x: x.nonzero(),
    "aten.index": lambda x: x[x > 1],
    "aten.index_put_": lambda x: x.clone().__setitem__(x > 1, x[1:]),
    "aten.repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "aten._unique2": lambda x: x.unique(),
    "aten.equal": lambda x: torch.equal(x, x),
}


@pytest.mark.parametrize("inference", [False, True], ids=["plain", "inference"])
@pytest.mark.parametrize("name", READ)
def test_no_value_is_decided_on_the_host_unseen(name: str, inference: bool) -> None:
    numbers = torch.tensor([1, 2, 3])
    weights = torch.nn.Parameter(torch.ones(3), requires_grad=False)

    def step() -> Tensor:
        READ[name](numbers + 1)
        return numbers * 2

    def weighed() -> Tensor:
        READ[name](weights)
        return weights * 2

    with torch.inference_mode(inference):
        for body in (step, weighed):
            with pytest.raises(RuntimeError, match=f"a recorded step waits for {name.strip()}$"):
                RecordedHost().record(body)
        READ[name](numbers)  # and outside a recording it is as before


def test_what_another_thread_reads_meanwhile_is_its_own_business() -> None:
    found: list[list[int]] = []
    numbers = torch.tensor([1, 2, 3])

    def step() -> Tensor:
        other = Thread(target=lambda: found.append(numbers.tolist()))
        other.start()
        other.join()
        return numbers * 2

    replay, doubled = RecordedHost().record(step)
    numbers.copy_(torch.tensor([4, 5, 6]))
    replay()
    assert found == [[1, 2, 3]]
    assert doubled.tolist() == [8, 10, 12]


def test_what_waits_for_nothing_is_not_refused() -> None:
    numbers = torch.tensor([1, 2, 3])

    def step() -> Tensor:
        capped = numbers.clone()
        capped[capped > 100] = 0
        out = capped.to(torch.float32).to(numbers.device).to(torch.int64) + len(numbers)
        return out[numbers - 1].repeat_interleave(numbers, output_size=6)

    for mode in (False, True):
        with torch.inference_mode(mode):
            replay, out = RecordedHost().record(step)
            numbers.copy_(torch.tensor([3, 2, 1]))
            replay()
            assert out.tolist() == [4, 4, 4, 5, 5, 6]
            numbers.copy_(torch.tensor([1, 2, 3]))
