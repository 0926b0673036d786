"""A parser for the common part of regular expression dialects, and sets of characters.

A node is (kind, parts): "chars" with a set, "then" and "either" with a list of nodes, "loop" with one node, "upto" with
one and how often it may stand at most; "ahead" and "behind" with a node and whether it must not be found there; "edge" with
its name: "start", "end", "word".
"""

from __future__ import annotations

import re
from typing import Any

Chars = tuple[tuple[int, int], ...]
"""Sorted, disjoint, inclusive ranges of code points."""
RegexNode = tuple[str, Any]

EVERYTHING: Chars = ((0, 0xD7FF), (0xE000, 0x10FFFF))
_LINE_FEED: Chars = ((0x0A, 0x0A),)
_OTHER_LINE_ENDS: Chars = ((0x0D, 0x0D), (0x85, 0x85), (0x2028, 0x2029))
"""What a dot takes in some dialects."""
_LINE_ENDS: Chars = (*_LINE_FEED, *_OTHER_LINE_ENDS)
ASCII: Chars = ((0x00, 0x7F),)
_BEYOND_ASCII: Chars = ((0x80, 0xD7FF), (0xE000, 0x10FFFF))
_DIGITS: Chars = ((0x30, 0x39),)
WORD: Chars = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Chars = ((0x09, 0x0D), (0x20, 0x20))
_OTHER_SPACES: Chars = (
    *((0x1C, 0x1F), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E), (0x2000, 0x200B)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x2060), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
"""Spaces in some dialects."""
_OTHER_DIGITS: Chars = (
    *((0x660, 0x7C9), (0x966, 0x1099), (0x17E0, 0x1C59), (0xA620, 0xABF9), (0xFF10, 0xFF19)),
    *((0x10000, 0x1EFFF), (0x1FB00, 0x1FFFF)),
)
"""Digits in some dialects, and what stands between them: few ranges keep patterns short. Unicode may add to the second plane."""
_CLASSES = {"d": (_DIGITS, _OTHER_DIGITS), "w": (WORD, _BEYOND_ASCII), "s": (_SPACE, _OTHER_SPACES)}
"""The characters that a class has in every dialect, and those that it has in some."""
_EDGES = (("^", "start", ()), ("$", "end", _LINE_ENDS), (r"\b", "word", _BEYOND_ASCII))
_LOOK_AROUNDS = (("(?=", "ahead", False), ("(?!", "ahead", True), ("(?<=", "behind", False), ("(?<!", "behind", True))
_FLAGS = re.compile(r"\(\?([isu]+)\)")
_SCOPED = re.compile(r"\?([isu]*)(?:-([is]+))?:")
_UPPER: Chars = ((0x41, 0x5A),)
_LOWER: Chars = ((0x61, 0x7A),)
_CASES = 0x20  # between a small letter and a capital one
_OTHER_CASES: Chars = ((0x130, 0x131), (0x17F, 0x17F), (0x212A, 0x212A))
"""Characters that are i, k or s without regard to case, in some dialects."""
_GROUP_NAME = re.compile(r"\?P?<[A-Za-z_][A-Za-z0-9_]*>")
_CONTROLS = {"f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B, "0": 0x00}
_MAX_COUNT = 1_000
_MAX_NESTING = 100
_MAX_NODES = 50_000
"""Of a pattern in which every count is written out: whatever walks through its nodes meets so many."""
ANYTHING: RegexNode = ("loop", ("chars", EVERYTHING))
"""What stands around a pattern that is not anchored."""


class NotUnderstood(ValueError):
    """A pattern holds something that is not understood here; the message says what."""


def parse(pattern: str, *, wide: bool = False, edges: bool = True) -> tuple[RegexNode, Chars]:
    """Return the pattern as a search, and the characters on which dialects differ about it. Raises NotUnderstood.

    It is read as it means among all other characters; if `wide`, as it is found in whatever any dialect finds it in. Without
    `edges`, what they differ on beside the edges of words is the caller's to leave out.
    """
    parser = _Parser(pattern, wide, edges)
    node = parser.union(top=True)
    if parser.rest():
        raise NotUnderstood(f"{parser.rest()[:10]!r}")
    return node, union(parser.doubtful)


def has_flags(pattern: str) -> bool:
    """Return True if a pattern begins with flags, which hold for all of it: no part means the same by itself."""
    return pattern.startswith("(?") and not pattern.startswith(("(?:", "(?=", "(?!", "(?<", "(?P"))


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


def a_char(chars: Chars) -> str:
    """Return a character of a set, a common one where it has one. Raises NotUnderstood if it is empty."""
    if not chars:
        raise NotUnderstood("no character is left")
    return next(
        (char for char in "0aA_ -.:/" if any(low <= ord(char) <= high for low, high in chars)), chr(chars[0][0])
    )


def shortest_text(node: RegexNode) -> str:
    """Return a shortest text of a node. Raises NotUnderstood for look-arounds."""
    kind, parts = node
    if kind in ("ahead", "behind", "edge"):
        raise NotUnderstood("no shortest match of a look-around is known")
    if kind == "chars":
        return a_char(parts)
    if kind == "then":
        return "".join(map(shortest_text, parts))
    return min(map(shortest_text, parts), key=len) if kind == "either" else ""


def lengths(node: RegexNode) -> tuple[int, int | None]:
    """Return how many characters a node takes at least and at most; None where there is no most."""
    kind, parts = node
    if kind == "chars":
        return 1, 1
    if kind in ("loop", "upto"):
        inner, times = (parts, None) if kind == "loop" else parts
        _, most = lengths(inner)
        return 0, 0 if most == 0 or times == 0 else None if most is None or times is None else most * times
    if kind not in ("then", "either"):
        return 0, 0
    both = [lengths(part) for part in parts]
    known = [most for _, most in both if most is not None]
    total = max if kind == "either" else sum
    least = (min if kind == "either" else sum)(few for few, _ in both)
    return least, total(known) if len(known) == len(both) else None


def without_counts(node: RegexNode) -> RegexNode:
    """Return a node in which what may stand several times may stand any number of times."""
    kind, parts = node
    if kind in ("then", "either"):
        return kind, [without_counts(part) for part in parts]
    if kind == "upto":
        return ("loop", without_counts(parts[0])) if parts[1] > 1 else ("upto", (without_counts(parts[0]), parts[1]))
    return ("loop", without_counts(parts)) if kind == "loop" else node


def outer_chars(node: RegexNode, *, last: bool = False) -> Chars | None:
    """Return what characters a node begins with (or ends with); None if it may take none, or looks around there."""
    kind, parts = node
    if kind == "chars":
        return parts  # type: ignore[no-any-return]
    if kind == "either":
        found = [outer_chars(part, last=last) for part in parts]
        return None if None in found else union([chars for chars in found if chars is not None])
    if kind != "then":
        return None
    sets: list[Chars] = []
    for part in reversed(parts) if last else parts:
        if part[0] not in ("chars", "then", "either", "loop", "upto"):
            return None
        if (chars := outer_chars(part, last=last)) is not None:
            return union([*sets, chars])
        inner = part[1] if part[0] == "loop" else part[1][0] if part[0] == "upto" else None
        if inner is None or (chars := outer_chars(inner, last=last)) is None:
            return None
        sets.append(chars)
    return None


def with_loop(node: RegexNode, index: int, least: int, most: int) -> RegexNode:
    """Return a node in which the loop of an index, counted from the left, is run so often."""
    left = index

    def changed(node: RegexNode) -> RegexNode:
        nonlocal left
        kind, parts = node
        if kind in ("then", "either"):
            return kind, [changed(part) for part in parts]
        if kind == "upto":
            return kind, (changed(parts[0]), parts[1])
        if kind != "loop":
            return node
        left -= 1
        return (
            ("then", [*([parts] * least), ("upto", (parts, most - least))]) if left == -1 else ("loop", changed(parts))
        )

    return changed(node)


def write_node(node: RegexNode, alphabet: Chars) -> str:
    """Return a node without look-arounds as a regular expression, without anchors, of texts over an alphabet."""
    kind, parts = node
    if kind == "chars":
        return write(intersection(parts, alphabet)) if intersection(parts, alphabet) else r"[^\s\S]"
    if kind == "then":
        return "".join(write_node(part, alphabet) for part in parts)
    if kind == "either":
        return f"(?:{'|'.join(write_node(part, alphabet) for part in parts)})"
    inner, count = (parts, "*") if kind == "loop" else (parts[0], f"{{0,{parts[1]}}}")
    return f"(?:{write_node(inner, alphabet)}){count}"


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


def _both_cases(chars: Chars) -> Chars:
    """Return a set with the letters of ASCII that differ from its own in case."""
    small = [(low + _CASES, high + _CASES) for low, high in intersection(chars, _UPPER)]
    large = [(low - _CASES, high - _CASES) for low, high in intersection(chars, _LOWER)]
    return union([chars, tuple(small), tuple(large)])


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


def _has_opposites(members: str) -> bool:
    """Return True for a class with `\\s` and `\\S`, or another such pair: it is everything in any dialect."""
    letters = {escape[1] for escape in re.findall(r"\\.", members, re.DOTALL)}
    return any({letter, letter.upper()} <= letters for letter in _CLASSES)


class _Parser:
    """Recursive descent over one pattern. `doubtful` collects sets of characters on which dialects differ."""

    def __init__(self, pattern: str, wide: bool, edges: bool) -> None:
        self._text = pattern
        self._wide = wide
        self._edges = edges
        self._at = 0
        self._looking = 0
        self._nesting = 0
        self._nodes = 0
        flags = _FLAGS.match(pattern)
        self._flags = frozenset(flags[1] if flags else "")
        self._at = flags.end() if flags else 0
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
        parts = [] if not top or self._take("^") else [ANYTHING]
        while self.rest() and not self.rest().startswith(("|", ")")):
            if top and self.rest().startswith("$") and self.rest()[1:2] in ("", "|"):
                break
            before = self._nodes
            parts.append(self._assertion() or self._counted(self._atom(), before))
        if self._take("$"):
            self.doubtful.append(_LINE_ENDS)
            parts += [("upto", (("chars", _LINE_ENDS), 1))] if self._wide else []
        elif top:
            parts.append(ANYTHING)
        return "then", parts

    def _assertion(self) -> RegexNode | None:
        """Return a node that takes no characters, None where something else stands."""
        for mark, name, doubtful in _EDGES:
            if self._take(mark):
                self._doubt(doubtful if self._edges or name != "word" else ())
                return self._uncounted(("edge", name))
        for mark, kind, negated in _LOOK_AROUNDS:
            if self._take(mark):
                if self._wide:
                    raise NotUnderstood("a look-around")
                if kind == "ahead" and self._looking:
                    raise NotUnderstood("a look-ahead inside of a look-around")
                self._looking += 1
                inside = self._closed()
                self._looking -= 1
                return self._uncounted((kind, (inside, negated)))
        return None

    def _doubt(self, chars: Chars) -> None:
        if self._wide and chars:
            raise NotUnderstood("what dialects read differently in this place")
        self.doubtful.append(chars)

    def _uncounted(self, node: RegexNode) -> RegexNode:
        if self._count() != (None, None):
            raise NotUnderstood("a count of what takes no characters")
        return node

    def _atom(self) -> RegexNode:
        char = self._next()
        self._nodes += 1
        if char == "(":
            return self._group()
        if char == "[":
            return "chars", self._class()
        if char == "." and "s" in self._flags:
            return "chars", EVERYTHING
        if char == ".":
            self.doubtful.append(_OTHER_LINE_ENDS)
            return "chars", subtraction(EVERYTHING, _LINE_FEED if self._wide else _LINE_ENDS)
        if char == "\\":
            return "chars", self._in_cases(self._escape())
        if char in "^*+?{":
            raise NotUnderstood(f"{char!r} in this place")
        return "chars", self._in_cases(((ord(char), ord(char)),))

    def _in_cases(self, chars: Chars) -> Chars:
        """Return the characters that are meant by a set, which is more if case makes no difference."""
        if "i" not in self._flags:
            return chars
        beyond = intersection(chars, _BEYOND_ASCII)
        if beyond != _BEYOND_ASCII and intersection(beyond, _OTHER_CASES):
            raise NotUnderstood("letters whose case dialects differ on")
        doubtful = _OTHER_CASES if beyond in ((), _BEYOND_ASCII) else _BEYOND_ASCII
        self.doubtful.append(doubtful)
        return union([_both_cases(chars), doubtful]) if self._wide else _both_cases(chars)

    def _group(self) -> RegexNode:
        name = _GROUP_NAME.match(self._text, self._at)
        self._at = name.end() if name else self._at
        flags, scoped = self._flags, _SCOPED.match(self._text, self._at)
        if scoped:
            self._at = scoped.end()
            self._flags = (flags | frozenset(scoped[1])) - frozenset(scoped[2] or "")
        elif self._take("?"):
            raise NotUnderstood("a group of another kind")
        inside = self._closed()
        self._flags = flags
        return inside

    def _closed(self) -> RegexNode:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise NotUnderstood("groups nested too deeply")
        node = self.union()
        if not self._take(")"):
            raise NotUnderstood("a group without an end")
        self._nesting -= 1
        return node

    def _counted(self, node: RegexNode, before: int) -> RegexNode:
        """Return a node as often as is written behind it; it has the nodes since there were so many ``before``."""
        least, most = self._count()
        if least is None:
            return node
        self._nodes += least * (self._nodes - before)
        if self._nodes > _MAX_NODES:
            raise NotUnderstood("counts of counts that are too large")
        self._take("?")  # a lazy count finds the same strings
        if self.rest().startswith(("*", "+", "?", "{")):
            raise NotUnderstood("a count of a count")
        return "then", [*([node] * least), ("loop", node) if most is None else ("upto", (node, most - least))]

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
        inverted, wide, doubts = self._take("^"), self._wide, len(self.doubtful)
        start, sets, certain = self._at, list[Chars](), list[Chars]()
        self._wide = wide and not inverted
        while not self._take("]"):
            known = len(self.doubtful)
            low = self._member()
            if self.rest().startswith("-") and not self.rest().startswith("-]"):
                self._next()
                high = self._member()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] < low[0][0]:
                    raise NotUnderstood("a range of this kind")
                low = ((low[0][0], high[0][1]),)
            sets.append(low)
            certain += [low] if len(self.doubtful) == known else []
        found = self._in_cases(union(sets))
        self._wide = wide
        if not found:
            raise NotUnderstood("an empty class")
        if union(certain) == EVERYTHING or _has_opposites(self._text[start : self._at]):
            del self.doubtful[doubts:]
        return subtraction(EVERYTHING, found) if inverted else found

    def _member(self) -> Chars:
        char = self._next()
        if char == "\\":
            return self._escape()
        if char == "-" and self.rest().startswith("-"):  # a set operation in some dialects
            raise NotUnderstood("'--' in a class")
        return ((ord(char), ord(char)),)

    def _escape(self) -> Chars:
        char = self._next()
        if char.lower() in _CLASSES:
            named, doubtful = _CLASSES[char.lower()]
            self.doubtful.append(doubtful)
            if char.isupper():
                return subtraction(EVERYTHING, named)
            return union([named, doubtful]) if self._wide else named
        if char in "uxU":
            return self._hex({"u": 4, "x": 2, "U": 8}[char])
        if char == "0" and self.rest()[:1].isdecimal():
            raise NotUnderstood("an octal escape")
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
        self._at += len(mark) * found
        return found
