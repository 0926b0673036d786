"""What wants rows in the batch, and its place in a planned step."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from inferd.protocol import InferdError
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.kv.table import PageTable
from inferd_runtime.speculation.drafts import Draft


class NextWork(Enum):
    """What a job wants behind the token that a row on its way brings it, unless what that token is ends it."""

    ROW = "one row more, to feed that token and sample the next"
    NOTHING = "nothing: it ends with that token, or has ended"
    OPEN = "that depends"


class Job(Protocol):
    """Something that wants rows in the batch. All methods are synchronous and called between forwards.

    ``speculates``: whether it is asked for a guess at all.
    """

    context: CachedSequence
    priority: int
    speculates: bool

    def ready(self) -> bool:
        """Whether it wants anything now."""
        ...

    def guess(self) -> Draft:
        """What it would like to have verified in the next step; NO_DRAFT for nothing. May be asked in vain."""
        ...

    def work(self, budget: int, draft: Draft) -> Work:
        """What it wants, at most ``budget`` tokens, with what it may verify of its guess. May be asked twice in one step."""
        ...

    def commit(self, done: Verified) -> None:
        """Take the step's outcome. The page table has already advanced over the fed tokens that stay."""
        ...

    def outlook(self) -> NextWork:
        """What it will want next. Asked where a step is on its way that brings it one token."""
        ...

    def fail(self, error: InferdError) -> None:
        """End with an error."""
        ...

    def finished(self) -> bool:
        """Whether it will never want anything again."""
        ...


class Planned(NamedTuple):
    """A job's work with the pages it needs reserved, and the key of the adapter that computes it ("": none).

    ``ahead``: tokens of the job that are in flight, and come before these. ``carried``: its place in the step that they are
    in, which draws the token that is fed here (-1: the host knows it).
    """

    job: Job
    work: Work
    table: PageTable
    adapter: str = ""
    ahead: int = 0
    carried: int = -1

    @property
    def start(self) -> int:
        """Where its first token stands in its sequence, by what is known when the step is laid out."""
        return self.table.length + self.ahead
