"""The parts that a text is made of, and what may follow each: the arguments of tools' calls, above all.

A way that leads to no JSON value is not followed, nor one behind an expression or a grammar, whose end is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypedDict

from inferd_grammar.completion.composed import VALUES
from inferd_grammar.constraints import (
    AnyOfGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    JsonTextGrammar,
    PrefixedGrammar,
    RepeatedGrammar,
    SequenceGrammar,
    TaggedGrammar,
    TextGrammar,
    UntilGrammar,
)
from inferd_grammar.errors import GrammarError
from inferd_grammar.rules.items import UniqueItems
from inferd_grammar.rules.places import UniquePlaces

_DEEPEST = 20
Tree = list[Any]
"""A constraint as JSON: its kind, then what is inside. A fixed text is Latin-1, a character for each of its bytes."""


class ValueRules(TypedDict):
    """The rules of one JSON value.

    Fields:
        digits: the most digits of a number.
        names: its objects may have names that are not listed; `few` if some may run out of them.
        unique: its schema if it has arrays whose items have to differ; None for others.
    """

    digits: int
    names: bool
    few: bool
    unique: Any


_NO_RULES: ValueRules = {"digits": 0, "names": False, "few": False, "unique": None}
"""Those of a string."""


def tree_of(constraint: Constraint, spell: Callable[[str], bytes], rules: Callable[[Constraint], ValueRules]) -> Tree:
    """Return the tree of a constraint. ``spell`` writes a fixed text that may name special tokens."""

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
            case JsonTextGrammar():
                return ["value", _NO_RULES]
            case UntilGrammar(end):
                return ["until", fixed(end)]
            case TaggedGrammar(tags):
                return ["tagged", *([fixed(tag.begin), tree(tag.content), fixed(tag.end)] for tag in tags)]
        return ["value", rules(part)] if isinstance(part, VALUES) else ["unknown"]

    def fixed(text: str) -> str:
        return spell(text).decode("latin-1")

    return tree(constraint)


@dataclass(eq=False)
class Fork:
    """Where a text goes on in one of several ways; none that is followed where it leads to no JSON value."""

    ways: list[Fork | Fixed | Free | Value]


@dataclass(eq=False)
class Fixed:
    """Exactly these bytes, at least one."""

    text: bytes
    behind: Fork

    @property
    def last(self) -> list[bytes]:
        """What it ends with."""
        return [self.text]


@dataclass(eq=False)
class Free:
    """Any text up to the first of several ends."""

    ends: list[tuple[bytes, Fork]]

    @cached_property
    def longest(self) -> int:
        """The bytes of the longest end."""
        return max(len(end) for end, _ in self.ends)

    @cached_property
    def last(self) -> list[bytes]:
        """What it may end with."""
        return [end for end, _ in self.ends]

    @cached_property
    def any_end(self) -> re.Pattern[bytes]:
        """Finds all ends at once."""
        return re.compile(b"|".join(re.escape(end) for end, _ in self.ends))


@dataclass(eq=False)
class Value:
    """A JSON value; ``unique`` holds its arrays, if any has to be watched. ``names``: those of its objects have to be."""

    digits: int
    names: bool
    unique: UniqueItems | None
    behind: Fork


def require_followed(tree: Tree, watched_behind: bool = False) -> bool:
    """Return True if watched arrays may come in a tree or behind it. Raises GrammarError where these cannot be followed."""
    kind, *inside = tree
    match kind:
        case "unknown" if watched_behind:
            raise GrammarError("uniqueItems is not supported behind an expression or a grammar, whose end is not known")
        case "value":
            return watched_behind or inside[0]["unique"] is not None
        case "sequence":
            for part in reversed(inside):
                watched_behind = require_followed(part, watched_behind)
        case "any":
            found = [require_followed(part, watched_behind) for part in inside]
            return any(found)
        case "repeated" | "tagged":
            contents = inside if kind == "repeated" else [content for _, content, _ in inside]
            once = [require_followed(content, watched_behind) for content in contents]
            if any(once) and not watched_behind:
                return require_followed(tree, True)
    return watched_behind


def fork_of(tree: Tree, behind: Fork) -> Fork:
    """Return the ways through a tree and what is behind it; none behind what cannot be followed."""
    kind, *inside = tree
    if not behind.ways and not _has_value(tree):
        return behind
    match kind:
        case "text":
            return Fork([Fixed(inside[0].encode("latin-1"), behind)]) if inside[0] else behind
        case "value":
            unique = inside[0]["unique"]
            items = None if unique is None else UniqueItems(UniquePlaces(unique))
            return Fork([Value(inside[0]["digits"], inside[0]["names"], items, behind)])
        case "sequence":
            for part in reversed(inside):
                behind = fork_of(part, behind)
            return behind
        case "any":
            return _joined([fork_of(part, behind) for part in inside])
        case "until":
            return Fork([Free([(inside[0].encode("latin-1"), behind)])])
        case "repeated" | "tagged":
            return _loop(kind, inside, behind)
    return Fork([])


def _joined(forks: list[Fork], depth: int = 0) -> Fork:
    """Return several forks as one, in which fixed texts that begin alike are one way: a text may name hundreds of tools."""
    ways: list[Fork | Fixed | Free | Value] = []
    alike: dict[int, list[Fixed]] = {}
    for fork in forks:
        match fork.ways:
            case [Fixed() as way] if depth < _DEEPEST:
                alike.setdefault(way.text[0], []).append(way)
            case _:
                ways.append(fork)
    for group in alike.values():
        size = _common([way.text for way in group])
        rest = [Fork([Fixed(way.text[size:], way.behind)]) if way.text[size:] else way.behind for way in group]
        behind = rest[0] if len(rest) == 1 else _joined(rest, depth + 1)
        ways.append(Fixed(group[0].text[:size], behind))
    return Fork(ways)


def _common(texts: list[bytes]) -> int:
    """Return how many bytes all of several texts begin with."""
    first, last = min(texts), max(texts)
    return next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))


def _has_value(tree: Any) -> bool:
    return isinstance(tree, list) and (tree[:1] == ["value"] or any(map(_has_value, tree)))


def _loop(kind: str, inside: list[Any], behind: Fork) -> Fork:
    loop = Fork([behind])
    if kind == "repeated":
        loop.ways.append(fork_of(inside[0], loop))
        return loop
    ends = []
    for begin, content, end in inside:
        ends.append((begin.encode("latin-1"), fork_of(["sequence", content, ["text", end]], loop)))
    loop.ways.append(Free(ends))
    return loop
