"""Counters of speculation: one step, one source, and the sum over a generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import zip_longest

from inferd.protocol import SourceCount, Step


@dataclass(frozen=True)
class SpeculationCycle:
    """Counters of one step of a generation, as ``on_cycle`` gets them.

    ``step`` counts from 1. ``source``: whose tokens were verified, several joined by ``+``, "" for a step without a draft.
    Of ``drafted`` tokens ``accepted`` stand; the step brought ``emitted`` tokens in all.
    """

    step: int
    source: str
    drafted: int
    accepted: int
    emitted: int

    @classmethod
    def of(cls, number: int, step: Step) -> SpeculationCycle:
        """Return what the generation's step of that number did."""
        source = "+".join(count.source for count in step.sources if count.drafted)
        return cls(number, source, step.drafted, step.accepted, emitted_by(step))


@dataclass(frozen=True)
class SourceStats:
    """One source's tokens: ``drafted`` were verified, ``accepted`` of them stand, and ``filtered`` ones were illegal under the
    constraint and never verified. A token that several sources proposed counts for the first of them.
    """

    drafted: int = 0
    filtered: int = 0
    accepted: int = 0

    def __add__(self, other: SourceStats | SourceCount) -> SourceStats:
        return SourceStats(self.drafted + other.drafted, self.filtered + other.filtered, self.accepted + other.accepted)


@dataclass(frozen=True)
class SpeculationStats:
    """Counters of drafts, over the ``steps`` that were delivered, of which ``drafts`` verified a draft. All counts are tokens.

    ``drafted`` tokens were verified, ``accepted`` of them stand, ``filtered`` ones were illegal under the constraint and never
    verified. ``emitted`` tokens were generated, end-of-text included; ``truncated`` accepted ones came behind the end of the
    generation: emitted = steps + accepted - truncated, always. ``accepted_per_position[i]``: how many drafts were right
    at their position ``i`` and all before it. ``saved_us``: microseconds that the drafts saved, by the runtime's cost model.
    """

    steps: int = 0
    drafts: int = 0
    drafted: int = 0
    filtered: int = 0
    accepted: int = 0
    truncated: int = 0
    emitted: int = 0
    accepted_per_position: tuple[int, ...] = ()
    by_source: Mapping[str, SourceStats] = field(default_factory=dict)
    saved_us: int = 0

    def plus(self, step: Step) -> SpeculationStats:
        """Return the counts with one more step."""
        plain = not step.sources
        return SpeculationStats(
            self.steps + step.joined,
            self.drafts + (step.drafted > 0),
            self.drafted + step.drafted,
            self.filtered + step.filtered,
            self.accepted + step.accepted,
            self.truncated + step.truncated,
            self.emitted + emitted_by(step),
            self.accepted_per_position if plain else _sums(self.accepted_per_position, (1,) * step.accepted),
            self.by_source if plain else _by_source(self.by_source, ((each.source, each) for each in step.sources)),
            self.saved_us + step.saved_us,
        )

    def plus_all(self, steps: Sequence[Step]) -> SpeculationStats:
        """Return the counts with more steps; where none of them had a draft, in the time that one takes."""
        if any(step.drafted or step.filtered or step.sources or step.truncated or step.saved_us for step in steps):
            return reduce(SpeculationStats.plus, steps, self)
        count = sum(step.joined for step in steps)
        return replace(self, steps=self.steps + count, emitted=self.emitted + count)

    @property
    def time_saved(self) -> float:
        """Seconds that the drafts saved, by the runtime's cost model; negative where they cost more."""
        return self.saved_us / 1e6

    @property
    def tokens_per_step(self) -> float:
        """1 without speculation; 0 before the first step."""
        return self.emitted / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Which share of what was verified stands; 0 where nothing was."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a step with a draft brings: 1 + accepted / drafts, as vLLM defines it; 1 where there was no draft."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    def __add__(self, other: SpeculationStats) -> SpeculationStats:
        return SpeculationStats(
            self.steps + other.steps,
            self.drafts + other.drafts,
            self.drafted + other.drafted,
            self.filtered + other.filtered,
            self.accepted + other.accepted,
            self.truncated + other.truncated,
            self.emitted + other.emitted,
            _sums(self.accepted_per_position, other.accepted_per_position),
            _by_source(self.by_source, other.by_source.items()),
            self.saved_us + other.saved_us,
        )


def emitted_by(step: Step) -> int:
    """Return how many tokens a step brought, end-of-text included: all that was accepted and the model's own, up to the end."""
    return step.joined + step.accepted - step.truncated


def _sums(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(one, other, fillvalue=0)))


def _by_source(
    known: Mapping[str, SourceStats], more: Iterable[tuple[str, SourceStats | SourceCount]]
) -> dict[str, SourceStats]:
    found = dict(known)
    for name, counts in more:
        found[name] = found.get(name, SourceStats()) + counts
    return found
