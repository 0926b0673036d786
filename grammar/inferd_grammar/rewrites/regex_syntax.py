"""A parser for the common part of regular expression dialects, and sets of characters.

A node is (kind, parts): "chars" with a set, "then" and "either" with a list of nodes, "loop" with one node.
"""

from __future__ import annotations

from typing import Any

Chars = tuple[tuple[int, int], ...]
"""Sorted, disjoint, inclusive ranges of code points."""
RegexNode = tuple[str, Any]

EVERYTHING: Chars = ((0, 0xD7FF), (0xE000, 0x10FFFF))
_LINE_ENDS: Chars = ((0x0A, 0x0A), (0x0D, 0x0D), (0x85, 0x85), (0x2028, 0x2029))
_BEYOND_ASCII: Chars = ((0x80, 0xD7FF), (0xE000, 0x10FFFF))
_DIGITS: Chars = ((0x30, 0x39),)
_WORD: Chars = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Chars = ((0x09, 0x0D), (0x20, 0x20))
_OTHER_SPACES: Chars = (
    *((0x1C, 0x1F), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E), (0x2000, 0x200B)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x2060), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
"""Spaces in some dialects."""
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS = {"f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B, "0": 0x00}
_MAX_COUNT = 64


class NotUnderstood(ValueError):
    """A pattern holds something that is not understood here; the message says what."""


def parse(pattern: str) -> tuple[RegexNode, Chars]:
    """Return the pattern as a search, and the characters on which dialects differ about it. Raises NotUnderstood."""
    parser = _Parser(pattern)
    node = parser.union(top=True)
    if parser.rest():
        raise NotUnderstood(f"{parser.rest()[:10]!r}")
    return node, union(parser.doubtful)


def literal_prefix(pattern: str) -> str:
    """Return the characters that everything begins with in which an anchored pattern is found; empty if none are known."""
    try:
        (kind, parts), _ = parse(pattern)
    except NotUnderstood:
        return ""
    text = ""
    for part_kind, chars in parts if kind == "then" else ():
        if part_kind != "chars" or len(chars) != 1 or chars[0][0] != chars[0][1]:
            break
        text += chr(chars[0][0])
    return text


def shortest_match(pattern: str) -> str:
    """Return a shortest text in which the pattern is found. Raises NotUnderstood."""
    return _shortest(parse(pattern)[0])


def _shortest(node: RegexNode) -> str:
    kind, parts = node
    if kind == "chars":
        return next(
            (char for char in "0aA_ -.:/" if any(low <= ord(char) <= high for low, high in parts)), chr(parts[0][0])
        )
    if kind == "then":
        return "".join(map(_shortest, parts))
    return min(map(_shortest, parts), key=len) if kind == "either" else ""


def union(sets: list[Chars]) -> Chars:
    """Return all characters of several sets."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pair for chars in sets for pair in chars):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def intersection(left: Chars, right: Chars) -> Chars:
    """Return the characters of both sets."""
    pairs = [(max(a, c), min(b, d)) for a, b in left for c, d in right]
    return tuple(sorted((low, high) for low, high in pairs if low <= high))


def subtraction(left: Chars, right: Chars) -> Chars:
    """Return the characters of `left` that are not in `right`."""
    result: list[tuple[int, int]] = []
    for low, high in left:
        for cut_low, cut_high in sorted(right):
            if cut_low > high or cut_high < low:
                continue
            if cut_low > low:
                result.append((low, cut_low - 1))
            low = cut_high + 1
        if low <= high:
            result.append((low, high))
    return tuple(result)


def write(chars: Chars) -> str:
    """Return a set as a class."""
    if chars == EVERYTHING:
        return r"[\s\S]"
    outside = subtraction(EVERYTHING, chars)
    body, mark = (outside, "^") if len(outside) < len(chars) else (chars, "")
    return f"[{mark}{''.join(_code(a) if a == b else f'{_code(a)}-{_code(b)}' for a, b in body)}]"


def _code(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


class _Parser:
    """Recursive descent over one pattern. `doubtful` collects sets of characters on which dialects differ."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self.doubtful: list[Chars] = []

    def rest(self) -> str:
        return self._text[self._at :]

    def union(self, *, top: bool = False) -> RegexNode:
        branches = [self._branch(top)]
        while self._take("|"):
            branches.append(self._branch(top))
        return branches[0] if len(branches) == 1 else ("either", branches)

    def _branch(self, top: bool) -> RegexNode:
        """At the top, `^` and `$` of a branch say where it must begin and end; anything may stand elsewhere."""
        anything: RegexNode = ("loop", ("chars", EVERYTHING))
        parts = [] if not top or self._take("^") else [anything]
        while self.rest() and not self.rest().startswith(("|", ")", "$")):
            parts.append(self._counted(self._atom()))
        if self._take("$"):
            if not top:
                raise NotUnderstood("an anchor inside a group")
            self.doubtful.append(_LINE_ENDS)
        elif top:
            parts.append(anything)
        return "then", parts

    def _atom(self) -> RegexNode:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return "chars", self._class()
        if char == ".":
            self.doubtful.append(_LINE_ENDS)
            return "chars", subtraction(EVERYTHING, _LINE_ENDS)
        if char == "\\":
            return "chars", self._escape()
        if char in "^*+?{":
            raise NotUnderstood(f"{char!r} in this place")
        return "chars", ((ord(char), ord(char)),)

    def _group(self) -> RegexNode:
        if self._take("?") and not self._take(":"):
            raise NotUnderstood("a group of another kind")
        node = self.union()
        if not self._take(")"):
            raise NotUnderstood("a group without an end")
        return node

    def _counted(self, node: RegexNode) -> RegexNode:
        least, most = self._count()
        if least is None:
            return node
        self._take("?")  # a lazy count finds the same strings
        if self.rest().startswith(("*", "+", "?", "{")):
            raise NotUnderstood("a count of a count")
        tail: list[RegexNode] = (
            [("loop", node)] if most is None else [("either", [node, ("then", [])])] * (most - least)
        )
        return "then", [node] * least + tail

    def _count(self) -> tuple[int | None, int | None]:
        for mark, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take(mark):
                return least, most
        if not self._take("{"):
            return None, None
        body, closed, _ = self.rest().partition("}")
        low, comma, high = body.partition(",")
        if not closed or not low.isdecimal() or (high and not high.isdecimal()):
            raise NotUnderstood("a brace that is no count")
        self._at += len(body) + 1
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > _MAX_COUNT or (most is not None and most < least):
            raise NotUnderstood(f"a count above {_MAX_COUNT}")
        return least, most

    def _class(self) -> Chars:
        inverted = self._take("^")
        sets: list[Chars] = []
        while not self._take("]"):
            low = self._member()
            if self.rest().startswith("-") and not self.rest().startswith("-]"):
                self._next()
                high = self._member()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] < low[0][0]:
                    raise NotUnderstood("a range of this kind")
                low = ((low[0][0], high[0][1]),)
            sets.append(low)
        if not sets:
            raise NotUnderstood("an empty class")
        return subtraction(EVERYTHING, union(sets)) if inverted else union(sets)

    def _member(self) -> Chars:
        char = self._next()
        if char == "\\":
            return self._escape()
        if char in "[&~":  # nested classes and set operations in some dialects
            raise NotUnderstood(f"{char!r} in a class")
        return ((ord(char), ord(char)),)

    def _escape(self) -> Chars:
        char = self._next()
        if char.lower() in _CLASSES:
            self.doubtful.append(_OTHER_SPACES if char in "sS" else _BEYOND_ASCII)
            named = _CLASSES[char.lower()]
            return named if char.islower() else subtraction(EVERYTHING, named)
        if char in "uxU":
            return self._hex({"u": 4, "x": 2, "U": 8}[char])
        if char in _CONTROLS:
            return ((_CONTROLS[char], _CONTROLS[char]),)
        if char.isalnum() or not char.isascii():
            raise NotUnderstood(f"'\\{char}'")
        return ((ord(char), ord(char)),)

    def _hex(self, digits: int) -> Chars:
        text = self.rest()[:digits]
        if len(text) < digits or not all(char in "0123456789abcdefABCDEF" for char in text):
            raise NotUnderstood("an escape that is no code point")
        self._at += digits
        code = int(text, 16)
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise NotUnderstood("half of a surrogate pair, or no code point")
        return ((code, code),)

    def _next(self) -> str:
        if not self.rest():
            raise NotUnderstood("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, mark: str) -> bool:
        found = self._text.startswith(mark, self._at)
        self._at += found
        return found
