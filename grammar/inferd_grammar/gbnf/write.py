"""Writing GBNF out in llguidance's Lark variant, language unchanged.

llguidance splits text into lexemes greedily, so rules must not simply become lexemes: with `a ::= [a-z]+` and
`b ::= [a-z0-9]+`, `a b` would lose "ab". A grammar without recursion becomes one lexeme, a regular expression (fast
masks); any other one is written with one lexeme per character, where greed has nothing to take (slower masks).
"""

from __future__ import annotations

from collections.abc import Mapping

from inferd_grammar.errors import GrammarError
from inferd_grammar.gbnf.nodes import Alternatives, CharacterClass, GbnfNode, Reference, Repeat, Sequence, references
from inferd_grammar.gbnf.parse import parse_gbnf
from inferd_grammar.rewrites.regex_dialect import joined

# Deeper than this no regular expression is tried; each level takes a few frames of Python's stack.
_MAX_DEPTH = 150


def gbnf_to_lark(text: str, *, max_regex: int, max_rules: int) -> str:
    """Return the Lark text, rule `start`. Raises GrammarError for what is no GBNF, and for more than `max_rules` rules.

    A regular expression is tried up to `max_regex` characters.
    """
    rules = parse_gbnf(text)
    if len(rules) > max_rules:
        raise GrammarError(f"GBNF grammar has {len(rules)} rules; max_rules is {max_rules}")
    pattern = _Regex(rules, max_regex).pattern()
    if pattern is not None:
        return f"start: TEXT\nTEXT: /{pattern}/"
    used = _reachable(rules)
    names = {name: "start" if name == "root" else f"r{number}" for number, name in enumerate(used)}
    return "\n".join(f"{names[name]}: {_lark(rules[name], names)}" for name in used)


def _reachable(rules: Mapping[str, GbnfNode]) -> list[str]:
    found, stack = {"root": None}, ["root"]
    while stack:
        for name in references(rules[stack.pop()]):
            if name not in found:
                found[name] = None
                stack.append(name)
    return list(found)


class _TooLong(Exception):
    """The grammar is recursive, or its regular expression is too long."""


class _Regex:
    """One regular expression for all rules, if there is one within the limit."""

    def __init__(self, rules: Mapping[str, GbnfNode], limit: int) -> None:
        self._rules = rules
        self._limit = limit
        self._known: dict[str, str] = {}
        self._open: set[str] = set()
        self._depth = 0

    def pattern(self) -> str | None:
        try:
            return self._rule("root")
        except _TooLong:
            return None

    def _rule(self, name: str) -> str:
        if name in self._open:
            raise _TooLong
        if name not in self._known:
            self._open.add(name)
            self._known[name] = self._write(self._rules[name])
            self._open.discard(name)
        return self._known[name]

    def _write(self, node: GbnfNode) -> str:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _TooLong
        text = self._written(node)
        if len(text) > self._limit:
            raise _TooLong
        self._depth -= 1
        return text

    def _written(self, node: GbnfNode) -> str:
        match node:
            case CharacterClass():
                return _class(node)
            case Reference(name):
                return self._rule(name)
            case Sequence(items):
                return f"(?:{''.join(map(self._write, items))})"
            case Alternatives(items):
                return f"(?:{'|'.join(map(self._write, items))})"
            case Repeat(item, low, high):
                return f"(?:{self._write(item)}){_counts(low, high)}"


def _lark(node: GbnfNode, names: Mapping[str, str]) -> str:
    match node:
        case CharacterClass():
            return f"/{_class(node)}/"
        case Reference(name):
            return names[name]
        case Sequence(items):
            return f"({' '.join(_lark(item, names) for item in items)})" if items else '""'
        case Alternatives(items):
            return f"({' | '.join(_lark(item, names) for item in items)})"
        case Repeat(item, low, high):
            return f"({_lark(item, names)}){_counts(low, high)}"


def _counts(low: int, high: int | None) -> str:
    return f"{{{low},{'' if high is None else high}}}"


def _class(chars: CharacterClass) -> str:
    """Return a class of the Rust regex syntax; code points in hexadecimal, which no flag or set operation can misread."""
    if not chars.ranges:
        return "(?s:.)"
    inside = "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in chars.ranges)
    return joined(f"[{'^' if chars.negated else ''}{inside}]")
