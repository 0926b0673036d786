"""What a program's own sampler chooses from at each step of a generation."""

from __future__ import annotations

from dataclasses import dataclass

from inferd.protocol.errors import InvalidRequest, LimitExceeded
from inferd.protocol.sampling import Sampling

MAX_CANDIDATES = 1 << 17
"""Tokens that one row offers at most."""


@dataclass(frozen=True)
class CandidateRow:
    """The most likely next tokens, the most likely first, behind ``position`` tokens of the context.

    ``tokens``: ids as uint32, ``logprobs``: natural logarithms as float32, both little-endian and as base64 text. They are of the
    distribution behind penalties, bias and mask, whose whole ``entropy`` is in nats. ``uniform``: a number above 0 and below 1
    that follows from the seed, the context's forks and the position alone.
    """

    position: int
    tokens: str
    logprobs: str
    entropy: float
    uniform: float


def check_candidates(count: int, sampling: Sampling) -> None:
    """Raises InvalidRequest or LimitExceeded for a number of candidates, or a way of drawing beside them, that does not go."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InvalidRequest(f"k, the number of candidates, must be a whole number of at least 0 (all), not {count!r}")
    if count > MAX_CANDIDATES:
        raise LimitExceeded(
            f"k: {count} candidates are more than the {MAX_CANDIDATES} that one row offers",
            limit="candidates", value=MAX_CANDIDATES, raise_with="fewer candidates",
        )  # fmt: skip
    drawn = Sampling()
    for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "xtc_probability"):
        if getattr(sampling, name) != getattr(drawn, name):
            raise InvalidRequest(f"{name} does not go with candidates (a sampler of your own), which draws by itself")
