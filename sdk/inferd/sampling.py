"""How tokens are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from inferd.protocol import MAX_BIASES, InvalidRequest, LimitExceeded, Sampling
from inferd.protocol.tokens import checked_tokens

MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class Sampler:
    """How ``generate``, ``verify`` and ``forward`` draw a token. Made by one of the constructors below, never changed.

    ``temperature`` divides the logits: 0 is the same as :meth:`argmax`. ``seed`` (0 to 2**63 - 1) makes the draw
    repeatable: the same seed, context and model draw the same tokens, whatever speculation or batching does.
    Without a seed the runtime picks one. Every constructor raises InvalidRequest, which names the argument, for a
    value out of range.

    ``Sampler.top_p(0.7).penalized(repetition=1.1).biased({42: -5.0})`` is a sampler that repeats itself less and likes token
    42 less. Penalties come first, then the bias, then the constraint's mask, the temperature, and what the constructor says.
    They go with :meth:`~inferd.Context.generate` and :meth:`~inferd.Context.verify`; ``forward`` refuses them.
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

    def penalized(self, *, repetition: float = 1.0, presence: float = 0.0, frequency: float = 0.0) -> Sampler:
        """The same sampler with these penalties, in place of those that it had.

        ``repetition`` (0.01 to 100; 1 is off): the logit of a token that the context or the output holds is divided by it where
        it is positive, else multiplied. ``frequency`` (-2 to 2; 0 is off) is subtracted as often as the output holds the token,
        ``presence`` (the same) once if it does; for these two, what the context held before the generation does not count.
        """
        sampling = replace(
            self.sampling,
            repetition_penalty=_number("repetition", repetition, 0.01, 100.0),
            presence_penalty=_number("presence", presence, -2.0, 2.0),
            frequency_penalty=_number("frequency", frequency, -2.0, 2.0),
        )
        return Sampler(sampling)

    def biased(self, bias: Mapping[int, float]) -> Sampler:
        """The same sampler, which adds ``bias`` (-100 to 100) to the logits of up to 1,024 tokens, in place of what it added.

        -100 all but forbids a token; to forbid one for certain, or many, use a constraint. Raises LimitExceeded for more
        tokens.
        """
        tokens, values = _bias(bias)
        return Sampler(replace(self.sampling, bias_tokens=tokens, bias_values=values))

    @property
    def adjusts(self) -> bool:
        """Whether it has a penalty or a bias."""
        wanted = self.sampling
        penalised = wanted.repetition_penalty != 1 or wanted.presence_penalty != 0 or wanted.frequency_penalty != 0
        return penalised or bool(wanted.bias_tokens)


def _number(name: str, value: float, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InvalidRequest(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")
    return float(value)


def _bias(bias: Mapping[int, float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    if not isinstance(bias, Mapping):
        raise InvalidRequest(f"bias must map token ids to numbers, not {bias!r}")
    if len(bias) > MAX_BIASES:
        raise LimitExceeded(
            f"bias names {len(bias)} tokens; {MAX_BIASES} are allowed", limit="logit_bias", value=MAX_BIASES,
            raise_with="a constraint, for more tokens than that",
        )  # fmt: skip
    tokens = tuple(checked_tokens("bias", bias))
    return tokens, tuple(_number(f"bias[{token}]", value, -100.0, 100.0) for token, value in bias.items())


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
