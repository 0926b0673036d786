"""Characters that tokens cut in two: how the bytes of one go on to its end. Pure."""

from __future__ import annotations

SECOND_BYTES = {0xE0: 0xA0, 0xF0: 0x90}
"""The least second byte behind a first one, where that is not 0x80."""
LONGEST = 4


def begun_character(text: bytes) -> bytes:
    """Return the bytes at the end of a text that begin a character of UTF-8 and do not end it; b"" if there are none."""
    for size in range(1, min(LONGEST, len(text) + 1)):
        first = text[-size]
        if first < 0x80:
            return b""
        if first >= 0xC0:
            return text[-size:] if size < _length(first) else b""
    return b""


def rest_of_character(begun: bytes) -> bytes:
    """Return bytes that end a character of which these are the first; b"" for none."""
    if not begun:
        return b""
    missing = _length(begun[0]) - len(begun)
    second = SECOND_BYTES.get(begun[0], 0x80) if len(begun) == 1 else 0x80
    return bytes([second, *[0x80] * (missing - 1)])


def _length(first: int) -> int:
    """Return how many bytes a character with this first byte has; 1 for what begins none."""
    return 1 + (0xC2 <= first < 0xF5) + (0xE0 <= first < 0xF5) + (0xF0 <= first < 0xF5)
