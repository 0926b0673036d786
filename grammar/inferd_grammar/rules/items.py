"""Arrays whose items differ: an item that is equal to an earlier one cannot be closed.

Equality is JSON's: 1 is 1.0 but not true, and the order of an object's keys does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from inferd_grammar.completion.json_place import JsonPlace, Mode
from inferd_grammar.rules.places import UniquePlaces, ValuePlace

_WORDS = {ord("t"): True, ord("f"): False, ord("n"): None}


class Repeated(Exception):
    """Raised where an item is complete that is equal to an earlier one."""


class Written(NamedTuple):
    """A text in two parts: what was there, and a token behind it."""

    text: bytearray
    token: bytes

    def between(self, start: int, end: int) -> bytes:
        """Return some bytes of the whole."""
        size = len(self.text)
        return bytes(self.text[start : min(end, size)]) + self.token[max(0, start - size) : max(0, end - size)]


class Frame(NamedTuple):
    """An open bracket.

    Fields:
        place: where it stands in the schema.
        unique: it is an array whose items have to differ.
        start: where its current item or name begins, in bytes.
        key: the current item's index or the current name.
        seen: the items so far, as `canonical` has them.
    """

    place: ValuePlace
    unique: bool
    start: int
    key: int | str = 0
    seen: frozenset[Hashable] = frozenset()


class ItemsPlace(NamedTuple):
    """Where a text stands: its brackets, the innermost last, and what JSON says comes next."""

    frames: tuple[Frame, ...] = ()
    json: JsonPlace = JsonPlace()

    @property
    def watched(self) -> frozenset[Mode]:
        """Inside an array whose items have to differ, what is being written; empty elsewhere."""
        return frozenset({self.json.mode} if any(frame.unique for frame in self.frames) else ())


class WatchedPlace(Protocol):
    """A place of an `ItemRule`."""

    @property
    def watched(self) -> frozenset[Mode]: ...


class ItemRule(Protocol):
    """What holds the arrays of a text whose items have to differ. Its places are its own."""

    @property
    def start(self) -> WatchedPlace: ...

    def behind(self, place: Any, written: Written) -> WatchedPlace: ...


class UniqueItems:
    """The rule for one document."""

    start = ItemsPlace()

    def __init__(self, places: UniquePlaces) -> None:
        self._places = places

    def behind(self, place: ItemsPlace, written: Written) -> ItemsPlace:
        """Return the place behind the token of `written`, from the one before it. Raises Repeated."""
        for at, byte in enumerate(written.token, start=len(written.text)):
            place = self.step(place, byte, at, written)
        return place

    def step(self, place: ItemsPlace, byte: int, at: int, written: Written) -> ItemsPlace:
        """Return the place behind one byte, which stands at `at`. Raises Repeated."""
        before, after, frames = place.json, place.json.behind(bytes([byte])), place.frames
        if before.mode in ("number", "word") and byte in b",]}":
            frames = _with_item(frames, written, at)
        if after.depth > before.depth:
            frames = (*frames, self._opened(frames, at + 1))
        elif after.depth < before.depth:
            frames = _with_item(frames[:-1], written, at + 1)
        elif after.mode == "done" and before.mode == "string":
            frames = _with_item(frames, written, at + 1)
        elif after.mode == "word" and before.mode != "word":
            _check_word(frames, byte)
        elif after.mode == "name" and before.mode != "name":
            frames = (*frames[:-1], frames[-1]._replace(start=at))
        elif after.mode == "colon" and before.mode == "name":
            frames = (*frames[:-1], frames[-1]._replace(key=_name(written.between(frames[-1].start, at + 1))))
        elif byte == ord(",") and after.mode == "value" and frames:
            frames = (*frames[:-1], frames[-1]._replace(start=at + 1, key=_next(frames[-1].key)))
        return ItemsPlace(frames, after)

    def _opened(self, frames: tuple[Frame, ...], start: int) -> Frame:
        place = self._places.child(frames[-1].place, frames[-1].key) if frames else self._places.start
        return Frame(place, self._places.is_unique(place), start)


def _with_item(frames: tuple[Frame, ...], written: Written, end: int) -> tuple[Frame, ...]:
    """Return the brackets with the item that ends at `end`. Raises Repeated."""
    if not frames or not frames[-1].unique or isinstance(frames[-1].key, str):
        return frames
    item = canonical(written.between(frames[-1].start, end))
    if item in frames[-1].seen:
        raise Repeated
    return (*frames[:-1], frames[-1]._replace(seen=frames[-1].seen | {item}))


def _check_word(frames: tuple[Frame, ...], first: int) -> None:
    """Raises Repeated if the word that begins so is an item already: it could not end."""
    if frames and frames[-1].unique and _canonical(_WORDS[first]) in frames[-1].seen:
        raise Repeated


def _next(key: int | str) -> int | str:
    return key + 1 if isinstance(key, int) else key


def _name(text: bytes) -> str:
    name: str = json.loads(text)
    return name


def canonical(text: bytes) -> Hashable:
    """Return what is equal for texts of equal JSON values."""
    return _canonical(json.loads(text, parse_int=Decimal, parse_float=Decimal))


def _canonical(value: Any) -> Hashable:
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)  # JSON has no infinity
        text = "".join(map(str, digits)).lstrip("0")
        plain = text.rstrip("0")
        return ("number", sign, plain, exponent + len(text) - len(plain)) if plain else ("number", 0, "", 0)
    if isinstance(value, list):
        return ("array", *map(_canonical, value))
    if isinstance(value, dict):
        return ("object", frozenset((name, _canonical(item)) for name, item in value.items()))
    return (type(value).__name__, value)
