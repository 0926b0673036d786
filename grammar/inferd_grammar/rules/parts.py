"""Unique items inside of texts that are made of parts: the arguments of tools' calls, above all.

A text is followed byte by byte through the parts of its constraint, in every way in which it may have come so far. A way that
leads to no array whose items have to differ is not followed. What repeats an item in one of the ways is illegal: where several
are open (two parts that begin alike) that is narrower than the constraint, never wider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from string import ascii_letters, digits
from typing import Any, NamedTuple

from inferd_grammar.completion.composed import VALUES
from inferd_grammar.completion.json_place import Mode
from inferd_grammar.constraints import (
    AnyOfGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    PrefixedGrammar,
    RepeatedGrammar,
    SequenceGrammar,
    TaggedGrammar,
    TextGrammar,
    UntilGrammar,
)
from inferd_grammar.errors import GrammarError
from inferd_grammar.rules.items import ItemsPlace, UniqueItems, Written
from inferd_grammar.rules.places import UniquePlaces

Tree = list[Any]
"""A constraint as JSON: its kind, then what is inside. A fixed text is Latin-1, a character for each of its bytes."""
_BEGINS_VALUE = frozenset(b'"[{-0123456789tfn')
_IN_WORD = frozenset(f"+-.{digits}{ascii_letters}".encode())


def tree_of(constraint: Constraint, spell: Callable[[str], bytes], unique: Callable[[Constraint], Any]) -> Tree:
    """Return the tree of a constraint.

    ``spell`` writes a fixed text that may name special tokens. ``unique`` returns the schema of a JSON value in which arrays have
    to be watched, None for another one.
    """

    def tree(part: Constraint) -> Tree:
        match part:
            case TextGrammar(text):
                return ["text", fixed(text)]
            case ChoiceGrammar(options):
                return ["any", *(["text", option.encode().decode("latin-1")] for option in options)]
            case ExactGrammar(inner):
                return tree(inner)
            case PrefixedGrammar(prefix, inner) if inner is not None:
                return ["sequence", ["text", prefix.encode().decode("latin-1")], tree(inner)]
            case SequenceGrammar(members):
                return ["sequence", *map(tree, members)]
            case AnyOfGrammar(members):
                return ["any", *map(tree, members)]
            case RepeatedGrammar(inner):
                return ["repeated", tree(inner)]
            case UntilGrammar(end):
                return ["until", fixed(end)]
            case TaggedGrammar(tags):
                return ["tagged", *([fixed(tag.begin), tree(tag.content), fixed(tag.end)] for tag in tags)]
        return ["value", unique(part)] if isinstance(part, VALUES) else ["unknown"]

    def fixed(text: str) -> str:
        return spell(text).decode("latin-1")

    return tree(constraint)


@dataclass(eq=False)
class Fork:
    """Where a text goes on in one of several ways; none that is followed where it leads to no watched array."""

    ways: list[Fork | Fixed | Free | Value]


@dataclass(eq=False)
class Fixed:
    """Exactly these bytes, at least one."""

    text: bytes
    behind: Fork


@dataclass(eq=False)
class Free:
    """Any text up to the first of several ends."""

    ends: list[tuple[bytes, Fork]]


@dataclass(eq=False)
class Value:
    """A JSON value; ``unique`` holds its arrays, if any has to be watched."""

    unique: UniqueItems | None
    behind: Fork


class Way(NamedTuple):
    """A part that the text has come to, the place where that began, and where its JSON stands."""

    part: Fixed | Free | Value
    start: int
    items: ItemsPlace = ItemsPlace()


class PartsPlace(NamedTuple):
    """Where a text stands: in one of these ways."""

    ways: tuple[Way, ...]

    @property
    def watched(self) -> frozenset[Mode]:
        """As of `ItemsPlace`."""
        return frozenset[Mode]().union(*(way.items.watched for way in self.ways))


class UniqueInParts:
    """The rule for one constraint; as `UniqueItems`."""

    def __init__(self, tree: Tree) -> None:
        self.start = PartsPlace(tuple(_enter(_fork(tree, Fork([])), 0)))

    def behind(self, place: PartsPlace, written: Written) -> PartsPlace:
        """Return the place behind the token of `written`, from the one before it. Raises Repeated."""
        ways = place.ways
        for at, byte in enumerate(written.token, start=len(written.text)):
            ways = tuple(dict.fromkeys(on for way in ways for on in _step(way, byte, at, written)))
        return PartsPlace(ways)


def _watches(tree: Any) -> bool:
    return isinstance(tree, list) and ((tree[:1] == ["value"] and tree[1] is not None) or any(map(_watches, tree)))


def _fork(tree: Tree, behind: Fork) -> Fork:
    """Return the ways through a tree and what is behind it. Raises GrammarError where a text cannot be followed."""
    kind, *inside = tree
    if not behind.ways and not _watches(tree):
        return behind
    match kind:
        case "text":
            return Fork([Fixed(inside[0].encode("latin-1"), behind)]) if inside[0] else behind
        case "value":
            return Fork([Value(None if inside[0] is None else UniqueItems(UniquePlaces(inside[0])), behind)])
        case "sequence":
            for part in reversed(inside):
                behind = _fork(part, behind)
            return behind
        case "any":
            return Fork([_fork(part, behind) for part in inside])
        case "until":
            return Fork([Free([(inside[0].encode("latin-1"), behind)])])
        case "repeated" | "tagged":
            return _loop(kind, inside, behind)
    raise GrammarError("uniqueItems is not supported behind an expression or a grammar, whose end is not known")


def _loop(kind: str, inside: list[Any], behind: Fork) -> Fork:
    loop = Fork([behind])
    if kind == "repeated":
        loop.ways.append(_fork(inside[0], loop))
        return loop
    ends = []
    for begin, content, end in inside:
        ends.append((begin.encode("latin-1"), _fork(["sequence", content, ["text", end]], loop)))
    loop.ways.append(Free(ends))
    return loop


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


def _step(way: Way, byte: int, at: int, written: Written) -> Iterator[Way]:
    """Yield the ways on behind a byte at `at`; none where the text has not come this way. Raises Repeated."""
    part = way.part
    if isinstance(part, Value):
        yield from _in_value(way, part, byte, at, written)
    elif isinstance(part, Free):
        reached = (fork for end, fork in part.ends if written.between(max(way.start, at + 1 - len(end)), at + 1) == end)
        fork = next(reached, None)
        yield from [way] if fork is None else _enter(fork, at + 1)
    elif part.text[at - way.start] == byte:
        yield from [way] if at + 1 - way.start < len(part.text) else _enter(part.behind, at + 1)


def _in_value(way: Way, part: Value, byte: int, at: int, written: Written) -> Iterator[Way]:
    json = way.items.json
    if at == way.start and byte not in _BEGINS_VALUE:
        return
    if json.depth == 0 and json.mode in ("number", "word") and byte not in _IN_WORD:
        for on in _enter(part.behind, at):
            yield from _step(on, byte, at, written)
        return
    try:
        items = (
            ItemsPlace(json=json.behind(bytes([byte])))
            if part.unique is None
            else part.unique.step(way.items, byte, at, written)
        )
    except (ValueError, KeyError, IndexError):
        return  # this is no JSON: the text is in another part
    if items.json.depth == 0 and items.json.mode == "done":
        yield from _enter(part.behind, at + 1)
    else:
        yield way._replace(items=items)
