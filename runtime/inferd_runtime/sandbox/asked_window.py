"""What a program or a script may have asked the gateway for that is not answered. Pure state."""

from __future__ import annotations

from inferd.protocol import LimitExceeded
from inferd_runtime.sandbox.messages import MAX_ASKED, MAX_ASKED_BYTES, MAX_REQUEST_BYTES

FEWER = "waiting for some of them, as asyncio.Semaphore does"


class AskedWindow:
    """Open operations of one run, or of one script's session, at the gateway, by ticket. ``most_bytes``: of all their requests.

    A withdrawn operation counts until the gateway has answered it, so that asking and withdrawing in turns gains nothing.
    Operations beyond the limit are refused: a program that was made to wait here could not do what its other operations wait
    for. It waits only where withdrawn ones take the room, because the gateway answers these by itself.
    """

    def __init__(self, most_bytes: int = MAX_ASKED_BYTES) -> None:
        self._most_bytes = most_bytes
        self._sizes: dict[int, int] = {}
        self._withdrawn: set[int] = set()
        self._bytes = 0

    def __contains__(self, ticket: int) -> bool:
        """Return True if an operation is not answered."""
        return ticket in self._sizes

    def frees_itself(self, size: int) -> bool:
        """Return True if there is no room for one more now, and there will be some, whatever its sender does."""
        return bool(self._withdrawn) and (self._has_many or self._has_long(size))

    def check(self, op: str, size: int) -> None:
        """Raise LimitExceeded unless one more operation with a request of so many bytes may be asked."""
        if size > MAX_REQUEST_BYTES:
            text = f"{op}: the request takes {size} bytes; {MAX_REQUEST_BYTES} are allowed"
            raise LimitExceeded(text, limit="request_bytes", value=MAX_REQUEST_BYTES, raise_with="several requests")
        if self._has_many:
            text = f"{op}: {MAX_ASKED} such operations are in flight already"
            raise LimitExceeded(text, limit="gateway_operations", value=MAX_ASKED, raise_with=FEWER)
        if self._has_long(size):
            text = f"{op}: such operations in flight take {self._most_bytes} bytes already"
            raise LimitExceeded(text, limit="gateway_bytes", value=self._most_bytes, raise_with=FEWER)

    def asked(self, ticket: int, size: int) -> None:
        """Note an operation that was sent."""
        self._sizes[ticket] = size
        self._bytes += size

    def withdrawn(self, ticket: int) -> None:
        """Note that nobody waits for an operation any more."""
        if ticket in self._sizes:
            self._withdrawn.add(ticket)

    def answered(self, ticket: int) -> None:
        """Note an answer of the gateway."""
        self._withdrawn.discard(ticket)
        self._bytes -= self._sizes.pop(ticket, 0)

    @property
    def _has_many(self) -> bool:
        return len(self._sizes) >= MAX_ASKED

    def _has_long(self, size: int) -> bool:
        return bool(self._sizes) and self._bytes + size > self._most_bytes
