"""What a driver needs of a device beside tensors: pinned memory, marks on its stream, recorded steps. And CUDA's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from inferd_runtime.engine.driver import DeviceLost

Result = TypeVar("Result")
WARM_UPS = 2
BEFORE_OTHERS = -1
"""A stream's priority: recorded kernels keep that of the stream on which they were recorded."""
FETCHED = 2
"""Parts that are on their way to the host before the next one is made: each takes device memory until it has arrived."""


class Accelerator(Protocol):
    """A device whose work is queued on one stream.

    Errors of its own come out of ``active`` and ``mark`` as they are, and as DeviceLost once it can do nothing more.
    """

    device: torch.device
    processors: int

    def active(self) -> AbstractContextManager[object]:
        """Return a context in which this device is the thread's current one. All work on the device is done inside."""

    def staging(self, size: int) -> Tensor:
        """Return uint8[size] on the host that the device copies from and to without waiting."""

    def mark(self) -> Callable[[], None]:
        """Return a call that returns once everything queued so far is done. Raises what went wrong on the device."""

    def settle(self) -> None:
        """Wait until everything queued so far is done, unless it is being recorded. Raises what went wrong on the device."""

    def record(self, body: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """Record what ``body`` queues: a call that queues it again, on the same memory, and what it returned.

        ``body`` may run more than once before it is recorded. It must not wait for the device, and what it computes on the
        host stays as it is now. Raises RuntimeError when it cannot be recorded.
        """

    def footprint(self, body: Callable[[], object]) -> int:
        """Return the bytes of device memory that ``body`` has taken and that, once it has ended, no other program can have."""

    def fetch(self, parts: Iterable[Tensor], size: int) -> Callable[[], Tensor]:
        """Queue the copy of tensors, ``size`` bytes together, to the host, one behind the other, beside what is queued next.

        They are taken as they are once all that was queued before is done. Returns a call, for any thread, that waits for them:
        uint8[size] that the caller owns.
        """

    def bring(self, rows: Tensor) -> Tensor:
        """Queue the copy of a host's tensor to the device, beside the work there; what is queued from now on waits for it.

        The host does not wait. Memory of :meth:`fetch` is read where it is, and must not be changed any more.
        """


class CudaAccelerator:
    """One CUDA device; steps are recorded as CUDA graphs, which share one pool of memory.

    PyTorch allows one recording in a process at a time, whatever the device: record before other threads use one. A recording
    that is never dropped holds the pool: one whose recordings have all been dropped cannot be used again.
    """

    def __init__(self, device: torch.device, *, beside: bool = False) -> None:
        """``beside``: work is queued on a stream of its own, and comes before what other streams of the device have queued.
        Else on the thread's current one, which is the same for all threads.
        """
        self.device = torch.device("cuda", device.index or 0)
        self.processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        self._priority = BEFORE_OTHERS if beside else 0
        self._own: torch.cuda.Stream | None = None
        if beside:
            torch.cuda.synchronize(self.device)  # the weights are there: they came on another stream
            self._own = self._stream()
        with self.active():
            self._side = self._stream()
            self._copies = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
            self._anchor: Callable[[], None] | None = None
        self._brought: deque[tuple[torch.cuda.Event, Tensor]] = deque()

    @contextmanager
    def active(self) -> Iterator[None]:
        """See :class:`Accelerator`."""
        with self._watched(), torch.cuda.device(self.device), torch.cuda.stream(self._own):
            yield

    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device, self._priority)  # type: ignore[no-untyped-call]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Raise DeviceLost instead of an error after which the device does nothing any more: CUDA repeats such ones."""
        try:
            yield
        except Exception as error:
            try:
                torch.cuda.synchronize(self.device)
            except RuntimeError as lasting:
                raise DeviceLost(f"{self.device} does nothing any more: {lasting}") from error
            raise

    def staging(self, size: int) -> Tensor:
        """See :class:`Accelerator`."""
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)

    def mark(self) -> Callable[[], None]:
        """See :class:`Accelerator`."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))

        def wait() -> None:
            with self._watched():
                event.synchronize()

        return wait

    def settle(self) -> None:
        """See :class:`Accelerator`."""
        if not torch.cuda.is_current_stream_capturing():
            with self._watched():
                torch.cuda.current_stream(self.device).synchronize()

    def record(self, body: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """See :class:`Accelerator`. Runs it a few times first: libraries choose and compile their kernels then."""
        if self._anchor is None:
            number = torch.zeros(1, device=self.device)
            self._anchor, _ = self._capture(lambda: number + 1)
        before, side = torch.cuda.current_stream(self.device), self._side
        side.wait_stream(before)
        with ExitStack() as broken_off:
            broken_off.callback(before.wait_stream, side)
            broken_off.callback(self._reset_recording, before)
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    body()
            recorded = self._capture(body)
            broken_off.pop_all()
        before.wait_stream(side)
        return recorded

    def _reset_recording(self, current: torch.cuda.Stream) -> None:
        """Replace stream and pool after a failed recording, which leaves its stream current and its pool in use."""
        torch.cuda.set_stream(current)
        self._side = self._stream()
        self._pool, self._anchor = torch.cuda.graph_pool_handle(), None

    def _capture(self, body: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        graph = torch.cuda.CUDAGraph()
        # Of this thread alone: others may use the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"):
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

    def fetch(self, parts: Iterable[Tensor], size: int) -> Callable[[], Tensor]:
        """See :class:`Accelerator`. Into pinned memory, on a stream of its own."""
        host, at = torch.empty(size, dtype=torch.uint8, pin_memory=True), 0
        queued: deque[torch.cuda.Event] = deque()
        for part in parts:
            target = host[at : at + part.nbytes]
            self._copies.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._copies):
                target.copy_(part.reshape(-1).view(torch.uint8), non_blocking=True)
                queued.append(self._copies.record_event())
            part.record_stream(self._copies)
            at += part.nbytes
            if len(queued) > FETCHED:
                queued.popleft().synchronize()

        def wait() -> Tensor:
            with self._watched():
                for event in queued:
                    event.synchronize()
            return host

        return wait

    def bring(self, rows: Tensor) -> Tensor:
        """See :class:`Accelerator`. From pinned memory, which other memory is copied to first, on a stream of its own."""
        while self._brought and self._brought[0][0].query():  # type: ignore[no-untyped-call]
            self._brought.popleft()
        pinned = rows if rows.is_pinned() else rows.pin_memory()
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._copies):
            there = pinned.to(self.device, non_blocking=True)
            self._brought.append((self._copies.record_event(), pinned))
        current.wait_stream(self._copies)
        there.record_stream(current)
        return there
