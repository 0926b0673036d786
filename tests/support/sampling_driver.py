"""A driver that samples, without a device: the null driver with the host's sampler behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferd.protocol import ConstraintError
from inferd_runtime.engine.carried_rows import resolve, sampled_there
from inferd_runtime.engine.driver import StepResult
from inferd_runtime.engine.sampling.device_sampling import (
    ABSENT,
    Floats,
    Rejecting,
    SampledRows,
    SampledTokens,
    SamplingInputs,
    ScoredSequences,
    merged,
)
from inferd_runtime.engine.sampling.host_sampling import LogitRows, Masks, RowSampler, allowed_tokens, draw
from inferd_runtime.engine.sampling.noise import MASK, gumbel
from inferd_runtime.engine.sampling.penalties import Entries, adjust
from inferd_runtime.engine.sampling.probes import token_logprob
from inferd_runtime.engine.sampling.rejection import reject
from inferd_runtime.models.batch import Batch, FloatRows, Ids, Outputs
from inferd_runtime.testing.null_driver import NullDriver


class FinishedStep:
    """A step that was done when it was launched. ``waited``: True once its result has been asked for."""

    def __init__(self, result: StepResult) -> None:
        self.waited = False
        self._result = result

    def wait(self) -> StepResult:
        """See :class:`~inferd_runtime.engine.driver.Launched`."""
        self.waited = True
        return self._result


@dataclass(frozen=True)
class BegunStep:
    """A forward pass whose rows ``rows`` are sampled later, once."""

    driver: SamplingNullDriver
    rows: SampledRows
    outputs: Outputs

    def sample(self, inputs: SamplingInputs) -> FinishedStep:
        """See :class:`~inferd_runtime.engine.driver.Begun`."""
        assert np.array_equal(self.rows.order, np.concatenate([inputs.rows, inputs.host_rows]))
        return self.driver.draw(self.outputs, inputs)


class SamplingNullDriver(NullDriver):
    """Draws what a :class:`~inferd_runtime.engine.sampling.device_sampling.SamplingInputs` says, row by row, with the
    engine's own sampler.

    ``launches`` are all steps so far.
    """

    launches: list[FinishedStep]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.launches = []
        self._last: Sequence[int] = ()
        self._fallen: Sequence[int] = ()

    def launch(self, batch: Batch, sampling: SamplingInputs) -> FinishedStep:
        """See :class:`~inferd_runtime.engine.driver.SamplingDriver`."""
        if len(batch.carried):
            sampling = sampled_there(sampling, batch, np.asarray(self._fallen))
        return self.begin(batch, SampledRows(sampling.rows, sampling.host_rows)).sample(sampling)

    def begin(self, batch: Batch, rows: SampledRows) -> BegunStep:
        """See :class:`~inferd_runtime.engine.driver.SamplingDriver`."""
        if len(batch.carried):
            batch = resolve(batch, np.asarray(self._last), np.asarray(self._fallen), self.page_size)
        return BegunStep(self, rows, self.forward(batch))

    def draw(self, outputs: Outputs, sampling: SamplingInputs) -> FinishedStep:
        """Sample the rows of a forward pass."""
        samples = [self._sample(sampling, row, outputs.logits[at]) for row, at in enumerate(sampling.rows.tolist())]
        drawn = agree(sampling, samples)
        if sampling.confident:
            drawn = drawn._replace(confidence=self._confidence(sampling, samples, outputs.logits))
        if sampling.rejecting is not None:
            drawn = merged(drawn, sampling.rejecting, *self._reject(sampling, sampling.rejecting, outputs.logits))
        if sampling.scored is not None:
            drawn = drawn._replace(scores=self._scores(sampling, sampling.scored, drawn, outputs.logits))
        self._last = drawn.tokens[np.arange(len(drawn.tokens)), drawn.accepted].tolist()
        self._fallen = (sampling.lengths - drawn.accepted).clip(0).tolist()
        self.launches.append(
            FinishedStep(StepResult(Outputs(outputs.logits[sampling.host_rows], outputs.hidden), drawn))
        )
        return self.launches[-1]

    def _sample(self, sampling: SamplingInputs, row: int, logits: LogitRows) -> int:
        mask, entries = mask_of(sampling, row), entries_of(sampling, row)
        try:
            return draw(logits, sampler_of(sampling, row), int(sampling.positions[row]), mask, entries)
        except ConstraintError:
            return ABSENT

    def _confidence(self, sampling: SamplingInputs, samples: Sequence[int], logits: LogitRows) -> FloatRows:
        """Return the share of each row's sample in the softmax of its scores with their noise."""
        assert len(samples) == len(sampling.first)
        shares = []
        for row, at in enumerate(sampling.rows.tolist()):
            mask, entries, sampler = mask_of(sampling, row), entries_of(sampling, row), sampler_of(sampling, row)
            scores = logits[at] if entries is None else adjust(logits[at], entries)
            ids = np.arange(len(scores)) if mask is None else allowed_tokens(mask, len(scores))
            noisy = scores[ids].astype(np.float64)
            if sampler.temperature:
                noisy = noisy / sampler.temperature + gumbel(sampler.key, int(sampling.positions[row]), ids)
            best = noisy[ids == samples[row]]
            shares.append(1 / np.exp(noisy - best).sum() if len(best) else 0.0)
        return np.asarray(shares, np.float32)

    def _scores(
        self, sampling: SamplingInputs, scored: ScoredSequences, drawn: SampledTokens, logits: LogitRows
    ) -> Floats:
        """Return the scores of the tokens that some sequences drew, by the host's own function."""
        found = np.zeros((len(sampling.first), scored.nodes + 1, 2 + 2 * scored.top))
        for at in scored.at.tolist():
            path = drawn.path[at, : drawn.accepted[at]].tolist()
            for line, row in enumerate([0, *(node + 1 for node in path)]):
                own = logits[sampling.rows[sampling.first[at] + row]]
                told = token_logprob(own, int(drawn.tokens[at, line]), scored.top)
                missing = scored.top - len(told.top_tokens)
                best = [*told.top_tokens, *[0] * missing, *told.top_logprobs, *[-np.inf] * missing]
                found[at, line] = [told.logprob, told.rank, *best]
        return found

    def _reject(self, sampling: SamplingInputs, rejecting: Rejecting, logits: LogitRows) -> tuple[Ids, Ids]:
        """Return how many tokens of each draft are accepted, and what is emitted."""
        accepted = np.zeros(len(rejecting.at), np.int64)
        tokens = np.full((len(rejecting.at), rejecting.tokens.shape[1] + 1), ABSENT)
        for at, first in enumerate(sampling.first[rejecting.at].tolist()):
            rows, length = range(first, first + int(rejecting.rows[at])), int(rejecting.lengths[at])
            masks = [mask for row in rows if (mask := mask_of(sampling, row)) is not None]
            entries = [one for row in rows if (one := entries_of(sampling, row)) is not None]
            try:
                emitted = reject(
                    logits[sampling.rows[rows]],
                    np.stack(masks) if masks else None,
                    sampler_of(sampling, first),
                    int(sampling.positions[first]),
                    rejecting.tokens[at, :length].tolist(),
                    rejecting.probabilities[at],
                    entries or None,
                )
            except ConstraintError:
                emitted = [ABSENT]
            accepted[at] = len(emitted) - 1
            tokens[at, : len(emitted)] = emitted
        return accepted, tokens


def sampler_of(sampling: SamplingInputs, row: int) -> RowSampler:
    """Return a row's sampler."""
    return RowSampler(
        float(sampling.temperature[row]), int(sampling.top_k[row]), float(sampling.top_p[row]),
        float(sampling.min_p[row]), int(sampling.keys[row]) & MASK,
    )  # fmt: skip


def mask_of(sampling: SamplingInputs, row: int) -> Masks | None:
    """Return a row's mask, None if it has none."""
    return None if sampling.mask_rows[row] < 0 else sampling.masks[sampling.mask_rows[row]]


def entries_of(sampling: SamplingInputs, row: int) -> Entries | None:
    """Return a row's penalties and biases, None if no row has any."""
    if sampling.adjusted is None:
        return None
    first, tokens, repetition, shift = sampling.adjusted
    own = slice(first[row], first[row + 1])
    return Entries(tokens[own].astype(np.int64), repetition[own], shift[own])


def agree(sampling: SamplingInputs, samples: Sequence[int]) -> SampledTokens:
    """Return what agrees: each draft is walked from its root as long as a child of the row is the row's sample."""
    count, width = sampling.tokens.shape
    accepted = np.zeros(count, np.int64)
    tokens, path = np.full((count, width + 1), ABSENT), np.full((count, width), ABSENT)
    for at, (first, nodes) in enumerate(zip(sampling.first.tolist(), sampling.lengths.tolist(), strict=True)):
        node = ABSENT
        while True:
            sample = samples[first + node + 1]
            tokens[at, accepted[at]] = sample
            below = (sampling.parents[at, :nodes] == node) & (sampling.tokens[at, :nodes] == sample)
            if not below.any():
                break
            node = path[at, accepted[at]] = int(below.argmax())
            accepted[at] += 1
    return SampledTokens(accepted, tokens, path)
