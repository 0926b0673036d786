"""The chance that a draft token is accepted: counted by source, by length of the match, and by place in the draft."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

MATCHES = (1, 2, 3, 5, 8, 12)
"""Lower bounds of the buckets of match lengths, after the first: 0 (signs alone), 1 (the letters of a word), 2, 3-4, 5-7, 8-11,
12 and more.
"""
PLACES = (1, 2, 4, 8, 16)
"""Lower bounds of the groups of places in a draft, after the first: 0, 1, 2-3, 4-7, 8-15, 16 and later."""
GROUPS = tuple(bisect_right(PLACES, place) for place in range(64))
DECAY = 0.98
FADE = 0.999
ENGINE_DECAY = 0.995
ENGINE_WEIGHT = 20.0
FIRST_WEIGHT = 2.0
MOST_ODDS = 20.0
LOOKUP = ((0.3, 0.6), (0.5, 0.85), (0.35, 0.65), (0.5, 0.75), (0.65, 0.85), (0.8, 0.92), (0.9, 0.96))
KNOWN = {"predicted": ((0.8, 0.95),) * 7, "draft_model": ((0.7, 0.75),) * 7, "grammar": ((0.95, 0.98),) * 7}
"""The prior: the chance of a draft's first token and of those after it, by bucket of matches."""
SECOND = 0.25
"""The prior of the first token of an alternative; such a source's name has a slash in it."""
Cell = list[float]


class Survival:
    """The counts of the whole engine: accepted and rejected per (source, match, place), decayed, each a Beta distribution.

    Evidence decays by ENGINE_DECAY with every draft that adds to it (a request's own by DECAY: the engine sees many at once), and
    by FADE with every use of it: a source that is not tried any more drifts back to the prior, until it is tried again. The
    prior weighs as much as FIRST_WEIGHT drafts only, because sources are mostly right or mostly wrong.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[str, int], list[Cell]] = {}

    def request(self) -> RequestSurvival:
        """Return the statistics of one new request, on top of these."""
        return RequestSurvival(self)

    def chances(self, source: str, bucket: int) -> list[float]:
        """Return the chance per group of places, for one bucket of matches.

        A group's prior is shifted by as much as the group before it differs from its own: where first tokens are accepted more
        often than assumed, so will later ones that were not tried yet.
        """
        groups, odds = [], 1.0
        for (held, fell), assumed in zip(self._of(source, bucket), _assumed(source, bucket), strict=True):
            first = odds * assumed / (1 - assumed + odds * assumed)
            chance = (held + FIRST_WEIGHT * first) / (held + fell + FIRST_WEIGHT)
            odds = max(1 / MOST_ODDS, min(MOST_ODDS, chance / (1 - chance) * (1 - assumed) / assumed))
            groups.append(chance)
        return groups

    def learn(self, source: str, bucket: int, proposed: int, accepted: int) -> None:
        """Count one verified draft."""
        _count(self._of(source, bucket), proposed, accepted, ENGINE_DECAY)

    def fade(self, source: str, bucket: int) -> None:
        """Let the evidence for one bucket of matches fade, because a proposal makes use of it."""
        _fade(self._of(source, bucket))

    def _of(self, source: str, bucket: int) -> list[Cell]:
        return self._cells.setdefault((source, bucket), _empty())


class RequestSurvival:
    """One request's own counts, blended with the engine's as if those were ENGINE_WEIGHT drafts of its own."""

    def __init__(self, engine: Survival) -> None:
        self._engine = engine
        self._cells: dict[tuple[str, int], list[Cell]] = {}

    def chances(self, source: str, match: int, count: int) -> list[float]:
        """Return the chance in (0, 1) of each of ``count`` places in a draft that its token is accepted if all before it are."""
        bucket = bisect_right(MATCHES, match)
        groups = self._engine.chances(source, bucket)
        cells = self._cells.get((source, bucket))
        if cells is not None:
            groups = [
                (held + ENGINE_WEIGHT * chance) / (held + fell + ENGINE_WEIGHT)
                for (held, fell), chance in zip(cells, groups, strict=True)
            ]
        return [groups[group] for group in GROUPS[:count]] + groups[-1:] * (count - len(GROUPS))

    def fade(self, source: str, match: int) -> None:
        """Let the evidence for a match of this length fade, the request's own and the engine's. Called before each use of it."""
        bucket = bisect_right(MATCHES, match)
        self._engine.fade(source, bucket)
        _fade(self._cells.get((source, bucket), ()))

    def learn(self, source: str, match: int, proposed: int, accepted: int) -> None:
        """Count a draft of ``proposed`` tokens: the first ``accepted`` were accepted, the next one, if there is one, was not."""
        bucket = bisect_right(MATCHES, match)
        _count(self._cells.setdefault((source, bucket), _empty()), proposed, accepted, DECAY)
        self._engine.learn(source, bucket, proposed, accepted)


def _empty() -> list[Cell]:
    return [[0.0, 0.0] for _ in range(len(PLACES) + 1)]


def _assumed(source: str, bucket: int) -> list[float]:
    name, _, beside = source.partition("/")
    first, later = KNOWN.get(name, LOOKUP)[bucket]
    return [SECOND if beside else first] + [later] * len(PLACES)


def _fade(cells: Sequence[Cell]) -> None:
    for cell in cells:
        cell[0] *= FADE
        cell[1] *= FADE


def _count(cells: Sequence[Cell], proposed: int, accepted: int, decay: float) -> None:
    edges = (0, *PLACES)
    for group, (cell, start) in enumerate(zip(cells, edges, strict=True)):
        if start >= min(proposed, accepted + 1):
            return
        end = PLACES[group] if group < len(PLACES) else proposed
        held = min(accepted, end) - start
        fell = start <= accepted < min(end, proposed)
        cell[0] = cell[0] * decay + held
        cell[1] = cell[1] * decay + fell
