"""Probes of a forward pass: edits of a row's logits, and what is read from them. NumPy, one row at a time."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from inferd.masks import unpack_bits
from inferd.protocol import InvalidRequest, LimitExceeded, Probe, ProbeResult, TokenLogprob, check_mask_allows
from inferd_runtime.engine.sampling.host_sampling import LogitRows
from inferd_runtime.models.batch import Seen

MAX_NUMBERS = 1 << 20
"""Numbers in one reply: 4 MiB as float32."""
LOWEST_LOGIT = -1e9
"""What stands for -inf, which JSON has no number for."""


class RowEdit:
    """An edit of logits: a bias for some tokens, then -inf for all outside ``mask``."""

    def __init__(self, mask: Seen | None, tokens: npt.NDArray[np.int64], values: LogitRows) -> None:
        self._mask = mask
        self._tokens = tokens
        self._values = values

    @classmethod
    def resolve(cls, mask: Seen | None, tokens: Sequence[int], values: Sequence[float], vocab_size: int) -> RowEdit:
        """Return the edit of a checked request. Raises InvalidRequest for a mask, bool[V], of nothing and for unknown tokens."""
        check_vocabulary("bias", tokens, vocab_size)
        check_mask_allows(mask is None or bool(mask.any()))
        return cls(mask, np.asarray(tokens, np.int64), np.asarray(values, np.float32))

    def apply(self, logits: LogitRows) -> LogitRows:
        """Return an edited copy of one row, float32[V]."""
        if self._tokens.size:
            logits = logits.copy()
            logits[self._tokens] += self._values
        return logits if self._mask is None else np.where(self._mask, logits, np.float32(-np.inf))


class Reading(Protocol):
    """A resolved probe."""

    def numbers(self, vocab_size: int) -> int:
        """Return the largest number of numbers that it returns per row."""

    def read(self, logits: LogitRows, logprobs: npt.NDArray[np.float64]) -> ProbeResult:
        """Return the result of one row: float32[V] logits after the edit, and their float64[V] log-probabilities."""


class _Logits:
    def numbers(self, vocab_size: int) -> int:
        return vocab_size

    def read(self, logits: LogitRows, logprobs: npt.NDArray[np.float64]) -> ProbeResult:
        return ProbeResult(pack(logits))


class _Distribution:
    def __init__(self, temperature: float, k: int) -> None:
        self._temperature = temperature
        self._k = k

    def numbers(self, vocab_size: int) -> int:
        return 2 * (self._k or vocab_size)

    def read(self, logits: LogitRows, logprobs: npt.NDArray[np.float64]) -> ProbeResult:
        with np.errstate(over="ignore"):
            scaled = np.exp((logprobs - logprobs.max()) / self._temperature)
        probabilities = scaled / scaled.sum()
        best = most_likely(probabilities, self._k or int(np.count_nonzero(probabilities)))
        best = best[probabilities[best] > 0]
        return ProbeResult(pack(probabilities[best]), pack_ids(best))


class _Logprobs:
    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)

    def numbers(self, vocab_size: int) -> int:
        return 2 * len(self._tokens)

    def read(self, logits: LogitRows, logprobs: npt.NDArray[np.float64]) -> ProbeResult:
        return ProbeResult(pack(logprobs[self._tokens]), pack_ids(np.asarray(self._tokens)))


class _Entropy:
    def numbers(self, vocab_size: int) -> int:
        return 1

    def read(self, logits: LogitRows, logprobs: npt.NDArray[np.float64]) -> ProbeResult:
        return ProbeResult(pack(np.asarray([entropy(logprobs)])))


def resolve(probe: Probe, vocab_size: int) -> Reading:
    """Return what reads a checked probe. Raises InvalidRequest for what the vocabulary does not have."""
    match probe.kind:
        case "logits":
            return _Logits()
        case "distribution":
            if probe.k > vocab_size:
                raise InvalidRequest(f"distribution: k = {probe.k} is outside 0 to {vocab_size}, the vocabulary")
            return _Distribution(probe.temperature, probe.k)
        case "logprobs":
            check_vocabulary("logprobs", probe.tokens, vocab_size)
            return _Logprobs(probe.tokens)
    return _Entropy()


def resolve_all(probes: Sequence[Probe], rows: int, top: int, vocab_size: int) -> list[Reading]:
    """Return what reads the checked probes of ``rows`` rows that also bring ``top`` tokens each.

    Raises InvalidRequest or LimitExceeded.
    """
    readings = [resolve(probe, vocab_size) for probe in probes]
    check_numbers(rows * (2 * min(top, vocab_size) + sum(reading.numbers(vocab_size) for reading in readings)))
    return readings


def read_mask(tokens: Sequence[int] | None, bits: str, vocab_size: int) -> Seen | None:
    """Return a request's mask as bool[V]; None if it allows all. Raises InvalidRequest for an id outside the vocabulary."""
    if bits:
        return _unpacked(bits, vocab_size)
    if tokens is None:
        return None
    if len(tokens) > vocab_size:
        raise InvalidRequest(f"mask names {len(tokens)} tokens of a vocabulary of {vocab_size}")
    check_vocabulary("mask", tokens, vocab_size)
    allowed = np.zeros(vocab_size, np.bool_)
    allowed[list(tokens)] = True
    return allowed


def _unpacked(bits: str, vocab_size: int) -> Seen:
    given = np.unpackbits(np.frombuffer(unpack_bits(bits), np.uint8), bitorder="little").view(np.bool_)
    check_vocabulary("mask", (np.flatnonzero(given[vocab_size:])[:1] + vocab_size).tolist(), vocab_size)
    return np.concatenate([given[:vocab_size], np.zeros(max(0, vocab_size - len(given)), np.bool_)])


def check_vocabulary(name: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Check token ids. Raises InvalidRequest, which starts with ``name``, for one outside the vocabulary."""
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise InvalidRequest(f"{name}: token id {token} is outside the vocabulary of {vocab_size}")


def check_numbers(numbers: int) -> None:
    """Check the size of a reply. Raises LimitExceeded above MAX_NUMBERS."""
    if numbers > MAX_NUMBERS:
        raise LimitExceeded(
            f"the reply would carry {numbers} numbers; {MAX_NUMBERS} are allowed", limit="reply_numbers",
            value=MAX_NUMBERS, raise_with="several calls, or asking for fewer rows or tokens",
        )  # fmt: skip


def most_likely(scores: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.int64]:
    """Return the indices of the ``k`` largest entries, largest first; of equal ones the lower index first."""
    if k == 0:
        return np.empty(0, np.int64)
    if k < scores.size:
        bound = np.partition(scores, -k)[-k]
        candidates = np.flatnonzero(scores >= bound)
    else:
        candidates = np.arange(scores.size)
    return np.asarray(candidates[_descending(scores[candidates])[:k]])


def _descending(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """Return ``argsort(-scores, kind="stable")``, faster: numpy sorts in vectors only what may be unstable."""
    order = np.argsort(-scores)
    ordered = scores[order]
    rank = np.zeros(order.size, np.int64)
    np.cumsum(ordered[1:] != ordered[:-1], out=rank[1:])
    bits = order.size.bit_length()
    keys = rank << bits | order
    keys.sort()
    return keys & (1 << bits) - 1


def top_logprobs(logprobs: npt.NDArray[np.floating], k: int) -> tuple[list[int], list[float]]:
    """Return the ``k`` most likely tokens above -inf, with their log-probabilities (or other scores)."""
    best = most_likely(logprobs, min(k, logprobs.size))
    best = best[logprobs[best] > -np.inf]
    return best.tolist(), logprobs[best].tolist()


def entropy(logprobs: npt.NDArray[np.float64]) -> float:
    """Return the entropy in nats."""
    probabilities = np.exp(logprobs)
    return 0.0 - float(np.dot(probabilities, np.where(probabilities > 0, logprobs, 0.0)))


def token_logprob(logits: LogitRows, token: int, top: int, named: Sequence[int] = ()) -> TokenLogprob:
    """Return the log-probability and rank of ``token`` by one row of logits, float32[V], and the ``top`` likeliest tokens, or
    those that are ``named``.

    Equal logits share the best of their ranks.
    """
    # One pass in float32 with a float64 sum: a prompt has many rows, and each is as long as the vocabulary.
    best = logits.max()
    total = float(best) + math.log(np.exp(logits - best).sum(dtype=np.float64))
    rank = 1 + int(np.count_nonzero(logits > logits[token]))
    if named:
        tokens, scores = list(named), np.maximum(logits[list(named)], LOWEST_LOGIT).tolist()
    else:
        tokens, scores = top_logprobs(logits, top)
    return TokenLogprob(token, float(logits[token]) - total, rank, tokens, [score - total for score in scores])


def pack(values: npt.NDArray[np.floating]) -> str:
    """Return numbers as the wire carries them, see ``inferd/protocol/floats.py``."""
    return _packed(values, "<f4")


def pack_ids(tokens: npt.NDArray[np.integer]) -> str:
    """Return token ids as the wire carries them."""
    return _packed(tokens, "<u4")


def _packed(values: npt.NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, np.dtype(kind)).tobytes()).decode()
