"""Asks the replicas several times a second how they are, and finds heirs for those that have ended."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import anyio

from inferd.protocol import InferdError
from inferd_runtime.cluster.front.exchange import TenantExchange
from inferd_runtime.cluster.front.hop_client import HopClient, ReplicaGone, answer_of, own_request
from inferd_runtime.cluster.front.members import LOST_ROUNDS, Member, Members
from inferd_runtime.cluster.messages import (
    REPLICA_NAME,
    REPLICAS_FOLDER,
    REPORT_PATH,
    TAKE_OVER_PATH,
    FrontOrder,
    JoinCluster,
    ReplicaReport,
    TakeOver,
)
from inferd_runtime.server.run_store.archive import RUNS_FILE

POLL_SECONDS = 0.25
ANSWER_SECONDS = 5.0
TAKE_OVER_SECONDS = 60.0
log = logging.getLogger("inferd.cluster")


@dataclass
class Watcher:
    """``front``: the private address, for replicas; ``exchange`` gets each report."""

    hop: HopClient
    members: Members
    key: str
    data_dir: Path
    front: str
    exchange: TenantExchange

    async def watch(self) -> None:
        """Poll for ever. A replica that does not answer holds up no other."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._succeed)
            while True:
                for member in list(self.members.live.values()):
                    self._missed(member)
                    if not member.asked:
                        member.asked = True
                        tasks.start_soon(self._poll, member)
                self.exchange.divide()
                await anyio.sleep(POLL_SECONDS)

    async def _succeed(self) -> None:
        while True:
            await self._find_heirs()
            with anyio.move_on_after(POLL_SECONDS):
                await self.members.changed.wait()

    async def join(self, joining: JoinCluster) -> None:
        """Take a replica in that says it is there, once it answers. Raises ReplicaGone, and the error that it answers."""
        if joining.name not in self.members.live:
            self.exchange.join(joining.name)
            asked_at = time.monotonic()
            try:
                report = await self._ask(joining.name, joining.url, self.exchange.order(joining.name, self.front))
            except InferdError:
                self.exchange.leave(joining.name)
                raise
            self.exchange.heard(report, asked_at)
            self.members.join(joining, report)

    async def _poll(self, member: Member) -> None:
        report = member.report
        order = self.exchange.order(member.name, self.front, drained=report.draining, in_flight=member.in_flight)
        asked_at = time.monotonic()
        try:
            heard = await self._ask(member.name, member.url, order)
        except ReplicaGone as gone:
            self.members.unanswered(member, gone)
        except InferdError as error:
            log.error("replica %s: %s", member.name, error.message)
        else:
            if member.name in self.members.live:
                self.exchange.join(member.name)  # it may have been silent
            self.exchange.heard(heard, asked_at)
            self.members.reported(member, heard, asked_at)
        finally:
            member.asked = False

    async def _ask(self, name: str, url: str, order: FrontOrder) -> ReplicaReport:
        self.hop.peers.names[url] = name
        answer = await self.hop.ask(url, own_request(self.key, REPORT_PATH, order), ANSWER_SECONDS)
        report = answer_of(answer, ReplicaReport)
        if report.name != name:
            raise ReplicaGone(reached=False)  # another one listens there now
        return report

    def _missed(self, member: Member) -> None:
        self.members.missed(member)
        if member.unheard == LOST_ROUNDS:
            self.members.router.drain(member.name)
            self.exchange.leave(member.name)  # it hears that, should it hear at all

    # Heirs ----------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Note which folders are there whose replicas are not."""
        folder = self.data_dir / REPLICAS_FOLDER
        names = {path.parent.name for path in folder.glob(f"*/{RUNS_FILE}")}
        left = {name for name in names if REPLICA_NAME.fullmatch(name)} - self.members.live.keys()
        self.members.without_heir |= left - self.members.heirs.keys()

    async def _find_heirs(self) -> None:
        """Have replicas take over what others left. What a process still holds stays: that one starts, or is about to end."""
        self.look()
        for name in sorted(self.members.without_heir):
            usable = self.members.usable()
            if not usable:
                return
            heir = min(usable, key=lambda one: (len(one.report.runs), one.name))
            question = own_request(self.key, TAKE_OVER_PATH, TakeOver(name))
            try:
                await self.hop.ask(heir.url, question, TAKE_OVER_SECONDS)
            except InferdError as error:
                log.debug("%s does not take over from %s: %s", heir.name, name, error.message)
            else:
                log.info("%s has what %s left", heir.name, name)
                self.members.taken_over(name, heir.name)
                self.exchange.taken_over(name)
