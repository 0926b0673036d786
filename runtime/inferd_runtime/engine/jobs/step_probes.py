"""Probes of a generation's rows: what a program wants to know of each token's distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferd.protocol import Probe, TokenProbes
from inferd_runtime.engine.jobs.program_choice import behind_penalties
from inferd_runtime.engine.sampling.host_sampling import LogitRows, log_softmax
from inferd_runtime.engine.sampling.probes import Reading, resolve_all
from inferd_runtime.engine.stages import Verified, Work

UNDELIVERED_NUMBERS = 1 << 18
"""Of one generation: behind so many its steps wait for their reader, except the last one."""


class StepProbes:
    """Reads the row that each emitted token was drawn from, behind penalties, bias and mask, as ``forward`` does.

    ``numbers``: the most that one step brings. ``most_steps``: so many steps may wait for their reader.
    """

    def __init__(self, readings: Sequence[Reading], numbers: int) -> None:
        self._readings = readings
        self.numbers = numbers
        self.most_steps = max(1, UNDELIVERED_NUMBERS // max(1, numbers))

    @classmethod
    def resolve(cls, asked: Sequence[Probe], tokens: int, vocab_size: int) -> StepProbes | None:
        """Return what reads the checked probes of steps of at most ``tokens`` tokens; None if there are none.

        Raises InvalidRequest for what the vocabulary does not have, LimitExceeded if one step could bring too many numbers.
        """
        if not asked:
            return None
        readings = resolve_all(asked, tokens, 0, vocab_size)
        return cls(readings, tokens * sum(reading.numbers(vocab_size) for reading in readings))

    def read(self, done: Verified) -> list[TokenProbes]:
        """Return what the probes found, one entry per emitted token: the first one's row is row 0, each other's that of the
        accepted node before it.
        """
        assert done.logits is not None
        rows = [0, *(node + 1 for node in done.path)]
        return [self._row(done.work, done.logits[row], row) for row in rows[: len(done.tokens)]]

    def _row(self, work: Work, logits: LogitRows, row: int) -> TokenProbes:
        logits = behind_penalties(work, logits, row)
        if work.masks is not None:
            bits = np.unpackbits(work.masks[row].view(np.uint8), bitorder="little", count=logits.size)
            logits = np.where(bits.view(np.bool_), logits, np.float32(-np.inf))
        logprobs = log_softmax(logits)
        return TokenProbes([reading.read(logits, logprobs) for reading in self._readings])
