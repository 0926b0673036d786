"""A driver that samples, without a device: the null driver with the host's sampler behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from inferd.protocol import ConstraintError
from inferd_runtime.engine.driver import StepResult
from inferd_runtime.engine.sampling.device_sampling import NOBODY, Rejecting, SampledTokens, SamplingInputs, merged
from inferd_runtime.engine.sampling.host_sampling import LogitRows, Masks, RowSampler, draw
from inferd_runtime.engine.sampling.noise import MASK
from inferd_runtime.engine.sampling.penalties import Entries
from inferd_runtime.engine.sampling.rejection import reject
from inferd_runtime.models.batch import Batch, Ids, Outputs
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

    def launch(self, batch: Batch, drawing: SamplingInputs) -> FinishedStep:
        """See :class:`~inferd_runtime.engine.driver.SamplingDriver`."""
        if len(batch.carried):
            last = np.asarray([*self._last, 0], np.int64)
            batch = replace(batch, tokens=np.where(batch.carried >= 0, last[batch.carried], batch.tokens))
        outputs = self.forward(batch)
        samples = [self._sample(drawing, row, outputs.logits[at]) for row, at in enumerate(drawing.rows.tolist())]
        drawn = agree(drawing, samples)
        if drawing.rejecting is not None:
            drawn = merged(drawn, drawing.rejecting, *self._reject(drawing, drawing.rejecting, outputs.logits))
        self._last = drawn.tokens[:, 0].tolist()
        self.launches.append(
            FinishedStep(StepResult(Outputs(outputs.logits[drawing.host_rows], outputs.hidden), drawn))
        )
        return self.launches[-1]

    def _sample(self, drawing: SamplingInputs, row: int, logits: LogitRows) -> int:
        mask, entries = mask_of(drawing, row), entries_of(drawing, row)
        try:
            return draw(logits, sampler_of(drawing, row), int(drawing.positions[row]), mask, entries)
        except ConstraintError:
            return NOBODY

    def _reject(self, drawing: SamplingInputs, rejecting: Rejecting, logits: LogitRows) -> tuple[Ids, Ids]:
        """Return how many tokens of each draft are accepted, and what is emitted."""
        accepted = np.zeros(len(rejecting.at), np.int64)
        tokens = np.full((len(rejecting.at), rejecting.tokens.shape[1] + 1), NOBODY)
        for at, first in enumerate(drawing.first[rejecting.at].tolist()):
            rows, length = range(first, first + int(rejecting.rows[at])), int(rejecting.lengths[at])
            masks = [mask for row in rows if (mask := mask_of(drawing, row)) is not None]
            entries = [one for row in rows if (one := entries_of(drawing, row)) is not None]
            try:
                emitted = reject(
                    logits[drawing.rows[rows]],
                    np.stack(masks) if masks else None,
                    sampler_of(drawing, first),
                    int(drawing.positions[first]),
                    rejecting.tokens[at, :length].tolist(),
                    rejecting.probabilities[at],
                    entries or None,
                )
            except ConstraintError:
                emitted = [NOBODY]
            accepted[at] = len(emitted) - 1
            tokens[at, : len(emitted)] = emitted
        return accepted, tokens


def sampler_of(drawing: SamplingInputs, row: int) -> RowSampler:
    """Return a row's sampler."""
    return RowSampler(
        float(drawing.temperature[row]), int(drawing.top_k[row]), float(drawing.top_p[row]),
        float(drawing.min_p[row]), int(drawing.keys[row]) & MASK,
    )  # fmt: skip


def mask_of(drawing: SamplingInputs, row: int) -> Masks | None:
    """Return a row's mask, None if it has none."""
    return None if drawing.mask_rows[row] < 0 else drawing.masks[drawing.mask_rows[row]]


def entries_of(drawing: SamplingInputs, row: int) -> Entries | None:
    """Return a row's penalties and biases, None if no row has any."""
    if drawing.adjusted is None:
        return None
    first, tokens, repetition, shift = drawing.adjusted
    own = slice(first[row], first[row + 1])
    return Entries(tokens[own].astype(np.int64), repetition[own], shift[own])


def agree(drawing: SamplingInputs, samples: Sequence[int]) -> SampledTokens:
    """Return what agrees: each draft is walked from its root as long as a child of the row is the row's sample."""
    count, width = drawing.tokens.shape
    accepted = np.zeros(count, np.int64)
    tokens, path = np.full((count, width + 1), NOBODY), np.full((count, width), NOBODY)
    for at, (first, nodes) in enumerate(zip(drawing.first.tolist(), drawing.lengths.tolist(), strict=True)):
        node = NOBODY
        while True:
            sample = samples[first + node + 1]
            tokens[at, accepted[at]] = sample
            below = (drawing.parents[at, :nodes] == node) & (drawing.tokens[at, :nodes] == sample)
            if not below.any():
                break
            node = path[at, accepted[at]] = int(below.argmax())
            accepted[at] += 1
    return SampledTokens(accepted, tokens, path)
