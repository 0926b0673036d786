"""The fused pass over one rank's part of a model that is divided between ranks.

transformers divides the weights (:mod:`inferd_runtime.models.parallel`): of q, k, v, gate and up a rank has its own outputs, of
what follows them its own inputs, of embedding and head its own tokens. So three things are left to the ranks together
(:class:`~inferd_runtime.models.passes.ranks.Ranks`): the sums behind attention and feed-forward, the sum of the embedding's rows,
and putting the logits side by side. Nothing of it is decided on the host, so that a step may be recorded with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.models.parallel import own_part
from inferd_runtime.models.passes.fused import FusedLayer, FusedPass, agree, is_known
from inferd_runtime.models.passes.plain import ModelPass, PlainPass
from inferd_runtime.models.passes.products import DenseProduct, JoinedProduct, Product
from inferd_runtime.models.passes.ranks import LoneRanks, Ranks, ranks_agree, share_of
from inferd_runtime.models.passes.step_layout import ProjectedHeads, StepLayout
from inferd_runtime.models.shape import KvShape

PROJECTIONS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip


class SummedProduct:
    """See :class:`~inferd_runtime.models.passes.products.Product`. Each rank has its own inputs; the results are added up.

    A residual, which all ranks have, rides on rank 0's part. So the norm behind it is one of the sum, in the next product.
    """

    def __init__(self, own: Product, ranks: Ranks) -> None:
        self.own = own
        self._ranks = ranks

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        return self._ranks.add(self.own(rows))

    def over(self, own: Product) -> SummedProduct:
        """Return the same product over this rank's part in another form."""
        return SummedProduct(own, self._ranks)

    def among(self, ranks: Ranks) -> SummedProduct:
        """Return the same product among other ranks."""
        return SummedProduct(self.own, ranks)

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        return self(rows) if self._ranks.rank else self._ranks.add(self.own.onto(rows, residual))


class GatheredProduct:
    """See :class:`~inferd_runtime.models.passes.products.Product`. Of the ``width`` outputs each rank has its own."""

    def __init__(self, own: Product, width: int, ranks: Ranks) -> None:
        self.own = own
        self._width = width
        self._ranks = ranks

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        return self._ranks.join(self.own(rows), self._width)

    def over(self, own: Product) -> GatheredProduct:
        """Return the same product over this rank's part in another form."""
        return GatheredProduct(own, self._width, self._ranks)

    def among(self, ranks: Ranks) -> GatheredProduct:
        """Return the same product among other ranks."""
        return GatheredProduct(self.own, self._width, ranks)

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        return residual.add_(self(rows))


class DividedPass(FusedPass):
    """A decoder over a rank's parts."""

    def __init__(self, module: nn.Module, layers: Sequence[FusedLayer], head: Product, ranks: Ranks) -> None:
        super().__init__(module, layers, head)
        self._vocabulary = int(self.embedding.shape[0])
        self.embedding, self._norm = own_part(self.embedding), own_part(self._norm)
        self.ranks = ranks

    def alone(self) -> DividedPass:
        """Return the same part over ranks that wait for no other: as much work, other numbers."""
        ranks = LoneRanks(self.ranks.rank, self.ranks.count)
        other = copy(self)
        other.ranks, other.head = ranks, _among(ranks, self.head)
        other.layers = [
            layer.with_products({name: _among(ranks, one) for name, one in layer.products().items()})
            for layer in self.layers
        ]
        return other

    def _embedded(self, tokens: Tensor) -> Tensor:
        """See :class:`FusedPass`. A token's row comes from the rank that has it, and zeros from the others."""
        held = len(self.embedding)
        if held == self._vocabulary:
            return super()._embedded(tokens)
        at = tokens - self.ranks.rank * share_of(self._vocabulary, self.ranks.count)
        rows = super()._embedded(at.clamp(0, max(0, held - 1)))
        return self.ranks.add(rows.masked_fill(((at < 0) | (at >= held))[:, None], 0.0))


def _among(ranks: Ranks, product: Product) -> Product:
    return product.among(ranks) if isinstance(product, SummedProduct | GatheredProduct) else product


class LedPass:
    """A divided pass whose tokens rank 0 alone knows: those that it has drawn, which have not come to a host yet."""

    def __init__(self, run: ModelPass, ranks: Ranks) -> None:
        self._run = run
        self._ranks = ranks

    def __call__(self, tokens: Tensor, positions: Tensor, layout: StepLayout, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.plain.ModelPass`."""
        return self._run(self._ranks.first(tokens), positions, layout, rows)


class _Part:
    """A rank's part of a projection, which stands where the divided one did once the fused pass is proved."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.weight = nn.Parameter(own_part(module.weight).detach(), requires_grad=False)
        self.out_features, self.in_features = self.weight.shape
        self.bias = None if module.bias is None else own_part(module.bias).detach()

    def replace(self) -> None:
        """Let go of the divided weight."""
        self._module.weight = self.weight


@torch.inference_mode()
def fuse_part(module: nn.Module, kv: KvShape, rules: Sequence[AttentionRule], ranks: Ranks) -> DividedPass | None:
    """Return the fused pass of a rank's part, if the model is known here and all ranks get the logits of its modules; else None.

    All ranks call this together. Where it is not None the modules cannot run any more: their weights have moved.
    """
    model: Any = module
    if not is_known(model, rules):
        return None
    parts = [{name: _Part(layer.get_submodule(name)) for name in PROJECTIONS} for layer in model.model.layers]
    layers = [_layer(*one, ranks) for one in zip(model.model.layers, parts, rules, strict=True)]
    whole, own = int(model.lm_head.weight.shape[0]), DenseProduct(own_part(model.lm_head.weight))
    head = own if own.shape[0] == whole else GatheredProduct(own, whole, ranks)
    fused = DividedPass(module, layers, head, ranks)
    fits = _fits(fused, model, ranks)
    if not ranks_agree(fits and agree(fused, PlainPass(module), kv, model.lm_head.weight), own.weight, ranks):
        return None
    for part in parts:
        for projection in part.values():
            projection.replace()
    return fused


def _fits(fused: DividedPass, model: Any, ranks: Ranks) -> bool:
    """True if the parts are divided as this pass takes them: embedding and head by tokens, in equal shares but the last."""
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
        whole, held = weight.shape, own_part(weight).shape
        each = share_of(whole[0], ranks.count)
        shares = (whole[0], min(each, max(0, whole[0] - ranks.rank * each)))
        if held[1] != whole[1] or held[0] not in shares:
            return False
    return len(fused.layers) > 0


def _layer(layer: Any, parts: dict[str, _Part], rule: AttentionRule, ranks: Ranks) -> FusedLayer:
    attention, width = layer.self_attn, int(layer.self_attn.head_dim)
    projections = [parts[name] for name in PROJECTIONS[:3]]
    biases = [projection.bias for projection in projections if projection.bias is not None]
    query_heads, key_heads = (projection.out_features // width for projection in projections[:2])
    norms: list[Any] = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    scale = None if norms[0] is None else torch.cat([
        own_part(norm.weight).expand(count, -1) for norm, count in zip(norms, (query_heads, key_heads), strict=True)
    ])  # fmt: skip
    eps = float(layer.input_layernorm.variance_epsilon)
    return FusedLayer(
        heads=ProjectedHeads(rule, query_heads, key_heads, width, scale, eps),
        eps=eps,
        input_norm=own_part(layer.input_layernorm.weight),
        qkv=JoinedProduct(projections, torch.cat(biases) if biases else None),
        out=SummedProduct(DenseProduct(parts["self_attn.o_proj"].weight), ranks),
        post_norm=own_part(layer.post_attention_layernorm.weight),
        gate_up=JoinedProduct([parts["mlp.gate_proj"], parts["mlp.up_proj"]]),
        down=SummedProduct(DenseProduct(parts["mlp.down_proj"].weight), ranks),
    )
