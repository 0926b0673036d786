"""A launcher that launches nothing: it counts kernels, what they would have been compiled as, and the host's time for them.

For processes in which Triton does not interpret. What a step computes comes from twins in torch, so that a driver can be driven
through real generations; the launches of recorded steps are counted when they are recorded, as a CUDA graph would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any
from unittest.mock import patch

from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from inferd_runtime.kernels.suite import KernelSuite, triton_kernels


class StubLauncher:
    """``launches``: by kernel. ``compiled``: the keys under which Triton would look compiled kernels up. ``seconds``: the host's,
    from an operation's call to its last launch, which is not made.
    """

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.compiled: set[tuple[str, str]] = set()
        self.seconds = 0.0
        self._backend = make_backend(GPUTarget("cuda", 90, 32))
        self._binders: dict[Any, Any] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Triton's launches come here inside."""

        def run(kernel: Any, *given: Any, grid: Any, warmup: Any, **options: Any) -> None:
            self._launched(kernel, given, options)

        with patch.object(JITFunction, "run", run):
            yield

    def _launched(self, kernel: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        bind = self._binders.get(kernel)
        if bind is None:
            bind = self._binders[kernel] = create_function_from_signature(
                kernel.signature, kernel.params, self._backend
            )
        _, key, bound = bind(*given, **options)
        self.launches[kernel.__name__] += 1
        self.compiled.add((kernel.__name__, f"{key} {sorted(bound.items())}"))

    def suite(self, twins: KernelSuite) -> KernelSuite:
        """Return kernels that are launched here and computed by their twins."""
        pairs = zip(triton_kernels(), twins, strict=True)
        return KernelSuite(*(self._both(kernel, twin) for kernel, twin in pairs))

    def _both(self, kernel: Any, twin: Any) -> Any:
        if isinstance(kernel, tuple):
            return type(kernel)(*(self._both(*pair) for pair in zip(kernel, twin, strict=True)))

        def both(*arguments: Any, **named: Any) -> Any:
            start = perf_counter()
            kernel(*arguments, **named)
            self.seconds += perf_counter() - start
            return twin(*arguments, **named)

        return both
