"""All layers of a decoder in one call of `layers.h`. The twin is :class:`~inferd_runtime.models.passes.fused.FusedLayer`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from inferd_runtime.kernels.native.blocks import BlockWeight
from inferd_runtime.kernels.native.steps import AttendedRows, Seen, StepKernels, scores_of

POINTER, WHOLE, SINGLE = ctypes.c_void_p, ctypes.c_long, ctypes.c_float


class PartEntry(ctypes.Structure):
    """See `layers.h`; so are the next two."""

    _fields_ = [("multiply", POINTER), ("weight", POINTER), ("outputs", WHOLE)]


class ProductEntry(ctypes.Structure):
    """A product."""

    _fields_ = [
        ("parts", ctypes.POINTER(PartEntry)), ("count", WHOLE), ("inputs", WHOLE), ("outputs", WHOLE), ("bias", POINTER),
    ]  # fmt: skip


class LayerEntry(ctypes.Structure):
    """A layer."""

    _fields_ = [
        ("input_norm", POINTER), ("post_norm", POINTER), ("head_norm", POINTER),
        *((name, ProductEntry) for name in ("qkv", "out", "gate_up", "down")),
        ("keys", POINTER), ("values", POINTER), ("kind", WHOLE), ("scaling", SINGLE),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class NativeProduct:
    """A weight [outputs, inputs] in blocks, its parts one below the other, with a bias float32[outputs] or none."""

    parts: Sequence[BlockWeight]
    inputs: int
    bias: Tensor | None

    @property
    def outputs(self) -> int:
        """Of all parts."""
        return sum(part.outputs for part in self.parts)

    def entry(self) -> ProductEntry:
        """Return it as the library reads it."""
        parts = (PartEntry * len(self.parts))(*(PartEntry(*part.addresses(), part.outputs) for part in self.parts))
        return ProductEntry(
            parts, len(parts), self.inputs, self.outputs, None if self.bias is None else self.bias.data_ptr()
        )


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """A layer over its part of a cache, all in float32. ``kind``: which of a step's attended rows is its own."""

    norms: tuple[Tensor, Tensor, Tensor | None]
    products: tuple[NativeProduct, NativeProduct, NativeProduct, NativeProduct]
    keys: Tensor
    values: Tensor
    kind: int
    scaling: float

    def row_room(self) -> int:
        """Return how many numbers stand between the products for each row."""
        qkv, out, gate_up, down = self.products
        return max(qkv.inputs, out.inputs) + max(qkv.outputs, gate_up.outputs) + max(down.inputs, out.inputs)

    def entry(self) -> LayerEntry:
        """Return it as the library reads it."""
        norms = [None if norm is None else norm.data_ptr() for norm in self.norms]
        products = [product.entry() for product in self.products]
        return LayerEntry(*norms, *products, self.keys.data_ptr(), self.values.data_ptr(), self.kind, self.scaling)


class NativeLayers:
    """Layers of the same widths: ``queries`` heads that read the cache's, RMS norms with ``eps``."""

    def __init__(self, kernels: StepKernels, layers: Sequence[NativeLayer], queries: int, eps: float) -> None:
        self._run, self._layers, self._queries, self._eps = kernels.run_layers, layers, queries, eps
        self._entries = (LayerEntry * len(layers))(*(layer.entry() for layer in layers))
        self._row_room = max(layer.row_room() for layer in layers)

    def run(
        self, hidden: Tensor, angles: tuple[Tensor, Tensor], slots: Tensor, kinds: Sequence[AttendedRows], *, bounded: bool
    ) -> None:  # fmt: skip
        """hidden float32[T, E] -> [T, E], in its place. ``kinds``: what the rows see, for each kind of layers.

        The rest is as in :meth:`~inferd_runtime.kernels.native.steps.StepKernels.rotate_and_write`.
        """
        count, (shared, width) = len(hidden), self._layers[0].keys.shape[2:]
        seen = [rows.seen() for rows in kinds]
        room = hidden.new_empty(count * self._row_room + max(map(scores_of, seen)))
        self._run(
            self._entries, len(self._entries), hidden.data_ptr(), angles[0].data_ptr(), angles[1].data_ptr(), slots.data_ptr(),
            room.data_ptr(), (Seen * len(seen))(*seen), count, self._queries, shared, width, self._eps, bounded,
        )  # fmt: skip
