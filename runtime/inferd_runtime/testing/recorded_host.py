"""What a CUDA graph does, on the CPU: the operations of a step are recorded once and done again on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Result = TypeVar("Result")
WAITS = ("aten._local_scalar_dense", "aten.nonzero", "aten.equal", "aten.masked_select", "aten.is_nonzero")
"""Operations whose result the host waits for."""


class RecordedHost:
    """An :class:`~inferd_runtime.engine.drivers.accelerator.Accelerator` without a device. Marks are done at once.

    A recorded step repeats its torch operations with the numbers and the memory that they had when it was recorded. So
    whatever a step would decide on the host shows as a wrong result, as it would with a CUDA graph.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.processors = 4
        self.recordings = 0
        self.replays = 0

    def active(self) -> AbstractContextManager[object]:
        """See :class:`Accelerator`."""
        return nullcontext()

    def staging(self, size: int) -> Tensor:
        """See :class:`Accelerator`."""
        return torch.zeros(size, dtype=torch.uint8)

    def mark(self) -> Callable[[], None]:
        """See :class:`Accelerator`."""
        return _done

    def record(self, body: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """See :class:`Accelerator`. Raises RuntimeError that names an operation for which the host would wait."""
        self.recordings += 1
        with _Recorder() as recorder:
            result = body()

        def replay() -> None:
            self.replays += 1
            recorder.replay()

        return replay, result

    def footprint(self, body: Callable[[], object]) -> int:
        """See :class:`Accelerator`. Runs it; what memory it took is not known here."""
        body()
        return 0


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operation with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = str(func).rsplit(".", 1)[0]
        if name in WAITS:
            raise RuntimeError(f"a recorded step waits for {name}")
        results = func(*args, **(kwargs or {}))
        self._steps.append((func, args, kwargs or {}, _tensors(results)))
        return results

    @torch.inference_mode()
    def replay(self) -> None:
        """Do everything again. What an operation makes anew goes to where its result was; views are where they were."""
        for func, args, kwargs, before in self._steps:
            for old, new in zip(before, _tensors(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _tensors(results: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]


def _done() -> None:
    """All is done already."""
