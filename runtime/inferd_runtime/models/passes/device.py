"""The fused pass over paged rows: what stands between a layer's products is one kernel each, and nothing waits for the device.

It takes the weights of a :class:`~inferd_runtime.models.passes.fused.FusedPass` as they are. Which kernels it runs is
the caller's
choice: with the references it is a plain twin of itself, on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import rms_norm

from inferd.protocol import InvalidRequest
from inferd_runtime.kernels.rows import PagedRows
from inferd_runtime.models.passes.fused import FusedLayer, FusedPass
from inferd_runtime.models.passes.kernel import PagedAttention
from inferd_runtime.models.passes.products import DenseProduct, Product

FIXED_ROPE = frozenset({"default", "linear", "yarn", "llama3"})
"""Rotations whose frequencies never change. ``dynamic`` and ``longrope`` choose theirs by the positions of a step."""


PRODUCTS = ("qkv", "out", "gate_up", "down")
"""A layer's."""


class PassKernels(NamedTuple):
    """See ``kernels/elementwise.py`` and ``kernels/attention.py``."""

    rotate_and_write: Callable[..., Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    paged_attention: PagedAttention


class DevicePass:
    """A whole decoder; see :class:`~inferd_runtime.models.passes.kernel.RowsPass`.

    K and V are written as they come: bringing those of a tenant's adapters within bounds is not done here.
    """

    def __init__(
        self,
        layers: Sequence[FusedLayer],
        embedding: Tensor,
        rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        norm: Tensor,
        head: Product,
        kernels: PassKernels,
    ) -> None:
        """``embedding`` [V, E]; ``rotary`` gives cos and sin [1, T, D] of positions [1, T]; ``norm`` [E] is the last one."""
        self._layers = layers
        self._embedding = embedding
        self._rotary = rotary
        self._norm = norm
        self._head = head
        self._kernels = kernels

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        rows: PagedRows,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        logit_rows: Tensor,
        hidden_rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """tokens and positions int64[T] -> logits [R, V] of ``logit_rows`` int64[R], final hidden states [Hn, E] of
        ``hidden_rows`` int64[Hn]. ``rows.slots`` -1: padding, whose token and position may be any that there are.
        """
        hidden = self._embedding[tokens]
        cos, sin = self._angles(hidden, positions)
        for layer, k, v in zip(self._layers, keys, values, strict=True):
            hidden = self._run(layer, hidden, (cos, sin), rows, k, v)
        states = None if hidden_rows is None else self._final(hidden[hidden_rows])
        return self._head(self._final(hidden[logit_rows])), states

    def _angles(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [T, D], the sign of the rotation in sin."""
        cos, sin = (angle[0] for angle in self._rotary(hidden[None], positions[None]))
        sin = sin.clone()
        sin[:, : sin.shape[1] // 2].neg_()
        return cos, sin

    def _run(
        self,
        layer: FusedLayer,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        rows: PagedRows,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """hidden [T, E] -> [T, E], in its place."""
        kernels = self._kernels
        heads = layer.query_heads, layer.key_heads
        qkv = layer.qkv(rms_norm(hidden, layer.input_norm.shape, layer.input_norm, layer.eps))
        query = kernels.rotate_and_write(qkv, *angles, layer.head_norm, layer.eps, heads, keys, values, rows.slots)
        attended = kernels.paged_attention(query, keys, values, rows, layer.rule)
        hidden = _dense(layer.out).into(attended.reshape(len(hidden), -1), hidden)
        normed = rms_norm(hidden, layer.post_norm.shape, layer.post_norm, layer.eps)
        return _dense(layer.down).into(kernels.silu_mul(layer.gate_up(normed)), hidden)

    def _final(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self._norm.shape, self._norm, self._layers[0].eps)


def device_pass(
    fused: FusedPass, kernels: PassKernels, change: Callable[[DenseProduct], DenseProduct] | None = None
) -> DevicePass:
    """The same decoder over paged rows, its products those that ``change`` makes of them.

    Raises InvalidRequest, by name, for weights or a rotation that it cannot run.
    """
    rotary: Any = fused._rotary
    if rotary.rope_type not in FIXED_ROPE:
        raise InvalidRequest(
            f"rope type {rotary.rope_type!r} is none of {', '.join(sorted(FIXED_ROPE))}, whose frequencies stay the same"
        )
    for index, layer in enumerate(fused._layers):
        if layer.width % 2:
            raise InvalidRequest(f"layer {index}: heads of {layer.width} elements cannot be rotated by halves")
    dense_products(fused)
    layers, head = list(fused._layers), _dense(fused._head)
    if change is not None:
        layers = [_changed(layer, change) for layer in layers]
        head = change(head)
    return DevicePass(layers, fused._embedding, rotary, fused._norm, head, kernels)


def _changed(layer: FusedLayer, change: Callable[[DenseProduct], DenseProduct]) -> FusedLayer:
    return replace(
        layer,
        qkv=change(_dense(layer.qkv)),
        out=change(_dense(layer.out)),
        gate_up=change(_dense(layer.gate_up)),
        down=change(_dense(layer.down)),
    )


def dense_products(fused: FusedPass) -> list[DenseProduct]:
    """All products of a decoder, the head's last. Raises InvalidRequest, by name, for weights that are not dense."""
    named = [
        (f"layer {index}: {name}", getattr(layer, name))
        for index, layer in enumerate(fused._layers)
        for name in PRODUCTS
    ]
    named.append(("the head", fused._head))
    for name, product in named:
        if not isinstance(product, DenseProduct):
            raise InvalidRequest(f"{name} is a {type(product).__name__}: on a device weights are dense")
    return [product for _, product in named]


def _dense(product: Product) -> DenseProduct:
    assert isinstance(product, DenseProduct)  # checked when the pass was made
    return product
