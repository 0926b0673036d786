"""What replies to each tenant take, from the time that they are known until they have left the gateway. Pure except to wait."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, is_dataclass
from typing import Any

from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.server.services.wires import JsonText

MAX_UNSENT = 32 << 20
"""Bytes of a tenant's replies: beyond it none is packed, and no operation of its is begun. One alone may have more."""
SMALL_REPLY = 4096
"""Bytes of a reply that is packed without waiting for a turn, and not counted."""


class ReplyRoom:
    """Replies of all tenants: ``known`` ones are still as the handler made them, ``packed`` ones wait to be sent."""

    def __init__(self) -> None:
        self._known: Counter[str] = Counter()
        self._packed: Counter[str] = Counter()
        self.changed = ChangeSignal()

    def may_begin(self, tenant: str) -> bool:
        """Return True if an operation of a tenant may begin."""
        return self._known[tenant] + self._packed[tenant] <= MAX_UNSENT

    def may_pack(self, tenant: str, size: int) -> bool:
        """Return True if a reply of so many bytes may be packed."""
        return not self._packed[tenant] or self._packed[tenant] + size <= MAX_UNSENT

    def know(self, tenant: str, size: int) -> None:
        """Count a reply that a handler has made; a negative size: count it no more."""
        _add(self._known, tenant, size)
        self.changed.wake()

    def pack(self, tenant: str, size: int) -> None:
        """Count a reply that was packed; a negative size: it has left."""
        _add(self._packed, tenant, size)
        self.changed.wake()


def size_of_reply(reply: Any) -> int:
    """Return about how many bytes a reply takes; 0 for a small one. Lists and objects that are no JSON yet are not small."""
    size = sum(_size_of_value(getattr(reply, one.name)) for one in fields(reply)) if is_dataclass(reply) else 0
    return size if size > SMALL_REPLY else 0


def _size_of_value(value: Any) -> int:
    if isinstance(value, JsonText):
        return value.size
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, list) and value and isinstance(value[0], JsonText):
        return sum(map(_size_of_value, value))
    return SMALL_REPLY + 1 if isinstance(value, (list, dict)) and value else 0


def _add(counted: Counter[str], tenant: str, size: int) -> None:
    counted[tenant] += size
    if not counted[tenant]:
        del counted[tenant]
