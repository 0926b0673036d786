"""The types of a step's stages that jobs see: :class:`Work` goes in, :class:`Verified` comes out.

Between them stand ``Planned`` (``job.py``), ``Batch`` (``models/batch.py``), ``InFlightStep`` (``in_flight.py``) and
``JobResult`` (``verification.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from inferd.protocol import TokenLogprob
from inferd_runtime.engine.sampling.host_sampling import LogitRows, Masks, RowSampler
from inferd_runtime.engine.sampling.penalties import Entries
from inferd_runtime.models.batch import FloatRows, Placement
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft


class Work(NamedTuple):
    """What a job asks of one step: feed ``tokens`` after those that its table holds, and sample the last ``rows`` of them.

    The last ``len(draft)`` tokens are the draft's; ``filtered`` names the sources of draft tokens that the grammar forbade.
    ``masks`` (int32[rows, words]) are the grammar's, one per sampled row, and ``adjustments`` the penalties' (None: the sampler
    has none). ``scored``: the job also reads the sampled rows' logits as the model gave them. ``hidden``: the job also reads
    the final hidden states of so many last tokens. ``placement`` is set where positions or visibility are not those of plain
    text; the scheduler fills in the context's own, and that of a draft tree. ``admit`` returns the tokens that the job writes
    where the sampled ones would overdraw its budget: the same up to some place, and another one there. ``confident``: where the
    device samples the one row, the job also reads how sure it was. ``logprobs``: it also reads each emitted token's
    log-probability, and those of so many of the likeliest at its place (None: it does not). ``late``: mask and penalties depend
    on a token in flight, and are filled in before the row is sampled (``Job.completed``).
    """

    tokens: Sequence[int]
    rows: int = 0
    draft: Draft = NO_DRAFT
    masks: Masks | None = None
    sampler: RowSampler | None = None
    hidden: int = 0
    placement: Placement | None = None
    filtered: Sequence[str] = ()
    adjustments: Sequence[Entries] | None = None
    scored: bool = False
    admit: Callable[[Sequence[int]], Sequence[int]] | None = None
    confident: bool = False
    logprobs: int | None = None
    late: bool = False


class Verified(NamedTuple):
    """A job's outcome: ``tokens`` are the accepted draft plus the first sample that is not the draft's.

    ``admitted``: the job writes other tokens than the sampled ones. ``path``: which nodes of the draft were accepted, in order.
    ``logits`` (float32[rows, V]) and ``hidden`` (float32[hidden, E]) are views that end with the step. ``cost``: the step's time,
    by the cost model, relative to one without drafts; ``saved``: the seconds that the accepted part was worth, less what the
    whole draft cost. ``confidence``: the sampled token's share (``kernels/confidence.py``), if the work asked for it and the
    device sampled. ``logprobs``: of each token, if the work asked for them and the device sampled; else they are read off the
    logits.
    """

    work: Work
    tokens: Sequence[int]
    path: Sequence[int] = ()
    logits: LogitRows | None = None
    hidden: FloatRows | None = None
    cost: float = 1.0
    saved: float = 0.0
    confidence: float = 1.0
    admitted: bool = False
    logprobs: Sequence[TokenLogprob] | None = None

    @property
    def accepted(self) -> int:
        """The number of accepted draft tokens."""
        return len(self.path)

    @property
    def rejected(self) -> int:
        """The number of draft tokens that were not accepted."""
        return len(self.work.draft) - len(self.path)
