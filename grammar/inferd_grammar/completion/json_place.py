"""Where a compact JSON text stands: which brackets are open, and what is being written."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from inferd_grammar.persistent import Stack, below, top, with_bytes

Mode = Literal["value", "name_or_end", "name_start", "name", "string", "number", "word", "colon", "done"]
_CLOSERS = {"}": "{", "]": "["}
_AFTER_OPENING: dict[str, Mode] = {"{": "name_or_end", "[": "value"}
_INSIDE = re.compile(rb'(?:[^"\\]|\\(?:u[0-9A-Fa-f]{4}|[^u]))*+', re.DOTALL)
"""Of a name or string, up to its end or what is not whole."""


class JsonPlace(NamedTuple):
    """The place behind some bytes of a JSON text.

    Fields:
        open: the brackets that are open; `depth`: how many they are.
        mode: what comes next: a value, a name (of an object that may still end, or that has to go on), the rest of a name,
            string, number or word, the colon behind a name, or what may follow a value.
        escape: how many more bytes belong to an escape of a name or string.
        pieces: what is there of the name that is being written.
    """

    open: Stack[str] = None
    depth: int = 0
    mode: Mode = "value"
    escape: int = 0
    pieces: tuple[bytes, ...] = ()

    @property
    def name(self) -> bytes:
        """What is there of the name that is being written."""
        return b"".join(self.pieces)

    def behind(self, text: bytes) -> JsonPlace:
        """Return the place behind further bytes, which continue a JSON text."""
        place, at = self, 0
        while at < len(text):
            size = place.step(text, at)
            place = _behind(place, text[at : at + size])
            at += size
        return place

    def step(self, text: bytes, at: int) -> int:
        """Return how many bytes of a text, from one on, are taken together: one, or what does not end a name or string."""
        inside = None if self.escape or self.mode not in ("name", "string") else _INSIDE.match(text, at)
        return 1 if inside is None else max(1, inside.end() - at)


START = JsonPlace()


def _behind(place: JsonPlace, step: bytes) -> JsonPlace:
    char = chr(step[0])
    if place.mode == "name" and (char != '"' or place.escape):
        place = place._replace(pieces=with_bytes(place.pieces, step))
    if len(step) > 1:
        return place
    if place.mode in ("name", "string"):
        return _in_quotes(place, char)
    if place.mode in ("number", "word") and (char.isalnum() or char in "+-."):
        return place
    if char in _CLOSERS:
        return JsonPlace(below(place.open), max(0, place.depth - 1), "done")
    if char == ",":
        return place._replace(mode="name_start" if top(place.open) == "{" else "value")
    if char == ":":
        return place._replace(mode="value")
    return _started(place, char)


def _in_quotes(place: JsonPlace, char: str) -> JsonPlace:
    if place.escape:
        return place._replace(escape=4 if char == "u" and place.escape == -1 else max(place.escape, 1) - 1)
    if char == "\\":
        return place._replace(escape=-1)
    if char == '"':
        return place._replace(mode="colon" if place.mode == "name" else "done", pieces=())
    return place


def _started(place: JsonPlace, char: str) -> JsonPlace:
    if char == '"':
        return place._replace(mode="string" if place.mode == "value" else "name")
    if char in _AFTER_OPENING:
        return JsonPlace((char, place.open), place.depth + 1, _AFTER_OPENING[char])
    return place._replace(mode="number" if char in "-0123456789" else "word")
