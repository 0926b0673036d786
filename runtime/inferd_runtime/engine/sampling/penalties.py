"""Penalties and biases: how they change the logits of some tokens, by the text before. NumPy on the host.

Repetition: Keskar et al., "CTRL" (arXiv 1909.05858), over prompt and output, as in Hugging Face's transformers and in vLLM.
Frequency and presence: as OpenAI's interface and vLLM have them, over the generated tokens alone. With a repetition penalty r,
a logit l becomes (l / r if l > 0 else l * r) + shift, in float64 and rounded to float32 once, where shift =
float32(bias - frequency * count - presence * (count > 0)). ``kernels/sampling.py: Adjustments`` are the same on a device.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from inferd.protocol import Sampling
from inferd_runtime.speculation.drafts import ROOT, Draft

MANY = 256
"""From so many tokens on, they are counted by NumPy at once."""


class Entries(NamedTuple):
    """The adjustments of one row: distinct ``tokens`` int64[n], each with ``repetition`` float32[n] (1: none) and ``shift``
    float32[n].
    """

    tokens: npt.NDArray[np.int64]
    repetition: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]

    def below(self, width: int) -> Entries:
        """Return the entries of token ids below ``width``."""
        kept = self.tokens < width
        return Entries(self.tokens[kept], self.repetition[kept], self.shift[kept])


@dataclass(frozen=True, slots=True)
class Penalties:
    """A sampler's penalties and biases, of which at least one is on. ``repetition`` holds a float32 exactly."""

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias_tokens: tuple[int, ...] = ()
    bias_values: tuple[float, ...] = ()

    @classmethod
    def of(cls, sampling: Sampling) -> Penalties | None:
        """Return the penalties and biases of a checked request; None if all are off."""
        found = cls(
            float(np.float32(sampling.repetition_penalty)), sampling.presence_penalty, sampling.frequency_penalty,
            tuple(sampling.bias_tokens), tuple(sampling.bias_values),
        )  # fmt: skip
        return None if found == NONE else found

    @property
    def remembers(self) -> bool:
        """True if anything depends on the tokens before."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0


NONE = Penalties()


class History:
    """The tokens before the next one of a generation, as its penalties count them.

    Counting a token is O(1), and many at once are counted by NumPy, as a text may be long and the step waits. The draft tokens
    between the committed ones and a row are given with each request for that row; none of them is ever kept.

    Every token with an entry has a place in the arrays, those with a bias the first ones. ``_places`` finds tokens that came one
    by one, ``_sorted`` (ascending) and ``_order`` (their places) all that were there when many came at once.
    """

    def __init__(self, penalties: Penalties, prompt: Sequence[int] = ()) -> None:
        self._penalties = penalties
        self._biases = dict(zip(penalties.bias_tokens, penalties.bias_values, strict=True))
        self._tokens, self._counts = array("q"), array("q")
        self._repetition, self._shift = array("f"), array("f")
        self._places: dict[int, int] = {}
        self._sorted, self._order = np.empty(0, np.int64), np.empty(0, np.int64)
        self._base: Entries | None = None
        for token in self._biases:
            self._place(token)
        if penalties.repetition != 1:
            self._read(prompt)

    def advance(self, tokens: Sequence[int]) -> None:
        """Count generated tokens."""
        if not self._penalties.remembers:
            return
        self._base = None
        if len(tokens) >= MANY:
            self._advance_many(tokens)
            return
        for token in tokens:
            place = self._place(token)
            self._counts[place] += 1
            self._repetition[place] = self._penalties.repetition
            self._shift[place] = self._shifted(token, self._counts[place])

    def entries(self, path: Sequence[int] = ()) -> Entries:
        """Return the adjustments of the row after the committed tokens and a draft's ``path``. They are read-only."""
        return self._state_for(path).after(path)

    def rows(self, draft: Draft) -> Sequence[Entries]:
        """Return the adjustments of each sampled row: after the committed tokens, then after each node of the draft."""
        return PenaltyRows(self._state_for(draft.tokens), draft)

    def _state_for(self, drafted: Sequence[int]) -> PenaltyState:
        """Return the committed state, and the part of it that these draft tokens can change."""
        if self._base is None:
            self._base = Entries(np.array(self._tokens), np.array(self._repetition), np.array(self._shift))
        if not self._penalties.remembers:
            return PenaltyState(self._base, {}, {}, self._penalties.repetition, self._shifted)
        places = {token: self._find(token) for token in drafted}
        counts = {token: self._counts[place] for token, place in places.items() if place >= 0}
        return PenaltyState(self._base, places, counts, self._penalties.repetition, self._shifted)

    def _read(self, prompt: Sequence[int]) -> None:
        """Apply the repetition penalty to every token of the prompt."""
        if len(prompt) >= MANY:
            places = self._place_many(_counted(prompt)[0])
            np.frombuffer(self._repetition, np.float32)[places] = self._penalties.repetition
            return
        for token in prompt:
            self._repetition[self._place(token)] = self._penalties.repetition

    def _advance_many(self, tokens: Sequence[int]) -> None:
        said, times = _counted(tokens)
        places = self._place_many(said)
        counts = np.frombuffer(self._counts, np.int64)
        counts[places] += times
        np.frombuffer(self._repetition, np.float32)[places] = self._penalties.repetition
        biases = np.zeros(len(self._tokens))
        biases[: len(self._biases)] = list(self._biases.values())
        shift = biases[places] - self._penalties.frequency * counts[places] - self._penalties.presence
        np.frombuffer(self._shift, np.float32)[places] = shift

    def _find(self, token: int) -> int:
        """Return the place of the token's entry; -1 if it has none."""
        place = self._places.get(token, -1)
        if place < 0 and self._sorted.size:
            at = int(self._sorted.searchsorted(token))
            if at < self._sorted.size and self._sorted[at] == token:
                return int(self._order[at])
        return place

    def _place(self, token: int) -> int:
        """Return the place of the token's entry, and make one if it has none."""
        place = self._find(token)
        if place < 0:
            place = len(self._tokens)
            self._tokens.append(token)
            self._counts.append(0)
            self._repetition.append(1.0)
            self._shift.append(self._shifted(token, 0))
        self._places[token] = place
        return place

    def _place_many(self, said: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the places of distinct tokens, at least one, ascending, and make missing entries."""
        new = said[np.isin(said, np.array(self._tokens), assume_unique=True, invert=True)]
        self._tokens.frombytes(new.tobytes())
        self._counts.frombytes(bytes(new.nbytes))
        self._repetition.frombytes(np.ones(len(new), np.float32).tobytes())
        self._shift.frombytes(np.zeros(len(new), np.float32).tobytes())
        tokens = np.array(self._tokens)
        self._order = np.argsort(tokens, kind="stable")  # quick, as the tokens are a few ascending runs
        self._sorted = tokens[self._order]
        self._places.clear()
        below = int(self._sorted.searchsorted(said[-1], "right"))
        places = np.empty(said[-1] + 1, np.int64)
        places[self._sorted[:below]] = self._order[:below]
        return places[said]

    def _shifted(self, token: int, count: int) -> float:
        penalties = self._penalties
        shift = self._biases.get(token, 0.0) - penalties.frequency * count
        return shift - penalties.presence if count else shift


class PenaltyState(NamedTuple):
    """The penalties' state when a draft was made.

    ``base``: the entries after the committed tokens. ``places``: the place in it of each of the draft's tokens (-1: none; empty
    if nothing depends on the tokens before). ``counts``: how often those were generated.
    """

    base: Entries
    places: Mapping[int, int]
    counts: Mapping[int, int]
    repetition: float
    shifted: Callable[[int, int], float]

    def after(self, path: Sequence[int]) -> Entries:
        """Return the adjustments of the row after these tokens of the draft."""
        if not path or not self.places:
            return self.base
        said = Counter(path)
        new = [token for token in said if self.places[token] < 0]
        added = np.zeros(len(new), np.float32)
        repetition, shift = (np.concatenate([column, added]) for column in (self.base.repetition, self.base.shift))
        beside = {token: len(self.base.tokens) + at for at, token in enumerate(new)}
        for token, times in said.items():
            place = beside.get(token, self.places[token])
            repetition[place] = self.repetition
            shift[place] = self.shifted(token, self.counts.get(token, 0) + times)
        tokens = np.concatenate([self.base.tokens, np.asarray(new, np.int64)]) if new else self.base.tokens
        return Entries(tokens, repetition, shift)


class PenaltyRows(Sequence[Entries]):
    """The adjustments of a draft's sampled rows, each made when it is read.

    A row may have an entry for every token of the vocabulary, and verification on the host reads the rows of accepted nodes only.
    """

    def __init__(self, state: PenaltyState, draft: Draft) -> None:
        self._state = state
        self._draft = draft

    def __len__(self) -> int:
        return 1 + len(self._draft)

    @overload
    def __getitem__(self, row: int) -> Entries: ...

    @overload
    def __getitem__(self, row: slice) -> list[Entries]: ...

    def __getitem__(self, row: int | slice) -> Entries | list[Entries]:
        if isinstance(row, slice):
            return [self[at] for at in range(*row.indices(len(self)))]
        node, path = range(len(self))[row] - 1, list[int]()
        while node != ROOT:
            path.append(self._draft.tokens[node])
            node = self._draft.parents[node]
        return self._state.after(path)


def _counted(tokens: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct token ids, ascending, and how often each occurs."""
    times = np.bincount(np.fromiter(tokens, np.int64, len(tokens)))
    said = np.flatnonzero(times)
    return said, times[said]


def adjust(logits: npt.NDArray[np.float32], entries: Entries) -> npt.NDArray[np.float32]:
    """Return one row, float32[V], with its adjustments: a copy, or the row itself if there are none."""
    if not entries.tokens.size:
        return logits
    before, repetition = logits[entries.tokens].astype(np.float64), entries.repetition.astype(np.float64)
    after = np.where(before > 0, before / repetition, before * repetition) + entries.shift.astype(np.float64)
    adjusted = logits.copy()
    adjusted[entries.tokens] = after.astype(np.float32)
    return adjusted
