"""What a job asks of a step, and what the step brings it. Between them: Planned (``job.py``) and Batch (``models/batch.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferd_runtime.engine.sampling.host_sampling import LogitRows, Masks, RowSampler
from inferd_runtime.engine.sampling.penalties import Entries
from inferd_runtime.models.batch import FloatRows, Placement
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft


class Work(NamedTuple):
    """What a job asks of this step: feed ``tokens`` behind its table, sample the last ``rows`` of them.

    The last ``len(draft)`` tokens are the draft's; ``filtered`` names the sources of guesses that the grammar forbade.
    ``masks`` (int32[rows, words]) are the grammar's, one per sampled row; so are ``adjustments`` (None: the sampler has none).
    ``scored``: the job reads the sampled rows' logits, too, as the model gave them. ``hidden``: the last that many tokens'
    final hidden states are wanted, too. ``placement`` where the tokens do not all stand at their index and see all before; the
    scheduler fills in the context's own, and the draft's where that is a tree.
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


class Verified(NamedTuple):
    """A job's outcome: ``tokens`` are the accepted draft plus the first sample that is not the draft's.

    ``path``: which nodes of the draft were accepted, in order. ``logits`` (float32[rows, V]) and ``hidden`` (float32[hidden,
    E]), views that die with the step, for jobs that probe. ``cost``: how long the step takes, by the cost model, relative to
    one without drafts; ``saved``: the seconds that the accepted part was worth, less what the whole draft cost.
    """

    work: Work
    tokens: Sequence[int]
    path: Sequence[int] = ()
    logits: LogitRows | None = None
    hidden: FloatRows | None = None
    cost: float = 1.0
    saved: float = 0.0

    @property
    def accepted(self) -> int:
        """How many tokens of the draft stand."""
        return len(self.path)
