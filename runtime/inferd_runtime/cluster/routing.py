"""Where a run of a cluster starts. The rule, :func:`choose`, is a pure function; :class:`ClusterRouter` keeps what it looks at.

1. A session that a replica has goes to that replica, whatever its load: its contexts are there.
2. Else the run goes to a replica that has computed its beginning, the longest known one first. Replicas that are far busier
   than the idlest one are passed over, so that a beginning that everybody uses spreads over as many replicas as it needs.
3. Else it goes to the replica with the fewest runs; among equals to the one that has waited longest for a start.

A run never moves. There is no clock and no chance here: the same calls in the same order give the same answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from inferd.protocol import Unavailable
from inferd_runtime.cluster.prefixes import PrefixTable


class RouteReason(StrEnum):
    """Why a run starts where it does. ``OVERRIDE``: replicas know its beginning, but are too busy."""

    SESSION = "session"
    PREFIX = "prefix"
    LOAD = "load"
    OVERRIDE = "override"


@dataclass(frozen=True, kw_only=True)
class RoutingRule:
    """When affinity gives way, and how much a router remembers."""

    slack: int = 4
    """Runs that a replica may always have."""
    factor: float = 1.25
    """Beyond the slack, how many times the runs of the idlest replica it may have."""
    blocks_per_replica: int = 65_536
    """Blocks of prefixes that are remembered of each replica."""
    sessions_per_tenant: int = 4_096
    """Sessions without a run that are remembered of each tenant; beyond it, the one that was unused for longest is forgotten."""

    def most(self, fewest: int) -> float:
        """Return the runs that a replica may have, the new one included, to get a run that no session ties to it."""
        return self.slack + self.factor * fewest


@dataclass(frozen=True)
class RunStart:
    """What a router knows of a run that is to start. ``blocks``: see :func:`~inferd_runtime.cluster.prefixes.prefix_blocks`."""

    run: str
    tenant: str = ""
    session: str | None = None
    blocks: Sequence[bytes] = ()


@dataclass(frozen=True)
class RoutedRun:
    """Where a run is, and why. ``matched``: how many of its blocks were known there."""

    replica: str
    reason: RouteReason
    matched: int = 0


@dataclass(frozen=True, order=True)
class ReplicaLoad:
    """How busy a replica is: its runs, and when it last got one, as a number that grows with every start."""

    runs: int = 0
    last: int = 0


def choose(
    home: str | None, matches: Sequence[Collection[str]], loads: Mapping[str, ReplicaLoad], rule: RoutingRule
) -> RoutedRun:
    """Return the replica that a run starts on, of those in ``loads``.

    ``home`` is the replica of its session; ``matches[i]`` are the replicas that know the first ``i + 1`` blocks of its
    beginning. Others than those in ``loads`` are ignored. Raises Unavailable if there is no replica.
    """
    if not loads:
        raise Unavailable("no replica takes runs")
    if home is not None and home in loads:
        return RoutedRun(home, RouteReason.SESSION)
    fewest = min(loads.values()).runs
    free = rule.most(fewest)
    reason = RouteReason.LOAD
    for matched in range(len(matches), 0, -1):
        known = [name for name in matches[matched - 1] if name in loads]
        fitting = [name for name in known if loads[name].runs + 1 <= free]
        if fitting:
            return RoutedRun(_idlest(fitting, loads), RouteReason.PREFIX, matched)
        reason = RouteReason.OVERRIDE if known else reason
    return RoutedRun(_idlest(loads, loads), reason)


def _idlest(names: Iterable[str], loads: Mapping[str, ReplicaLoad]) -> str:
    return min(names, key=lambda name: (loads[name], name))


@dataclass
class _Tenant:
    """The sessions of a tenant: where each is, the longest unused first, and how many runs each has."""

    homes: OrderedDict[str, str] = field(default_factory=OrderedDict)
    runs: dict[str, int] = field(default_factory=dict)


class ClusterRouter:
    """Knows the replicas of a cluster, their runs and sessions, and what they have probably cached.

    A router that takes over from another asks each replica for its runs and sessions and calls :meth:`start_on` for them.
    """

    def __init__(self, rule: RoutingRule | None = None) -> None:
        self.rule = rule or RoutingRule()
        self._loads: dict[str, ReplicaLoad] = {}
        self._draining: set[str] = set()
        self._runs: dict[str, tuple[RunStart, RoutedRun]] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._prefixes = PrefixTable(self.rule.blocks_per_replica)
        self._starts = 0

    @property
    def loads(self) -> Mapping[str, int]:
        """The number of runs on each replica."""
        return {name: load.runs for name, load in self._loads.items()}

    def replica_of(self, run: str) -> str | None:
        """Return the replica of a run, None if it has ended or was lost."""
        found = self._runs.get(run)
        return found[1].replica if found else None

    def join(self, replica: str) -> None:
        """Add a replica, or have one that was draining take runs again."""
        self._loads.setdefault(replica, ReplicaLoad())
        self._draining.discard(replica)

    def pause(self, replica: str) -> None:
        """Start nothing more on a replica until it joins again; sessions that start nothing meanwhile stay its own."""
        if replica in self._loads:
            self._draining.add(replica)

    def drain(self, replica: str) -> None:
        """Start nothing more on a replica; its runs go on, and its sessions start their next runs elsewhere."""
        if replica in self._loads:
            self._draining.add(replica)
            self._leave_sessions(replica)

    def leave(self, replica: str) -> tuple[str, ...]:
        """Remove a replica that has ended. Return the runs that were lost with it, in the order of their starts."""
        lost = tuple(run for run, (_, routed) in self._runs.items() if routed.replica == replica)
        for run in lost:
            self.end(run)
        self._loads.pop(replica, None)
        self._draining.discard(replica)
        self._prefixes.drop(replica)
        self._leave_sessions(replica)
        return lost

    def start(self, start: RunStart) -> RoutedRun:
        """Return where a run starts, and count it there until :meth:`end`; where it is, if it has started already.

        Raises Unavailable if no replica takes runs.
        """
        if start.run in self._runs:
            return self._runs[start.run][1]
        tenant = self._tenants.get(start.tenant)
        home = tenant.homes.get(start.session) if tenant and start.session is not None else None
        matches = [self._prefixes.holders(block) for block in start.blocks]
        accepting = {name: load for name, load in self._loads.items() if name not in self._draining}
        return self._started(start, choose(home, matches, accepting, self.rule))

    def start_on(self, start: RunStart, replica: str) -> RoutedRun:
        """Count a run that is known to be on a replica, and its session."""
        if start.run in self._runs:
            return self._runs[start.run][1]
        self._loads.setdefault(replica, ReplicaLoad())
        return self._started(start, RoutedRun(replica, RouteReason.SESSION))

    def end(self, run: str) -> None:
        """Note that a run has ended. One that is not known is ignored."""
        found = self._runs.pop(run, None)
        if found is None:
            return
        start, routed = found
        load = self._loads[routed.replica]
        self._loads[routed.replica] = ReplicaLoad(load.runs - 1, load.last)
        if start.session is not None:
            self._rest(start.tenant, start.session)

    def _started(self, start: RunStart, routed: RoutedRun) -> RoutedRun:
        self._starts += 1
        self._loads[routed.replica] = ReplicaLoad(self._loads[routed.replica].runs + 1, self._starts)
        self._runs[start.run] = start, routed
        self._prefixes.note(routed.replica, start.blocks)
        if start.session is not None:
            tenant = self._tenants.setdefault(start.tenant, _Tenant())
            tenant.homes[start.session] = routed.replica
            tenant.runs[start.session] = tenant.runs.get(start.session, 0) + 1
        return routed

    def _rest(self, name: str, session: str) -> None:
        """Note that one run of a session has ended, and forget the oldest sessions that have none."""
        tenant = self._tenants[name]
        tenant.runs[session] -= 1
        if tenant.runs[session]:
            return
        del tenant.runs[session]
        if session in tenant.homes:
            tenant.homes.move_to_end(session)
        idle = len(tenant.homes) - len(tenant.runs)
        if idle > self.rule.sessions_per_tenant:
            del tenant.homes[next(one for one in tenant.homes if one not in tenant.runs)]
        self._drop_if_empty(name)

    def _leave_sessions(self, replica: str) -> None:
        for name, tenant in list(self._tenants.items()):
            for session in [one for one, home in tenant.homes.items() if home == replica]:
                del tenant.homes[session]
            self._drop_if_empty(name)

    def _drop_if_empty(self, name: str) -> None:
        tenant = self._tenants[name]
        if not tenant.homes and not tenant.runs:
            del self._tenants[name]
