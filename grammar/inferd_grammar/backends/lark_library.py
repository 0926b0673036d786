"""Grammars as the Lark library reads them, written with what llguidance knows of Lark.

Templates are applied, imports of Lark's own grammars followed, and each terminal becomes one expression. Priorities and aliases
are left out: they choose among the trees of a text, and say nothing about which texts there are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from lark import Token, Tree
from lark.grammar import NonTerminal, Terminal
from lark.lexer import PatternStr, TerminalDef
from lark.load_grammar import (
    ApplyTemplates,
    Grammar,
    GrammarBuilder,
    PrepareAnonTerminals,
    PrepareLiterals,
    TerminalTreeToPattern,
    ValidateSymbols,
)

from inferd_grammar.backends.plain_lark import LITERALS, NO_START
from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits
from inferd_grammar.rewrites.terminals import terminal
from inferd_grammar.schema import require_regex

LIBRARY = frozenset({"common", "lark", "python", "unicode"})
"""The grammars that come with Lark."""
_SLASH = re.compile(r"\\.|/|\n", re.DOTALL)
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_SIGNS = {counts: sign for sign, counts in _COUNTS.items()}
_NESTED_TEMPLATE = re.compile(r"\{[^{}\n]*\{")


class NotLark(Exception):
    """A text is no grammar to the Lark library."""


@dataclass(frozen=True)
class Rule:
    """A rule by its name."""

    name: str


@dataclass(frozen=True)
class Lexeme:
    """A terminal by its name."""

    name: str


@dataclass(frozen=True)
class Joined:
    """One item behind the other."""

    items: tuple[Item, ...] = ()


@dataclass(frozen=True)
class AnyItem:
    """One of several items."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class Repeat:
    """An item so many times; `most` None: any number."""

    item: Item
    least: int
    most: int | None


Item: TypeAlias = Rule | Lexeme | Joined | AnyItem | Repeat


@dataclass(frozen=True)
class Literal:
    """A terminal that is a text."""

    text: str


@dataclass(frozen=True)
class PlainGrammar:
    """A grammar in which every rule is needed by `start`. Terminals are texts, or expressions as llguidance reads them.

    `ignored`: terminals that may stand between others.
    """

    rules: dict[str, Item]
    terminals: dict[str, Literal | str]
    ignored: tuple[str, ...]


def written_plainly(text: str, limits: CompileLimits) -> str:
    """Return a grammar as one for llguidance, rule `start`. Raises as :func:`read_lark`."""
    grammar = read_lark(text, limits)
    rules = [f"{name}: {_written(item)}" for name, item in grammar.rules.items()]
    terminals = [f"{name}: {written_terminal(pattern)}" for name, pattern in grammar.terminals.items()]
    return "\n".join([*rules, *terminals, *(f"%ignore {name}" for name in grammar.ignored)])


def read_lark(text: str, limits: CompileLimits) -> PlainGrammar:
    """Return a grammar as the library reads it.

    Raises NotLark for a text that the library cannot read, GrammarError for a grammar with what cannot be held.
    """
    if _NESTED_TEMPLATE.search(LITERALS.sub("", text)):  # such may have no end
        raise GrammarError("a template of a Lark grammar that is given a template is not supported")
    try:
        builder = _OwnGrammars()
        builder.load_grammar(text, "<string>")
        return _Reader(builder.build(), limits).grammar()
    except (GrammarError, RecursionError, MemoryError):
        raise
    except Exception as error:
        # The library's boundary: it stumbles over some texts, and in its own messages, too.
        raise NotLark(str(error)) from error


class _OwnGrammars(GrammarBuilder):
    """Follows imports of Lark's own grammars, and reads no other file."""

    def do_import(
        self, dotted_path: tuple[str, ...], base_path: str | None, aliases: dict[str, str],
        base_mangle: Callable[[str], str] | None = None,
    ) -> None:  # fmt: skip
        """Add what is imported. Raises GrammarError for what Lark does not bring."""
        if base_path is not None or dotted_path[0] not in LIBRARY:
            raise GrammarError(
                f"Lark grammar imports another file, {'.'.join(dotted_path)!r}: write its rules into the grammar"
            )
        super().do_import(dotted_path, base_path, aliases, base_mangle)


class _Reader:
    """Reads the rules that `start` needs, and their terminals."""

    def __init__(self, grammar: Grammar, limits: CompileLimits) -> None:
        self._limits = limits
        self._rules = grammar.rule_defs
        self._trees: dict[str, Tree[Any]] = {}
        self._names = {"start": "start"}
        self._lexemes: dict[str, str] = {}
        self._required: set[str] = set()
        self._waiting: list[str] = []
        self._used: set[str] = set()
        self._ignored = list(map(str, grammar.ignore))
        to_pattern = PrepareLiterals() * TerminalTreeToPattern()
        self._terminals = [
            TerminalDef(name, to_pattern.transform(tree), priority)
            for name, (tree, priority) in grammar.term_defs
            if tree is not None  # a terminal of %declare
        ]
        self._prepared = (
            PrepareLiterals() * ValidateSymbols() * PrepareAnonTerminals(self._terminals) * ApplyTemplates(self._rules)
        )

    def grammar(self) -> PlainGrammar:
        """Return the grammar. Raises GrammarError."""
        self._collect_rules()
        if "start" not in self._trees:
            raise GrammarError(NO_START)
        self._require("start")
        rules: dict[str, Item] = {}
        while self._waiting:
            name = self._waiting.pop()
            tree = self._prepared.transform(self._trees[name])
            self._collect_rules()
            rules[self._names[name]] = self._item(tree)
        return PlainGrammar(rules, dict(self._read_terminals()), tuple(map(self._lexeme, self._ignored)))

    def _require(self, rule: str) -> None:
        if rule not in self._required:
            self._required.add(rule)
            self._waiting.append(rule)

    def _read_terminals(self) -> Iterator[tuple[str, Literal | str]]:
        defined = {definition.name: definition for definition in self._terminals}
        for name in sorted(self._used.union(self._ignored)):
            if name not in defined:
                raise GrammarError(
                    f"Lark grammar declares the terminal {name} and does not say what it is: not supported"
                )
            yield self._lexeme(name), self._pattern(defined[name])

    def _collect_rules(self) -> None:
        """Take in rules, among them those that templates have become."""
        if len(self._rules) > self._limits.max_rules:
            raise GrammarError(f"Lark grammar has {len(self._rules)} rules; max_rules is {self._limits.max_rules}")
        for name, parameters, tree, _ in self._rules:
            if not parameters and name not in self._trees:
                self._trees[name] = tree
                self._names.setdefault(name, f"r{len(self._names)}")

    def _item(self, node: Any) -> Item:
        """Return a part of a rule."""
        if isinstance(node, NonTerminal):
            self._require(node.name)
            return Rule(self._names[node.name])
        if isinstance(node, Terminal):
            self._used.add(node.name)
            return Lexeme(self._lexeme(node.name))
        parts = node.children
        match node.data:
            case "expansions":
                return AnyItem(tuple(map(self._item, parts)))
            case "expansion":
                return Joined(tuple(map(self._item, parts)))
            case "maybe":
                return Repeat(self._item(parts[0]), 0, 1)
            case "alias":
                return self._item(parts[0])
            case "expr":
                return Repeat(self._item(parts[0]), *_times(parts[1:]))
        raise GrammarError(f"Lark's {node.data} is not supported")

    def _lexeme(self, terminal: str) -> str:
        """Return the name of a terminal as llguidance takes it: Lark's may have letters beyond ASCII."""
        return self._lexemes.setdefault(terminal, f"T{len(self._lexemes)}")

    def _pattern(self, definition: TerminalDef) -> Literal | str:
        pattern = definition.pattern
        if isinstance(pattern, PatternStr) and not pattern.flags:
            return Literal(pattern.value)
        expression = pattern.to_regexp()
        require_regex(expression, self._limits)
        try:
            return terminal(expression)
        except GrammarError as error:
            raise GrammarError(f"Lark terminal {definition.name}: {error.reason}") from error


def _times(parts: list[Token]) -> tuple[int, int | None]:
    """Return what an operator of the library's says: `*`, or `~` and how often."""
    sign, *counts = map(str, parts)
    if sign != "~":
        return _COUNTS[sign]
    return int(counts[0]), int(counts[-1])


def _written(item: Item) -> str:
    """Return an item for llguidance."""
    match item:
        case Rule(name) | Lexeme(name):
            return name
        case AnyItem(items):
            return f"({' | '.join(map(_written, items))})"
        case Joined(items):
            return " ".join(map(_written, items)) or '""'
        case Repeat(inner, least, most):
            return f"({_written(inner)}){written_count(least, most)}"


def written_count(least: int, most: int | None) -> str:
    """Return a count for llguidance."""
    return _SIGNS.get((least, most), f"{{{least},{'' if most is None else most}}}")


def written_terminal(pattern: Literal | str) -> str:
    """Return a terminal's text for llguidance."""
    if isinstance(pattern, Literal):
        return json.dumps(pattern.text)
    return f"/{_SLASH.sub(_in_slashes, pattern)}/"


def _in_slashes(piece: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(piece[0], piece[0])
