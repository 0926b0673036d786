"""The replicas that a front knows: which there are, what they report, and which one has what another left behind."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import anyio

from inferd.protocol import Unavailable
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.cluster.front.hop_client import ReplicaGone
from inferd_runtime.cluster.front.start_keys import Beginning
from inferd_runtime.cluster.messages import RUN_ID, JoinCluster, ReplicaReport
from inferd_runtime.cluster.prefixes import prefix_blocks
from inferd_runtime.cluster.routing import ClusterRouter, RunStart

PLACE_SECONDS = 60.0
"""How long a request waits for a replica that takes it: while a cluster starts, or is upgraded."""
HEIR_SECONDS = 60.0
"""How long a request about a run waits until its replica has an heir."""
SILENT_ROUNDS = 8
"""Rounds of polls, each a quarter of a second, after which a replica that answers none gets nothing new until it does."""
LOST_ROUNDS = 60
"""Rounds of polls after which what a replica that answers none has of quotas, and its sessions, are others'."""
log = logging.getLogger("inferd.cluster")


@dataclass
class Member:
    """A replica.

    ``in_flight``: requests that it is answering, except streams of events; ``asked``: a poll of it is under way; ``unheard``:
    how many rounds of polls ago it has last answered one.
    """

    name: str
    url: str
    report: ReplicaReport
    in_flight: int = 0
    unheard: int = 0
    asked: bool = False

    @property
    def silent(self) -> bool:
        """Whether it has not answered for so long that others are asked instead."""
        return self.unheard >= SILENT_ROUNDS


@dataclass
class Launching:
    """Where a run starts; ``run`` is set to its id once it has one."""

    member: Member
    run: str = ""


@dataclass
class _Launched:
    token: str
    at: float


class Members:
    """Belongs to the front's event loop. ``on_lost`` hears the name of each replica that has ended."""

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        self.router = ClusterRouter()
        self._on_lost = on_lost
        self.live: dict[str, Member] = {}
        self.heirs: dict[str, str] = {}
        """By a replica that has ended the one that has taken over what it left."""
        self.without_heir: set[str] = set()
        """Replicas that have ended, or are not here yet, whose folders are."""
        self.missing: set[str] = set()
        """Those of them that were here, or whose folders were there before this front: what they had will be somewhere."""
        self._launched: dict[str, _Launched] = {}
        self._tokens = (f"start-{number}" for number in itertools.count())
        self.changed = ChangeSignal()

    # Which are there ------------------------------------------------------------------------------------------------

    def join(self, joining: JoinCluster, report: ReplicaReport) -> None:
        """Add a replica that has answered, with the runs that it has already."""
        if joining.name in self.live:
            return
        log.info("replica %s has joined: %s", joining.name, joining.url)
        self.live[joining.name] = Member(joining.name, joining.url, report)
        self.without_heir.discard(joining.name)
        self.missing.discard(joining.name)
        self.router.join(joining.name)
        self._count_runs(joining.name, report)
        self.reported(self.live[joining.name], report, time.monotonic())

    def reported(self, member: Member, report: ReplicaReport, asked_at: float) -> None:
        """Take in what a replica said to a question of that time (monotonic seconds)."""
        if member.name not in self.live:
            return
        fresh = set(report.heir_of) - set(member.report.heir_of)
        member.report, member.unheard = report, 0
        self.heirs |= dict.fromkeys(report.heir_of, member.name)
        self.missing -= fresh
        if fresh:
            self._count_runs(member.name, report)
        self._end_launched(member.name, report, asked_at)
        if report.draining or not report.ready:
            self.router.drain(member.name)
        else:
            self.router.join(member.name)
        self.changed.wake()

    def lost(self, member: Member) -> None:
        """Remove a replica that has ended. What it left is an heir's before long."""
        if self.live.get(member.name) is not member:
            return
        log.warning("replica %s is gone", member.name)
        del self.live[member.name]
        self.without_heir.add(member.name)
        self.missing.add(member.name)
        self._on_lost(member.name)
        gone = set(self.router.leave(member.name))
        self._launched = {run: one for run, one in self._launched.items() if one.token not in gone}
        self.changed.wake()

    def missed(self, member: Member) -> None:
        """Note that a round of polls begins. A replica that has missed too many gets nothing new; its sessions wait for it."""
        member.unheard += 1
        if member.silent:
            self.router.pause(member.name)

    # Where things are -----------------------------------------------------------------------------------------------

    async def of_run(self, run: str) -> Member | None:
        """Return the replica that has a run; None if its id tells of none that is, or was, here.

        Waits while no replica has taken over yet what its own left. Raises Unavailable if that takes too long.
        """
        named = RUN_ID.fullmatch(run)
        return None if named is None else await self.of_replica(named[1])

    async def of_replica(self, name: str) -> Member | None:
        """Return a replica, or its heir; None if there was none of that name. Waits and raises as :meth:`of_run`."""
        with anyio.move_on_after(HEIR_SECONDS):
            while True:
                name = self.heir(name)
                if name in self.live or name not in self.without_heir:
                    return self.live.get(name)
                await self.changed.wait()
        raise Unavailable("the replica of this run has ended, and nobody has taken it over yet", retry_after_s=1.0)

    def heir(self, name: str) -> str:
        """Return the replica that has what this one had: itself, or the last one that took it over."""
        seen = {name}
        while name not in self.live and self.heirs.get(name, name) not in seen:
            name = self.heirs[name]
            seen.add(name)
        return name

    def taken_over(self, name: str, heir: str) -> None:
        """Note that a replica has what another left."""
        self.heirs[name] = heir
        self.without_heir.discard(name)
        self.missing.discard(name)
        self.changed.wake()

    def any(self) -> Member:
        """Return the replica that answers the fewest requests, a silent one last. Raises Unavailable if there is none."""
        if not self.live:
            raise Unavailable("no replica is there", retry_after_s=1.0)
        return min(self.live.values(), key=lambda member: (member.silent, member.in_flight, member.name))

    def usable(self) -> list[Member]:
        """Return the replicas that take runs."""
        return [one for one in self.live.values() if one.report.ready and not one.report.draining and not one.silent]

    @asynccontextmanager
    async def placed(self, tenant: str, beginning: Beginning) -> AsyncIterator[Member]:
        """Yield the replica that a request starts on, and count it there while the body runs."""
        token, member = await self._start(tenant, beginning)
        try:
            with self.answering(member):
                yield member
        finally:
            self.router.end(token)

    @contextmanager
    def answering(self, member: Member) -> Iterator[None]:
        """Count a request that a replica answers while the body runs."""
        member.in_flight += 1
        try:
            yield
        finally:
            member.in_flight -= 1

    @contextmanager
    def watched(self, member: Member) -> Iterator[None]:
        """Remove a replica if the body finds that nothing listens there."""
        try:
            yield
        except ReplicaGone as gone:
            self.unanswered(member, gone)
            raise

    def unanswered(self, member: Member, gone: ReplicaGone) -> None:
        """Remove a replica if nothing listens there. One that is late may be busy, or stopped, until it is silent for long."""
        if not gone.reached and (not gone.late or member.unheard >= LOST_ROUNDS):
            self.lost(member)

    @asynccontextmanager
    async def launching(self, tenant: str, beginning: Beginning) -> AsyncIterator[Launching]:
        """Yield where a run starts. It is counted there until it is over, if the body says which run it became."""
        token, member = await self._start(tenant, beginning)
        with self._counted(token, member) as launching:
            yield launching

    @asynccontextmanager
    async def launching_at(self, name: str, tenant: str, beginning: Beginning) -> AsyncIterator[Launching]:
        """The same, at a replica or its heir; anywhere if there was none of that name."""
        member = await self.of_replica(name)
        if member is None:
            token, member = await self._start(tenant, beginning)
        else:
            token = next(self._tokens)
            self.router.start_on(RunStart(token, tenant, beginning.session), member.name)
        with self._counted(token, member) as launching:
            yield launching

    @contextmanager
    def _counted(self, token: str, member: Member) -> Iterator[Launching]:
        launching = Launching(member)
        try:
            with self.answering(member):
                yield launching
        finally:
            if launching.run and launching.run not in self._launched and member.name in self.live:
                self._launched[launching.run] = _Launched(token, time.monotonic())
            else:
                self.router.end(token)

    async def _start(self, tenant: str, beginning: Beginning) -> tuple[str, Member]:
        blocks = prefix_blocks((tenant, *beginning.owner), beginning.texts)
        start = RunStart(next(self._tokens), tenant, beginning.session, blocks)
        with anyio.move_on_after(PLACE_SECONDS):
            while not self.usable():
                await self.changed.wait()
        routed = self.router.start(start)
        return start.run, self.live[routed.replica]

    # Runs that go on ------------------------------------------------------------------------------------------------

    def _count_runs(self, name: str, report: ReplicaReport) -> None:
        """Count the runs that a replica has and this front has not launched: another front did, or another replica had them."""
        now = time.monotonic()
        for run, tenant in report.runs.items():
            if run not in self._launched:
                token = next(self._tokens)
                self.router.start_on(RunStart(token, tenant), name)
                self._launched[run] = _Launched(token, now)

    def _end_launched(self, name: str, report: ReplicaReport, asked_at: float) -> None:
        """Forget the runs that a replica does not have any more."""
        for run, launched in list(self._launched.items()):
            here = self.router.replica_of(launched.token) == name
            if here and run not in report.runs and launched.at < asked_at:
                self.router.end(launched.token)
                del self._launched[run]
