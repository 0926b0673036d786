"""Reading GBNF: rules `name ::= ...`, literals, character classes, groups, `|`, `* + ? {m,n}`, `.` and comments.

The notation is that of llama.cpp (grammars/README.md there). Its token references `<[id]>` are refused by name.
"""

from __future__ import annotations

import re
import string
from typing import NoReturn

from inferd_grammar.errors import GrammarError
from inferd_grammar.gbnf.nodes import Alternatives, CharacterClass, GbnfNode, Reference, Repeat, Sequence, references

MAX_REPEAT = 1_000_000
_MAX_NESTING = 100
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
"""Besides, every mark of ASCII stands for itself: llama.cpp asks for it before four of them, XGrammar allows it for more."""
_COUNTS = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d+)?\s*)?\}")
_ANY = CharacterClass((), negated=True)


def parse_gbnf(text: str) -> dict[str, GbnfNode]:
    """Return the rules by name. Raises GrammarError that names the line for wrong syntax, a rule defined twice, a rule that
    is missing (`root` included) and groups nested deeper than 100."""
    reader = _Reader(text)
    rules: dict[str, GbnfNode] = {}
    while not reader.at_end():
        name, node = reader.rule()
        if name in rules:
            reader.fail(f"rule {name!r} is defined twice")
        rules[name] = node
    for name in ("root", *(name for node in rules.values() for name in references(node))):
        if name not in rules:
            raise GrammarError(f"GBNF grammar has no rule {name!r}")
    return rules


class _Reader:
    """A position in the text of a grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def at_end(self) -> bool:
        """Skip what means nothing. Returns True if no rule is left."""
        self._skip(_SPACE_AND_LINES)
        return self._at == len(self._text)

    def fail(self, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise GrammarError(f"GBNF grammar, line {line}: {reason}")

    def rule(self) -> tuple[str, GbnfNode]:
        name = self._name()
        self._skip(_SPACE)
        if not self._take("::="):
            self.fail(f"expected ::= after {name!r} (a grammar whose rules have a colon is Lark)")
        self._skip(_SPACE_AND_LINES)
        node = self._alternatives(nested=False)
        if not self.at_end() and self._text[self._at - 1] not in "\r\n":
            self.fail(f"unexpected {self._text[self._at]!r}")
        return name, node

    def _alternatives(self, *, nested: bool) -> GbnfNode:
        items = [self._sequence(nested=nested)]
        while self._bar():
            self._skip(_SPACE_AND_LINES)
            items.append(self._sequence(nested=nested))
        return items[0] if len(items) == 1 else Alternatives(tuple(items))

    def _bar(self) -> bool:
        """Take `|`, also where it begins a line: no rule does, and XGrammar's grammars have it so."""
        space = _SPACE_AND_LINES.match(self._text, self._at)
        at = self._at if space is None else space.end()
        found = self._text.startswith("|", at)
        self._at = at + 1 if found else self._at
        return found

    def _sequence(self, *, nested: bool) -> GbnfNode:
        items: list[GbnfNode] = []
        space = _SPACE_AND_LINES if nested else _SPACE
        while (item := self._item()) is not None:
            items.append(self._repeated(item))
            self._skip(space)
        return Sequence(tuple(items))

    def _item(self) -> GbnfNode | None:
        """Return the next item, or None where none begins. A literal is a sequence of characters, repeated as a whole."""
        if self._take('"'):
            return Sequence(tuple(CharacterClass(((code, code),)) for code in self._literal()))
        if self._take("["):
            return self._class()
        if self._take("."):
            return _ANY
        if self._take("("):
            return self._group()
        if self._text.startswith(("<", "!<"), self._at):
            self.fail("references to tokens are not supported")
        if _NAME.match(self._text, self._at):
            return Reference(self._name())
        return None

    def _group(self) -> GbnfNode:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            self.fail(f"groups nest deeper than {_MAX_NESTING}")
        self._skip(_SPACE_AND_LINES)
        node = self._alternatives(nested=True)
        if not self._take(")"):
            self.fail("expected )")
        self._depth -= 1
        return node

    def _repeated(self, item: GbnfNode) -> GbnfNode:
        for _ in range(_MAX_NESTING):
            self._skip(_SPACE)
            if self._take("*"):
                item = Repeat(item, 0, None)
            elif self._take("+"):
                item = Repeat(item, 1, None)
            elif self._take("?"):
                item = Repeat(item, 0, 1)
            elif self._text.startswith("{", self._at):
                item = Repeat(item, *self._counts())
            else:
                return item
        self.fail(f"more than {_MAX_NESTING} repeats of one item")

    def _counts(self) -> tuple[int, int | None]:
        found = _COUNTS.match(self._text, self._at)
        if found is None:
            self.fail("expected {n}, {n,} or {n,m}")
        low = _count(found[1])
        high = low if found[2] is None else None if found[3] is None else _count(found[3])
        if low > MAX_REPEAT or (high is not None and not low <= high <= MAX_REPEAT):
            self.fail(f"counts {found[0]} are out of order or above {MAX_REPEAT}")
        self._at = found.end()
        return low, high

    def _literal(self) -> list[int]:
        codes = []
        while not self._take('"'):
            codes.append(self._character('"'))
        return codes

    def _class(self) -> CharacterClass:
        negated = self._take("^")
        ranges = []
        while not self._take("]"):
            low = high = self._character("]")
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                high = self._character("]")
            if low > high:
                self.fail(f"range {chr(low)!r}-{chr(high)!r} is out of order")
            ranges.append((low, high))
        if not ranges and not negated:
            self.fail("an empty character class matches nothing")
        return CharacterClass(tuple(ranges), negated)

    def _character(self, closing: str) -> int:
        """Read one code point, escaped or not."""
        if self._at >= len(self._text) or self._text[self._at] in "\r\n":
            self.fail(f"missing {closing}")
        if self._text[self._at] != "\\":
            self._at += 1
            return ord(self._text[self._at - 1])
        found = _ESCAPE.match(self._text, self._at)
        if found is None:
            self.fail("a backslash at the end")
        self._at = found.end()
        if found[4] is None:
            return self._code(int(found[1] or found[2] or found[3], 16))
        if found[4] not in _PLAIN_ESCAPES and found[4] not in string.punctuation:
            self.fail(f"unknown escape {found[0]!r}")
        return ord(_PLAIN_ESCAPES.get(found[4], found[4]))

    def _code(self, code: int) -> int:
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            self.fail(f"{code:#x} is no Unicode character")
        return code

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            self.fail(f"expected a rule name, found {self._text[self._at : self._at + 20]!r}")
        self._at = found.end()
        return found[0]

    def _take(self, mark: str) -> bool:
        found = self._text.startswith(mark, self._at)
        self._at += len(mark) * found
        return found

    def _skip(self, space: re.Pattern[str]) -> None:
        if found := space.match(self._text, self._at):
            self._at = found.end()


def _count(digits: str) -> int:
    return int(digits) if len(digits) <= 9 else MAX_REPEAT + 1
