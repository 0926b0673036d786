"""Where a compact JSON text stands: which brackets are open, and what is being written. One byte at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

Mode = Literal["value", "name_or_end", "name_start", "name", "string", "number", "word", "colon", "done"]
_CLOSERS = {"}": "{", "]": "["}
_AFTER_OPENING: dict[str, Mode] = {"{": "name_or_end", "[": "value"}


class JsonPlace(NamedTuple):
    """The place behind some bytes of a JSON text.

    Fields:
        open: the brackets that are open, outermost first.
        mode: what comes next: a value, a name (of an object that may still end, or that has to go on), the rest of a name,
            string, number or word, the colon behind a name, or what may follow a value.
        escape: how many more bytes belong to an escape of a name or string.
        name: what is there of the name that is being written.
    """

    open: str = ""
    mode: Mode = "value"
    escape: int = 0
    name: bytes = b""

    @property
    def depth(self) -> int:
        """How many brackets are open."""
        return len(self.open)

    def behind(self, text: bytes) -> JsonPlace:
        """Return the place behind further bytes, which continue a JSON text."""
        place = self
        for byte in text:
            place = _behind(place, byte)
        return place


START = JsonPlace()


@lru_cache(maxsize=1 << 16)
def _behind(place: JsonPlace, byte: int) -> JsonPlace:
    char = chr(byte)
    if place.mode == "name" and (char != '"' or place.escape):
        place = place._replace(name=place.name + bytes([byte]))
    if place.mode in ("name", "string"):
        return _in_quotes(place, char)
    if place.mode in ("number", "word") and (char.isalnum() or char in "+-."):
        return place
    if char in _CLOSERS:
        return JsonPlace(place.open[:-1], "done")
    if char == ",":
        return place._replace(mode="name_start" if place.open.endswith("{") else "value")
    if char == ":":
        return place._replace(mode="value")
    return _started(place, char)


def _in_quotes(place: JsonPlace, char: str) -> JsonPlace:
    if place.escape:
        return place._replace(escape=4 if char == "u" and place.escape == -1 else max(place.escape, 1) - 1)
    if char == "\\":
        return place._replace(escape=-1)
    if char == '"':
        return place._replace(mode="colon" if place.mode == "name" else "done", name=b"")
    return place


def _started(place: JsonPlace, char: str) -> JsonPlace:
    if char == '"':
        return place._replace(mode="string" if place.mode == "value" else "name")
    if char in _AFTER_OPENING:
        return JsonPlace(place.open + char, _AFTER_OPENING[char])
    return place._replace(mode="number" if char in "-0123456789" else "word")
