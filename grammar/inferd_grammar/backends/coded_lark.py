"""Grammars of texts that are written in a coding: of JSON strings whose values are texts of a Lark grammar, above all.

Terminals are coded character by character; see `rewrites.codings` for why the mark with which some characters begin is a part
of the lexeme before. So each terminal has up to four forms, by whether its own first mark is left out, and whether that of the
next one stands behind it, and each rule has one for each two places between which it may stand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from inferd_grammar.backends.lark_library import (
    AnyItem,
    Item,
    Joined,
    Lexeme,
    Literal,
    PlainGrammar,
    Repeat,
    Rule,
    written_count,
    written_terminal,
)
from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits
from inferd_grammar.rewrites.codings import Coding, Forms, forms
from inferd_grammar.rewrites.regex_dialect import Ambiguous
from inferd_grammar.rewrites.regex_syntax import NotUnderstood
from inferd_grammar.rewrites.regex_tree import Tree, literal, read_tree

_NOTHING = '""'
_FEW = 16
"""Parts of a sequence that are written one after the other."""


class _Place(NamedTuple):
    """Where a text stands between two lexemes: behind any, and behind a mark whose character is not complete."""

    begun: bool
    marked: bool


class _Bare(Lexeme):
    """A terminal, with nothing ignored before it."""


@dataclass(frozen=True)
class _Silent(Lexeme):
    """A terminal that takes nothing more; `takes_mark`: the mark before it is all of it, else it is empty."""

    takes_mark: bool


_Span = tuple[Item, _Place, _Place]
_FIRST = (_Place(False, False), _Place(False, True))


def terminal_trees(grammar: PlainGrammar) -> dict[str, Tree]:
    """Return the terminals as trees. Raises GrammarError for what is not understood."""
    return {name: _tree(pattern) for name, pattern in grammar.terminals.items()}


def _tree(pattern: Literal | str) -> Tree:
    if isinstance(pattern, Literal):
        return literal(pattern.text)
    try:
        return read_tree(pattern)
    except (NotUnderstood, Ambiguous) as error:
        raise GrammarError(f"this expression is not supported in a terminal here: {error}") from error


def coded_lark(grammar: PlainGrammar, coding: Coding, limits: CompileLimits) -> str:
    """Return llguidance's grammar of a grammar's texts in a coding. Raises GrammarError for one that is too large."""
    try:
        known = {name: forms(tree, coding) for name, tree in terminal_trees(grammar).items()}
    except NotUnderstood as error:
        raise GrammarError(f"this expression is not supported in a terminal here: {error}") from error
    return _Coder(grammar, coding, known, limits).text()


class _Coder:
    """Writes the rules that texts need, each for the places that it stands between."""

    def __init__(self, grammar: PlainGrammar, coding: Coding, known: dict[str, Forms], limits: CompileLimits) -> None:
        self._rules = grammar.rules
        self._coding = coding
        self._forms = known
        self._limits = limits
        ignored = tuple(part for name in grammar.ignored for part in self._alone(name))
        self._skipped = Repeat(AnyItem(ignored), 1, None) if ignored else None
        self._ends: dict[tuple[str, _Place], frozenset[_Place]] = {}
        self._names: dict[_Span, str] = {}
        self._waiting: list[_Span] = []
        self._terminals: dict[str, str] = {}

    def text(self) -> str:
        """Return the grammar. Raises GrammarError."""
        self._find_ends()
        lines = [f"start: {' | '.join(self._whole())}"]
        while self._waiting:
            span = self._waiting.pop()
            lines.append(f"{self._names[span]}: {' | '.join(self._ways(*span))}")
            if len(lines) > self._limits.max_rules:
                raise GrammarError(
                    f"Lark grammar needs more than max_rules ({self._limits.max_rules}) rules inside of another text"
                )
        return "\n".join([*lines, *(f"{name}: {pattern}" for name, pattern in self._terminals.items())])

    def _whole(self) -> Iterator[str]:
        """Yield the ways through all of the text. Raises GrammarError if there are none."""
        mark, closing = self._coding.mark, self._coding.closing
        marked = bool(mark) and closing.startswith(mark)
        found = False
        start: Item = Rule("start")
        whole = start if self._skipped is None else AnyItem((start, Joined((start, self._skipped))))
        for first in _FIRST:
            opening = self._coding.opening + (mark if first.marked else "")
            for last in sorted(self._behind(whole, first)):
                if last.marked == marked:
                    found = True
                    end = closing.removeprefix(mark) if marked else closing
                    yield f"{_fixed(opening)} {self._written(whole, first, last)} {_fixed(end)}"
        if not found:
            raise GrammarError("no text matches the Lark grammar")

    def _find_ends(self) -> None:
        """Find at which places a rule may end, by the place at which it begins: the least solution."""
        places = [_Place(begun, marked) for begun in (False, True) for marked in (False, True)]
        changed = True
        while changed:
            changed = False
            for name, item in reversed(self._rules.items()):  # what others are made of comes last
                for place in places:
                    found = self._behind(item, place)
                    changed |= found != self._ends.get((name, place), frozenset())
                    self._ends[name, place] = found

    def _behind(self, item: Item, place: _Place) -> frozenset[_Place]:
        """Return at which places an item may end."""
        match item:
            case Rule(name):
                return self._ends.get((name, place), frozenset())
            case _Bare(name):
                return self._behind_lexeme(self._forms[name], place)
            case _Silent(_, takes_mark):
                silent = frozenset([_Place(True, place.marked and not takes_mark)])
                return silent if place.marked or not takes_mark else frozenset()
            case Lexeme():
                return frozenset(end for way in self._lexeme_ways(item, place) for end in self._behind(way, place))
            case Joined(items):
                found = frozenset([place])
                for part in items:
                    found = self._behind_all(part, found)
                return found
            case AnyItem(items):
                return frozenset(end for part in items for end in self._behind(part, place))
            case Repeat(inner, least, most):
                return self._behind_repeated(inner, least, most, place)

    def _behind_all(self, item: Item, places: frozenset[_Place]) -> frozenset[_Place]:
        return frozenset(end for place in places for end in self._behind(item, place))

    def _behind_repeated(self, item: Item, least: int, most: int | None, place: _Place) -> frozenset[_Place]:
        found = frozenset([place])
        for _ in range(least):
            before, found = found, self._behind_all(item, found)
            if before == found:
                break
        reached, left = found, -1 if most is None else most - least
        while reached and left != 0:
            reached, left = self._behind_all(item, reached) - found, left - 1
            found |= reached
        return found

    def _behind_lexeme(self, known: Forms, place: _Place) -> frozenset[_Place]:
        found = set()
        if (known.marked if place.marked else known.plain) is not None:
            found.add(_Place(True, False))
        if self._coding.mark and (found or (place.marked and known.bare)):
            found.add(_Place(True, True))
        return frozenset(found)

    def _alone(self, name: str) -> list[Item]:
        """Return a terminal as it may stand with nothing ignored before it, if it is not empty."""
        return [_Bare(name), _Silent(name, True)] if self._forms[name].bare else [_Bare(name)]

    def _lexeme_ways(self, lexeme: Lexeme, place: _Place) -> list[Item]:
        """Return a terminal as it may stand at a place: behind something, what is ignored may stand before it."""
        ways = self._alone(lexeme.name)
        if self._forms[lexeme.name].empty:
            ways.append(_Silent(lexeme.name, False))
        if self._skipped is None or not place.begun:
            return ways
        return [*ways, *(Joined((self._skipped, way)) for way in ways)]

    def _written(self, item: Item, first: _Place, last: _Place) -> str:
        """Return what stands for an item between two places."""
        ways = self._choices(item, first, last)
        while ways is not None and len(ways) == 1:
            (item,) = ways
            ways = self._choices(item, first, last)
        if isinstance(item, _Bare):
            return self._lexeme(item.name, first, last)
        if isinstance(item, _Silent):
            return _NOTHING
        span = (item, first, last)
        if span not in self._names:
            self._names[span] = f"r{len(self._names)}"
            self._waiting.append(span)
        return self._names[span]

    def _choices(self, item: Item, first: _Place, last: _Place) -> list[Item] | None:
        """Return what may stand in place of an item between two places; None for one that is no choice."""
        match item:
            case _Bare() | _Silent():
                return None
            case Lexeme():
                ways = self._lexeme_ways(item, first)
            case AnyItem(items):
                ways = list(items)
            case Joined((one,)):
                ways = [one]
            case _:
                return None
        return [way for way in dict.fromkeys(ways) if last in self._behind(way, first)]

    def _ways(self, item: Item, first: _Place, last: _Place) -> Iterator[str]:
        """Yield the ways through an item between two places."""
        ways = self._choices(item, first, last)
        if ways is not None:
            yield from (self._written(way, first, last) for way in ways)
            return
        match item:
            case Rule(name):
                yield self._written(self._rules[name], first, last)
            case Joined(items):
                yield from self._joined(items, first, last)
            case Repeat(inner, least, most):
                yield from self._repeated(inner, least, most, first, last)

    def _joined(self, items: tuple[Item, ...], first: _Place, last: _Place) -> Iterator[str]:
        if not items:
            yield _NOTHING
            return
        # A long one in halves: from part to part, each would look at all that follow.
        size = 1 if len(items) <= _FEW else len(items) // 2
        part, rest = (half[0] if len(half) == 1 else Joined(half) for half in (items[:size], items[size:]))
        for middle in sorted(self._behind(part, first)):
            if last in self._behind(rest, middle):
                yield f"{self._written(part, first, middle)} {self._written(rest, middle, last)}"

    def _repeated(self, item: Item, least: int, most: int | None, first: _Place, last: _Place) -> Iterator[str]:
        behind = self._behind(item, first)
        if behind <= {first}:
            inner = self._written(item, first, first) if behind else ""
            yield f"{inner}{written_count(least, most)}" if behind and most != 0 else _NOTHING
            return
        if least == 0 and first == last:
            yield _NOTHING
        if most == 0:
            return
        more = Repeat(item, max(0, least - 1), None if most is None else most - 1)
        for middle in sorted(behind):
            if last in self._behind(more, middle):
                yield f"{self._written(item, first, middle)} {self._written(more, middle, last)}"

    def _lexeme(self, name: str, first: _Place, last: _Place) -> str:
        """Return the name of a terminal's form."""
        known = self._forms[name]
        own = (known.marked if first.marked else known.plain) or ""
        if first.marked and last.marked and known.bare:
            own = f"(?:{own})?"
        behind = f"\\x{ord(self._coding.mark):02X}" if last.marked else ""
        form = f"{name}_{int(first.marked)}{int(last.marked)}"
        self._terminals[form] = written_terminal(f"{own}{behind}")
        return form


def _fixed(text: str) -> str:
    return json.dumps(text) if text else ""
