"""What a program may have asked the gateway for that is not answered. Pure state."""

from __future__ import annotations

from inferd.protocol import LimitExceeded
from inferd_runtime.sandbox.messages import MAX_ASKED, MAX_ASKED_BYTES, MAX_REQUEST_BYTES

FEWER = "waiting for some of them, as asyncio.Semaphore does"


class AskedWindow:
    """Open operations of one run at the gateway, by ticket.

    A withdrawn one counts until the gateway has answered it: a program that asks and withdraws in turns gets no further than one
    that waits. What is too much is refused: a program that was made to wait here could not do what others wait for. Only where
    withdrawn ones take the room is it made to wait: the gateway answers these by itself.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._withdrawn: set[int] = set()
        self._bytes = 0

    def frees_itself(self, size: int) -> bool:
        """Return True if there is no room for one more now, and there will be some, whatever the program does."""
        full = len(self._sizes) >= MAX_ASKED or (bool(self._sizes) and self._bytes + size > MAX_ASKED_BYTES)
        return full and bool(self._withdrawn)

    def check(self, op: str, size: int) -> None:
        """Raise LimitExceeded unless one more operation with a request of so many bytes may be asked."""
        if size > MAX_REQUEST_BYTES:
            text = f"{op}: the request takes {size} bytes; {MAX_REQUEST_BYTES} are allowed"
            raise LimitExceeded(text, limit="request_bytes", value=MAX_REQUEST_BYTES, raise_with="several requests")
        if len(self._sizes) >= MAX_ASKED:
            text = f"{op}: {MAX_ASKED} such operations of the program are in flight already"
            raise LimitExceeded(text, limit="gateway_operations", value=MAX_ASKED, raise_with=FEWER)
        if self._sizes and self._bytes + size > MAX_ASKED_BYTES:
            text = f"{op}: such operations in flight take {MAX_ASKED_BYTES} bytes already"
            raise LimitExceeded(text, limit="gateway_bytes", value=MAX_ASKED_BYTES, raise_with=FEWER)

    def asked(self, ticket: int, size: int) -> None:
        """Note an operation that was sent."""
        self._sizes[ticket] = size
        self._bytes += size

    def withdrawn(self, ticket: int) -> None:
        """Note that the program waits for an operation no more."""
        if ticket in self._sizes:
            self._withdrawn.add(ticket)

    def answered(self, ticket: int) -> None:
        """Note an answer of the gateway."""
        self._withdrawn.discard(ticket)
        self._bytes -= self._sizes.pop(ticket, 0)
