"""How what a tenant may hold at a time is divided between the replicas of a cluster, by what each uses and wants.

Each replica enforces its share alone, without asking anybody. One process, the divider, hears several times a second what each
uses, and tells each its share. Messages may be late, lost or out of order: the shares that replicas may believe to have never add
up to more than the quota, because what one is to lose is given to another only once the first has confirmed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor

EVEN = 0.5
"""The part of what is free that is spread evenly, so that every replica has something to begin with; the rest goes by demand."""


def divided(total: int, used: Mapping[str, float], wanted: Mapping[str, float]) -> dict[str, int]:
    """Return the share of each replica in ``used``, a whole number.

    ``wanted``: what each would use if there was no limit, at least what it uses. If all want no more than there is, each has
    what it uses, and a part of what is free; else a part of all, by what it wants. The shares add up to ``total``.
    """
    if not used:
        return {}
    demand, each = sum(wanted.values()), 1 / len(used)
    if demand > total:
        return _rounded({name: total * want / demand for name, want in wanted.items()})
    free = max(total - sum(used.values()), 0.0)
    parts = {name: EVEN * each + (1 - EVEN) * (wanted[name] / demand if demand else each) for name in used}
    return _rounded({name: used[name] + free * parts[name] for name in used})


def _rounded(shares: Mapping[str, float]) -> dict[str, int]:
    """Return whole shares with the same sum, a whole number: rounded down, and what is left to the largest remainders."""
    whole = {name: floor(share) for name, share in shares.items()}
    left = round(sum(shares.values())) - sum(whole.values())
    for name in sorted(shares, key=lambda one: (whole[one] - shares[one], one))[:left]:
        whole[name] += 1
    return whole


def first_share(total: int, parts: int) -> int:
    """Return one of so many even parts of a quota that nobody has divided yet; 0 of 0 parts."""
    return total // parts if parts else 0


@dataclass(frozen=True)
class QuotaShare:
    """What a replica may use. A replica applies it if its ``number`` is not below that of the one it has.

    An ``amount`` of 0 allows nothing, where a quota of 0 is no limit.
    """

    number: int = 0
    amount: int = 0


@dataclass(frozen=True)
class QuotaUse:
    """What a replica says of a quota: the share that it has, what it uses, and what it would use if there was no limit."""

    share: QuotaShare
    used: int = 0
    wanted: int = 0

    @property
    def held(self) -> int:
        """The most that it may use before it hears of another share."""
        return max(self.used, self.share.amount)


@dataclass
class _Part:
    """What the divider knows of a replica: the share it was sent, and the last that it said.

    ``held`` is the most that it may use, whatever message is under way.
    """

    share: QuotaShare
    held: int
    confirmed: int = 0
    used: int = 0
    wanted: int = 0


class SharedQuota:
    """One quota of one tenant, divided. A replica whose share falls below what it uses keeps that, and takes nothing more."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._parts: dict[str, _Part] = {}

    @property
    def held(self) -> int:
        """The most that all replicas together may use now. Never above the total, unless more was in use when one joined."""
        return sum(part.held for part in self._parts.values())

    @property
    def idle(self) -> bool:
        """True if no replica uses or wants any of it."""
        return not any(part.used or part.wanted for part in self._parts.values())

    def join(self, replica: str, use: QuotaUse | None = None) -> None:
        """Add a replica. ``use`` is what it says it has, where a divider takes over from another; else it has nothing yet.

        That divider must add all replicas before it divides, or what those use that it has not heard of is given away twice.
        """
        known = use or QuotaUse(QuotaShare())
        self._parts[replica] = _Part(known.share, known.held, known.share.number, known.used, known.wanted)

    def leave(self, replica: str) -> None:
        """Remove a replica that is known to have ended: what it had is free."""
        self._parts.pop(replica, None)

    def report(self, replica: str, use: QuotaUse) -> None:
        """Take in what a replica says."""
        part = self._parts.get(replica)
        if part is None or use.share.number < part.confirmed:
            return
        if use.share.number >= part.share.number:  # another divider's share is taken over
            part.share = use.share
        part.used, part.wanted, part.confirmed = use.used, max(use.wanted, use.used), use.share.number
        part.held = use.held if use.share.number == part.share.number else max(use.held, part.share.amount)

    def share_of(self, replica: str) -> QuotaShare:
        """Return the share of a replica, to be sent to it again and again."""
        return self._parts[replica].share

    def divide(self) -> None:
        """Change the shares to what replicas use and want. One that has not confirmed its last share keeps that one."""
        parts = self._parts
        targets = divided(
            self.total, {n: part.used for n, part in parts.items()}, {n: part.wanted for n, part in parts.items()}
        )
        ready = [name for name, part in parts.items() if part.confirmed == part.share.number]
        for name in ready:
            self._send(name, min(targets[name], parts[name].share.amount))
        free = self.total - self.held
        for name in self._most_needed(ready, targets):
            part = parts[name]
            free += part.held
            self._send(name, max(part.share.amount, min(targets[name], free)))
            free -= part.held

    def _most_needed(self, names: Iterable[str], targets: Mapping[str, int]) -> list[str]:
        return sorted(names, key=lambda one: (self._parts[one].share.amount - targets[one], one))

    def _send(self, name: str, amount: int) -> None:
        part = self._parts[name]
        if amount != part.share.amount:
            number = part.share.number + (part.confirmed == part.share.number)
            part.share = QuotaShare(number, amount)
            part.held = max(part.held, amount)
