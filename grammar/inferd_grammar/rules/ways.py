"""The rules inside of texts that are made of parts: see `parts`.

A text is followed through the parts of its constraint, in every way in which it may have come so far. What breaks a rule in
one of the ways is illegal: where several are open (two parts that begin alike) that is narrower than the constraint, never wider.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from string import ascii_letters, digits
from typing import NamedTuple

from inferd_grammar.completion.json_place import Mode
from inferd_grammar.errors import RuleBroken
from inferd_grammar.rules.items import ItemsPlace, Written
from inferd_grammar.rules.names import NamesPlace
from inferd_grammar.rules.numbers import NumberPlace, behind as number_behind, is_too_large
from inferd_grammar.rules.parts import Fixed, Fork, Free, Tree, Value, fork_of

_BEGINS_VALUE = frozenset(b'"[{-0123456789tfn')
_CLOSERS = re.compile(rb"[}\]]")
_IN_WORD = frozenset(f"+-.{digits}{ascii_letters}".encode())


class Way(NamedTuple):
    """A part that the text has come to, the place where that began, and where its JSON stands for each rule."""

    part: Fixed | Free | Value
    start: int
    items: ItemsPlace = ItemsPlace()
    number: NumberPlace = NumberPlace()
    names: NamesPlace = NamesPlace()


class PartsPlace(NamedTuple):
    """Where a text stands: in one of these ways."""

    ways: tuple[Way, ...] = ()

    @property
    def watched(self) -> frozenset[Mode]:
        """As of `ItemsPlace`."""
        return frozenset[Mode]().union(*(way.items.watched for way in self.ways))

    @property
    def numbers(self) -> set[tuple[NumberPlace, int]]:
        """The numbers that the text may stand in, and how many digits each may have."""
        return {
            (way.number, way.part.digits) for way in self.ways if way.number.in_number and isinstance(way.part, Value)
        }

    @property
    def names(self) -> list[NamesPlace]:
        """The places in values whose objects have to be watched."""
        return [way.names for way in self.ways if isinstance(way.part, Value) and way.part.names]

    @property
    def ends(self) -> list[bytes] | None:
        """What comes before a value can begin: one of these; None where the text may stand in a value."""
        if any(isinstance(way.part, Value) for way in self.ways):
            return None
        return [end for way in self.ways if not isinstance(way.part, Value) for end in way.part.last]


class PartsRule:
    """The rules for one constraint."""

    def __init__(self, tree: Tree) -> None:
        self.start = PartsPlace(tuple(_enter(fork_of(tree, Fork([])), 0)))

    def behind(self, place: PartsPlace, written: Written) -> PartsPlace:
        """Return the place behind the token of `written`, from the one before it. Raises RuleBroken."""
        if len(place.ways) == 1:
            ways = tuple(_on(place.ways[0], written))
            return place if ways and ways[0] is place.ways[0] else PartsPlace(ways)
        return PartsPlace(_distinct(on for way in place.ways for on in _on(way, written)))


def _enter(fork: Fork, start: int) -> Iterator[Way]:
    """Yield the parts that a text which has come to a fork may go on with."""
    seen, stack = {id(fork)}, [fork]
    while stack:
        for way in stack.pop().ways:
            if not isinstance(way, Fork):
                yield Way(way, start)
            elif id(way) not in seen:
                seen.add(id(way))
                stack.append(way)


def _on(way: Way, written: Written) -> Iterable[Way]:
    """Return the ways on behind the token of `written`: at once where it stays in the part. Raises RuleBroken."""
    part, (text, token) = way.part, written
    if isinstance(part, Value):
        inside = _inside(token, way.items.json.depth)
        ways = _in_value(way, part, token[:inside], len(text), written) if inside else (way,)
        return _through(ways, written, inside)
    elif isinstance(part, Free):
        size = len(text)
        if part.any_end.search(written.between(max(way.start, size + 1 - part.longest), size + len(token))) is None:
            return (way,)
    else:
        rest = part.text[len(text) - way.start :]
        if not token.startswith(rest):
            return (way,) if rest.startswith(token) else ()
    return _through((way,), written)


def _inside(token: bytes, depth: int) -> int:
    """Return how many bytes of a token cannot leave a value with so many open brackets: those before as many that close."""
    if token.count(b"}") + token.count(b"]") < depth:
        return len(token)
    last = next(islice(_CLOSERS.finditer(token), depth - 1, None)) if depth else None
    return 0 if last is None else last.start()


def _through(ways: tuple[Way, ...], written: Written, first: int = 0) -> tuple[Way, ...]:
    """Return the ways on, byte by byte from one of the token's on. Raises RuleBroken."""
    for at, byte in enumerate(written.token[first:], start=len(written.text) + first):
        ways = _distinct(on for one in ways for on in _step(one, byte, at, written))
    return ways


def _distinct(ways: Iterable[Way]) -> tuple[Way, ...]:
    """Return each way once: those that began in the same part at the same place are the same, however deep they are."""
    return tuple({(id(way.part), way.start): way for way in ways}.values())


def _step(way: Way, byte: int, at: int, written: Written) -> Iterable[Way]:
    """Return the ways on behind a byte at `at`; none where the text has not come this way. Raises RuleBroken."""
    part = way.part
    if isinstance(part, Value):
        return _step_in_value(way, part, byte, at, written)
    if isinstance(part, Free):
        reached = (fork for end, fork in part.ends if written.between(max(way.start, at + 1 - len(end)), at + 1) == end)
        fork = next(reached, None)
        return (way,) if fork is None else _enter(fork, at + 1)
    if part.text[at - way.start] != byte:
        return ()
    return (way,) if at + 1 - way.start < len(part.text) else _enter(part.behind, at + 1)


def _step_in_value(way: Way, part: Value, byte: int, at: int, written: Written) -> Iterator[Way]:
    json = way.items.json
    if at == way.start and byte not in _BEGINS_VALUE:
        return
    if at > way.start and json.depth == 0 and json.mode in ("number", "word"):
        for on in _enter(part.behind, at):
            # a text may go on with a letter or a digit: `5kg`
            if byte not in _IN_WORD or isinstance(on.part, Fixed):
                yield from _step(on, byte, at, written)
        if byte not in _IN_WORD:
            return
    for on in _in_value(way, part, bytes((byte,)), at, written):
        if on.items.json.depth == 0 and on.items.json.mode == "done":
            yield from _enter(part.behind, at + 1)
        else:
            yield on


def _in_value(way: Way, part: Value, text: bytes, at: int, written: Written) -> tuple[Way, ...]:
    """Return the way behind bytes at `at` that do not leave its value; none where these are no JSON. Raises RuleBroken."""
    if is_too_large(way.number, text):
        raise RuleBroken
    items, names, number = way.items, way.names, number_behind(way.number, text)
    try:
        if part.names:
            names = names.behind(text)
        if part.unique is None:
            json = names.json if part.names else items.json.behind(text)
            if (json, number) == (items.json, way.number) and names.open is way.names.open:
                return (way,)  # inside a string, most often
            items = ItemsPlace(json=json)
        else:
            for place, byte in enumerate(text, start=at):
                items = part.unique.step(items, byte, place, written)
    except (ValueError, KeyError, IndexError):
        return ()  # the text is in another part
    return (Way(part, way.start, items, number, names),)
