"""The counters of speculation: of one generation or a whole engine, and of one draft model.

The engine counts with these types, its statistics carry them to the gateway, and the metrics read them there. From a step to the
metrics, drafted, accepted and emitted tokens are counted by these types, each for one thing:

- ``SourceCount`` (protocol): one source in one step, as steps carry it; ``SourceStats`` (SDK): the sum over steps.
- ``Step`` (protocol): one step, as it is delivered; ``SpeculationCycle`` (SDK): the same without tokens, for ``on_cycle``;
  ``WatchedCycle`` (engine link): a cycle with its place in the tenant's stream.
- ``SpeculationCounters``: the engine's sum over steps of a generation, or of a model. Added to in place, in every step.
- ``SpeculationStats`` (SDK): the program's sum over the steps that it was handed. Immutable, because programs keep it.
- ``Usage`` (protocol): what a session is charged for; ``RunUsage`` (worker): that and the run's times and memory.
- ``DraftModelCounters``: requests to a draft model. They are no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferd.protocol import SourceCount
from inferd.speculation_stats import SourceStats


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
    sources: dict[str, SourceStats] = field(default_factory=dict)

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
            self.sources[one.source] = self.sources.get(one.source, SourceStats()) + one


@dataclass(slots=True)
class DraftModelCounters:
    """Counts of a draft model's requests and drafts.

    ``hits``: steps after which the draft ahead went on as the target did; ``misses``: steps after which it did not, and was
    thrown away. ``timeouts``: drafts that were late for their step; ``failures``: requests that ended with an error.
    ``waited``: seconds that steps waited for drafts. ``late``: answers of which nothing was left, as the target had gone on.
    ``connections``: those made to a draft engine on another machine; ``round_trip``: seconds that a message usually travels to it
    and back.
    """

    requests: int = 0
    hits: int = 0
    misses: int = 0
    timeouts: int = 0
    failures: int = 0
    waited: float = 0.0
    late: int = 0
    connections: int = 0
    round_trip: float = 0.0


def count_sources(sources: Sequence[str], path: Sequence[int], filtered: Sequence[str]) -> list[SourceCount]:
    """Return one step's counts by source.

    ``sources``: whose each verified token was; ``path``: which of them were accepted; ``filtered``: whose the illegal ones were.
    """
    accepted = [sources[node] for node in path]
    names = dict.fromkeys([*sources, *filtered])
    return [SourceCount(name, sources.count(name), filtered.count(name), accepted.count(name)) for name in names]
