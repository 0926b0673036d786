"""The first thing to run on a device: versions, one kernel, two recordings in one pool, one that fails, and another."""

from __future__ import annotations

import sys

import torch
import transformers
import triton
from torch import Tensor

from inferd_runtime.engine.drivers.accelerator import CudaAccelerator
from inferd_runtime.kernels.suite import reference_kernels, triton_kernels
from inferd_runtime.kernels.verify import DraftRows


def main() -> int:
    """Raises what goes wrong. Returns 0."""
    device = torch.device("cuda", 0)
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    print(f"{name} {capability}, CUDA {torch.version.cuda}, python {sys.version.split()[0]}")
    print(f"torch {torch.__version__}, triton {triton.__version__}, transformers {transformers.__version__}")
    _kernel(device)
    _recordings(CudaAccelerator(device), device)
    return 0


def _kernel(device: torch.device) -> None:
    """Launch the smallest kernel, and compare it with its twin."""
    samples = torch.tensor([5, 6, 7], device=device)
    whole = torch.tensor([[5, 6]], dtype=torch.int32, device=device)
    chain = torch.tensor([[-1, 0]], dtype=torch.int32, device=device)
    first, lengths = (torch.tensor([one], dtype=torch.int32, device=device) for one in (0, 2))
    drafts = DraftRows(first, lengths, whole, chain)
    got, expected = (suite.agree(samples, drafts).cpu() for suite in (triton_kernels(), reference_kernels()))
    assert torch.equal(got, expected), (got, expected)
    print("a kernel: the same as its twin")


def _recordings(accelerator: CudaAccelerator, device: torch.device) -> None:
    source = torch.ones(4, device=device)

    def times(factor: float) -> tuple[object, Tensor]:
        return accelerator.record(lambda: source * factor)

    def fails() -> Tensor:
        return source * float(source.sum().item())  # waits for the device, which cannot be recorded

    with accelerator.active(), torch.inference_mode():
        recorded = [times(2.0), times(3.0)]
        _replayed(recorded, source, 5.0, (2.0, 3.0))
        try:
            accelerator.record(fails)
        except RuntimeError as error:
            print(f"a recording that waits is refused: {str(error).splitlines()[0]}")
        else:
            raise AssertionError("a recording that waits for the device was not refused")
        recorded.append(times(4.0))
        _replayed(recorded, source, 7.0, (2.0, 3.0, 4.0))
    print("recordings: two in a pool, one that failed, and another")


def _replayed(recorded: list[tuple[object, Tensor]], source: Tensor, value: float, factors: tuple[float, ...]) -> None:
    source.fill_(value)
    for (replay, result), factor in zip(recorded, factors, strict=True):
        assert callable(replay)
        replay()
        torch.cuda.synchronize()
        assert torch.equal(result.cpu(), torch.full((4,), value * factor)), (result, factor)


if __name__ == "__main__":
    sys.exit(main())
