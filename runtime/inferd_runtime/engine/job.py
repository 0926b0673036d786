"""The interface of a job, which is whatever asks for rows in the batch, and its place in a planned step."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from inferd.protocol import InferdError
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.kv.table import PageTable
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft


class NextWork(Enum):
    """What a job asks for behind its work that is in flight."""

    ROW = "a row that feeds the last token of what is in flight, unless that token ends the job"
    LATE_ROW = "such a row, whose mask and penalties are known with that token"
    PENDING = "the pending tokens behind those in flight, whatever these bring"
    NOTHING = "nothing in the next step: it has ended, ends with what is in flight, or pauses then"
    UNKNOWN = "not known before the outcome of what is in flight"


class Job(Protocol):
    """Whatever asks for rows in the batch. All methods are synchronous and called between forward passes.

    ``speculates``: True if it may have drafts to verify.
    """

    context: CachedSequence
    priority: int
    speculates: bool

    def ready(self) -> bool:
        """True if it asks for rows now."""

    def propose(self) -> Draft:
        """Make a draft for the next step to verify; NO_DRAFT, as here, for none. The step may not verify it."""
        return NO_DRAFT

    def propose_behind(self, ahead: Sequence[int]) -> Draft:
        """Make a draft for the row behind its work in flight, as if all of the draft in flight, ``ahead``, were accepted."""
        return NO_DRAFT

    def work(self, budget: int, draft: Draft, ahead: int = 0) -> Work:
        """Return the work for this step, at most ``budget`` tokens, with ``draft``, a part of what it proposed.

        ``ahead``: so many of its pending tokens are in flight; the work begins behind them. May be called twice in one step.
        """

    def completed(self, work: Work) -> Work:
        """Return a late row with what depends on the token before it, now that this is committed. Here nothing of it is late."""
        return work

    def commit(self, done: Verified) -> None:
        """Take the step's outcome. The page table has already advanced over the fed tokens that stay."""

    def next_work(self, in_flight: Work) -> NextWork:
        """Return what it asks for behind ``in_flight``, its work in the step that is on the device."""

    def fail(self, error: InferdError) -> None:
        """End with an error."""

    def finished(self) -> bool:
        """True if it will never ask for rows again."""


class Planned(NamedTuple):
    """A job's work with its pages reserved. ``adapter`` is the key of the adapter that computes it ("": none).

    ``ahead``: tokens of the job that are in flight, and come before these. ``carried``: which of the sequences that the step in
    flight samples returns the token that is fed here (-1: the host knows the token). ``stale``: the draft here was made for
    another outcome of the draft before it, and is taken to be rejected at once.
    """

    job: Job
    work: Work
    table: PageTable
    adapter: str = ""
    ahead: int = 0
    carried: int = -1
    stale: bool = False

    @property
    def start(self) -> int:
        """The index of its first fed token in the context, as of the planning."""
        return self.table.length + self.ahead


class Continuation(NamedTuple):
    """How a job goes on behind ``ahead`` tokens that it has in flight.

    ``row`` feeds the last token that sampled sequence ``carried`` of the step in flight returns. None, and -1: it feeds its next
    pending tokens. ``draft``: the tokens of its draft in flight, all of which are accepted with probability ``chance``; if not, a
    draft behind the row is rejected, too. ``lost``: the expected share of its tokens in the next step that is lost by this.
    """

    ahead: int
    row: Work | None = None
    carried: int = -1
    draft: Sequence[int] = ()
    chance: float = 1.0
    lost: float = 0.0
