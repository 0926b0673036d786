"""What can win a draw from a whole row of logits, by `draws.c`; the plain twin is ``engine/sampling/host_sampling.py``."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inferd_runtime.kernels.native.compiler import compiled

SOURCE = Path(__file__).with_name("draws.c")
POINTER, WHOLE, BITS = ctypes.c_void_p, ctypes.c_long, ctypes.c_uint64
SIGNATURES = {
    "largest": [POINTER] * 2 + [WHOLE],
    "contenders": [POINTER] * 2 + [WHOLE, ctypes.c_float, BITS, BITS, POINTER],
}


class DrawKernels:
    """The functions of the library. ``logits``: float32[V]; ``mask``: int32[ceil(V / 32)], a bit for each allowed token, or None
    for all; both contiguous.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, WHOLE
        self._library = library

    def largest(self, logits: npt.NDArray[np.float32], mask: npt.NDArray[np.int32] | None) -> int:
        """Return the first of the largest allowed logits; -1 if none is allowed, or one of these is no number."""
        return int(self._library.largest(logits.ctypes.data, _address(mask), len(logits)))

    def contenders(
        self, logits: npt.NDArray[np.float32], mask: npt.NDArray[np.int32] | None, near: float, base: int, rare: int
    ) -> npt.NDArray[np.int64]:
        """Return the allowed tokens whose logit is at least ``near``, as a float32, or whose noise has ``rare`` bits or more.

        ``base``: of the noise's key and position.
        """
        found = np.empty(len(logits), np.int64)
        count = self._library.contenders(
            logits.ctypes.data, _address(mask), len(logits), near, base, rare, found.ctypes.data
        )
        return found[:count]


def _address(mask: npt.NDArray[np.int32] | None) -> int | None:
    return None if mask is None else mask.ctypes.data


@functools.cache
def draw_kernels() -> DrawKernels | None:
    """Return the functions, compiled if need be; None on a machine without a compiler or of another kind."""
    library = compiled(SOURCE)
    return None if library is None else DrawKernels(library)
