"""Probes of a row of ``forward``: ``await ctx.forward(tokens, probes=[Entropy(), Logprob(42)])``.

Every probe sees the row's logits after the pass's ``bias`` and ``mask``; log-probabilities are natural logarithms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from inferd.protocol.errors import InvalidRequest
from inferd.protocol.passes import Probe, check_probe
from inferd.protocol.tokens import checked_tokens


@dataclass(frozen=True)
class Logits:
    """The logits of the whole vocabulary, one per token id; ``-inf`` where the mask forbids a token."""

    def to_wire(self) -> Probe:
        """Return the request."""
        return Probe("logits")


@dataclass(frozen=True)
class Distribution:
    """The ``k`` most likely tokens with their probabilities at ``temperature``, the most likely first.

    ``k == 0`` gives every token that has a probability above 0. Probabilities are those of the whole vocabulary: they do
    not add up to 1 where ``k`` cuts. Raises InvalidRequest for a temperature that is not above 0 or a negative ``k``.
    """

    temperature: float = 1.0
    k: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.temperature, bool) or not isinstance(self.temperature, (int, float)):
            raise InvalidRequest(f"temperature must be a number, not {self.temperature!r}")
        check_probe(self.to_wire())

    def to_wire(self) -> Probe:
        """Return the request."""
        return Probe("distribution", float(self.temperature), self.k)


@dataclass(frozen=True)
class Logprob:
    """The log-probability of one token. Raises InvalidRequest for what is no token id."""

    token: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "token", checked_tokens("token", [self.token])[0])

    def to_wire(self) -> Probe:
        """Return the request."""
        return Probe("logprobs", tokens=[self.token])


@dataclass(frozen=True)
class Logprobs:
    """The log-probabilities of some tokens, in their order. Raises InvalidRequest for what is no list of token ids."""

    tokens: Iterable[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(checked_tokens("tokens", self.tokens)))
        check_probe(self.to_wire())

    def to_wire(self) -> Probe:
        """Return the request."""
        return Probe("logprobs", tokens=list(self.tokens))


@dataclass(frozen=True)
class Entropy:
    """The entropy of the distribution (temperature 1) in nats."""

    def to_wire(self) -> Probe:
        """Return the request."""
        return Probe("entropy")


RowProbe: TypeAlias = Logits | Distribution | Logprob | Logprobs | Entropy
