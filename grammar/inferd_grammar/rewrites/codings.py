"""Texts as they are written inside of another one: as JSON writes a string, or as they are, up to a mark.

A coding writes each character by itself. Some characters begin alike, with its `mark`: in a JSON string a backslash. Which
of them it is shows behind the mark only, so that a lexer, which looks at one byte, would take it for more of a terminal that
may go on with another of them, and not for the beginning of the next one. What :func:`forms` returns has the mark of a
terminal's first character taken away: it is a part of what stands before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from inferd_grammar.rewrites.regex_syntax import EVERYTHING, Chars, NotUnderstood, subtraction, union, write
from inferd_grammar.rewrites.regex_tree import Either, OneChar, Then, Times, Tree, beginnings, may_be_empty

_MAX_WRITTEN = 200_000
_ESCAPED = ('"', "\\", *map(chr, range(0x20)))


@dataclass(frozen=True)
class Coding:
    """`opening` and `closing` stand around a text. `tails`: what follows the mark in characters that begin with it."""

    opening: str
    closing: str
    mark: str
    tails: Mapping[str, str]


JSON_STRING = Coding('"', '"', "\\", {char: json.dumps(char)[2:-1] for char in _ESCAPED})


def up_to(end: str, begun: bool) -> Coding:
    """Return the coding of texts as they are; `begun`: they may have the first character of the end, but not its first two."""
    return Coding("", end, end[0], {end[0]: ""}) if begun else Coding("", end, "", {})


class Forms(NamedTuple):
    """The texts of a tree in a coding, each in one of them.

    Fields:
        plain: an expression of those that do not begin with the mark, and are not empty; None if there are none.
        marked: of those that do, and have more, without it.
        bare: the mark alone is one.
        empty: the empty text is one.
    """

    plain: str | None
    marked: str | None
    bare: bool
    empty: bool


def coded(tree: Tree, coding: Coding) -> str:
    """Return an expression of a tree's texts as a coding writes them. Raises NotUnderstood."""
    match tree:
        case OneChar():
            ways = [way for way in (_plain(tree, coding), _marked(tree, coding)) if way is not None]
            return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})" if ways else r"[^\s\S]"
        case Then(parts):
            return "".join(coded(part, coding) for part in parts)
        case Either(parts):
            return f"(?:{'|'.join(coded(part, coding) for part in parts)})"
        case Times(part, least, most):
            return f"(?:{coded(part, coding)}){{{least},{'' if most is None else most}}}"


def forms(tree: Tree, coding: Coding) -> Forms:
    """Return a tree's texts, told apart by how they begin. Raises NotUnderstood."""
    empty = may_be_empty(tree)
    firsts = list(beginnings(tree))
    if not empty and not any(_tails(first, coding) for first, _ in firsts):
        return Forms(coded(tree, coding), None, False, False)
    plain: dict[str, list[str]] = {}
    marked: dict[str, list[str]] = {}
    bare, size = False, 0
    for first, rest in firsts:
        behind = coded(rest, coding)
        size += len(behind)
        if size > _MAX_WRITTEN:
            raise NotUnderstood("it may begin in too many ways")
        if (written := _plain(first, coding)) is not None:
            plain.setdefault(behind, []).append(written)
        tails = _tails(first, coding)
        if tails == [""]:  # the mark is all of the character
            bare |= may_be_empty(rest)
            for second, others in beginnings(rest):
                marked.setdefault(coded(others, coding), []).append(coded(second, coding))
        elif tails:
            marked.setdefault(behind, []).append(_one_of(tails))
    return Forms(_joined(plain), _joined(marked), bare, empty)


def _joined(ways: Mapping[str, list[str]]) -> str | None:
    texts = [f"(?:{'|'.join(dict.fromkeys(firsts))}){behind}" for behind, firsts in ways.items()]
    return f"(?:{'|'.join(texts)})" if texts else None


def _plain(one: OneChar, coding: Coding) -> str | None:
    """Return an expression of the characters that do not begin with the mark."""
    if not one.has_other(frozenset(coding.tails)):
        return None
    inside = [char for char in coding.tails if one.has(char)]
    piece = f"[{one.piece}&&{write(subtraction(EVERYTHING, _set(inside)))}]" if inside else one.piece
    return f"(?i:{piece})" if one.any_case else piece


def _marked(one: OneChar, coding: Coding) -> str | None:
    tails = _tails(one, coding)
    return f"{write(_set([coding.mark]))}{_one_of(tails)}" if tails else None


def _tails(one: OneChar, coding: Coding) -> list[str]:
    return [tail for char, tail in coding.tails.items() if one.has(char)]


def _one_of(tails: list[str]) -> str:
    """Return an expression of one of several texts."""
    if tails == [""]:
        return ""
    groups = groupby(sorted(tails, key=lambda tail: (len(tail), tail)), key=lambda tail: tail[:-1])
    ways = [f"{start}{write(_set([tail[-1] for tail in group]))}" for start, group in groups]
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


def _set(chars: list[str]) -> Chars:
    return union([((ord(char), ord(char)),) for char in chars])
