"""The thread that keeps a target's connection to a draft engine: it connects, shakes hands, and connects again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread

from inferd_runtime.draft_models.remote.breaker import LinkBreaker
from inferd_runtime.draft_models.remote.checks import check_terms
from inferd_runtime.draft_models.remote.frames import FIRST_FRAME_BYTES, Frame, Kind, MalformedFrame
from inferd_runtime.draft_models.remote.handshake import DraftTerms, Outgoing, Refused, RefusedForNow, TargetHandshake
from inferd_runtime.draft_models.remote.streams import ConnectionEnded, FrameStream

LOG = logging.getLogger("inferd.drafts")
CONNECT_SECONDS = 10.0
"""For name, connection, TLS and hand-shake together."""
PING_SECONDS = 5.0
SILENT_SECONDS = 15.0
MOST_WELCOME = 64 << 20
"""Bytes of the frame with the terms, of which a tokenizer is nearly all."""
MOST_ANSWER = 1 << 20
MOST_HELD = 64 << 20
"""Bytes of answers that the step loop has not taken: one step of a large model may last minutes."""
MOST_UNSENT = 16 << 20
EVENT_BYTES = 4096
"""Counted for an answer beside its payload."""


@dataclass(frozen=True)
class LinkTarget:
    """Where a draft engine is and how it is reached. ``known``: checksums of vocabularies that need not be sent."""

    host: str
    port: int
    key: bytes
    tls: ssl.SSLContext | None = None
    known: tuple[str, ...] = ()


@dataclass(frozen=True)
class Connected:
    """A hand-shake went well. Connections are numbered from 1."""

    number: int
    terms: DraftTerms


@dataclass(frozen=True)
class Disconnected:
    """Connection ``number`` (0: one that never was) has ended. ``final``: the other side refuses, or is not who it should be."""

    number: int
    reason: str
    final: bool


@dataclass(frozen=True)
class Arrived:
    """An answer's frame, at a time of ``time.monotonic``."""

    number: int
    frame: Frame
    at: float

    @property
    def size(self) -> int:
        """Bytes that are counted for it."""
        return len(self.frame.payload) + EVENT_BYTES


LinkEvent = Connected | Disconnected | Arrived


class LinkThread:
    """Owns the connection. Other threads call :meth:`send`, :meth:`end` and :meth:`close`, and take from :attr:`events`, which
    only this thread appends to; ``wake`` is called after each event. Who takes an :class:`Arrived` adds its size to
    :attr:`taken`.
    """

    def __init__(self, target: LinkTarget, wake: Callable[[], None]) -> None:
        self.events: deque[LinkEvent] = deque()
        self.taken = 0
        self._arrived = 0
        self._target = target
        self._wake = wake
        self._breaker = LinkBreaker()
        self._locked: DraftTerms | None = None
        self._number = 0
        self._reported = ""
        self._stream: FrameStream | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="draft-link", daemon=True)
        self._thread.start()

    def send(self, number: int, kind: Kind, payload: bytes, ticket: int = 0) -> None:
        """Send a frame on connection ``number``; nothing happens if it is not the one that is open."""
        self._loop.call_soon_threadsafe(self._send, number, kind, payload, ticket)

    def end(self, number: int) -> None:
        """End connection ``number``, if it is the one that is open, and connect again after a pause."""
        self._loop.call_soon_threadsafe(self._abort, number)

    def close(self) -> None:
        """Say good-bye, and end the thread."""
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()

    # -- In the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, contextlib.suppress(asyncio.CancelledError):
            runner.run(self._keep_connected())

    def _stop(self) -> None:
        if self._stream is not None:
            self._stream.send(Kind.END)
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _send(self, number: int, kind: Kind, payload: bytes, ticket: int) -> None:
        if self._stream is None or number != self._number:
            return
        self._stream.send(kind, payload, ticket)
        if self._stream.unsent > MOST_UNSENT:
            self._stream.abort()

    def _abort(self, number: int) -> None:
        if self._stream is not None and number == self._number:
            self._stream.abort()

    async def _keep_connected(self) -> None:
        while True:
            await asyncio.sleep(self._breaker.wait(time.monotonic()))
            number, reason, final = self._number, "", False
            try:
                await self._connection()
            except (RefusedForNow, ConnectionEnded, MalformedFrame, OSError) as error:
                # A certificate that does not verify is an OSError, too.
                reason, final = str(error) or type(error).__name__, isinstance(error, ssl.SSLCertVerificationError)
            except (Refused, UnicodeError) as error:
                reason, final = str(error), True
            self._breaker.failed(time.monotonic())
            self._report(reason)
            self._emit(Disconnected(self._number if self._number > number else 0, reason, final))

    def _report(self, reason: str) -> None:
        """Log why there is no connection, once for each reason in a row."""
        if reason != self._reported:
            LOG.warning("no connection to the draft engine %s:%d: %s", self._target.host, self._target.port, reason)
        self._reported = reason

    def _emit(self, event: LinkEvent) -> None:
        self.events.append(event)
        self._wake()

    async def _connection(self) -> None:
        """Connect, shake hands, and hand over answers until the connection ends. Always raises."""
        stream: FrameStream | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                stream = await self._open()
                terms = await self._shake_hands(stream)
            self._breaker.connected(time.monotonic())
            self._number, self._stream, self._reported = self._number + 1, stream, ""
            LOG.info("connected to the draft engine %s:%d", self._target.host, self._target.port)
            self._emit(Connected(self._number, terms))
            await self._hand_over(stream)
        finally:
            self._stream = None
            if stream is not None:
                stream.abort()

    async def _open(self) -> FrameStream:
        target = self._target
        name = target.host if target.tls is not None else None
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls, server_hostname=name)
        return FrameStream(reader, writer)

    async def _shake_hands(self, stream: FrameStream) -> DraftTerms:
        shake = TargetHandshake(self._target.key, self._known())
        message: Outgoing | None = shake.begin()
        while message is not None:
            stream.send(message.kind, message.payload)
            stream.incoming.allow(MOST_WELCOME if message.kind is Kind.PROOF else FIRST_FRAME_BYTES)
            message = shake.receive(await stream.receive())
        assert shake.terms is not None
        assert shake.keys is not None
        stream.outgoing.rekey(shake.keys.from_target)
        stream.incoming.rekey(shake.keys.from_draft, MOST_ANSWER)
        self._lock(shake.terms)
        return shake.terms

    def _known(self) -> tuple[str, ...]:
        return self._target.known if self._locked is None else (*self._target.known, self._locked.checksum)

    def _lock(self, terms: DraftTerms) -> None:
        """Lock the terms at the first hand-shake, and hold later ones to them. Raises Refused or MalformedFrame."""
        if self._locked is None:
            check_terms(terms)
            self._locked = terms.locked
        elif terms.locked != self._locked:
            changed = [
                name for name in vars(self._locked) if getattr(terms.locked, name) != getattr(self._locked, name)
            ]
            raise Refused(f"the draft engine is another one than at the first hand-shake: {', '.join(changed)} differ")

    async def _hand_over(self, stream: FrameStream) -> None:
        heard = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    frame = await stream.receive()
            except TimeoutError:
                if time.monotonic() - heard > SILENT_SECONDS:
                    raise ConnectionEnded(f"nothing was heard for {SILENT_SECONDS:g} s") from None
                stream.send(Kind.PING)
                continue
            heard = time.monotonic()
            if frame.kind is Kind.ANSWER:
                self._hand_on(Arrived(self._number, frame, heard))
            elif frame.kind is not Kind.PONG:
                raise MalformedFrame(f"{frame.kind.name} where answers were expected")

    def _hand_on(self, answer: Arrived) -> None:
        """Hand over an answer. Raises MalformedFrame where so many wait that nobody has asked for them."""
        if self._arrived + answer.size - self.taken > MOST_HELD:
            raise MalformedFrame("more answers than anybody waits for")
        self._arrived += answer.size
        self._emit(answer)
