"""What became of drafts, summed over everything that an engine has served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferd.protocol import SourceCount


@dataclass(slots=True)
class SourceTotal:
    """One source's tokens: verified, forbidden by a grammar before that, and accepted."""

    drafted: int = 0
    filtered: int = 0
    accepted: int = 0


@dataclass(slots=True)
class SpeculationCounters:
    """Every ``emitted`` token was sampled: emitted = steps + accepted - truncated.

    ``drafts``: steps of one generation that verified a draft. ``accepted_per_position[i]``: how often the draft's token at
    depth ``i`` was accepted.
    """

    steps: int = 0
    drafts: int = 0
    emitted: int = 0
    accepted: int = 0
    truncated: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    sources: dict[str, SourceTotal] = field(default_factory=dict)

    @property
    def drafted(self) -> int:
        """Draft tokens that were verified."""
        return sum(total.drafted for total in self.sources.values())

    @property
    def wasted(self) -> int:
        """Draft tokens that were verified in vain."""
        return self.drafted - self.accepted

    def count(self, counts: Sequence[SourceCount], accepted: int, emitted: int) -> None:
        """Add one step of one generation."""
        self.steps += 1
        self.emitted += emitted
        self.accepted += accepted
        self.truncated += 1 + accepted - emitted
        if not counts:
            return
        self.drafts += any(one.drafted for one in counts)
        while len(self.accepted_per_position) < accepted:
            self.accepted_per_position.append(0)
        for position in range(accepted):
            self.accepted_per_position[position] += 1
        for one in counts:
            total = self.sources.setdefault(one.source, SourceTotal())
            total.drafted += one.drafted
            total.filtered += one.filtered
            total.accepted += one.accepted


def count_sources(sources: Sequence[str], path: Sequence[int], filtered: Sequence[str]) -> list[SourceCount]:
    """One step's counts: whose tokens were verified, which of them (``path``) were accepted, whose were illegal."""
    accepted = [sources[node] for node in path]
    names = dict.fromkeys([*sources, *filtered])
    return [SourceCount(name, sources.count(name), filtered.count(name), accepted.count(name)) for name in names]
