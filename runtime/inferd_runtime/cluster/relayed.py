"""What a replica and its front tell each other about messages between programs, which the front keeps for all replicas.

One WebSocket for each replica carries it, which the front opens. A frame is a list of these, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from inferd_runtime.change_signal import ChangeSignal

MESSAGES_PATH = "/cluster/messages"
ADMIT_LAUNCH = "cluster.launch"
"""Asks whether a tenant's program may launch another one now; it counts if so."""
FRAME_BYTES = 1 << 20
"""Bytes of payloads from which on the next message goes into a frame of its own."""


class Ask(msgspec.Struct, frozen=True, tag="ask", array_like=True):
    """An operation. ``caller`` is the replica's number of the caller, ``id`` its run or session; ``payload`` is JSON.

    ``key``: see :attr:`Caller.offer_key`.
    """

    caller: int
    ticket: int
    tenant: str
    id: str
    op: str
    payload: bytes
    key: str = ""


class Withdraw(msgspec.Struct, frozen=True, tag="withdraw", array_like=True):
    """The caller does not wait for an operation any more. It is answered all the same; a reply that was sent is undone."""

    caller: int
    ticket: int


class Received(msgspec.Struct, frozen=True, tag="received", array_like=True):
    """The caller has a reply whose values went to it alone."""

    caller: int
    ticket: int


class Gone(msgspec.Struct, frozen=True, tag="gone", array_like=True):
    """A caller is over."""

    caller: int


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """A reply or an error, as JSON. ``receipt``: the front waits for Received or Withdraw."""

    caller: int
    ticket: int
    ok: bool
    payload: bytes
    receipt: bool = False


FromReplica = Ask | Withdraw | Received | Gone


class FrameOutbox:
    """Messages that wait to be sent, in order. What may wait is bounded by what callers may have open."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()
        self._signal = ChangeSignal()

    def put(self, message: FromReplica | Answered) -> None:
        """Send a message, soon."""
        self._waiting.append(message)
        self._signal.wake()

    async def send_all(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send what comes, until cancelled. Raises what ``send`` raises."""
        while True:
            while self._waiting:
                await send(msgspec.msgpack.encode(self._frame()))
            await self._signal.wait()

    def _frame(self) -> list[Any]:
        frame, size = [], 0
        while self._waiting and size < FRAME_BYTES:
            frame.append(self._waiting.popleft())
            size += len(getattr(frame[-1], "payload", b""))
        return frame
