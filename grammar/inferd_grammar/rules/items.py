"""Arrays whose items differ: an item that is equal to an earlier one cannot be closed.

Equality is JSON's: 1 is 1.0 but not true, and the order of an object's keys does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from decimal import Decimal
from typing import Any, NamedTuple

from inferd_grammar.completion.json_place import JsonPlace, Mode
from inferd_grammar.errors import RuleBroken
from inferd_grammar.persistent import Stack, below, each, has_item, with_item, with_top
from inferd_grammar.rules.places import UniquePlaces, ValuePlace

_WORDS = {ord("t"): True, ord("f"): False, ord("n"): None}


class Repeated(RuleBroken):
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
        place: where it stands in the schema: the ways that the text leaves open.
        unique: it is an array whose items have to differ, under some way.
        start: where its current item, name or value begins, in bytes.
        key: the current item's index or the current name.
        seen: the items so far, as `canonical` has them.
        narrowed: equal items in it have ended ways that were open; others have to be left at its end.
    """

    place: ValuePlace
    unique: bool
    start: int
    key: int | str = 0
    seen: tuple[frozenset[Hashable], ...] = ()
    narrowed: bool = False

    def within(self, place: ValuePlace) -> Frame:
        """Return the bracket under fewer ways. Raises Repeated if none is left."""
        if not place:
            raise Repeated
        return self._replace(place=place)


class ItemsPlace(NamedTuple):
    """Where a text stands: its brackets, and what JSON says comes next."""

    frames: Stack[Frame] = None
    json: JsonPlace = JsonPlace()

    @property
    def watched(self) -> frozenset[Mode]:
        """Inside an array whose items have to differ, what is being written; empty elsewhere."""
        return frozenset({self.json.mode} if any(frame.unique or frame.narrowed for frame in each(self.frames)) else ())

    @property
    def start(self) -> int:
        """Where the current item, name or value begins."""
        return _innermost(self.frames).start

    @property
    def strings(self) -> list[str] | None:
        """The strings that what is being written must not become, where nothing else could be there already; None elsewhere."""
        last, *outer = each(self.frames)
        if last.narrowed or any(frame.seen or frame.narrowed for frame in outer):
            return None
        if last.seen and (self.json.mode != "string" or isinstance(last.key, str)):
            return None
        seen = (item for items in last.seen for item in items if isinstance(item, tuple))
        return [item[1] for item in seen if item[0] == "str"]


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
            frames = self._with_scalar(frames, written, at)
        if after.depth > before.depth:
            frames = (self._opened(frames, byte, at + 1), frames)
        elif after.depth < before.depth:
            frames = self._with_item(self._closed(frames), written, at + 1)
        elif after.mode == "done" and before.mode == "string":
            frames = self._with_scalar(frames, written, at + 1)
        elif after.mode == "word" and before.mode != "word":
            self._check_word(frames, byte)
        elif after.mode == "name" and before.mode != "name":
            frames = with_top(frames, _innermost(frames)._replace(start=at))
        elif after.mode == "colon" and before.mode == "name":
            last = _innermost(frames)
            frames = with_top(frames, last._replace(key=_name(written.between(last.start, at + 1))))
        elif byte in b",:" and after.mode == "value" and frames:
            frames = with_top(frames, frames[0]._replace(start=at + 1, key=_next(frames[0].key)))
        return ItemsPlace(frames, after)

    def _opened(self, frames: Stack[Frame], bracket: int, start: int) -> Frame:
        whole = self._places.child(frames[0].place, frames[0].key) if frames else self._places.start
        place = self._places.taking(whole, "array" if bracket == ord("[") else "object")
        return Frame(place, self._places.is_unique(place), start)

    def _closed(self, frames: Stack[Frame]) -> Stack[Frame]:
        """Return the brackets without the innermost; its ways are those of the next. Raises Repeated."""
        last, outer = _innermost(frames), below(frames)
        if outer and last.narrowed:
            place = self._places.with_member(outer[0].place, outer[0].key, last.place)
            if place != outer[0].place:
                return with_top(outer, outer[0].within(place)._replace(narrowed=True))
        return outer

    def _with_scalar(self, frames: Stack[Frame], written: Written, end: int) -> Stack[Frame]:
        """Return the brackets with the string, number or word that ends at `end`. Raises Repeated."""
        if not frames or not isinstance(frames[0].key, str):
            return self._with_item(frames, written, end)
        last = frames[0]
        if not last.narrowed and len(last.place) == 1:
            return frames
        return with_top(frames, self._with_value(last, json.loads(written.between(last.start, end))))

    def _with_value(self, frame: Frame, value: Any) -> Frame:
        return frame.within(self._places.with_value(frame.place, str(frame.key), value))

    def _with_item(self, frames: Stack[Frame], written: Written, end: int) -> Stack[Frame]:
        """Return the brackets with the item that ends at `end`. Raises Repeated."""
        if not frames or not frames[0].unique or isinstance(frames[0].key, str):
            return frames
        last, item = frames[0], canonical(written.between(frames[0].start, end))
        if has_item(last.seen, item):
            return with_top(frames, self._repeated(last))
        return with_top(frames, last._replace(seen=with_item(last.seen, item)))

    def _repeated(self, frame: Frame) -> Frame:
        """Return an array under the ways that allow equal items. Raises Repeated if there are none."""
        return frame.within(self._places.may_repeat(frame.place))._replace(unique=False, narrowed=True)

    def _check_word(self, frames: Stack[Frame], first: int) -> None:
        """Raises Repeated if no way is left behind the word that begins so: it could not end."""
        if not frames:
            return
        last, word = frames[0], _WORDS[first]
        if isinstance(last.key, str):
            if last.narrowed:
                self._with_value(last, word)
        elif last.unique and has_item(last.seen, _canonical(word)):
            self._repeated(last)


def _innermost(frames: Stack[Frame]) -> Frame:
    if frames is None:
        raise ValueError("no bracket is open")
    return frames[0]


def _next(key: int | str) -> int | str:
    return key + 1 if isinstance(key, int) else key


def _name(text: bytes) -> str:
    name: str = json.loads(text)
    return name


def canonical(text: bytes) -> Hashable:
    """Return what is equal for texts of equal JSON values, numbers read as 64-bit floats where they are not written as whole."""
    return _canonical(json.loads(text, parse_int=Decimal))


def _canonical(value: Any) -> Hashable:
    if isinstance(value, (Decimal, float)):
        return ("number", value)
    if isinstance(value, list):
        return ("array", *map(_canonical, value))
    if isinstance(value, dict):
        return ("object", frozenset((name, _canonical(item)) for name, item in value.items()))
    return (type(value).__name__, value)
