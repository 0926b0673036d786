"""``Sampler``, and the probes of a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from inferd import probes, sampling
from inferd.protocol import Probe, Sampling


@dataclass(frozen=True)
class Sampler:
    """How a token is drawn. Made by one of the constructors below."""

    sampling: Sampling

    @classmethod
    def argmax(cls) -> Sampler:
        """Always the most likely token."""
        return cls(sampling.Sampler.argmax().sampling)

    @classmethod
    def top_p(cls, temperature: float = 0.6, p: float = 0.95) -> Sampler:
        """A draw from the smallest set of tokens whose probability reaches ``p``."""
        return cls(sampling.Sampler.top_p(temperature, p).sampling)

    @classmethod
    def top_k(cls, temperature: float = 0.6, k: int = 40) -> Sampler:
        """A draw from the ``k`` most likely tokens."""
        return cls(sampling.Sampler.top_k(temperature, k).sampling)

    @classmethod
    def min_p(cls, temperature: float = 0.6, p: float = 0.1) -> Sampler:
        """A draw from the tokens at least ``p`` times as likely as the most likely one."""
        return cls(sampling.Sampler.min_p(temperature, p).sampling)

    @classmethod
    def top_k_top_p(cls, temperature: float = 0.6, k: int = 40, p: float = 0.95) -> Sampler:
        """:meth:`top_k`, then :meth:`top_p` over what it left."""
        return cls(sampling.Sampler.top_k_top_p(temperature, k, p).sampling)

    @classmethod
    def multinomial(cls, temperature: float = 1.0, draws: int = 1) -> Sampler:
        """A draw from the whole distribution. ``draws`` changes nothing: each row draws one token, at random."""
        return cls(sampling.Sampler.multinomial(temperature).sampling)


@dataclass(frozen=True)
class Logits:
    """The logits of the whole vocabulary; read with :meth:`Output.logits`."""

    def to_wire(self) -> Probe:
        """Return the request."""
        return probes.Logits().to_wire()


@dataclass(frozen=True)
class Distribution:
    """The ``k`` most likely tokens (0: all) with their probabilities; read with :meth:`Output.distribution`."""

    temperature: float = 1.0
    k: int = 0

    def to_wire(self) -> Probe:
        """Return the request."""
        return probes.Distribution(self.temperature, self.k).to_wire()


@dataclass(frozen=True)
class Logprob:
    """The log-probability of one token; read with :meth:`Output.logprobs`."""

    token: int

    def to_wire(self) -> Probe:
        """Return the request."""
        return probes.Logprob(self.token).to_wire()


@dataclass(frozen=True)
class Logprobs:
    """The log-probabilities of some tokens; read with :meth:`Output.logprobs`."""

    tokens: tuple[int, ...] = ()

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        object.__setattr__(self, "tokens", tuple(tokens))

    def to_wire(self) -> Probe:
        """Return the request."""
        return probes.Logprobs(self.tokens).to_wire()


@dataclass(frozen=True)
class Entropy:
    """The entropy of the distribution in nats; read with :meth:`Output.entropy`."""

    def to_wire(self) -> Probe:
        """Return the request."""
        return probes.Entropy().to_wire()


RowProbe: TypeAlias = Logits | Distribution | Logprob | Logprobs | Entropy
PROBES = (Logits, Distribution, Logprob, Logprobs, Entropy)


def probe_kind(probe: RowProbe) -> str:
    """Return how a probe is read: logits, distribution, logprobs or entropy. Raises TypeError for what is no probe."""
    if not isinstance(probe, PROBES):
        raise TypeError(f"a probe is Logits(), Distribution(), Logprob(), Logprobs() or Entropy(), not {probe!r}")
    return probe.to_wire().kind
