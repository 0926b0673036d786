"""How a layer attends: what the probe reads off a model, and what every attention function takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """How one layer attends.

    ``scaling`` multiplies the scores (None: query width ** -0.5). ``window``: a query sees that many tokens back, itself
    included. ``softcap``: scores become softcap * tanh(score / softcap). ``chunk``: a query sees only keys of its own block
    of that many positions, counted from position 0. ``sinks`` [H], in the model's dtype: one learned logit per query head
    that joins the softmax's denominator and carries no value.
    """

    scaling: float | None
    window: int | None
    softcap: float | None
    chunk: int | None = None
    sinks: Tensor | None = field(default=None, compare=False)
