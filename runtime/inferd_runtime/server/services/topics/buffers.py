"""What is held of a tenant's messages, and within which bounds. Pure state."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from inferd.protocol import LimitExceeded
from inferd.protocol.topics import MAX_VALUE_BYTES, MAX_VALUES
from inferd_runtime.server.services.wires import JsonText

MAX_HELD_VALUES = 1024
MAX_HELD_BYTES = 1 << 20
"""Of one subscription or queue: beyond it publishers and pushers wait."""
MAX_NAMES = 256
"""Queues and topics that a tenant has at a time."""
MAX_TENANT_HELD = 32 << 20
"""Bytes of all messages of a tenant; one that five subscribers have yet to read counts five times."""
VALUE_OVERHEAD = 64
"""Bytes that are counted for a value beside its JSON."""


class HeldValue(NamedTuple):
    """A value's JSON. ``row``: where a durable queue has it on disk; 0 for all others."""

    text: bytes
    row: int = 0

    @property
    def size(self) -> int:
        """The bytes that it counts."""
        return len(self.text) + VALUE_OVERHEAD


def held_values(values: list[Any]) -> list[HeldValue]:
    """Take the values out of a request's list, and return them as they are held: as JSON, which is many times smaller.

    Raises LimitExceeded for one that is too long.
    """
    held = [HeldValue(msgspec.json.encode(value)) for value in values]
    values.clear()
    longest = max(len(value.text) for value in held)
    if longest > MAX_VALUE_BYTES:
        text = f"a value takes {longest} bytes as JSON; {MAX_VALUE_BYTES} are allowed"
        raise LimitExceeded(text, limit="value_bytes", value=MAX_VALUE_BYTES, raise_with="several values")
    return held


def written_values(held: Sequence[HeldValue]) -> Any:
    """Return what was held as a list for a reply, which is not decoded before somebody needs it."""
    parts = [part for value in held for part in (b",", value.text)]
    return JsonText(b"[", *parts[1:], b"]")


def size_of(held: Iterable[HeldValue]) -> int:
    """Return the bytes that values count."""
    return sum(value.size for value in held)


class ValueBuffer:
    """Values in order. ``first`` is the index of the oldest one among all that ever came."""

    def __init__(self) -> None:
        self.first = 0
        self.size = 0
        self._values: deque[HeldValue] = deque()

    def __len__(self) -> int:
        return len(self._values)

    def has_room(self, values: Sequence[HeldValue]) -> bool:
        """Return True if the values fit; where nothing is held, any request's do."""
        if not self._values:
            return True
        return len(self) + len(values) <= MAX_HELD_VALUES and self.size + size_of(values) <= MAX_HELD_BYTES

    def put(self, values: Sequence[HeldValue]) -> None:
        """Add values behind the others."""
        self._values.extend(values)
        self.size += size_of(values)

    def put_back(self, values: Sequence[HeldValue]) -> None:
        """Put values back before the others."""
        self._values.extendleft(reversed(values))
        self.size += size_of(values)
        self.first -= len(values)

    def drop(self, count: int) -> int:
        """Forget the oldest ones; returns the bytes that they counted."""
        size = sum(self._values.popleft().size for _ in range(count))
        self.first += count
        self.size -= size
        return size

    def some(self, most: int = MAX_VALUES) -> list[HeldValue]:
        """Return the oldest ones, not more than a reply may bring, but at least one if there is one."""
        found: list[HeldValue] = []
        size = 0
        for value in self._values:
            size += len(value.text)
            if len(found) >= most or (found and size > MAX_VALUE_BYTES):
                break
            found.append(value)
        return found


class MessageRoom:
    """What each tenant's messages take together."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def held(self, tenant: str) -> int:
        """Return the bytes of a tenant's messages."""
        return self._bytes[tenant]

    def take_name(self, tenant: str) -> None:
        """Count one name more. Raises LimitExceeded."""
        if self._names[tenant] >= MAX_NAMES:
            text = f"the tenant has {MAX_NAMES} topics and queues already"
            raise LimitExceeded(text, limit="topics", value=MAX_NAMES, raise_with="fewer names at a time")
        self._names[tenant] += 1

    def give_name(self, tenant: str) -> None:
        """Count one name less."""
        self._names[tenant] -= 1
        if not self._names[tenant]:
            del self._names[tenant]

    def take(self, tenant: str, size: int) -> None:
        """Count bytes. Raises LimitExceeded, and counts nothing."""
        if self._bytes[tenant] + size > MAX_TENANT_HELD:
            text = f"messages of the tenant that nobody has read take {MAX_TENANT_HELD} bytes already"
            raise LimitExceeded(text, limit="topic_bytes", value=MAX_TENANT_HELD, raise_with="readers that are faster")
        self._bytes[tenant] += size

    def give(self, tenant: str, size: int) -> None:
        """Count bytes no more."""
        self._bytes[tenant] -= size
        if not self._bytes[tenant]:
            del self._bytes[tenant]
