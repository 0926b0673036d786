"""Edges of words and of texts, told by what stands beside them: `foo\\b.*` is `foo`, and an end or what begins with no letter.

Unlike an automaton this keeps the counts of a pattern as they are. It is for edges that do not repeat; others are left.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferd_grammar.rewrites.regex_syntax import (
    ANYTHING,
    ASCII,
    EVERYTHING,
    WORD,
    Chars,
    NotUnderstood,
    RegexNode,
    intersection,
    lengths,
    subtraction,
)

Parts = list[RegexNode]
"""Nodes that stand one behind the other; all of their edges are among them, and none deeper."""
_OTHERS = subtraction(ASCII, WORD)
"""What is in no word for any dialect."""
_SIDES = ((WORD, _OTHERS), (_OTHERS, WORD))
_TEXT_END: RegexNode = ("ahead", (("then", [("chars", EVERYTHING)]), True))
_MAX_WAYS = 64


def is_outer(node: RegexNode, begins: bool = True, ends: bool = True) -> bool:
    """Return True if all anchors of a node stand where it begins or ends, and nothing else looks around."""
    kind, parts = node
    if kind == "edge":
        return (parts == "start" and begins) or (parts == "end" and ends)
    if kind == "then":
        inner = [part for part in parts if part is not ANYTHING]
        last = len(inner) - 1
        return all(is_outer(part, begins and n == 0, ends and n == last) for n, part in enumerate(inner))
    if kind == "either":
        return all(is_outer(part, begins, ends) for part in parts)
    return kind == "chars" or (kind in ("loop", "upto") and not _has_edge(node))


def without_edges(node: RegexNode) -> RegexNode:
    """Return a node of the same whole texts without edges and look-arounds; beside an edge of a word stand characters of ASCII.

    Raises NotUnderstood where an edge may repeat, for look-arounds but the end of the text, and for what is too large.
    """
    ways: list[RegexNode] = []
    waiting = _flat(node)
    while waiting:
        parts = waiting.pop()
        at = next((n for n, part in enumerate(parts) if _has_edge(part)), None)
        if at is None:
            ways.append(("then", parts))
        else:
            waiting += _settled(parts[:at], parts[at], parts[at + 1 :])
        if len(waiting) + len(ways) > _MAX_WAYS:
            raise NotUnderstood("too many edges of words")
    return ("either", ways) if ways else ("chars", ())


def _settled(before: Parts, edge: RegexNode, behind: Parts) -> Iterator[Parts]:
    """Yield what stands around an edge, in each way in which it holds there."""
    if edge == _TEXT_END or edge == ("edge", "end"):
        if _may_be_empty(behind):
            yield [*before, *filter(_has_edge, behind)]
    elif edge == ("edge", "start"):
        if _may_be_empty(before):
            yield behind
    elif edge == ("edge", "word"):
        for left, right in _SIDES:
            rights = _outer(behind, right, right == _OTHERS, last=False)
            yield from (
                [*first, *second] for first in _outer(before, left, left == _OTHERS, last=True) for second in rights
            )
    else:
        raise NotUnderstood("a look-around")


def _outer(parts: Parts, chars: Chars, or_none: bool, *, last: bool) -> list[Parts]:
    """Return the parts held to begin (or end) with one of `chars`; `or_none`: or to be empty."""
    if not parts:
        return [[]] if or_none else []
    part, rest = (parts[-1], parts[:-1]) if last else (parts[0], parts[1:])
    if _has_edge(part):
        return [_joined(other, [part], last) for other in _outer(rest, chars, or_none, last=last)]
    found = [_joined(rest, inner, last) for inner in _outer_of(part, chars, last)]
    return found + (_outer(rest, chars, or_none, last=last) if lengths(part)[0] == 0 else [])


def _outer_of(node: RegexNode, chars: Chars, last: bool) -> list[Parts]:
    """Return the texts of a node, but for the empty one, that begin (or end) with one of `chars`."""
    kind, parts = node
    if kind == "chars":
        both = intersection(parts, chars)
        return [[("chars", both)]] if both else []
    if kind == "then":
        return _outer(parts, chars, False, last=last)
    if kind == "either":
        return [way for part in parts for way in _outer_of(part, chars, last)]
    inner, fewer = (parts, node) if kind == "loop" else (parts[0], ("upto", (parts[0], parts[1] - 1)))
    if kind == "upto" and parts[1] == 0:
        return []
    return [_joined([fewer], way, last) for way in _outer_of(inner, chars, last)]


def _joined(rest: Parts, outer: Parts, last: bool) -> Parts:
    return [*rest, *outer] if last else [*outer, *rest]


def _may_be_empty(parts: Parts) -> bool:
    return all(_has_edge(part) or lengths(part)[0] == 0 for part in parts)


def _flat(node: RegexNode) -> list[Parts]:
    """Return the ways through a node, with every edge of its groups among their parts."""
    kind, parts = node
    if kind not in ("then", "either", "upto", "loop") or not _has_edge(node):
        return [[node]]
    if kind == "either":
        return [way for part in parts for way in _flat(part)]
    if kind == "upto" and parts[1] == 1:
        return [[], *_flat(parts[0])]
    if kind != "then":
        raise NotUnderstood("an edge of a word in what may repeat")
    ways: list[Parts] = [[]]
    for part in parts:
        ways = [[*before, *more] for before in ways for more in _flat(part)]
        if len(ways) > _MAX_WAYS:
            raise NotUnderstood("too many edges of words")
    return ways


def _has_edge(node: RegexNode) -> bool:
    kind, parts = node
    if kind in ("then", "either"):
        return any(map(_has_edge, parts))
    return _has_edge(parts if kind == "loop" else parts[0]) if kind in ("loop", "upto") else kind != "chars"
