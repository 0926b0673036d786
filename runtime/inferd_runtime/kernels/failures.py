"""What building or launching a kernel may raise."""

from __future__ import annotations

import subprocess


def kernel_failures() -> tuple[type[Exception], ...]:
    """Return the exceptions after which something else than a kernel does the work: PyTorch's and the compilers'.

    Triton's own (``CompilationError``, ``OutOfResources``, ``PTXASError``) have nothing in common but ``TritonError``, which is
    no RuntimeError. Its frontend of another version may raise what Python does for a wrong name or argument, and its C compiler
    is a process.
    """
    common = (RuntimeError, ValueError, TypeError, AttributeError, AssertionError, NotImplementedError, OSError)
    others = (*common, subprocess.CalledProcessError)
    try:
        from triton.errors import TritonError
    except ImportError:
        return others
    return (*others, TritonError)
