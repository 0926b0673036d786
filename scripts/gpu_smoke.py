"""The first thing to run on a device: versions, one kernel, two recordings in one pool.

With ``--broken`` also one that fails, and another: up to PyTorch 2.11 that other one is refused, too, or ends the process.
"""

from __future__ import annotations

import argparse
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broken", action="store_true", help="record behind a recording that failed")
    broken = parser.parse_args().broken
    device = torch.device("cuda", 0)
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    print(f"{name} {capability}, CUDA {torch.version.cuda}, python {sys.version.split()[0]}")
    print(f"torch {torch.__version__}, triton {triton.__version__}, transformers {transformers.__version__}")
    _kernel(device)
    _recordings(CudaAccelerator(device), device, broken=broken)
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


def _recordings(accelerator: CudaAccelerator, device: torch.device, *, broken: bool) -> None:
    source = torch.ones(4, device=device)

    def times(factor: float) -> tuple[object, Tensor]:
        return accelerator.record(lambda: source * factor)

    with accelerator.active(), torch.inference_mode():
        recorded = [times(2.0), times(3.0)]
        _replayed(recorded, source, 5.0, (2.0, 3.0))
        print("recordings: two in a pool")
        if broken:
            _broken(accelerator, source)
            recorded.append(times(4.0))
            _replayed(recorded, source, 7.0, (2.0, 3.0, 4.0))
            print("recordings: another behind one that failed")


def _broken(accelerator: CudaAccelerator, source: Tensor) -> None:
    """Fail to record what waits for the device."""
    try:
        accelerator.record(lambda: source * float(source.sum().item()))
    except RuntimeError as error:
        print(f"a recording that waits is refused: {str(error).splitlines()[0]}")
    else:
        raise AssertionError("a recording that waits for the device was not refused")


def _replayed(recorded: list[tuple[object, Tensor]], source: Tensor, value: float, factors: tuple[float, ...]) -> None:
    source.fill_(value)
    for (replay, result), factor in zip(recorded, factors, strict=True):
        assert callable(replay)
        replay()
        torch.cuda.synchronize()
        assert torch.equal(result.cpu(), torch.full((4,), value * factor)), (result, factor)


if __name__ == "__main__":
    sys.exit(main())
