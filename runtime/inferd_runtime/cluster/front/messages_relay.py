"""Topics and queues of the whole cluster: the front has them, and answers for the programs and scripts of every replica."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from inferd.protocol import InferdError, InvalidRequest
from inferd_runtime.cluster.front.admission import Admission
from inferd_runtime.cluster.front.cluster_offers import ClusterOffers
from inferd_runtime.cluster.front.hop_client import CONNECT_SECONDS
from inferd_runtime.cluster.front.members import Member, Members
from inferd_runtime.cluster.front.peers import ProvenPeers
from inferd_runtime.cluster.hop import hop_authorization
from inferd_runtime.cluster.relayed import (
    ADMIT_LAUNCH,
    MESSAGES_PATH,
    Answered,
    Ask,
    FrameOutbox,
    FromReplica,
    Gone,
    Received,
    Withdraw,
)
from inferd_runtime.server.processes.background import background_tasks
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import Answer, ServiceDesk, ServiceTable
from inferd_runtime.server.services.topics.families import join_messages
from inferd_runtime.server.services.topics.kept_values import KeptValues
from inferd_runtime.server.services.wires import JSON_WIRE

LOOK_SECONDS = 0.25
"""How often it is looked for replicas without a connection, and for tenants that have nothing running any more."""
FRAMES = msgspec.msgpack.Decoder(list[FromReplica])


@dataclass
class MessagesRelay:
    """Belongs to the front's event loop; ``tasks`` runs the operations. ``kept`` has the durable queues."""

    members: Members
    peers: ProvenPeers
    key: str
    admission: Admission
    kept: KeptValues
    tasks: anyio.abc.TaskGroup
    _linked: set[str] = field(default_factory=set)
    _tenants: set[str] = field(default_factory=set)
    """Those that may have something in a queue."""

    def __post_init__(self) -> None:
        self.table = ServiceTable(self.tasks)
        join_messages(self.table, self.kept)
        self.table.join(ClusterOffers())

    async def run(self) -> None:
        """Keep a connection to every replica."""
        async with anyio.create_task_group() as tasks:
            while True:
                for name in self.members.live.keys() - self._linked:
                    self._linked.add(name)
                    tasks.start_soon(self._keep, self.members.live[name])
                self._forget_idle()
                with anyio.move_on_after(LOOK_SECONDS):
                    await self.members.changed.wait()

    async def _keep(self, member: Member) -> None:
        """Serve a replica until the connection ends; :meth:`run` makes another one."""
        target = "ws" + member.url.removeprefix("http") + MESSAGES_PATH
        headers = {"authorization": hop_authorization(self.key)}
        try:
            # What is no message of a replica's ends the connection, too: something else may listen there by now.
            with contextlib.suppress(OSError, InvalidHandshake, ConnectionClosed, msgspec.MsgspecError):
                found = await self.peers.socket_to(member.url, CONNECT_SECONDS)
                async with connect(
                    target, sock=found, additional_headers=headers, compression=None, max_size=None,
                    open_timeout=CONNECT_SECONDS, proxy=None,
                ) as connection:  # fmt: skip
                    await _ReplicaLink(self, member.name, connection).serve()
            await anyio.sleep(LOOK_SECONDS)
        finally:
            self._linked.discard(member.name)

    def desk(self, ask: Ask, link: _ReplicaLink) -> ServiceDesk:
        """Return the desk of a replica's caller that asks for the first time."""
        self._tenants.add(ask.tenant)
        return self.table.open_desk(
            Caller(ask.tenant, ask.id, key=ask.key), JSON_WIRE, partial(link.answer, ask.caller)
        )

    def _forget_idle(self) -> None:
        """Drop what is in the queues of tenants that have neither a run nor a script's session on any replica."""
        for tenant in list(self._tenants):
            if not self.admission.active.count(tenant) and not self.admission.use.sockets.held(tenant):
                self._tenants.discard(tenant)
                self.table.idle(tenant)


class _ReplicaLink:
    """The connection to a replica, with the desks of its callers."""

    def __init__(self, relay: MessagesRelay, replica: str, connection: ClientConnection) -> None:
        self._relay = relay
        self._replica = replica
        self._connection = connection
        self._outbox = FrameOutbox()
        self._desks: dict[int, ServiceDesk] = {}

    async def serve(self) -> None:
        """Answer until the connection ends: then its callers are over. Raises ConnectionClosed."""
        try:
            async with background_tasks() as tasks:
                tasks.start_soon(self._send_all)
                while True:
                    # A frame has hundreds, and the next ones may be there already: others have their turn between two.
                    for message in FRAMES.decode(await self._connection.recv(decode=False)):
                        self._take(message)
                        await anyio.lowlevel.checkpoint()
        finally:
            for desk in self._desks.values():
                desk.close()

    def answer(self, caller: int, answer: Answer) -> None:
        """Send an answer to a caller, soon."""
        self._outbox.put(Answered(caller, answer.ticket, answer.ok, answer.payload, answer.receipt))

    async def _send_all(self) -> None:
        with contextlib.suppress(ConnectionClosed):  # the other direction notices
            await self._outbox.send_all(self._connection.send)

    def _take(self, message: FromReplica) -> None:
        if isinstance(message, Ask):
            self._ask(message)
        elif isinstance(message, Gone):
            desk = self._desks.pop(message.caller, None)
            if desk is not None:
                desk.close()
        elif message.caller in self._desks and isinstance(message, Withdraw):
            self._desks[message.caller].withdraw(message.ticket)
        elif message.caller in self._desks and isinstance(message, Received):
            self._desks[message.caller].received(message.ticket)

    def _ask(self, ask: Ask) -> None:
        if ask.op == ADMIT_LAUNCH:
            self._relay.tasks.start_soon(self._admit_launch, ask)
            return
        if ask.caller not in self._desks:
            self._desks[ask.caller] = self._relay.desk(ask, self)
        try:
            self._desks[ask.caller].ask(ask.ticket, ask.op, ask.payload)
        except InvalidRequest as error:
            self.answer(ask.caller, Answer(ask.ticket, False, JSON_WIRE.error(error)))

    async def _admit_launch(self, ask: Ask) -> None:
        try:
            await self._relay.admission.child(ask.tenant, self._replica)
        except InferdError as error:
            return self.answer(ask.caller, Answer(ask.ticket, False, JSON_WIRE.error(error)))
        self.answer(ask.caller, Answer(ask.ticket, True, b"{}"))
