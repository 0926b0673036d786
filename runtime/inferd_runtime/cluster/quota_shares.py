"""How what a tenant may have is divided between the replicas of a cluster, by recent use.

Each replica enforces its share alone, without asking anybody. One process, the divider, hears now and then what each uses, and
tells each its share. Messages may be late, lost or out of order: the shares that replicas may believe to have never add up to
more than the quota, because what one is to lose is given to another only once the first has confirmed it.

The engine's time is divided in the same way: a tenant's ``weight``, by the time that it was served on each replica, with
``WEIGHT_SPARE``. Repeated, this is proportional response (Wu and Zhang, STOC 2007), which ends in the weighted max-min fair
division.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

SPARE = 0.05
"""The part of a quota that is spread evenly, so that a replica that was not used has something to begin with."""
WEIGHT_SPARE = 0.002
"""The same for weights: less, because a replica where nothing is left for a tenant answers even a small weight with some time,
and what is spent there is missing elsewhere."""


def divided(
    total: float, wanted: Mapping[str, float], *, whole: bool = False, spare: float = SPARE
) -> dict[str, float]:
    """Return the share of each replica in ``wanted``: the part ``spare`` evenly, the rest by what each wants.

    The shares add up to ``total``. ``whole``: they are whole numbers (``total`` is one), of which some may be 0.
    """
    if not wanted:
        return {}
    sum_, even = sum(wanted.values()), total / len(wanted)
    if sum_ <= 0:
        shares = dict.fromkeys(wanted, even)
    else:
        shares = {name: spare * even + (1 - spare) * total * want / sum_ for name, want in wanted.items()}
    return _rounded(int(total), shares) if whole else shares


def _rounded(total: int, shares: Mapping[str, float]) -> dict[str, float]:
    """Return whole shares that add up to ``total``: rounded down, and what is left to the largest remainders."""
    whole = {name: float(floor(share)) for name, share in shares.items()}
    left = total - int(sum(whole.values()))
    for name in sorted(shares, key=lambda one: (whole[one] - shares[one], one))[:left]:
        whole[name] += 1
    return whole


@dataclass(frozen=True)
class QuotaShare:
    """What a replica may use. A replica applies it if its ``number`` is above that of the one it has.

    An ``amount`` of 0 allows nothing, where a quota of 0 is no limit.
    """

    number: int = 0
    amount: float = 0.0


@dataclass
class _Part:
    """What the divider knows of a replica: the share it was sent, and the last that it said.

    ``held`` is the most that it may use, whatever message is under way.
    """

    share: QuotaShare
    held: float
    confirmed: int = 0
    wanted: float = 0.0


class SharedQuota:
    """One quota of one tenant, divided.

    For what is held (runs, sockets, bytes), a replica whose share falls below what it uses keeps that and takes nothing more. For
    rates, it charges its bucket with what its share grows by, or the growth could be used twice in a minute.
    """

    def __init__(self, total: float, *, whole: bool) -> None:
        self.total = total
        self._whole = whole
        self._parts: dict[str, _Part] = {}

    @property
    def held(self) -> float:
        """The most that all replicas together may use now. Never above the total, unless more was in use when one joined."""
        return sum(part.held for part in self._parts.values())

    def join(self, replica: str, share: QuotaShare | None = None, held: float = 0.0) -> None:
        """Add a replica. ``share`` and ``held`` are what it says it has, where a divider takes over from another.

        That divider must add all replicas before it divides, or what those use that it has not heard of is given away twice.
        """
        known = share or QuotaShare()
        self._parts[replica] = _Part(known, max(known.amount, held), known.number)

    def leave(self, replica: str) -> None:
        """Remove a replica that is known to have ended: what it had is free."""
        self._parts.pop(replica, None)

    def report(self, replica: str, number: int, held: float, wanted: float) -> None:
        """Take in what a replica says: the number of its share, what it has in use or may still take (the larger one of share
        and use), and what it would use if there was no limit: what it uses and what it refused.
        """
        part = self._parts.get(replica)
        if part is None or number < part.confirmed:
            return
        part.wanted, part.confirmed = wanted, number
        part.held = held if number == part.share.number else max(held, part.share.amount)

    def divide(self) -> dict[str, QuotaShare]:
        """Return the share of each replica, to be sent to it (again), whether or not it has changed.

        A replica that has not confirmed its last share keeps that one.
        """
        targets = divided(self.total, {name: part.wanted for name, part in self._parts.items()}, whole=self._whole)
        ready = [name for name, part in self._parts.items() if part.confirmed == part.share.number]
        for name in ready:
            self._send(name, min(targets[name], self._parts[name].share.amount))
        free = self.total - self.held
        for name in sorted(ready, key=lambda one: (self._parts[one].share.amount - targets[one], one)):
            part = self._parts[name]
            free += part.held
            self._send(name, max(part.share.amount, min(targets[name], free)))
            free -= part.held
        return {name: part.share for name, part in self._parts.items()}

    def _send(self, name: str, amount: float) -> None:
        part = self._parts[name]
        if amount != part.share.amount:
            number = part.share.number + (part.confirmed == part.share.number)
            part.share = QuotaShare(number, amount)
            part.held = max(part.held, amount)
