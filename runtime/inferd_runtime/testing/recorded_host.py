"""What a CUDA graph does, on the CPU: the operations of a step are recorded once and done again on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Value = TypeVar("Value")
WAITS = frozenset({
    "aten._local_scalar_dense", "aten.item", "aten.is_nonzero", "aten.equal", "aten.allclose", "aten.nonzero",
    "aten.masked_select", "aten._unique2", "aten.unique_dim", "aten.unique_consecutive", "aten.bincount",
})  # fmt: skip
"""Operations whose result, or its size, the host waits for. In inference mode compound operations are not decomposed."""
READS = frozenset({Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__, Tensor.__dlpack__})
"""Methods that bring a tensor's numbers to the host without being an operation, if they are in its memory already."""


class RecordedHost:
    """An :class:`~inferd_runtime.engine.drivers.accelerator.Accelerator` without a device. Marks are done at once.

    A recorded step repeats its torch operations with the numbers and the memory that they had when it was recorded. What it
    reads on the host is refused, by WAITS and READS, as a CUDA graph would refuse it; what else was decided there shows as a
    wrong result of a replay with other numbers. Neither holds for a copy to ``torch.device("cpu")``, which is this device, nor
    for what reads memory past torch (``data_ptr``), as Triton's interpreter does.
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

    def settle(self) -> None:
        """See :class:`Accelerator`."""

    def record(self, body: Callable[[], Value]) -> tuple[Callable[[], None], Value]:
        """See :class:`Accelerator`. Raises RuntimeError that names what the host would wait for."""
        self.recordings += 1
        with _NoReads(), _OperationRecorder() as recorder:
            result = body()

        def replay() -> None:
            self.replays += 1
            recorder.replay()

        return replay, result

    def footprint(self, body: Callable[[], object]) -> int:
        """See :class:`Accelerator`. Run it; the memory it took is not known here."""
        body()
        return 0

    def fetch(self, parts: Iterable[Tensor], size: int) -> Callable[[], Tensor]:
        """See :class:`Accelerator`. They are there at once."""
        copied = [part.reshape(-1).view(torch.uint8) for part in parts]
        host = torch.cat(copied) if copied else torch.empty(0, dtype=torch.uint8)
        assert len(host) == size, f"{len(host)} bytes instead of {size}"
        return lambda: host

    def bring(self, rows: Tensor) -> Tensor:
        """See :class:`Accelerator`."""
        return rows.clone()


class _OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operation with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = str(func).rsplit(".", 1)[0]
        if name in WAITS or _counts(name, args, kwargs or {}):
            raise RuntimeError(f"a recorded step waits for {name}")
        results = func(*args, **(kwargs or {}))
        self._steps.append((func, args, kwargs or {}, _tensors(results)))
        return results

    @torch.inference_mode()
    def replay(self) -> None:
        """Repeat every operation, and copy each new result to where the recorded one was; views stay where they were."""
        for func, args, kwargs, before in self._steps:
            results = func(*args, **kwargs)
            for work in tree_leaves(results):
                if isinstance(work, torch.ScriptObject):
                    work.wait()  # type: ignore[attr-defined] # of a process group: other ranks take part in it
            for old, new in zip(before, _tensors(results), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class _NoReads(TorchFunctionMode):
    """Refuse, in this thread alone, what is no operation on this device and would wait for another one."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in READS:
            raise RuntimeError(f"a recorded step waits for Tensor.{func.__name__}")
        if func is Tensor.to and "cpu" in (*(one for one in args[1:] if isinstance(one, str)), given.get("device")):
            raise RuntimeError("a recorded step waits for Tensor.to('cpu')")
        return func(*args, **given)


def _counts(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if a size depends on numbers: of what a mask selects, of repeats without their sum."""
    if name == "aten.repeat_interleave":
        return kwargs.get("output_size") is None and (len(args) == 1 or isinstance(args[1], Tensor))
    if name not in ("aten.index", "aten.index_put", "aten.index_put_"):
        return False
    # One number for all that a mask chooses is no matter of size.
    filled = name != "aten.index" and args[2].numel() == 1
    return not filled and any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])


def _tensors(results: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]


def _done() -> None:
    """Do nothing: all is done already."""
