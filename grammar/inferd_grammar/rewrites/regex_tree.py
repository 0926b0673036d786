"""Expressions as trees over their own pieces: for writing each character in another way, whatever dialect says which it is.

`regex_syntax` reads less, and knows more of it: the characters of each class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from unicodedata import category

from inferd_grammar.memo import memoised
from inferd_grammar.rewrites.regex_dialect import CLASS_INSIDE, OLDEST, split_regex
from inferd_grammar.rewrites.regex_syntax import NotUnderstood

_GROUP = re.compile(r"(?:P?<\w+>|(?P<on>[imsu]*)(?:-(?P<off>[ims]+))?(?P<end>[:)]))")
_COUNT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_CODE = re.compile(r"\\[xu]\{([0-9A-Fa-f]{1,6})\}")
_KIND = re.compile(r"\\([pP])\{([A-Z][a-z]?)\}")
_KINDS = re.compile(r"[CLMNPSZ]|C[cfon]|L[ultmo]|M[nce]|N[dlo]|P[cdseifo]|S[mcko]|Z[slp]")
_BEYOND_ASCII = "\\u0250"
_CLASS_INSIDE = re.compile(rf"\\.|(?P<inside>{CLASS_INSIDE})", re.DOTALL)
_ASCII = "".join(map(chr, range(0x80)))
_FAR = re.compile(r"\[\^|\\[dDsSwWpPuUx]")
"""What may stand for characters beyond ASCII, or for any."""
_EDGES = (r"\A", r"\b", r"\B", r"\z", r"\Z")
_MAX_NESTING = 100


@dataclass(frozen=True)
class OneChar:
    """A piece of an expression that stands for one character. `any_case`: without regard to case."""

    piece: str
    any_case: bool = False

    def has(self, char: str) -> bool:
        """Return True for a character of ASCII that it may be; case is not looked at. Raises NotUnderstood."""
        return _compiled(self.piece).fullmatch(char) is not None

    def has_other(self, than: frozenset[str]) -> bool:
        """Return False if it can be none but those; not all such are known. Raises NotUnderstood."""
        return _has_other(self.piece, than)


@dataclass(frozen=True)
class Then:
    """One part behind the other."""

    parts: tuple[Tree, ...] = ()


@dataclass(frozen=True)
class Either:
    """One of the parts."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Times:
    """A part so many times; `most` None: any number."""

    part: Tree
    least: int
    most: int | None


Tree: TypeAlias = OneChar | Then | Either | Times


def literal(text: str) -> Tree:
    """Return the tree of a text."""
    return Then(
        tuple(OneChar(f"\\x{ord(char):02X}" if char.isascii() and not char.isalnum() else char) for char in text)
    )


def read_tree(pattern: str) -> Tree:
    """Return the tree of an expression for whole texts, as Rust reads it. Anchors at its ends say nothing.

    Raises NotUnderstood for what is no plain expression, Ambiguous for a count of a count.
    """
    return _Reader(pattern).whole()


def may_be_empty(tree: Tree) -> bool:
    """Return True if the empty text is one of a tree's."""
    match tree:
        case Then(parts):
            return all(map(may_be_empty, parts))
        case Either(parts):
            return any(map(may_be_empty, parts))
        case Times(part, least, most):
            return least == 0 or most == 0 or may_be_empty(part)
    return False


def characters(tree: Tree) -> Iterator[OneChar]:
    """Yield all pieces that stand for a character."""
    match tree:
        case OneChar():
            yield tree
        case Times(part):
            yield from characters(part)
        case Then(parts) | Either(parts):
            for each in parts:
                yield from characters(each)


def beginnings(tree: Tree) -> Iterator[tuple[OneChar, Tree]]:
    """Yield how the texts of a tree may begin, with what follows (Antimirov 1996): all of them but the empty one."""
    match tree:
        case OneChar():
            yield tree, Then()
        case Either(parts):
            for part in parts:
                yield from beginnings(part)
        case Times(part, least, most) if most != 0:
            more = Times(part, max(0, least - 1), None if most is None else most - 1)
            yield from ((first, Then((rest, more))) for first, rest in beginnings(part))
        case Then(parts):
            for at, part in enumerate(parts):
                yield from ((first, Then((rest, *parts[at + 1 :]))) for first, rest in beginnings(part))
                if not may_be_empty(part):
                    return


class Neighbours(NamedTuple):
    """Where one character may stand behind another one in a tree's texts.

    Fields:
        begins: with the second one.
        ends: with the first one.
        meet: the two may stand side by side.
    """

    begins: bool
    ends: bool
    meet: bool


_NOWHERE = Neighbours(False, False, False)


def neighbours(tree: Tree, first: str, second: str) -> Neighbours:
    """Return where two characters of ASCII may stand. Raises NotUnderstood."""
    match tree:
        case OneChar():
            return Neighbours(tree.has(second), tree.has(first), False)
        case Either(parts):
            found = [neighbours(part, first, second) for part in parts]
            return Neighbours(*(any(values) for values in zip(*found, strict=True)))
        case Times(part, _, most):
            begins, ends, meet = neighbours(part, first, second)
            again = most is None or most > 1
            return Neighbours(begins, ends, meet or (again and begins and ends)) if most != 0 else _NOWHERE
        case Then(parts):
            joined, empty = _NOWHERE, True
            for part in parts:
                begins, ends, meet = neighbours(part, first, second)
                before, is_empty = joined, may_be_empty(part)
                joined = Neighbours(
                    before.begins or (empty and begins),
                    ends or (is_empty and before.ends),
                    before.meet or meet or (before.ends and begins),
                )
                empty = empty and is_empty
            return joined


class _Reader:
    """Recursive descent over the pieces of one expression."""

    def __init__(self, pattern: str) -> None:
        self._pieces = list(split_regex(pattern, of_rust=True))
        self._at = 0
        self._depth = 0
        self._flags = frozenset[str]()

    def whole(self) -> Tree:
        tree = self._union()
        if self._at < len(self._pieces):
            raise NotUnderstood("a bracket that nothing opens")
        return tree

    def _next(self) -> str:
        """Return the next piece, "" at the end."""
        return self._pieces[self._at] if self._at < len(self._pieces) else ""

    def _union(self) -> Tree:
        branches = [self._branch()]
        while self._next() == "|":
            self._at += 1
            branches.append(self._branch())
        return branches[0] if len(branches) == 1 else Either(tuple(branches))

    def _branch(self) -> Tree:
        parts: list[Tree] = []
        begun = False
        while (piece := self._next()) not in ("", "|", ")"):
            self._at += 1
            if piece in ("^", "$"):
                self._check_anchor(piece, begun)
                continue
            begun = True
            if (part := self._part(piece)) is not None:
                parts.append(self._counted(part))
        return parts[0] if len(parts) == 1 else Then(tuple(parts))

    def _check_anchor(self, piece: str, begun: bool) -> None:
        inside = begun if piece == "^" else self._next() not in ("", "|")
        if self._depth or inside or "m" in self._flags:
            raise NotUnderstood(f"{piece!r} inside of an expression")

    def _part(self, piece: str) -> Tree | None:
        """Return what a piece begins; None for flags, which hold from here on."""
        if piece == "(":
            return self._closed()
        if piece == "(?":
            return self._group()
        if piece in _COUNTS or _COUNT.fullmatch(piece):
            raise NotUnderstood(f"{piece!r} behind nothing")
        if piece == ".":
            return OneChar(r"[\s\S]" if "s" in self._flags else r"[^\n]")
        one = OneChar(piece, "i" in self._flags)
        _compiled(piece)
        return one

    def _group(self) -> Tree | None:
        text = "".join(self._pieces[self._at : self._at + 80])
        found = _GROUP.match(text)
        if found is None:
            raise NotUnderstood(f"a group that begins with {text[:8]!r}")
        self._skip(found.end())
        before = self._flags
        if found["end"] is not None:
            self._flags = (before | frozenset(found["on"])) - frozenset(found["off"] or "")
        if found["end"] == ")":
            return None
        return self._closed(before)

    def _skip(self, count: int) -> None:
        while count > 0:
            count -= len(self._next())
            self._at += 1

    def _closed(self, before: frozenset[str] | None = None) -> Tree:
        """Return the inside of a group, behind which the flags are those of before it."""
        flags = self._flags if before is None else before
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise NotUnderstood("groups nested too deeply")
        tree = self._union()
        if self._next() != ")":
            raise NotUnderstood("a group without an end")
        self._at += 1
        self._depth -= 1
        self._flags = flags
        return tree

    def _counted(self, part: Tree) -> Tree:
        piece = self._next()
        found = _COUNT.fullmatch(piece)
        if found is None and piece not in _COUNTS:
            return part
        self._at += 1
        if self._next() == "?":  # a lazy count takes the same whole texts
            self._at += 1
        if found is None:
            return Times(part, *_COUNTS[piece])
        least = int(found[1])
        return Times(part, least, least if not found[2] else int(found[3]) if found[3] else None)


@memoised(4_096)
def _compiled(piece: str) -> re.Pattern[str]:
    """Return a piece as Python reads it; of what is not in ASCII one character stands for all of a kind."""
    if piece in _EDGES:
        raise NotUnderstood(f"{piece!r} in an expression")
    is_class = len(piece) > 1 and piece[0] == "["
    inside = piece[1:-1].replace(OLDEST, "") if is_class else f"\\{piece}" if piece in ("[", "]") else piece
    inside = _CLASS_INSIDE.sub(_of_class, inside)
    inside = _KIND.sub(_of_kind, _CODE.sub(lambda code: f"\\U{int(code[1], 16):08X}", inside)).replace("||", "|")
    try:
        return re.compile(f"[{inside}]")
    except re.error as error:
        raise NotUnderstood(f"{piece!r} in an expression") from error


def _of_class(found: re.Match[str]) -> str:
    """Return a class in a class as its characters of ASCII, and one for all others; an escape as it is."""
    if found["inside"] is None:
        return found[0]
    chars = (match[0] for match in _compiled(found[0]).finditer(_ASCII))
    return "".join(f"\\x{ord(char):02x}" for char in chars) + _BEYOND_ASCII


def _of_kind(found: re.Match[str]) -> str:
    if not _KINDS.fullmatch(found[2]):
        raise NotUnderstood(f"{found[0]!r} in an expression")
    wanted = found[1] == "p"
    codes = [code for code in range(128) if category(chr(code)).startswith(found[2]) == wanted]
    return "".join(f"\\x{code:02x}" for code in codes) + _BEYOND_ASCII


@memoised(4_096)
def _has_other(piece: str, than: frozenset[str]) -> bool:
    if not piece.isascii() or _FAR.search(piece):
        return True
    return any(match[0] not in than for match in _compiled(piece).finditer(_ASCII))
