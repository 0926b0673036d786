"""The settings of one draw, and their check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inferd.protocol.errors import InvalidRequest, LimitExceeded
from inferd.protocol.ranges import check_number, check_whole
from inferd.protocol.tokens import check_ids

MAX_BIASES = 1024
"""Tokens that one sampler may have a bias for."""
MAX_ALLOWED = 16_384
"""Tokens that one sampler may be held to by their ids."""
MAX_SEED = 2**63 - 1
RANGES = {
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
MAX_BIAS = 100.0


@dataclass(frozen=True)
class Sampling:
    """How one token is drawn. Processors run in this order: repetition, frequency and presence penalty, bias, the
    constraint's mask, temperature, top_k, top_p, min_p, typical_p, xtc.

    ``temperature == 0`` is argmax. ``top_k == 0``, ``top_p == 1`` and ``min_p == 0`` are off. The same ``seed``
    draws the same tokens, whatever speculation or batching does; ``None`` lets the engine pick one.

    ``repetition_penalty`` r (0.01 to 100; 1 is off): a positive logit of a token that the context or the output holds is
    divided by r, a negative one multiplied. ``frequency_penalty`` is subtracted as often as the output holds the token,
    ``presence_penalty`` once if it does (both -2 to 2, 0 is off; the context before the generation does not count).
    ``bias_values`` (-100 to 100) are added to the logits of ``bias_tokens``, which are distinct.

    ``typical_p`` (1 is off) keeps the tokens whose surprise is nearest to the entropy, until they reach it together. With
    ``xtc_probability`` (0 is off), a draw leaves out all but the least likely of the tokens that have at least ``xtc_threshold``.
    Both need a temperature above 0.

    ``allowed_tokens``, where there are any, are the only ones that may come: a mask beside the constraint's, and no token comes
    that only one of them allows, except the end of the text, which a constraint alone decides about. Without one the text
    ends before its length only by a token that is among them.
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
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    allowed_tokens: tuple[int, ...] = ()

    @property
    def adjusts(self) -> bool:
        """True if it has a penalty or a bias."""
        penalised = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return penalised or bool(self.bias_tokens)


def check_sampling(sampling: Sampling) -> None:
    """Raises InvalidRequest, which names the field, for a value out of range, and LimitExceeded for too many tokens."""
    temperature = sampling.temperature
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 <= temperature < math.inf:
        raise InvalidRequest(f"temperature must be a finite number of at least 0, not {temperature!r}")
    for name, (low, high) in RANGES.items():
        check_number(name, getattr(sampling, name), low, high)
    if sampling.top_p == 0:
        raise InvalidRequest("top_p must be above 0: no token is left at 0")
    if sampling.typical_p == 0:
        raise InvalidRequest("typical_p must be above 0: no token is left at 0")
    if temperature == 0 and (sampling.typical_p < 1 or sampling.xtc_probability > 0):
        name = "typical_p" if sampling.typical_p < 1 else "xtc_probability"
        raise InvalidRequest(f"{name} needs a temperature above 0: at 0 nothing is drawn")
    check_whole("top_k", sampling.top_k, 0)
    if sampling.seed is not None:
        check_whole("seed", sampling.seed, 0, MAX_SEED)
    _check_biases(sampling.bias_tokens, sampling.bias_values)
    if len(sampling.allowed_tokens) > MAX_ALLOWED:
        raise LimitExceeded(
            f"allowed_tokens: {len(sampling.allowed_tokens)} of them; {MAX_ALLOWED} may be named", limit="allowed_tokens",
            value=MAX_ALLOWED, raise_with="a constraint of your own (an object with step)",
        )  # fmt: skip
    check_ids("allowed_tokens", sampling.allowed_tokens)


def check_draws_of_all(operation: str, sampling: Sampling) -> None:
    """Raises InvalidRequest for a sampler that is held to some tokens, which only a generation may be."""
    if sampling.allowed_tokens:
        raise InvalidRequest(f"allowed_tokens: a sampler with them goes with generate, not with {operation}")


def _check_biases(tokens: Sequence[int], values: Sequence[float]) -> None:
    if len(tokens) != len(values):
        raise InvalidRequest(f"logit_bias has {len(tokens)} tokens but {len(values)} values")
    if len(tokens) > MAX_BIASES:
        raise LimitExceeded(
            f"logit_bias names {len(tokens)} tokens; {MAX_BIASES} are allowed", limit="logit_bias", value=MAX_BIASES,
            raise_with="a sampler of your own (a function for generate), which weighs all tokens",
        )  # fmt: skip
    check_ids("logit_bias", tokens)
    if len(set(tokens)) < len(tokens):
        raise InvalidRequest("logit_bias names a token twice")
    for token, value in zip(tokens, values, strict=True):
        check_number(f"logit_bias[{token}]", value, -MAX_BIAS, MAX_BIAS)
