"""What crosses a wall about drawing a token."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BIASES = 1024
"""Tokens that one sampler may have a bias for."""


@dataclass(frozen=True)
class Sampling:
    """How one token is drawn. Processors run in this order: repetition, frequency and presence penalty, bias, the
    constraint's mask, temperature, top_k, top_p, min_p.

    ``temperature == 0`` is argmax. ``top_k == 0``, ``top_p == 1`` and ``min_p == 0`` are off. The same ``seed``
    draws the same tokens, whatever speculation or batching does; ``None`` lets the engine pick one.

    ``repetition_penalty`` r (0.01 to 100; 1 is off): a positive logit of a token that the context or the output holds is
    divided by r, a negative one multiplied. ``frequency_penalty`` is subtracted as often as the output holds the token,
    ``presence_penalty`` once if it does (both -2 to 2, 0 is off; the context before the generation does not count).
    ``bias_values`` (-100 to 100) are added to the logits of ``bias_tokens``, which are distinct.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias_tokens: tuple[int, ...] = ()
    bias_values: tuple[float, ...] = ()
