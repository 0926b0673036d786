"""Weighted fair queueing over tenants and priorities.

Every tenant has a clock that advances by the service it received, divided by its weight. Tenants that are behind go first, and
one that is far ahead waits until the others have caught up (start-time fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996). Inside
a tenant each priority has a clock of the same kind, so that a priority takes from the tenant's own work only.

Service is time of the thread that owns the engines. What a step took is shared by its participants as :class:`StepCost` says:
where one more row in the batch costs next to nothing (a large accelerator), all run in every step; where it costs as much as a
step of its own (a CPU), a lone stream gets steps of its own while a tenant with fifty waits. The tenants' clock belongs to the
whole process: all models' steps and all operations advance it, so that a tenant pays for whatever it keeps the thread with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", str, int)

NARROW = 2
"""The time of a step of at most so many tokens tells the fixed cost of every step."""
LEARNING = 0.1
"""The weight of the newest narrow step in the moving average."""
QUANTUM_SECONDS = 0.02
"""The longest a step should take where several tenants have work: one that does not take part waits for its end."""
SHRINK, GROW, FILLED = 0.4, 1.2, 0.8
FIRST_BUDGET, LEAST_BUDGET = 1 / 4, 1 / 32
"""Parts of the most tokens that a step may have: at the start, and at least."""
LINGER_LEADS = 2
SAVED_SECONDS = 5 * QUANTUM_SECONDS
"""A tenant without work keeps its place while others get so much service, or that of LINGER_LEADS leads if it is more: it may be
about to ask again. It is also how far behind it can be when it does, and so how long the others then wait."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """What steps cost. ``fixed``: a step beside its tokens, in token times. ``row``: seconds of a token time.

    Not ``timed``, a step costs what this model says and not what it took: clocks then count token times, ``row`` of 1.
    """

    fixed: float = 8.0
    row: float = 1.0
    timed: bool = False

    @property
    def lead(self) -> float:
        """Service by which a clock may be ahead and still take part: two steps of one row."""
        lead = 2 * (self.fixed + 1) * self.row
        return min(lead, QUANTUM_SECONDS) if self.timed else lead

    def shares(self, tokens: Mapping[K, int]) -> dict[K, float]:
        """Return what each key pays of a step in which it fed so many tokens: those, and an even part of the fixed cost."""
        each = self.fixed / len(tokens)
        return {key: (count + each) * self.row for key, count in tokens.items()}


class StepMeter:
    """Divides the time that steps took among their participants, and says how many tokens the next one may have.

    What a narrow step takes is learnt, as the fixed part of every step, which is shared evenly; the rest is paid by tokens.
    """

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._fixed = cost.fixed * cost.row
        self._budget = FIRST_BUDGET

    def shares(self, tokens: Mapping[K, int], seconds: float | None = None) -> dict[K, float]:
        """Return what each key pays of a step in which it fed so many tokens and which took ``seconds`` (None: as modelled)."""
        if seconds is None or not self._cost.timed:
            return self._cost.shares(tokens)
        count = sum(tokens.values())
        if count <= NARROW:
            self._fixed += LEARNING * (seconds - self._fixed)
        fixed = min(self._fixed, seconds)
        each, row = fixed / len(tokens), (seconds - fixed) / count
        return {key: each + row * own for key, own in tokens.items()}

    def budget(self, most: int) -> int:
        """Return how many of ``most`` tokens a step may have, so that it takes no longer than ``QUANTUM_SECONDS``."""
        return max(1, round(most * self._budget)) if self._cost.timed else most

    def learn_budget(self, tokens: int, seconds: float, most: int) -> None:
        """Adapt the budget to what a step took: at once where that was too long, slowly where it filled the budget in less."""
        if seconds > QUANTUM_SECONDS and tokens > NARROW:
            change = max(SHRINK, QUANTUM_SECONDS / seconds)
        else:
            change = GROW if seconds < QUANTUM_SECONDS / 2 and tokens >= FILLED * self.budget(most) else 1.0
        self._budget = min(1.0, max(LEAST_BUDGET, self._budget * change))


class FairClock(Generic[K]):
    """One clock per key. A key that comes back starts no earlier than the one furthest behind, so that none saves up turns.

    Several sources of work may share it: models, and the queue of operations. ``lead``: how far a clock may be ahead of the
    others; ``linger``: for the service of so many leads, or ``SAVED_SECONDS``, a key that wants nothing keeps its place, and
    comes to be no further behind than that by what others get meanwhile.
    """

    def __init__(self, weight: Callable[[K], float], lead: float = 0.0, *, linger: int = 0) -> None:
        self._weight: Callable[[K], float] = weight
        self._leads = linger
        self.lead = lead
        self.linger = max(linger * lead, SAVED_SECONDS) if linger else 0.0
        self._clocks: dict[K, float] = {}
        self._active: dict[object, Collection[K]] = {}
        self._seen: dict[K, float] = {}
        self._idle: list[K] = []
        """The keys in ``_seen`` that want nothing."""
        self._served = 0.0
        self._given: dict[K, float] = {}
        self._just: dict[K, float] = {}

    def allow(self, lead: float) -> None:
        """Let clocks be ahead by ``lead``, or by more if that was allowed before."""
        self.lead = max(self.lead, lead)
        self.linger = max(self._leads * self.lead, self.linger)

    def next_round(self, keys: Collection[K], source: object = None) -> list[K]:
        """Note that ``keys`` want something of ``source``, and return those that may take part, furthest behind first.

        Empty if all of them are to wait for keys of other sources.
        """
        if not keys and not self._active.get(source):
            return []  # it wanted nothing before, either
        self._active[source] = keys
        active: set[K] = set().union(*self._active.values())
        self._start(active)
        if len(active) == 1:
            return list(keys)
        clocks = self._clocks
        behind = min((clocks[key] for key in active), default=0.0)
        fair = [key for key in keys if (clocks[key] - behind) * self._weight(key) <= self.lead]
        return sorted(fair, key=lambda key: (clocks[key], key))

    @property
    def contended(self) -> bool:
        """True if more than one key wants something, or did a moment ago."""
        return len(self._seen) > 1

    def charge(self, key: K, service: float) -> None:
        """Advance a clock by the service that its key received, unless nobody else is there."""
        self._served += min(service, max(self.lead, QUANTUM_SECONDS))  # a long turn counts as one
        self._given[key] = self._given.get(key, 0.0) + service
        self._just[key] = self._just.get(key, 0.0) + service
        self._advance(key, service)

    def charge_elsewhere(self, key: K, service: float, most: float) -> None:
        """Advance a clock by service that its key received on another machine, unless nobody else is there.

        It stays within ``most`` service of the clock furthest behind: no key waits for longer because of another machine.
        """
        self._advance(key, service, most)

    def take_given(self) -> dict[K, float]:
        """Return the service that each key received here since the last call."""
        given, self._given = self._given, {}
        return given

    def take_served(self) -> dict[K, float]:
        """Return the service that each key received here since the last call, whenever :meth:`take_given` was called."""
        just, self._just = self._just, {}
        return just

    def furthest_behind(self, keys: Iterable[K]) -> K | None:
        """Return the key whose clock is furthest behind, of those that count as there; None for none."""
        there = [key for key in keys if key in self._seen]
        return min(there, key=lambda key: (self._clocks[key], key), default=None)

    def excluded_by(self, key: K) -> set[K]:
        """Return the others that want something, if none of them could take part in a round with this key; else nothing."""
        others = {other for keys in self._active.values() for other in keys if other != key}
        clocks, own = self._clocks, self._clocks[key]
        return others if all((clocks[other] - own) * self._weight(other) > self.lead for other in others) else set()

    def _advance(self, key: K, service: float, most: float | None = None) -> None:
        others = [self._clocks[other] for other in self._seen if other != key]
        if not others:
            return
        clock, behind, weight = self._clocks.get(key, 0.0), min(others), self._weight(key)
        if key not in self._seen:
            clock = max(clock, behind)  # as if it came back now, so that this charge still counts when it does
        advanced = clock + service / weight
        self._clocks[key] = advanced if most is None else max(clock, min(advanced, behind + most / weight))
        self._pull_along_idle(key, self._clocks[key] - clock)

    def _pull_along_idle(self, key: K, advance: float) -> None:
        """Let idle keys follow a clock that has advanced, at a distance of ``linger``.

        Without this a key that asks for little now and then would save up turns without end; at a shorter distance a client that
        sends one request at a time would not get its share.
        """
        for other in self._idle:
            if other != key:
                behind = self._clocks[key] - self._clocks[other] - self.linger / self._weight(other)
                self._clocks[other] += max(0.0, min(advance, behind))

    def _start(self, active: set[K]) -> None:
        """Start the clocks of new keys, and forget who has been away for long."""
        clocks, seen, now = self._clocks, self._seen, self._served
        there = [clocks[key] for key in active if key in seen]
        start = min(there) if there else max((clocks.get(key, 0.0) for key in active), default=0.0)
        for key in active:
            if key not in seen:
                clocks[key] = max(clocks.get(key, 0.0), start)
            seen[key] = now
        if len(seen) > len(active):
            gone = [key for key, when in seen.items() if key not in active and now - when >= self.linger]
            for key in gone:
                del seen[key]
        self._idle = [key for key in seen if key not in active] if len(seen) > len(active) else []


def priority_weight(priority: int) -> float:
    """Return the weight of a priority, which doubles with each step up."""
    return 2.0**priority
