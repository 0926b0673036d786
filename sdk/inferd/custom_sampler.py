"""A sampler of the program's own: what ``generate`` calls for each token, and what it is given to choose from."""

from __future__ import annotations

import inspect
import struct
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from inferd.protocol.candidates import CandidateRow, check_candidates
from inferd.protocol.errors import InvalidRequest
from inferd.protocol.floats import count_packed, packed_id, unpack_floats, unpack_ids
from inferd.protocol.sampling import Sampling
from inferd.sampling import Sampler

if TYPE_CHECKING:
    import random

DEFAULT_K = 64


@dataclass(frozen=True)
class Candidates:
    """The ``k`` most likely next tokens, the most likely first, as a sampler of the program's own gets them.

    ``logprobs``: their natural log-probabilities, behind penalties, bias and the constraint's mask; as float32 holds them.
    ``context``: all tokens before this one, which may be read and not changed; the last ``generated`` of them were written by
    this generation. ``entropy``, in nats, is the whole distribution's, and not that of these tokens alone. ``uniform``: a number
    above 0 and below 1 that follows from the seed, the context's forks and the position: what is drawn by it can be repeated.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    context: Sequence[int]
    generated: int
    entropy: float
    uniform: float

    @property
    def position(self) -> int:
        """The index in the context that the chosen token will have."""
        return len(self.context)

    def __len__(self) -> int:
        return len(self.tokens)

    def random(self) -> random.Random:
        """Return a source of random numbers that starts anew at each position, seeded by :attr:`uniform`."""
        import random  # here, as it would make the start of every program longer

        return random.Random(struct.pack("<d", self.uniform))

    def draw(self, weights: Sequence[float]) -> int:
        """Return one of the tokens, drawn with these weights (one per token, not below 0, not all 0) by :attr:`uniform`."""
        if len(weights) != len(self):
            raise InvalidRequest(f"weights must hold one number for each of the {len(self)} tokens, not {len(weights)}")
        sums = list(accumulate(weights))
        if not sums or not sums[-1] > 0:
            raise InvalidRequest("weights must hold a number above 0")
        goal = self.uniform * sums[-1]
        return self._token(bisect_right(sums, goal, hi=len(sums) - 1))

    def _token(self, at: int) -> int:
        return self.tokens[at]


class _OfferedCandidates(Candidates):
    """Those of a row, unpacked when they are asked for: each 49,152 numbers take a program in the sandbox 5 ms."""

    _row: CandidateRow

    def __init__(self, row: CandidateRow, context: Sequence[int], generated: int) -> None:
        vars(self).update(_row=row, context=context, generated=generated, entropy=row.entropy, uniform=row.uniform)

    @cached_property
    def tokens(self) -> list[int]:
        return unpack_ids(self._row.tokens)

    @cached_property
    def logprobs(self) -> list[float]:
        return unpack_floats(self._row.logprobs)

    def __len__(self) -> int:
        return count_packed(self._row.tokens)

    def _token(self, at: int) -> int:
        return packed_id(self._row.tokens, at)


ChooseToken: TypeAlias = Callable[[Candidates], "int | Awaitable[int]"]


@dataclass(frozen=True)
class CustomSampler:
    """A sampler of the program's own, which ``generate`` takes in the place of a :class:`~inferd.Sampler`.

    ``start`` is called where a generation starts, and returns the function that is called for each of its tokens (or its
    ``async`` twin): so a sampler with a state has one for each generation. ``k``: how many candidates it gets; 0: all, at most
    131,072. :meth:`of` makes one of a plain function, which ``generate`` takes as well.
    """

    start: Callable[[], ChooseToken]
    k: int = DEFAULT_K
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        check_candidates(self.k, self.sampling)

    @classmethod
    def of(cls, choose: ChooseToken, k: int = DEFAULT_K, *, seed: int | None = None) -> CustomSampler:
        """Return the sampler that calls ``choose(candidates)``, which returns a token's id, for each token.

        ``seed`` makes :attr:`Candidates.uniform` repeatable. Raises InvalidRequest for what is no function.
        """
        owner = choose if inspect.isclass(choose) else getattr(choose, "__self__", None)
        if not callable(choose) or owner is choose or owner is Sampler or owner is CustomSampler:
            raise InvalidRequest(
                f"sampler must be a Sampler, such as Sampler.argmax(), or a function that chooses a token, not {choose!r}"
            )
        return cls(lambda: choose, k).seeded(seed)

    def seeded(self, seed: int | None) -> CustomSampler:
        """The same sampler with this seed, from 0 to 2**63 - 1; None: another one for each generation."""
        return replace(self, sampling=replace(Sampler.multinomial(1.0, seed=seed).sampling, temperature=0.0))

    def penalized(self, *, repetition: float = 1.0, presence: float = 0.0, frequency: float = 0.0) -> CustomSampler:
        """The same sampler, which sees the distribution behind these penalties; see :meth:`inferd.Sampler.penalized`."""
        adjusted = Sampler(self.sampling).penalized(repetition=repetition, presence=presence, frequency=frequency)
        return replace(self, sampling=adjusted.sampling)

    def biased(self, bias: Mapping[int, float]) -> CustomSampler:
        """The same sampler, which sees the distribution behind this bias; see :meth:`inferd.Sampler.biased`."""
        return replace(self, sampling=Sampler(self.sampling).biased(bias).sampling)

    def only(self, tokens: Iterable[int]) -> CustomSampler:
        """The same sampler, which is offered none but these tokens; see :meth:`inferd.Sampler.only`."""
        return replace(self, sampling=Sampler(self.sampling).only(tokens).sampling)


def candidates_of(row: CandidateRow, context: Sequence[int], generated: int) -> Candidates:
    """Return the candidates of a row that the runtime offers."""
    return _OfferedCandidates(row, context, generated)
