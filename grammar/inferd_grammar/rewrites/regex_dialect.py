"""Patterns of JSON schemas, as Python's `re` and ECMA-262 read them, in the words of the library's expressions, which are Rust's.

What all of them read alike stays as it is. What they read differently is written so that it matches only what both dialects
match, such as `\\W` beyond ASCII, or is refused by name where they mean different texts, such as `a++`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from inferd_grammar.memo import memoised
from inferd_grammar.rewrites.regex_syntax import NotUnderstood, parse

_COUNT = re.compile(r"\{\d+(?:,\d*)?\}")
_PIECE_OUTSIDE = re.compile(
    r"\\[pPux]\{[^}]*\}|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|\(\?|\{\d+(?:,\d*)?\}", re.DOTALL
)
_PIECE = re.compile(rf"{_PIECE_OUTSIDE.pattern}|\[\^?\]?(?:\\.|[^\\\]])*+\]", re.DOTALL)
CLASS_INSIDE = r"\[(?:\\.|[^\\\[\]])*+\]"
_PIECE_OF_RUST = re.compile(rf"{_PIECE_OUTSIDE.pattern}|\[\^?\]?(?:\\.|{CLASS_INSIDE}|[^\\\[\]])*+\]", re.DOTALL)
_FROM_NOTHING = re.compile(r"\{,\d+\}")
_BYTES = re.compile(r"\(\?[a-z]*-[a-z]*u")
_IGNORES_CASE = re.compile(r"\(\?[a-z]*i")
_SPACE = re.compile(r"\\?[\s#]")
_VERBOSE = re.compile(r"\(\?[a-wyz]*x")
_SPACES = r"\t-\r\x20\xA0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000"
_NARROW = {"D": r"\P{Nd}", "S": r"[^\s\x1C-\x1F\uFEFF]", "W": r"[^\p{L}\p{N}_]", "s": f"[{_SPACES}]"}
"""Characters of a class that are so in every dialect; those of ASCII alone are as they are."""
LINE_ENDS = r"\n\r\x85\u2028\u2029"
"""What `.` does not take in some dialect."""
_TAKES_LINE_ENDS = re.compile(r"\(\?[a-z]*s")
_WIDE = {"d": r"\d\p{Nd}", "s": r"\s\x1C-\x1F\uFEFF", "w": r"\w\p{L}\p{N}"}
"""All characters that are in a class in any dialect."""
OLDEST = r"&&\p{Age:14.0}"
"""What cuts a class to the characters of Python 3.11, whose `re` finds no digits and letters in those that came later."""
_SPACES_OF_PYTHON = {"s": r"\s\x1C-\x1F", "S": r"[^\s\x1C-\x1F]"}
_PYTHON = {
    **_SPACES_OF_PYTHON,
    "w": rf"[\p{{L}}\p{{N}}_{OLDEST}]",
    "W": r"[^\p{L}\p{N}_]",
    "d": rf"[\d{OLDEST}]",
    "D": r"\D",
}
"""Classes as Python's `re` has them, inside of a class; they hold what they do for every version of it."""
_PYTHON_INVERTED = {
    **_SPACES_OF_PYTHON,
    "w": r"\p{L}\p{N}_",
    "W": rf"[^\p{{L}}\p{{N}}_{OLDEST}]",
    "D": rf"[^\d{OLDEST}]",
}
"""The same inside of a class that is all others."""
_OF_PYTHON = {"<": "<", ">": ">", "Z": r"\z"}
"""Escapes that Rust's dialect reads as edges of words, or does not know."""
_IN_CLASS = {"<": "<", ">": ">", "b": r"\x08"}
_SET_MARKS = ("--", "&&", "~~")
_NAMED = {"0": r"\x00", "<": "<", ">": ">"}
_SPARED = 1
"""A character that no class has which lacks a quote or a backslash: where a class has all control characters, or all but the
line feed, the library takes the escapes of these two as well.
"""
WITH_SPARED = r"\x01"
"""A pattern of the strings with that character, which is left as it is."""
_SPARED_WRITTEN = re.compile(r"\x01|\\(?:x01|u0001|[ux]\{0*1\})")
_NO_CONTROLS = re.compile(r"\\p\{[LMNPSZ][a-z]?\}")
_ESCAPED = (ord('"'), ord("\\"))
_CODES = re.compile(r"\\[xu]\{0*([0-9a-fA-F]{1,6})\}|\\u([0-9a-fA-F]{4})|\\.|.", re.DOTALL)
_PROPERTY = re.compile(r"\\([pP])(?:\{(?:[^}=:]*(!?)[=:])?([^}]*)\}|(.))")
_WITH_D7FF = ("c", "other", "cn", "unassigned", "any")
_WITH_E000 = ("c", "other", "co", "privateuse", "any", "assigned")
"""Names of properties that these two characters have; all versions of Unicode have the second one."""


_CLASS = r"\[\^?\]?(?:\\.|[^\\\]])*+\]?"
_HALF = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
_FOREIGN = re.compile(
    rf"""(?P<class>{_CLASS})|(?P<octal>\\0\d)|(?P<half>{_HALF})|(?P<end>\\\Z)|(?P<reference>\\[1-9]|\\k[<{{']|\(\?P=)
    |(?P<atomic>\(\?>)|(?P<condition>\(\?\()|(?P<comment>\(\?\#)|(?P<recursion>\(\?(?:R|&|P>|[+-]?\d))|(?P<edge>\\B)|(?P<escape>\\[cGhHKRXZ])
    |(?P<flag>\(\?[imsux]*[aL])|\\.""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPES = re.compile(rf"(?P<octal>\\0\d|\\[1-9])|(?P<half>{_HALF})|\\.", re.DOTALL)
_NAMES = {
    "octal": "an octal escape", "half": "half of a surrogate pair", "end": "a backslash at the end",
    "reference": "a back reference", "atomic": "an atomic group", "condition": "a group with a condition",
    "comment": "a comment", "recursion": "a recursion", "edge": "the inside of a word", "escape": "an escape of few dialects",
    "flag": "a flag of Python's alone",
}  # fmt: skip


class Ambiguous(ValueError):
    """A pattern holds something that dialects read differently; the message says what."""


def foreign(pattern: str) -> str | None:
    """Return the name of the first thing in a pattern that the library's dialect has not, with how it is written; or None."""
    for token in _FOREIGN.finditer(pattern):
        found = _ESCAPES.finditer(token[0]) if token.lastgroup == "class" else (token,)
        for part in found:
            if part.lastgroup:
                return f"{_NAMES[part.lastgroup]}, {part[0]},"
    return None


@memoised(4_096)
def as_library(pattern: str) -> str:
    """Return a schema's pattern as the library reads it. Raises Ambiguous."""
    if pattern == WITH_SPARED:
        return pattern
    any_char = "." if _TAKES_LINE_ENDS.search(pattern) else f"[^{LINE_ENDS}]"
    return "".join(any_char if piece == "." else _no_other_i(_written(piece), pattern) for piece in _read(pattern))


def _read(pattern: str) -> Iterator[str]:
    """Yield the pieces of a pattern; where it has white space that does not count, that in a class does nevertheless.

    Raises Ambiguous for a comment beside such white space.
    """
    spaced = _VERBOSE.search(pattern) is not None
    for piece in split_regex(pattern):
        if spaced and piece == "#":
            raise Ambiguous("a comment, or a '#' where there may be comments")
        is_class = spaced and len(piece) > 1 and piece[0] == "["
        yield _SPACE.sub(lambda found: f"\\x{ord(found[0][-1]):02X}", piece) if is_class else piece


def is_spared(pattern: str) -> bool:
    """Return True if `as_library` leaves out matches that hold U+0001."""
    return any(map(_takes_spared, split_regex(pattern)))


def with_classes_of_python(pattern: str) -> str:
    """Return an expression in which `\\w` and `\\s` mean what they mean in Python's `re`.

    Raises Ambiguous for one in which Rust's dialect counts or takes sets where Python reads characters.
    """
    if _BYTES.search(pattern):
        return pattern
    written = _any_case if _IGNORES_CASE.search(pattern) else _of_python
    return "".join(_no_other_i(written(piece), pattern) for piece in _read(pattern))


def _no_other_i(piece: str, pattern: str) -> str:
    """Return a class without the letters of Turkish that are i for Python, and not for Rust, where case makes no difference."""
    if not (piece.startswith("[^") and _IGNORES_CASE.search(pattern)):
        return piece
    return rf"{piece[:-1]}\u0130\u0131{'' if all(_has(piece, 0x130, 0x131)) else 'i'}]"


def _any_case(piece: str) -> str:
    """Return `_of_python(piece)` where case makes no difference. Rust puts U+0345 to its capital, a letter."""
    members = [piece] if piece[0] == "\\" else re.findall(r"\\.|.", piece[1:-1], re.DOTALL)
    words = [member for member in members if member in (r"\w", r"\W")]
    if not words or piece.startswith("[^"):
        return _of_python(piece)
    alone = "(?-i:" + _of_python(f"[{''.join(words)}]") + ")"
    others = "".join(member for member in members if member not in words)
    if not others:
        return alone
    return f"(?:{alone}|" + _of_python("[" + (rf"\{others}" if others[0] == "^" else others) + "]") + ")"


def _of_python(piece: str) -> str:
    if len(piece) > 1 and piece[0] == "[":
        inside = re.sub(r"\\.", "", piece[1:-1], flags=re.DOTALL)
        mark = next((mark for mark in ("[", *_SET_MARKS) if mark in inside), None)
        if mark is not None:
            raise Ambiguous(f"{mark!r} inside of a class")
        table = _IN_CLASS | (_PYTHON_INVERTED if piece.startswith("[^") else _PYTHON)
        return joined(re.sub(r"\\(.)", lambda escape: table.get(escape[1], escape[0]), piece, flags=re.DOTALL))
    if piece[0] == "\\" and piece[1:] in _PYTHON:
        return written if (written := _PYTHON[piece[1]]).startswith("[") else f"[{written}]"
    return r"\{" if piece == "{" else _OF_PYTHON.get(piece[1:], piece)


def joined(piece: str) -> str:
    """Return a class as the library complements it right: what lies between U+D7FF and U+E000 it turns round, and takes both."""
    if not piece.startswith("[^"):
        return piece
    codes = {int(code, 16) if (code := found[1] or found[2]) else ord(found[0][-1]) for found in _CODES.finditer(piece)}
    for found in _PROPERTY.finditer(piece):
        codes |= _beside_surrogates(found)
    return f"{piece[:-1]}\ud7ff-\ue000]" if {0xD7FF, 0xE000} <= codes else piece


def _beside_surrogates(found: re.Match[str]) -> set[int]:
    """Return which of U+D7FF and U+E000 have a property."""
    name = re.sub(r"[\s_-]", "", found[3] or found[4] or "").lower()
    has = {0xD7FF: name in _WITH_D7FF, 0xE000: name in _WITH_E000 or re.match(r"v?\d", name) is not None}
    inverted = (found[1] == "P") != bool(found[2])
    return {code for code in has if has[code] != inverted}


def split_regex(pattern: str, *, of_rust: bool = False) -> Iterator[str]:
    """Yield escapes, classes, counts, beginnings of groups and single characters; `of_rust`: classes may have classes in them.

    Raises Ambiguous for a count of a count.
    """
    at, counts, pieces = 0, 0, _PIECE_OF_RUST if of_rust else _PIECE
    while at < len(pattern):
        found = pieces.match(pattern, at)
        if found is None and pattern[at] == "[":
            pieces = _PIECE_OUTSIDE  # it has no end, nor have those behind it, and each would be read to the last
        piece = found[0] if found else pattern[at]
        at += len(piece)
        is_count = piece in ("*", "+", "?") or _COUNT.fullmatch(piece) is not None
        if is_count and counts and (piece != "?" or counts > 1):
            raise Ambiguous(f"{piece!r} behind a count")
        if _FROM_NOTHING.match(pattern, at - len(piece)):
            raise Ambiguous("a count from nothing, '{,'")
        counts = counts + 1 if is_count else 0
        yield piece


def _written(piece: str) -> str:
    written = _of_rust(piece)
    if not _takes_spared(piece):
        return written
    return rf"{written[:-1]}\x01]" if piece.startswith("[^") else rf"[{written}&&[^\x01]]"


def _of_rust(piece: str) -> str:
    if piece[0] == "[" and len(piece) > 1:
        return _class(piece)
    if piece in (r"\p", r"\P"):
        raise Ambiguous(f"{piece!r} without braces")
    if piece[0] == "\\":
        return _NARROW.get(piece[1:]) or _NAMED.get(piece[1:]) or piece
    return r"\{" if piece == "{" else piece


@memoised(512)
def _takes_spared(piece: str) -> bool:
    """Return True for a class, or a character, that has `_SPARED` and not all of `_ESCAPED`."""
    if not piece.startswith("[^"):
        piece = _NO_CONTROLS.sub("_", piece)
    if len(piece) == 1 or piece[0] != "[":
        return piece.startswith((r"\p", r"\P")) or _SPARED_WRITTEN.fullmatch(piece) is not None
    spared, *escaped = _has(piece, _SPARED, *_ESCAPED) or (True, False)
    return spared and not all(escaped)


def _has(piece: str, *codes: int) -> list[bool]:
    """Return for each code whether a class has it; nothing for a class that is not understood."""
    try:
        (_, [(_, chars)]), _ = parse(f"^{piece}$")
    except NotUnderstood:
        return []
    return [any(low <= code <= high for low, high in chars) for code in codes]


def _class(piece: str) -> str:
    """Return a class without nested ones and sets, which other dialects do not have."""
    start = "[^" if piece.startswith("[^") else "["
    body = piece[len(start) : -1]
    body = re.sub(r"(\\[pP](?:\{[^}]*\}|.))-", r"\1\\-", body)  # no range begins with a kind of characters
    members = re.findall(r"\\.|.", body, re.DOTALL)
    if "--" in re.sub(r"\\.", "", body, flags=re.DOTALL):
        raise Ambiguous("'--' inside of a class")
    letters = {member[1] for member in members if member[0] == "\\"}
    both = {letter for letter in "dsw" if {letter, letter.upper()} <= letters}
    table = _WIDE if start == "[^" else _NARROW
    written = [member if member[1:].lower() in both else table.get(member[1:]) or _member(member) for member in members]
    return joined(f"{start}{''.join(written)}]")


def _member(member: str) -> str:
    if member == r"\b":
        return r"\x08"
    if member in ("[", "&", "~", "]"):
        return f"\\{member}"
    return _NAMED.get(member[1:]) or member if member[0] == "\\" else member
