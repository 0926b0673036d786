"""What a step computes between its products, by `steps.c`, in float32. The torch twin is
:class:`~inferd_runtime.models.passes.attention.GroupedLayout`.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inferd_runtime.kernels.native.compiler import compiled

SOURCE = Path(__file__).with_name("steps.c")
LANES = 16
WIDTHS = (32, 64, 96, 128)
"""Of heads."""
MOST_QUERIES = 64
"""Heads of rows that are attended from at a time, as in `steps.c`."""
FEWEST_QUERIES = 12
SCORES = 1 << 19
"""Of a thread, 2 MiB: behind longer texts it takes fewer queries at a time, down to FEWEST_QUERIES."""
POINTER, WHOLE = ctypes.c_void_p, ctypes.c_long
SIGNATURES = {
    "rms_norm": [POINTER] * 3 + [WHOLE] * 2 + [ctypes.c_float],
    "silu_mul": [POINTER] * 2 + [WHOLE] * 2,
    "rotate_and_write": [POINTER] * 2 + [ctypes.c_float] + [POINTER] * 6 + [WHOLE] * 4 + [ctypes.c_int],
    "attend": [POINTER] * 6 + [WHOLE] * 4 + [ctypes.c_float],
    "run_layers": [POINTER, WHOLE] + [POINTER] * 6 + [WHOLE] * 4 + [ctypes.c_float, ctypes.c_int],
}


class Seen(ctypes.Structure):
    """See `steps.c`."""

    _fields_ = [
        *((name, POINTER) for name in ("tables", "which", "firsts", "ends")),
        *((name, WHOLE) for name in ("most", "table_width", "together")),
    ]


def scores_of(seen: Seen) -> int:
    """Return how many scores all threads have at a time."""
    return torch.get_num_threads() * int(seen.together * seen.most)


@dataclass(frozen=True, slots=True)
class AttendedRows:
    """Which keys each row of a step attends to: from ``firsts`` to ``ends`` int64[T], in the slots that row ``which`` int64[T] of
    ``tables`` int64[S, K] lists. ``longest``: the most keys of a row.
    """

    tables: Tensor
    which: Tensor
    firsts: Tensor
    ends: Tensor
    longest: int

    def seen(self) -> Seen:
        """Return them as the library reads them, while these are kept."""
        most = -(-self.longest // LANES) * LANES
        together = min(MOST_QUERIES, max(FEWEST_QUERIES, SCORES // most))
        lists = [ids.data_ptr() for ids in (self.tables, self.which, self.firsts, self.ends)]
        return Seen(*lists, most, self.tables.shape[1], together)


class StepKernels:
    """The functions of the library. All tensors are float32 and contiguous, but for indices, which are int64."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        self._library = library
        self.run_layers: Any = library.run_layers

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return rows [T, E], each divided by its root mean square, times weight [E]. E is a multiple of LANES."""
        out = torch.empty_like(rows)
        count, width = rows.shape
        self._library.rms_norm(rows.data_ptr(), weight.data_ptr(), out.data_ptr(), count, width, eps)
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up [T, F] of gate_up [T, 2 F], gate before up. F is a multiple of LANES."""
        count, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(count, width)
        self._library.silu_mul(gate_up.data_ptr(), out.data_ptr(), count, width)
        return out

    def rotate_and_write(
        self, qkv: Tensor, norm: Tensor | None, eps: float, angles: tuple[Tensor, Tensor], slots: Tensor, keys: Tensor,
        values: Tensor, *, bounded: bool,
    ) -> Tensor:  # fmt: skip
        """Turn q and k of qkv [T, H + 2 Hkv, D] by cos and sin [T, 1, D], and write k and v to ``slots`` [T] of the cache.

        ``norm`` [H + Hkv, D] scales q and k behind an RMS norm with ``eps`` before that; None: they are not normed. ``keys`` and
        ``values``: [pages, page_size, Hkv, D]; ``bounded``: brought within the layout's bound. Returns q [T, H, D].
        """
        (count, heads, width), shared = qkv.shape, keys.shape[2]
        query = qkv.new_empty(count, heads - 2 * shared, width)
        scales = None if norm is None else norm.data_ptr()
        self._library.rotate_and_write(
            qkv.data_ptr(), scales, eps, angles[0].data_ptr(), angles[1].data_ptr(), slots.data_ptr(), query.data_ptr(),
            keys.data_ptr(), values.data_ptr(), count, heads - 2 * shared, shared, width, bounded,
        )  # fmt: skip
        return query

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, rows: AttendedRows, scaling: float) -> Tensor:
        """Return the attention [T, H, D] of query [T, H, D] over a cache as in :meth:`rotate_and_write`."""
        (count, heads, width), shared, out = query.shape, keys.shape[2], torch.empty_like(query)
        seen = rows.seen()
        scores = query.new_empty(scores_of(seen))
        self._library.attend(
            query.data_ptr(), keys.data_ptr(), values.data_ptr(), out.data_ptr(), ctypes.byref(seen), scores.data_ptr(), count,
            heads, shared, width, scaling,
        )  # fmt: skip
        return out


@functools.cache
def step_kernels() -> StepKernels | None:
    """Return the functions, compiled if need be; None on a machine without a compiler or of another kind."""
    library = compiled(SOURCE)
    return None if library is None else StepKernels(library)
