"""What in a JSON text takes long to read beside its length, found before it is read: reading it would hold up all other requests.

Lists and objects are allocations that the garbage collector walks. A string costs its reader some hundreds of nanoseconds. And
while msgspec reads most numbers in 0.03 microseconds, it works some out digit by digit, in up to 17: those beyond 1e288, those
that nearly are 0, and those with more digits than a double has that lie between two doubles.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

import msgspec

from inferd.protocol import InvalidRequest

MAX_DEPTH = 500
"""Levels of lists and objects in a value that is carried."""
SHORT_BYTES = 8192
"""No text of so few bytes takes more than some milliseconds."""
MAX_STRINGS = 200_000
"""Texts and names of members in one JSON text: reading so many takes about 60 ms."""
MAX_VALUES = 1_200_000
"""Values in one message: reading so many numbers takes 15 to 60 ms. A list of tokens may be of a million."""
SLOW_SECONDS = 0.07
"""What the slow numbers of one text may take together: that is 4,000 of the slowest."""
ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
NOTHING = b"+."
SLOW = ((b"e000", 17e-6), (b"e-000", 9e-6), (bytes(b"0" * 20) + b"e", 3.5e-6), (b"e00", 0.6e-6))
"""What slow numbers have in them once all digits are ``0`` and points and plus signs are gone, and the seconds of one."""
JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # one without an end, too: each byte is seen once
STEPS = {b"["[0]: 1, b"{"[0]: 1, b"]"[0]: -1, b"}"[0]: -1}
NO_BRACKETS = bytes(each for each in range(256) if each not in STEPS)
_BY_PYTHON = msgspec.json.Decoder(float_hook=float).decode
"""Takes 0.2 microseconds for any number that is not a whole one, but leaves those alone for which a type asks."""


def containers(text: bytes) -> int:
    """Return how many lists and objects a JSON text opens at most: brackets in its strings are counted, too."""
    return text.count(b"[") + text.count(b"{")


def without_strings(text: bytes) -> bytes:
    """Return a JSON text without its strings. Of a text that :func:`refuse_many_strings` refuses that takes long."""
    return JSON_STRING.sub(b"", text)


def is_deep(text: bytes) -> bool:
    """Return True if a JSON text has more than MAX_DEPTH levels. Only one with as many lists and objects is looked through."""
    if containers(text) <= MAX_DEPTH:
        return False
    brackets = without_strings(text).translate(None, NO_BRACKETS)
    return max(accumulate(map(STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH


def refuse_slow_text(text: bytes, what: str) -> None:
    """Raises InvalidRequest that begins with ``what`` for a text with so many strings, values or slow numbers that it would take
    long to read.
    """
    refuse_many_strings(text, what)
    if text.count(b",") > MAX_VALUES and without_strings(text).count(b",") > MAX_VALUES:
        raise too_many_values(what)
    refuse_slow_numbers(text, what)


def refuse_many_strings(text: bytes, what: str, most: int = MAX_STRINGS) -> None:
    """Raises InvalidRequest that begins with ``what`` for a text with more than about ``most`` strings."""
    if len(text) > SHORT_BYTES and text.count(b'"') - text.count(b'\\"') > 2 * most:
        raise InvalidRequest(f"{what}: more than {most} strings and names at a time")


def too_many_values(what: str) -> InvalidRequest:
    """Return the error of a message that has more than ``MAX_VALUES`` values in it."""
    return InvalidRequest(f"{what}: more than {MAX_VALUES} values at a time")


def refuse_slow_numbers(text: bytes, what: str) -> None:
    """Raises InvalidRequest that begins with ``what`` for a text with numbers that together take long to read."""
    if slow_seconds(text) > SLOW_SECONDS and slow_seconds(without_strings(text)) > SLOW_SECONDS:
        raise InvalidRequest(f"{what}: too many numbers with large exponents, or with more than 19 digits, at a time")


def slow_seconds(text: bytes) -> float:
    """Return about how long the slow numbers of a JSON text take to read, at most; what looks like one in a string counts."""
    if len(text) <= SHORT_BYTES:
        return 0.0
    shape = text.translate(ALIKE, NOTHING)
    if not shape.count(b"0e"):
        return 0.0
    return sum(shape.count(mark) * seconds for mark, seconds in SLOW)


def read_checked_json(text: bytes | str) -> Any:
    """Return the value of JSON that was checked when it came, or was written here, whatever numbers it has."""
    data = text.encode() if isinstance(text, str) else text
    return _BY_PYTHON(data) if slow_seconds(data) > SLOW_SECONDS else msgspec.json.decode(data)
