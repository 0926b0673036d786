"""Regular expressions over whole strings: one of some strings, none of some strings.

The syntax used (escapes of ASCII marks, negated classes, groups) means the same to Rust and to Python.
"""

from __future__ import annotations

from collections.abc import Iterable

_MARKS = frozenset(r"\.+*?()|[]{}^$-/&~#")
_ANY = r"[\s\S]"


def one_of(strings: Iterable[str]) -> str:
    """Return a pattern that matches exactly these strings, as a whole."""
    return f"^(?:{'|'.join(''.join(map(_literal, text)) for text in strings)})$"


def none_of(strings: Iterable[str]) -> str:
    """Return a pattern that matches, as a whole, exactly the strings that are none of these.

    Follows the prefix tree of the strings: a string is none of them if it stops at an inner node, leaves the tree, or
    goes on behind a leaf. The size is about that of all strings together.
    """
    return f"^{_outside(sorted(set(strings)), 0)}$"


def length_between(least: int, most: int | None) -> str:
    """Return a pattern for all strings of so many characters."""
    return f"^{_ANY}{{{least},{'' if most is None else most}}}$"


def _outside(strings: list[str], depth: int) -> str:
    """Return the rest of a string behind `depth` characters that all of `strings` (sorted) begin with."""
    ends = bool(strings) and len(strings[0]) == depth
    branches: dict[str, list[str]] = {}
    for text in strings[ends:]:
        branches.setdefault(text[depth], []).append(text)
    first = "".join(map(_literal, branches))
    options = [f"[^{first}]{_ANY}*" if branches else f"{_ANY}+"]
    options += [_literal(char) + _outside(group, depth + 1) for char, group in branches.items()]
    return f"(?:{'' if ends else '|'}{'|'.join(options)})"


def _literal(char: str) -> str:
    return f"\\{char}" if char in _MARKS else char
