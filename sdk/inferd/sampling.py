"""How tokens are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferd.protocol import InvalidRequest, Sampling

MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class Sampler:
    """How ``generate`` and ``forward`` draw a token. Made by one of the constructors below, never changed.

    ``temperature`` divides the logits: 0 is the same as :meth:`argmax`. ``seed`` (0 to 2**63 - 1) makes the draw
    repeatable: the same seed, context and model draw the same tokens, whatever speculation or batching does.
    Without a seed the runtime picks one. Every constructor raises InvalidRequest, which names the argument, for a
    value out of range.
    """

    sampling: Sampling

    @classmethod
    def argmax(cls) -> Sampler:
        """Always the most likely token."""
        return cls(Sampling())

    @classmethod
    def multinomial(cls, temperature: float = 1.0, *, seed: int | None = None) -> Sampler:
        """A draw from the whole distribution."""
        return cls(Sampling(_temperature(temperature), seed=_seed(seed)))

    @classmethod
    def top_p(cls, temperature: float = 0.6, p: float = 0.95, *, seed: int | None = None) -> Sampler:
        """A draw from the smallest set of tokens whose probability reaches ``p`` (above 0, at most 1)."""
        return cls(Sampling(_temperature(temperature), top_p=_top_p(p), seed=_seed(seed)))

    @classmethod
    def top_k(cls, temperature: float = 0.6, k: int = 40, *, seed: int | None = None) -> Sampler:
        """A draw from the ``k`` most likely tokens (at least 1)."""
        return cls(Sampling(_temperature(temperature), top_k=_top_k(k), seed=_seed(seed)))

    @classmethod
    def min_p(cls, temperature: float = 0.6, p: float = 0.1, *, seed: int | None = None) -> Sampler:
        """A draw from the tokens at least ``p`` times as likely as the most likely one (0 to 1; 0 keeps all)."""
        return cls(Sampling(_temperature(temperature), min_p=_number("p", p, 0.0, 1.0), seed=_seed(seed)))

    @classmethod
    def top_k_top_p(cls, temperature: float = 0.6, k: int = 40, p: float = 0.95, *, seed: int | None = None) -> Sampler:
        """:meth:`top_k`, then :meth:`top_p` over what it left."""
        return cls(Sampling(_temperature(temperature), top_k=_top_k(k), top_p=_top_p(p), seed=_seed(seed)))


def _number(name: str, value: float, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InvalidRequest(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")
    return float(value)


def _temperature(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise InvalidRequest(f"temperature must be a finite number of at least 0, not {value!r}")
    return float(value)


def _top_p(value: float) -> float:
    if _number("p", value, 0.0, 1.0) == 0:
        raise InvalidRequest("p must be above 0: no token is left at 0")
    return float(value)


def _top_k(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequest(f"k must be a whole number of at least 1, not {value!r}")
    return value


def _seed(value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SEED:
        raise InvalidRequest(f"seed must be a whole number from 0 to 2**63 - 1, not {value!r}")
    return value
