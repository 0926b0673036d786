"""What a driver needs of a device beside tensors: pinned memory, marks on its stream, recorded steps. And CUDA's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
WARM_UPS = 2


class Accelerator(Protocol):
    """A device whose work is queued on one stream."""

    device: torch.device
    processors: int

    def staging(self, size: int) -> Tensor:
        """uint8[size] on the host that the device copies from and to without waiting."""
        ...

    def mark(self) -> Callable[[], None]:
        """A call that returns once everything queued so far is done. Raises what went wrong on the device."""
        ...

    def record(self, body: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """Record what ``body`` queues: a call that queues it again, on the same memory, and what it returned.

        ``body`` may run more than once before it is recorded. It must not wait for the device, and what it computes on the
        host stays as it is now. Raises RuntimeError when it cannot be recorded.
        """
        ...

    def footprint(self, body: Callable[[], object]) -> int:
        """Bytes of device memory that ``body`` has taken and that, once it has ended, no other program can have."""
        ...


class CudaAccelerator:
    """One CUDA device; steps are recorded as CUDA graphs, which share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._pool = torch.cuda.graph_pool_handle()

    def staging(self, size: int) -> Tensor:
        """See :class:`Accelerator`."""
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)

    def mark(self) -> Callable[[], None]:
        """See :class:`Accelerator`."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event.synchronize

    def record(self, body: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """See :class:`Accelerator`. Runs it a few times first: libraries choose and compile their kernels then."""
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                body()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Of this thread alone: a draft model's may allocate meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = body()
        return graph.replay, result

    def footprint(self, body: Callable[[], object]) -> int:
        """See :class:`Accelerator`. What PyTorch keeps in reserve counts, and what libraries take beside it."""
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info(self.device)[0]
        body()
        torch.cuda.synchronize(self.device)
        taken = before - torch.cuda.mem_get_info(self.device)[0]
        torch.cuda.empty_cache()
        return max(0, taken)
