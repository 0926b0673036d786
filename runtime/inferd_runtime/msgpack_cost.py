"""What in a msgpack message takes long to read beside its length, found before it is read, as ``json_cost`` does for JSON.

A long message is looked through without making its values: numbers are skipped by one expression, texts by their lengths, and
lists and maps say at their beginning how much they hold, so that one of millions is known at once.
"""

from __future__ import annotations

import re

from inferd.protocol import InvalidRequest
from inferd_runtime.json_cost import MAX_VALUES, too_many_values

CONTAINERS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
"""Bytes that begin a list or a map, and stand within numbers and in texts beyond ASCII as well."""
MAPS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
ONE_BYTE, TWO, THREE = rb"[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]++", rb"(?:[\xcc\xd0].)++", rb"(?:[\xcd\xd1]..)++"
FIVE, NINE = rb"(?:[\xca\xce\xd2]....)++", rb"(?:[\xcb\xcf\xd3]........)++"
NUMBERS = re.compile(rb"(?:%s|%s|%s|%s|%s)*+" % (ONE_BYTE, TWO, THREE, FIVE, NINE), re.DOTALL)
"""A row of numbers, and of nil, true and false, each as long as its first byte says. Those of one kind are skipped fastest."""
LENGTH_BYTES = {
    0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4
}  # fmt: skip
"""Of what is too long to have its length in its first byte: bytes, extensions, texts, lists, maps."""
EXTENSIONS = {0xC7: 0, 0xC8: 0, 0xC9: 0, 0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
"""What has a byte for its type before its content, and how long that is where the first byte says so."""
MAX_PARTS = 20_000
"""So many texts, lists and maps are looked at, which takes 10 to 20 ms."""
MAX_VARIED_BYTES = 2_000_000
"""A message with more parts than are looked at may be so long: reading one takes up to 0.1 s."""


def possible_containers(data: bytes) -> int:
    """Return how many lists and maps a message has at most: whatever could begin one is counted."""
    return len(data) - len(data.translate(None, CONTAINERS))


def count_containers(data: bytes, what: str) -> int:
    """Return how many lists and maps a message has; at most how many, where it has more parts than are looked at.

    Raises InvalidRequest that begins with ``what`` for more than MAX_VALUES values, and for a message of more than MAX_PARTS
    parts and MAX_VARIED_BYTES. One that is cut off is counted up to there.
    """
    at = found = values = 0
    for _ in range(MAX_PARTS):
        at = NUMBERS.match(data, at).end()  # type: ignore[union-attr]
        if at >= len(data):
            return found
        first = data[at]
        width = LENGTH_BYTES.get(first, 0)
        at += 1 + width
        length = int.from_bytes(data[at - width : at]) if width else _short(first)
        if first in CONTAINERS:
            found += 1
            values += 2 * length if first in MAPS else length
            if values > MAX_VALUES:
                raise too_many_values(what)
        else:
            at += length + (first in EXTENSIONS)
    if len(data) > MAX_VARIED_BYTES:
        told = f"more than {MAX_PARTS} texts, lists and maps in more than {MAX_VARIED_BYTES} bytes"
        raise InvalidRequest(f"{what}: {told} at a time")
    return possible_containers(data)


def _short(first: int) -> int:
    """Return the length that stands in a first byte."""
    if first in EXTENSIONS:
        return EXTENSIONS[first]
    return first & (0x1F if first >= 0xA0 else 0x0F)
