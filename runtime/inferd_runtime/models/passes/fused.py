"""The fused pass: the arithmetic of transformers' modules for Llama-shaped models, in a quarter of the operations.

At small batch sizes a forward pass in eager PyTorch is bound by the number of operations it issues, not by arithmetic. Here
q, k, v and gate, up are one matrix product each, residuals ride on the products, and what stands between the products is a few
operations of the step's layout, or one kernel each. The reference is :class:`~inferd_runtime.models.passes.plain.PlainPass`:
:func:`fuse` compares the two on random tokens, and returns None for every model that it does not know. How the weights are
held on the CPU is decided behind it (:mod:`~inferd_runtime.models.weights.held`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.product import MOST_ROWS, RowNorm
from inferd_runtime.models.batch import Batch, Span
from inferd_runtime.models.passes.attention import lay_out
from inferd_runtime.models.passes.plain import ModelPass, PlainPass
from inferd_runtime.models.passes.products import DenseProduct, FewRowsProduct, JoinedProduct, Product
from inferd_runtime.models.passes.step_layout import Angles, ProjectedHeads, RowOperations, StepLayout
from inferd_runtime.models.proved.decoder import ProvedDecoder
from inferd_runtime.models.shape import KvShape

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
PROBE_TOKENS = 12
TOLERANCE = 2e-4
ROUNDED = 0.2
PRODUCTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The products of a layer, and the modules whose outputs stand side by side in each."""
ProductRun = Callable[[Product, Tensor], Tensor]
"""Runs a product of rows, with what a layer does before and behind it."""
AllLayers = Callable[[Tensor, Angles, Any], Tensor]
"""Runs all layers at once as :meth:`FusedLayer.run` does one, with the layout of a driver."""


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """One decoder layer: its heads and its weights."""

    heads: ProjectedHeads
    eps: float
    input_norm: Tensor
    qkv: Product
    out: Product
    post_norm: Tensor
    gate_up: Product
    down: Product

    def products(self) -> dict[str, Product]:
        """Return the layer's products by the names of PRODUCTS."""
        return {name: getattr(self, name) for name in PRODUCTS}

    def with_products(self, products: Mapping[str, Product]) -> FusedLayer:
        """Return a copy with these products."""
        changed: dict[str, Any] = dict(products)
        return replace(self, **changed)

    def run(self, index: int, hidden: Tensor, angles: Angles, layout: StepLayout) -> Tensor:
        """hidden [T, E] -> [T, E], in its place."""
        qkv = normed(self.qkv, hidden, RowNorm(self.input_norm, self.eps), layout)
        attended = layout.attend_projected(index, qkv, angles, self.heads)
        hidden = self.out.onto(attended.reshape(hidden.shape[0], -1), hidden)
        opened = gated(self.gate_up, hidden, RowNorm(self.post_norm, self.eps), layout)
        return self.down.onto(opened, hidden)


def normed(product: Product, rows: Tensor, norm: RowNorm, layout: RowOperations) -> Tensor:
    """Return the product of rows behind a norm, [T, in] -> [T, out]: by one kernel where the product has it."""
    if isinstance(product, FewRowsProduct) and len(rows) <= MOST_ROWS:
        return product.normed(rows, norm)
    return product(layout.rms_norm(rows, *norm))


def gated(product: Product, rows: Tensor, norm: RowNorm, layout: RowOperations) -> Tensor:
    """Return silu(gate) * up [T, F] of the product of rows behind a norm, [T, in] -> [T, 2 F]: by one kernel as well."""
    if isinstance(product, FewRowsProduct) and len(rows) <= MOST_ROWS:
        return product.gated(rows, norm)
    return layout.silu_mul(product(layout.rms_norm(rows, *norm)))


def runs_in_a_layer(fused: FusedPass, operations: RowOperations) -> dict[tuple[int, ...], ProductRun]:
    """Return how the products that a norm is in front of are run, by their weights' shapes (outputs, inputs)."""
    layer = fused.layers[0]
    norm = RowNorm(layer.post_norm, layer.eps)
    runs: dict[tuple[int, ...], ProductRun] = {
        product.shape: partial(_run_with, normed, norm, operations)
        for product in (layer.qkv, fused.head)
        if isinstance(product, DenseProduct)
    }
    if isinstance(layer.gate_up, DenseProduct):
        runs[layer.gate_up.shape] = partial(_run_with, gated, norm, operations)
    return runs


def _run_with(
    run: Callable[..., Tensor], norm: RowNorm, operations: RowOperations, product: Product, rows: Tensor
) -> Tensor:
    return run(product, rows, norm, operations)


class FusedPass:
    """A whole decoder. Weights are shared with the module; ``head`` [V, E] gives the logits.

    ``embedding`` [V, E] may be of a narrower type than the rest.
    """

    def __init__(self, module: nn.Module, layers: Sequence[FusedLayer], head: Product) -> None:
        model: Any = module
        self.rotary: nn.Module = model.model.rotary_emb
        self.layers = layers
        self.head = head
        self.embedding: Tensor = model.model.embed_tokens.weight
        self._norm: Tensor = model.model.norm.weight
        self._eps = layers[0].eps
        self._together: AllLayers | None = None

    def with_layers(self, layers: Sequence[FusedLayer], head: Product | None = None) -> FusedPass:
        """Return the same decoder over these layers, and with that head (None: its own)."""
        other = copy(self)
        other.layers, other.head, other._together = layers, head or self.head, None
        return other

    def with_layers_together(self, together: AllLayers) -> FusedPass:
        """Return the same decoder, whose layers run at once."""
        other = copy(self)
        other._together = together
        return other

    def __call__(self, tokens: Tensor, positions: Tensor, layout: StepLayout, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.plain.ModelPass`."""
        hidden = self._embedded(tokens)
        angles = self._angles(hidden, positions)
        if self._together is not None:
            hidden = self._together(hidden, angles, layout)
        else:
            for index, layer in enumerate(self.layers):
                hidden = layer.run(index, hidden, angles, layout)
        if layout.hidden_rows is not None:
            layout.hidden = layout.rms_norm(hidden[layout.hidden_rows], self._norm, self._eps)
        return normed(self.head, hidden[rows], RowNorm(self._norm, self._eps), layout)

    def _embedded(self, tokens: Tensor) -> Tensor:
        return self.embedding[tokens].to(self._norm.dtype)

    def _angles(self, hidden: Tensor, positions: Tensor) -> Angles:
        cos, sin = self.rotary(hidden[None], positions[None])
        cos, sin = cos[0][:, None], sin[0][:, None].clone()
        sin[..., : sin.shape[-1] // 2].neg_()
        return cos, sin


def fuse(module: nn.Module, kv: KvShape, rules: Sequence[AttentionRule]) -> FusedPass | None:
    """Return the fused pass of a model that is known here and gives the same logits; None otherwise.

    Of one that was proved before, that is known.
    """
    model: Any = module
    if not is_known(model, rules):
        return None
    fused = assembled(module, rules)
    if isinstance(module, ProvedDecoder) or agree(fused, PlainPass(module), kv, model.lm_head.weight):
        return fused
    return None


def assembled(module: nn.Module, rules: Sequence[AttentionRule]) -> FusedPass:
    """Return the fused pass of a model that :func:`is_known`, whatever its logits are."""
    model: Any = module
    layers = [_fuse_layer(layer, rule) for layer, rule in zip(model.model.layers, rules, strict=True)]
    return FusedPass(module, layers, DenseProduct(model.lm_head.weight))


def is_known(model: Any, rules: Sequence[AttentionRule]) -> bool:
    """True if the fused pass has all that the model's configuration and its first layer ask for."""
    if model.config.model_type not in FAMILIES or model.config.hidden_act != "silu":
        return False
    first = model.model.layers[0]
    unbiased = (first.mlp.gate_proj, first.mlp.down_proj, first.self_attn.o_proj, model.lm_head)
    return not any(rule.softcap for rule in rules) and all(part.bias is None for part in unbiased)


def _fuse_layer(layer: Any, rule: AttentionRule) -> FusedLayer:
    attention, width = layer.self_attn, int(layer.self_attn.head_dim)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    query_heads, key_heads = (projection.out_features // width for projection in projections[:2])
    biases = [projection.bias for projection in projections]
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    norm = None if norms[0] is None else _head_norm(norms, (query_heads, key_heads))
    eps = float(layer.input_layernorm.variance_epsilon)
    return FusedLayer(
        heads=ProjectedHeads(rule, query_heads, key_heads, width, norm, eps),
        eps=eps,
        input_norm=layer.input_layernorm.weight,
        qkv=JoinedProduct(projections, None if biases[0] is None else torch.cat(biases)),
        out=DenseProduct(attention.o_proj.weight),
        post_norm=layer.post_attention_layernorm.weight,
        gate_up=JoinedProduct((layer.mlp.gate_proj, layer.mlp.up_proj)),
        down=DenseProduct(layer.mlp.down_proj.weight),
    )


def _head_norm(norms: Sequence[Any], heads: Sequence[int]) -> Tensor:
    return torch.cat([norm.weight.data.expand(count, -1) for norm, count in zip(norms, heads, strict=True)])


@torch.inference_mode()
def agree(one: ModelPass, other: ModelPass, kv: KvShape, like: Tensor) -> bool:
    """True if two passes give the same logits on random tokens: in float32 to a tolerance relative to the largest one.

    In narrower types two exact ways through a deep model differ by rounding alone, as much as they differ from float32
    (measured: 2 % of the largest logit behind 16 layers), so most rows must agree to a share of their spread.
    """
    first, second = (probe_logits(run, kv, like) for run in (one, other))
    off = (first - second).abs().amax(dim=1)
    if like.dtype == torch.float32:
        return bool(off.max() <= TOLERANCE * max(float(second.abs().max()), 1.0))
    spread = (second - second.mean(dim=1, keepdim=True)).abs().amax(dim=1).clamp_min(1e-6)
    return bool((off / spread).median() <= ROUNDED)


@torch.inference_mode()
def probe_logits(run: ModelPass, kv: KvShape, like: Tensor) -> Tensor:
    """Return float32[PROBE_TOKENS, V] of random tokens, on the device and with the cache dtype of ``like`` [V, ...]."""
    tokens = torch.randint(like.shape[0], (PROBE_TOKENS,), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(PROBE_TOKENS)
    at = positions.numpy()
    batch = Batch(tokens.numpy(), at, at, at, [Span(0, PROBE_TOKENS, 0, [0])])
    keys, values = ([_page(*shape, like) for shape in shapes] for shapes in (kv.keys, kv.values))
    layout = lay_out(batch, keys, values, PROBE_TOKENS)
    tokens, positions = tokens.to(like.device), positions.to(like.device)
    return run(tokens, positions, layout, positions).float()


def _page(heads: int, width: int, like: Tensor) -> Tensor:
    return torch.zeros(1, PROBE_TOKENS, heads, width, dtype=like.dtype, device=like.device)
