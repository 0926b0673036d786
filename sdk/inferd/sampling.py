"""The sampler: the way that a token is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from inferd.protocol import InvalidRequest, Sampling
from inferd.protocol.sampling import RANGES, check_sampling
from inferd.protocol.tokens import checked_tokens, plain_whole


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
        return cls(_checked(Sampling(temperature, seed=seed)))

    @classmethod
    def top_p(cls, temperature: float = 0.6, p: float = 0.95, *, seed: int | None = None) -> Sampler:
        """A draw from the smallest set of tokens whose probability reaches ``p`` (above 0, at most 1)."""
        return cls(_checked(Sampling(temperature, top_p=p, seed=seed)))

    @classmethod
    def top_k(cls, temperature: float = 0.6, k: int = 40, *, seed: int | None = None) -> Sampler:
        """A draw from the ``k`` most likely tokens (at least 1)."""
        return cls(_checked(Sampling(temperature, top_k=_checked_k(k), seed=seed)))

    @classmethod
    def min_p(cls, temperature: float = 0.6, p: float = 0.1, *, seed: int | None = None) -> Sampler:
        """A draw from the tokens at least ``p`` times as likely as the most likely one (0 to 1; 0 keeps all)."""
        return cls(_checked(Sampling(temperature, min_p=p, seed=seed)))

    @classmethod
    def top_k_top_p(cls, temperature: float = 0.6, k: int = 40, p: float = 0.95, *, seed: int | None = None) -> Sampler:
        """:meth:`top_k`, then :meth:`top_p` over what it left."""
        return cls(_checked(Sampling(temperature, top_k=_checked_k(k), top_p=p, seed=seed)))

    @classmethod
    def typical(cls, temperature: float = 1.0, p: float = 0.9, *, seed: int | None = None) -> Sampler:
        """A draw from the tokens whose surprise is nearest to the entropy, until they reach ``p`` (above 0, at most 1) together.

        Meister, Pimentel, Wiher, Cotterell: "Locally Typical Sampling" (TACL 2023). It needs a temperature above 0.
        """
        return cls(_checked(Sampling(temperature, typical_p=p, seed=seed)))

    def excluding_top(self, probability: float = 0.5, threshold: float = 0.1) -> Sampler:
        """The same sampler with XTC: with ``probability`` (0 to 1), a draw leaves out all but the least likely of the tokens that
        have at least ``threshold`` (0 to 1) of what the sampler leaves. It needs a temperature above 0.

        By its author p-e-w for text-generation-webui (pull request 6335, 2024).
        """
        return Sampler(_checked(replace(self.sampling, xtc_probability=probability, xtc_threshold=threshold)))

    def penalized(self, *, repetition: float = 1.0, presence: float = 0.0, frequency: float = 0.0) -> Sampler:
        """The same sampler with these penalties, in place of those that it had.

        ``repetition`` (0.01 to 100; 1 is off): the logit of a token that the context or the output holds is divided by it where
        it is positive, else multiplied. ``frequency`` (-2 to 2; 0 is off) is subtracted as often as the output holds the token,
        ``presence`` (the same) once if it does; for these two, what the context held before the generation does not count.
        """
        sampling = replace(
            self.sampling, repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
        )
        return Sampler(_checked(sampling))

    def biased(self, bias: Mapping[int, float]) -> Sampler:
        """The same sampler, which adds ``bias`` (-100 to 100) to the logits of up to 1,024 tokens, in place of what it added.

        -100 all but forbids a token; to forbid one for certain, or many, use a constraint. Raises LimitExceeded for more
        tokens.
        """
        if not isinstance(bias, Mapping):
            raise InvalidRequest(f"bias must map token ids to numbers, not {bias!r}")
        tokens, values = tuple(checked_tokens("logit_bias", bias)), tuple(bias.values())
        check_sampling(replace(self.sampling, bias_tokens=tokens, bias_values=values))
        return Sampler(replace(self.sampling, bias_tokens=tokens, bias_values=tuple(float(value) for value in values)))

    def only(self, tokens: Iterable[int]) -> Sampler:
        """The same sampler, which draws none but these tokens (up to 16,384), in place of those that it was held to.

        A constraint holds beside it: a token has to be allowed by both, and the constraint alone says where the text ends.
        Without one the text ends where its length does, or with a token that is among them. :meth:`~inferd.Context.generate`
        takes it; ``forward`` and ``verify`` have masks of their own. Raises LimitExceeded for more tokens, and InvalidRequest
        for none.
        """
        allowed = tuple(checked_tokens("allowed_tokens", tokens))
        if not allowed:
            raise InvalidRequest("allowed_tokens must hold at least one token")
        return Sampler(_checked(replace(self.sampling, allowed_tokens=allowed)))

    @property
    def adjusts(self) -> bool:
        """True if it has a penalty or a bias."""
        return self.sampling.adjusts


def _checked(sampling: Sampling) -> Sampling:
    """Return the sampling with its numbers as floats. Raises InvalidRequest or LimitExceeded."""
    sampling = replace(sampling, seed=plain_whole(sampling.seed))
    check_sampling(sampling)
    numbers: dict[str, Any] = {name: float(getattr(sampling, name)) for name in ("temperature", *RANGES)}
    return replace(sampling, **numbers)


def _checked_k(k: int) -> int:
    """Raises InvalidRequest for 0, which is no limit on the wire."""
    if k == 0:
        raise InvalidRequest(f"k must be a whole number of at least 1, not {k!r}")
    return k
