"""What each kernel is compiled as: see :mod:`inferd_runtime.kernels.triton.resources`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Variant(NamedTuple):
    """One way in which a kernel is served.

    ``signature``: Triton's type per argument that is none of ``constants`` ("*bf16", "i32", "fp32"); a pointer is taken as
    aligned to 16 bytes, as torch's are, and ":16" behind a number says that it is a multiple of 16. ``constants``: the
    compile-time arguments, and None for an optional pointer that is not given. ``most_registers``: of a thread (None: as the
    assembler chooses).
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, object]
    num_warps: int = 4
    num_stages: int = 3
    most_registers: int | None = None
