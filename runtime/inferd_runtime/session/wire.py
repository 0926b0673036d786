"""The wire between one session and the engine: ZeroMQ frames whose payload is opaque to relays.

Request: ``[ticket u32 LE][op][format][payload]``; reply: ``[ticket][b"+" or b"-"][payload]`` in the request's format, an
:class:`~inferd.protocol.ErrorInfo` after ``-``. ``format`` is ``j`` (JSON, from the sandbox) or ``m`` (msgpack, from the
network). A session is a DEALER socket with an identity of its own: ``session.open`` comes first, with the gateway's grant
(:mod:`~inferd_runtime.session.grants`), and ``session.close`` last, both only from this side of the wall, never from a program.
``cancel`` carries the ticket to stop.

Identities are random, and none is left to the engine's socket: nobody can take that of another's session before it connects.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import zmq

from inferd_runtime.engine.jobs.timeline import EndedGeneration, GenerationFigures
from inferd_runtime.speculation.counters import DraftModelCounters, SpeculationCounters

JSON = b"j"
MSGPACK = b"m"
SEND_MORE, DO_NOT_WAIT = int(zmq.SNDMORE), int(zmq.NOBLOCK)
"""As plain numbers: pyzmq would combine the enumeration's members for each frame, which takes longer than sending it."""
OK = b"+"
ERROR = b"-"
TICKET = struct.Struct("<I")
OPEN = "session.open"
CLOSE = "session.close"
CANCEL = "cancel"
RUN_SESSION = "run/"
"""Prefix of the name of a run's session, before the run's id. Its worker opens it; the gateway sees to its end."""


@dataclass(frozen=True)
class OpenSession:
    """Open the session that the gateway granted. Nothing is shared between tenants; ``label`` is shown to people."""

    grant: bytes
    label: str = ""


@dataclass(frozen=True)
class CloseNamedSessions:
    """Close those of the named sessions that are open, whichever connection opened them."""

    sessions: list[str]
    op: ClassVar[str] = "engine.close_sessions"


@dataclass(frozen=True)
class GetEngineStats:
    """Ask for :class:`EngineStats`."""

    op: ClassVar[str] = "engine.stats"


@dataclass(frozen=True)
class ModelStats:
    """One model's share of :class:`EngineStats`.

    ``reused_tokens`` did not have to be computed, because their prefix was; ``looked_up_tokens`` are all whose prefix was looked
    for, the reused included. ``swapped`` and ``recomputed`` count the contexts that had to leave the cache, by how they come
    back. ``speculation`` counts generations that had sources; ``breaker_open``: drafting is off at the moment, because it cost
    more than it brought. ``draft_models`` are by name.
    """

    name: str
    steps: int
    jobs: int
    pages: int
    pages_free: int
    reused_tokens: int = 0
    swapped: int = 0
    recomputed: int = 0
    speculation: SpeculationCounters = field(default_factory=SpeculationCounters)
    breaker_open: bool = False
    draft_models: dict[str, DraftModelCounters] = field(default_factory=dict)
    looked_up_tokens: int = 0
    generations: GenerationFigures = field(default_factory=GenerationFigures)


@dataclass(frozen=True)
class EngineStats:
    """Figures of all models' engines together and of each one: the answer to ``engine.stats``, for operators only."""

    steps: int
    jobs: int
    sessions: int
    pages: int
    pages_free: int
    models: list[ModelStats] = field(default_factory=list)


@dataclass(frozen=True)
class GetGenerations:
    """Ask for the generations that ended since index ``after`` of each model (none: all that are kept)."""

    after: dict[str, int] = field(default_factory=dict)
    op: ClassVar[str] = "engine.generations"


@dataclass(frozen=True)
class EndedGenerations:
    """The answer: by model, oldest first."""

    models: dict[str, list[EndedGeneration]]


@dataclass(frozen=True)
class GetProduced:
    """Ask how many tokens were generated since this was asked last."""

    op: ClassVar[str] = "engine.produced"


@dataclass(frozen=True)
class ProducedTokens:
    """The answer: by tenant, of those that have generated any."""

    tenants: dict[str, int]


@dataclass(frozen=True)
class ShareTenants:
    """Tell an engine of several that serve the same tenants what the others do. The answer is :class:`TenantsHere`.

    Fields:
        elsewhere: seconds of service that tenants received from the others since this was sent last.
        pages: how many of its pages a tenant may hold here, where it has a limit.
        parts: what the limits of other tenants are divided by; 0: they may hold nothing here.
    """

    elsewhere: dict[str, float] = field(default_factory=dict)
    pages: dict[str, int] = field(default_factory=dict)
    parts: int = 1
    op: ClassVar[str] = "engine.share"


@dataclass(frozen=True)
class TenantsHere:
    """Seconds of service that tenants received here since that was asked last, and the most pages that each holds of a model."""

    served: dict[str, float] = field(default_factory=dict)
    pages: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GetCycles:
    """Ask for a tenant's :class:`CyclePage` from index ``after`` on (-1: from now on). It goes on watching for a few seconds."""

    tenant: str
    after: int = -1
    op: ClassVar[str] = "engine.cycles"


@dataclass(frozen=True)
class WatchedCycle:
    """One delivered step of a generation: as :class:`~inferd.SpeculationCycle`, in which session and generation it was, and its
    ``index`` among the tenant's.
    """

    index: int
    session: str
    generation: int
    step: int
    source: str
    drafted: int
    accepted: int
    emitted: int


@dataclass(frozen=True)
class CyclePage:
    """Delivered steps in order. ``next``: the index to ask for next; ``missed``: how many before them were dropped."""

    cycles: list[WatchedCycle]
    next: int
    missed: int = 0


@dataclass(frozen=True)
class GetSlowStep:
    """Ask for the last step that took more than ``over_ms`` while somebody asked. Steps are profiled for a few seconds more."""

    over_ms: float
    op: ClassVar[str] = "engine.slow_step"


@dataclass(frozen=True)
class ProfiledFunction:
    """One function's part of a step: its place, how often it was called, milliseconds in it without and with what it called."""

    function: str
    calls: int
    own_ms: float
    total_ms: float


@dataclass(frozen=True)
class SlowStep:
    """A step as a profile: which model, with how many jobs, how long, in which part of the step, in which functions."""

    model: str
    jobs: int
    ms: float
    parts: dict[str, float]
    functions: list[ProfiledFunction]


@dataclass(frozen=True)
class FoundSlowStep:
    """The answer: None while no step was slow enough."""

    step: SlowStep | None = None


ENGINE_REQUESTS: Mapping[str, type] = {
    kind.op: kind
    for kind in (
        GetEngineStats, GetGenerations, CloseNamedSessions, GetProduced, ShareTenants, GetSlowStep, GetCycles,
    )
}  # fmt: skip
"""What the gateway alone may ask of the engine, in a session of its own."""
PRIVATE_OPERATIONS = frozenset({OPEN, CLOSE, CANCEL, *ENGINE_REQUESTS})


@dataclass(frozen=True)
class LinkReply:
    """One reply frame: the request's ticket, whether it went well, and the payload as sent."""

    ticket: int
    ok: bool
    payload: bytes


def request_frames(ticket: int, op: str, form: bytes, payload: bytes) -> list[bytes]:
    """Return the frames of one request."""
    return [TICKET.pack(ticket), op.encode(), form, payload]


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[bytes]) -> None:
    """Send frames as one message. Raises zmq.Again where the socket may not wait."""
    for frame in frames[:-1]:
        socket.send(frame, SEND_MORE)
    socket.send(frames[-1], 0)


def receive_frames(socket: zmq.Socket[bytes]) -> list[bytes]:
    """Return the frames of the next message that has arrived. Raises zmq.Again if there is none."""
    frame = socket.recv(DO_NOT_WAIT, copy=False)
    frames = [frame.bytes]
    while frame.more:
        frame = socket.recv(DO_NOT_WAIT, copy=False)
        frames.append(frame.bytes)
    return frames


def parse_reply(frames: Sequence[bytes]) -> LinkReply:
    """Read the frames of one reply."""
    ticket, status, payload = frames
    return LinkReply(TICKET.unpack(ticket)[0], status == OK, payload)


def new_identity() -> bytes:
    """Return an identity for a session's socket, which nobody can guess."""
    return secrets.token_hex(16).encode()


def open_frames(grant: bytes, label: str) -> list[bytes]:
    """Return the frames that open a session; the reply comes with ticket 0."""
    return request_frames(0, OPEN, MSGPACK, msgspec.msgpack.encode(OpenSession(grant, label)))


def close_frames() -> list[bytes]:
    """Return the frames that close a session; the reply (ticket 0) is the session's :class:`~inferd.protocol.Usage`."""
    return request_frames(0, CLOSE, MSGPACK, b"\x80")


class EngineLink:
    """One session's end of the wire. Owned by one thread; ``socket`` may be polled together with others."""

    def __init__(self, context: zmq.Context[Any], endpoint: str) -> None:
        self.socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, new_identity())
        self.socket.setsockopt(zmq.LINGER, 500)
        self.socket.connect(endpoint)

    def open(self, grant: bytes, label: str) -> None:
        """Open the session. The reply is an ordinary one with ticket 0."""
        self.socket.send_multipart(open_frames(grant, label))

    def send(self, ticket: int, op: str, payload: bytes, form: bytes = JSON) -> None:
        """Send one request; its reply carries the same ticket."""
        send_frames(self.socket, request_frames(ticket, op, form, payload))

    def cancel(self, ticket: int) -> None:
        """Ask the engine to drop a request, which is then answered with Cancelled."""
        self.socket.send_multipart(request_frames(ticket, CANCEL, MSGPACK, b"\x80"))

    def receive(self) -> LinkReply | None:
        """Return the next reply that has arrived, or None."""
        try:
            return parse_reply(receive_frames(self.socket))
        except zmq.Again:
            return None

    def request_close(self) -> None:
        """Ask the engine to close the session and release all it holds."""
        self.socket.send_multipart(close_frames())

    def close(self) -> None:
        """Close the socket (not the session: see :meth:`request_close`)."""
        self.socket.close()
