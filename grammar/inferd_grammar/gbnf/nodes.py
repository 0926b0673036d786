"""The syntax tree of a GBNF grammar."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class CharacterClass:
    """One character: any of `ranges` (pairs of code points, both ends included), or any other if `negated`."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True)
class Reference:
    """Text of another rule."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """The items one after the other; nothing if there are none."""

    items: tuple[GbnfNode, ...]


@dataclass(frozen=True)
class Alternatives:
    """One of the items."""

    items: tuple[GbnfNode, ...]


@dataclass(frozen=True)
class Repeat:
    """`item` at least `low` times and at most `high` times (None: any number)."""

    item: GbnfNode
    low: int
    high: int | None


GbnfNode = CharacterClass | Reference | Sequence | Alternatives | Repeat


def references(node: GbnfNode) -> Iterator[str]:
    """Return the names of the rules that a tree refers to, repeats included."""
    match node:
        case Reference(name):
            yield name
        case Sequence(items) | Alternatives(items):
            for item in items:
                yield from references(item)
        case Repeat(item):
            yield from references(item)
