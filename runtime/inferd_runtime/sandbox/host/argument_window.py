"""How much a program may have sent that the engine has not answered, and how large the answers may be. Pure state."""

from __future__ import annotations

LARGE_BYTES = 64 << 10
"""Arguments of less are bounded by the number of calls that may be open."""
WINDOW_BYTES = 1 << 20
REPLY_WINDOW_BYTES = 64 << 20
"""Of replies that may be on their way: until the program calls its host again they wait where nothing of it is charged."""


class ArgumentWindow:
    """Large arguments on their way to the engine, by ticket; or the large replies to calls, with ``most`` bytes.

    The engine charges tenants for handling calls, but not for reading them in other threads ahead of their turn. So a program
    with more bytes on their way waits, and one larger call is sent alone. A cancelled call counts until the engine answers it.
    """

    def __init__(self, most: int = WINDOW_BYTES) -> None:
        self._most = most
        self._sizes: dict[int, int] = {}

    def has_room(self, size: int) -> bool:
        """Return True if a call with so many bytes may be sent now."""
        return size < LARGE_BYTES or not self._sizes or sum(self._sizes.values()) + size <= self._most

    def sent(self, ticket: int, size: int) -> None:
        """Note a call that was sent."""
        if size >= LARGE_BYTES:
            self._sizes[ticket] = size

    def answered(self, ticket: int) -> None:
        """Note an answer of the engine."""
        self._sizes.pop(ticket, None)
