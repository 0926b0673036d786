"""Penalties on what was said before, and biases: what they make of the logits of a few tokens. NumPy on the host.

Repetition: Keskar et al., "CTRL" (arXiv 1909.05858), over prompt and output, as in Hugging Face's transformers and in vLLM.
Frequency and presence: as OpenAI's interface and vLLM have them, over the generated tokens alone. With a repetition penalty r,
a logit l becomes (l / r if l > 0 else l * r) + shift, in float64 and rounded to float32 once, where shift =
float32(bias - frequency * count - presence * (count > 0)). ``kernels/sampling.py: Adjustments`` are the same on a device.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferd.protocol import MAX_BIASES, InvalidRequest, LimitExceeded, Sampling
from inferd_runtime.speculation.drafts import ROOT, Draft

RANGES = {"repetition_penalty": (0.01, 100.0), "presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0)}
LARGEST_BIAS = 100.0


class Entries(NamedTuple):
    """The adjustments of one row: distinct ``tokens`` int64[n], and of each ``repetition`` float32[n] (1: none) and ``shift``
    float32[n].
    """

    tokens: npt.NDArray[np.int64]
    repetition: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]

    def below(self, width: int) -> Entries:
        """Those of token ids below ``width``."""
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
        """Check a request's penalties; None where all are off. Raises InvalidRequest or LimitExceeded that names the field."""
        for name, (low, high) in RANGES.items():
            if not low <= getattr(sampling, name) <= high:
                raise InvalidRequest(
                    f"sampler: {name} = {getattr(sampling, name)} is out of range; it may be {low:g} to {high:g}"
                )
        _check_bias(sampling)
        found = cls(
            float(np.float32(sampling.repetition_penalty)), sampling.presence_penalty, sampling.frequency_penalty,
            tuple(sampling.bias_tokens), tuple(sampling.bias_values),
        )  # fmt: skip
        return None if found == NONE else found

    @property
    def remembers(self) -> bool:
        """Whether anything depends on what was said before."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0


NONE = Penalties()


def _check_bias(sampling: Sampling) -> None:
    tokens, values = sampling.bias_tokens, sampling.bias_values
    if len(tokens) != len(values):
        raise InvalidRequest(f"sampler: logit_bias has {len(tokens)} tokens but {len(values)} values")
    if len(tokens) > MAX_BIASES:
        raise LimitExceeded(
            f"sampler: logit_bias names {len(tokens)} tokens; {MAX_BIASES} are allowed", limit="logit_bias",
            value=MAX_BIASES, raise_with="a constraint, for more tokens than that",
        )  # fmt: skip
    if len(set(tokens)) < len(tokens):
        raise InvalidRequest("sampler: logit_bias names a token twice")
    for token, value in zip(tokens, values, strict=True):
        if not (math.isfinite(value) and abs(value) <= LARGEST_BIAS):
            raise InvalidRequest(
                f"sampler: logit_bias {value} for token {token} is outside -{LARGEST_BIAS:g} to {LARGEST_BIAS:g}"
            )


class History:
    """What was said before the next token of one generation, as its penalties count it.

    Each token is O(1). Whoever asks for a row says which draft tokens stand between the committed ones and that row; nothing
    of a draft is ever kept.
    """

    def __init__(self, penalties: Penalties, prompt: Iterable[int] = ()) -> None:
        self._penalties = penalties
        self._biases = dict(zip(penalties.bias_tokens, penalties.bias_values, strict=True))
        self._generated: dict[int, int] = {}
        self._places: dict[int, int] = {}
        self._tokens, self._repetition, self._shift = array("q"), array("f"), array("f")
        for token in self._biases:
            self._place(token)
        if penalties.repetition != 1:
            self._read(dict.fromkeys(prompt))

    def advance(self, tokens: Iterable[int]) -> None:
        """Count tokens that were generated and stand."""
        if not self._penalties.remembers:
            return
        for token in tokens:
            self._generated[token] = self._generated.get(token, 0) + 1
            place = self._place(token)
            self._repetition[place] = self._penalties.repetition
            self._shift[place] = self._shifted(token, self._generated[token])

    def entries(self, path: Sequence[int] = ()) -> Entries:
        """The adjustments of the row behind the committed tokens and those of a draft's ``path``. The caller owns the arrays."""
        tokens, repetition, shift = np.array(self._tokens), np.array(self._repetition), np.array(self._shift)
        if not path or not self._penalties.remembers:
            return Entries(tokens, repetition, shift)
        said = Counter(path)
        new = [token for token in said if token not in self._places]
        added = np.zeros(len(new), np.float32)
        tokens = np.concatenate([tokens, np.asarray(new, np.int64)])
        repetition, shift = np.concatenate([repetition, added]), np.concatenate([shift, added])
        for token, times in said.items():
            place = self._places.get(token, -1)
            place = place if place >= 0 else len(self._tokens) + new.index(token)
            repetition[place] = self._penalties.repetition
            shift[place] = self._shifted(token, self._generated.get(token, 0) + times)
        return Entries(tokens, repetition, shift)

    def rows(self, draft: Draft) -> list[Entries]:
        """One per sampled row: the one behind the committed tokens, then the one behind each node of the draft."""
        rows, paths = [self.entries()], list[list[int]]()
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            paths.append([token] if parent == ROOT else [*paths[parent], token])
            rows.append(self.entries(paths[-1]))
        return rows

    def _read(self, prompt: Iterable[int]) -> None:
        """Give every token of the prompt an entry, all at once: a prompt may be long, and others wait for the step."""
        for token in self._biases.keys() & prompt:
            self._repetition[self._places[token]] = self._penalties.repetition
        new = [token for token in prompt if token not in self._places]
        self._places.update(zip(new, range(len(self._tokens), len(self._tokens) + len(new)), strict=True))
        self._tokens.extend(new)
        self._repetition.extend([self._penalties.repetition] * len(new))
        self._shift.extend([0.0] * len(new))

    def _place(self, token: int) -> int:
        """Where the token's entry is; it has one from now on."""
        place = self._places.setdefault(token, len(self._tokens))
        if place == len(self._tokens):
            self._tokens.append(token)
            self._repetition.append(1.0)
            self._shift.append(self._shifted(token, 0))
        return place

    def _shifted(self, token: int, count: int) -> float:
        penalties = self._penalties
        shift = self._biases.get(token, 0.0) - penalties.frequency * count
        return shift - penalties.presence if count else shift


def adjust(logits: npt.NDArray[np.float32], entries: Entries) -> npt.NDArray[np.float32]:
    """One row, float32[V], with its adjustments: a copy, or the row itself where there is nothing to adjust."""
    if not entries.tokens.size:
        return logits
    before, repetition = logits[entries.tokens].astype(np.float64), entries.repetition.astype(np.float64)
    after = np.where(before > 0, before / repetition, before * repetition) + entries.shift.astype(np.float64)
    adjusted = logits.copy()
    adjusted[entries.tokens] = after.astype(np.float32)
    return adjusted
