"""Texts that stand in an expression or a grammar as they are, and an expression's shortest match: what a search for an end
puts together. Pure.

They are hints, which a matcher judges: nothing here knows which of them may follow which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from inferd_grammar.constraints import AllOfGrammar, ChoiceGrammar, Constraint, GbnfGrammar, LarkGrammar, RegexGrammar
from inferd_grammar.rewrites.patterns import shortest_match
from inferd_grammar.rewrites.regex_dialect import Ambiguous, split_regex
from inferd_grammar.rewrites.regex_syntax import NotUnderstood

_MOST = 32
_LONGEST = 10_000
_QUOTED = re.compile(
    r'"((?:\\.|[^"\\\n])*+)"?|/((?:\\.|[^/\\\n])++)/?|(\[\^?\]?(?:\\.|[^\]\\\n])*+\]?)|(?:#|//)[^\n]*'
)  # what has no end in its line goes to the line's: each character is looked at once
_IMPORT = re.compile(r"^%import[ \t]+common\b[^\n]*", re.MULTILINE)
_NAME = re.compile(r"[A-Z_]+")
_IMPORTED = {"CPP_COMMENT": "//", "C_COMMENT": "/**/", "ESCAPED_STRING": '""', "SH_COMMENT": "#", "SQL_COMMENT": "--"}
"""Short texts of the terminals that a Lark grammar may import, where they hold other marks than letters and digits."""
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}


def pieces_of(constraint: Constraint) -> tuple[bytes, ...]:
    """Return the first literal texts of a constraint in the order in which they stand there, each once."""
    found = dict.fromkeys(piece for piece in _found(constraint) if piece)
    return tuple(piece.encode("utf-8", "ignore") for piece in islice(found, _MOST))


def texts_of(constraint: Constraint) -> list[str]:
    """Return short whole texts of an expression or a choice; of a grammar its literal texts, which may be none of its own."""
    match constraint:
        case ChoiceGrammar(options):
            return sorted(options, key=len)
        case RegexGrammar(pattern):
            with suppress(NotUnderstood):
                return [shortest_match(f"^(?:{pattern})$")]
    return list(islice(filter(None, _found(constraint)), _MOST))


def _found(constraint: Constraint) -> Iterator[str]:
    match constraint:
        case RegexGrammar(pattern):
            with suppress(NotUnderstood):
                yield shortest_match(f"^(?:{pattern})$")
            yield from _of_regex(pattern)
        case LarkGrammar(text) | GbnfGrammar(text):
            for quoted, pattern, chars in _QUOTED.findall(text[:_LONGEST]):
                yield _plain(quoted)
                yield from _of_regex(pattern or chars)
            for line in _IMPORT.findall(text[:_LONGEST]):
                yield from (_IMPORTED.get(name, "") for name in _NAME.findall(line))
        case AllOfGrammar(members):
            for member in members:
                yield from _found(member)


def _of_regex(pattern: str) -> Iterator[str]:
    """Yield the runs of characters that stand for themselves, and of each class that lists characters the first one."""
    run = ""
    try:
        for part in split_regex(pattern[:_LONGEST]):
            char = _char(part)
            if part in ("*", "+", "?") or (part[0] == "{" and len(part) > 1):
                yield from (run[:-1], run[-1:])
                run = ""
            elif char is None:
                yield run
                run = ""
                if len(part) > 2 and part[0] == "[" and part[1] != "^":
                    yield _char(part[1:3] if part[1] == "\\" else part[1]) or ""
            else:
                run += char
    except Ambiguous:
        return
    yield run


def _char(part: str) -> str | None:
    """Return the character that a part of an expression stands for; None for others."""
    if part[0] == "\\":
        return _CONTROLS.get(part[1:], None if part[1:].isalnum() or len(part) > 2 else part[1:])
    return part if len(part) == 1 and part not in ".^$|()*+?[" else None


def _plain(quoted: str) -> str:
    return re.sub(r"\\(.)", lambda escape: _CONTROLS.get(escape[1], escape[1]), quoted)
