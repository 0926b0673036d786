"""The counters of speculation: of one source, of one generation or a whole engine, and of one draft model.

The engine counts with these types, its statistics carry them to the gateway, and the metrics read them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferd.protocol import SourceCount


@dataclass(slots=True)
class DraftCounts:
    """One source's tokens: verified, forbidden by a grammar before that, and accepted."""

    drafted: int = 0
    filtered: int = 0
    accepted: int = 0


@dataclass(slots=True)
class SpeculationCounters:
    """Counts of drafts and tokens, over the ``steps`` of one generation or of all that had sources.

    ``drafts``: steps that verified a draft. ``emitted``: sampled tokens, end-of-text included.
    ``accepted_per_position[i]``: how often the draft's token at depth ``i`` was accepted.
    """

    steps: int = 0
    drafts: int = 0
    emitted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    sources: dict[str, DraftCounts] = field(default_factory=dict)

    @property
    def drafted(self) -> int:
        """Draft tokens that were verified."""
        return sum(counts.drafted for counts in self.sources.values())

    @property
    def wasted(self) -> int:
        """Draft tokens that were verified and not accepted."""
        return self.drafted - self.accepted

    @property
    def truncated(self) -> int:
        """Accepted tokens behind the end of their generation: every step samples one token more than it accepts."""
        return self.steps + self.accepted - self.emitted

    def count(self, counts: Sequence[SourceCount], accepted: int, emitted: int) -> None:
        """Add one step of one generation."""
        self.steps += 1
        self.emitted += emitted
        self.accepted += accepted
        if not counts:
            return
        self.drafts += any(one.drafted for one in counts)
        while len(self.accepted_per_position) < accepted:
            self.accepted_per_position.append(0)
        for position in range(accepted):
            self.accepted_per_position[position] += 1
        for one in counts:
            total = self.sources.setdefault(one.source, DraftCounts())
            total.drafted += one.drafted
            total.filtered += one.filtered
            total.accepted += one.accepted


@dataclass(slots=True)
class DraftModelCounters:
    """Counts of a draft model's requests and drafts.

    ``hits``: steps after which the draft ahead went on as the target did; ``misses``: steps after which it did not, and was
    thrown away. ``timeouts``: drafts that were late for their step; ``failures``: requests that ended with an error.
    ``waited``: seconds that steps waited for drafts.
    """

    requests: int = 0
    hits: int = 0
    misses: int = 0
    timeouts: int = 0
    failures: int = 0
    waited: float = 0.0


def count_sources(sources: Sequence[str], path: Sequence[int], filtered: Sequence[str]) -> list[SourceCount]:
    """Return one step's counts by source.

    ``sources``: whose each verified token was; ``path``: which of them were accepted; ``filtered``: whose the illegal ones were.
    """
    accepted = [sources[node] for node in path]
    names = dict.fromkeys([*sources, *filtered])
    return [SourceCount(name, sources.count(name), filtered.count(name), accepted.count(name)) for name in names]
