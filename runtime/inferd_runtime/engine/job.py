"""The interface of a job, which is whatever asks for rows in the batch, and its place in a planned step."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from inferd.protocol import InferdError
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.kv.table import PageTable
from inferd_runtime.speculation.drafts import Draft


class NextWork(Enum):
    """What a job asks for after the one token that its row in flight will return, unless that token ends it."""

    ROW = "one plain row, which feeds that token and samples the next"
    NOTHING = "nothing: it has ended, or ends with that token"
    UNKNOWN = "not known before that token"


class Job(Protocol):
    """Whatever asks for rows in the batch. All methods are synchronous and called between forward passes.

    ``speculates``: True if it may have drafts to verify.
    """

    context: CachedSequence
    priority: int
    speculates: bool

    def ready(self) -> bool:
        """True if it asks for rows now."""
        ...

    def propose(self) -> Draft:
        """Make a draft for the next step to verify; NO_DRAFT for none. The step may not verify it."""
        ...

    def skip_draft(self) -> None:
        """Count a step for which no draft is proposed. Called only for jobs that speculate."""
        ...

    def work(self, budget: int, draft: Draft) -> Work:
        """Return the work for this step, at most ``budget`` tokens, with ``draft``, a part of what it proposed.

        May be called twice in one step.
        """
        ...

    def commit(self, done: Verified) -> None:
        """Take the step's outcome. The page table has already advanced over the fed tokens that stay."""
        ...

    def next_work(self) -> NextWork:
        """Return what it asks for next. Called while a step is in flight that returns it one token."""
        ...

    def fail(self, error: InferdError) -> None:
        """End with an error."""
        ...

    def finished(self) -> bool:
        """True if it will never ask for rows again."""
        ...


class Planned(NamedTuple):
    """A job's work with its pages reserved. ``adapter`` is the key of the adapter that computes it ("": none).

    ``ahead``: tokens of the job that are in flight, and come before these. ``carried``: the job's index in the step in flight,
    which samples the token that is fed here (-1: the host knows the token).
    """

    job: Job
    work: Work
    table: PageTable
    adapter: str = ""
    ahead: int = 0
    carried: int = -1

    @property
    def start(self) -> int:
        """The index of its first fed token in the context, as of the planning."""
        return self.table.length + self.ahead
