"""A generation whose tokens its program chooses: the rows that it is offered, and what it may take of them."""

from __future__ import annotations

import numpy as np

from inferd.protocol import MAX_CANDIDATES, CandidateRow, ConstraintError, InvalidRequest
from inferd_runtime.engine.sampling.host_sampling import LogitRows, RowSampler, allowed_tokens, log_softmax
from inferd_runtime.engine.sampling.noise import stream, uniform
from inferd_runtime.engine.sampling.penalties import adjust
from inferd_runtime.engine.sampling.probes import entropy, most_likely, pack, pack_ids
from inferd_runtime.engine.stages import Verified, Work

CHOICE = 0xC401CE
"""Tag of the noise that a program's own sampler draws by."""


class ProgramChoice:
    """The row that a program chooses a token of. ``offer``: what it is told of it; None while there is none.

    ``count``: how many candidates it is offered; 0: all, at most MAX_CANDIDATES.
    """

    def __init__(self, count: int, sampler: RowSampler) -> None:
        self.offer: CandidateRow | None = None
        self._count = min(count or MAX_CANDIDATES, MAX_CANDIDATES)
        self._key = stream(sampler.key, CHOICE)
        self._work = Work(())
        self._logits: LogitRows = np.empty((0, 0), np.float32)

    def held_numbers(self, vocab_size: int) -> int:
        """Return how many numbers it holds while a row waits."""
        return vocab_size + 2 * min(self._count, vocab_size)

    def put(self, done: Verified, position: int) -> None:
        """Offer the row that a step brought, for the token at absolute ``position``.

        Raises ConstraintError if its mask allows no token.
        """
        assert done.logits is not None
        self._work, self._logits = done.work, done.logits[:1].copy()  # the step's own end with it
        logits = behind_penalties(done.work, self._logits[0])
        allowed = np.arange(logits.size) if done.work.masks is None else allowed_tokens(done.work.masks[0], logits.size)
        if not np.isfinite(logits[allowed]).any():
            raise ConstraintError("the constraint leaves no token to go on with")
        logprobs = log_softmax(logits[allowed])
        best = most_likely(logprobs, self._count)
        best = best[logprobs[best] > -np.inf]
        drawn = float(uniform(self._key, position, np.zeros(1, np.int64))[0])
        self.offer = CandidateRow(position, pack_ids(allowed[best]), pack(logprobs[best]), entropy(logprobs), drawn)

    def take(self, token: int) -> Verified:
        """Return the step's outcome with the token that the program chose. Raises InvalidRequest for one that it may not have."""
        if self.offer is None:
            raise InvalidRequest("no row waits for the program's token")
        logits = self._logits[0]
        if not 0 <= token < logits.size:
            raise InvalidRequest(f"the sampler chose token {token}, which is outside the vocabulary of {logits.size}")
        masks = self._work.masks
        if masks is not None and not int(masks[0][token >> 5]) >> (token & 31) & 1:
            raise InvalidRequest(f"the sampler chose token {token}, which the constraint does not allow here")
        if not np.isfinite(behind_penalties(self._work, logits)[token]):
            raise InvalidRequest(f"the sampler chose token {token}, which the model never writes")
        self.offer = None
        return Verified(self._work, (token,), (), self._logits)


def behind_penalties(work: Work, logits: LogitRows, row: int = 0) -> LogitRows:
    """Return sampled row ``row`` of a step, float32[V], with the penalties and biases that it is drawn with."""
    return logits if work.adjustments is None else adjust(logits, work.adjustments[row])
