"""Terminals of a grammar as plain expressions: without look-arounds, and with what a lazy quantifier says about where they end.

`".*?"` ends with the first quote. To a lexer that takes all it can it would end with the last one, so it is written as the texts
that match and do not begin with a shorter one that does.
"""

from __future__ import annotations

import re

from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.patterns import NOTHING, difference, looks_around
from inferd_grammar.rewrites.regex_dialect import Ambiguous, with_classes_of_python
from inferd_grammar.rewrites.regex_syntax import NotUnderstood, RegexNode, lengths, parse

_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*+\]?|(?P<lazy>[*+?}]\?)|.", re.DOTALL)


def is_lazy(pattern: str) -> bool:
    """Return True if a pattern has a lazy quantifier."""
    return any(piece["lazy"] for piece in _PIECE.finditer(pattern))


def terminal(pattern: str) -> str:
    """Return a terminal's pattern as the library reads it. Raises GrammarError for one that looks at what stands beside it."""
    try:
        return with_classes_of_python(pattern) if _is_plain(pattern) else _without_looks(pattern)
    except NotUnderstood as error:
        raise GrammarError(f"this expression is not supported in a terminal: {error}") from error
    except Ambiguous as error:
        raise GrammarError(f"dialects of regular expressions differ about this: {error}; write it without") from error


def _is_plain(pattern: str) -> bool:
    anchored = any(piece[0] in "^$" for piece in _PIECE.finditer(pattern))
    return not (anchored or is_lazy(pattern) or looks_around(pattern))


def _without_looks(pattern: str) -> str:
    node, _ = parse(f"^(?:{pattern})$", edges=False)
    if _looks_out(node, 0, 0):
        raise NotUnderstood("it looks at what stands before or behind the terminal")
    longer = [rf"^(?:{pattern})[\s\S]"] if is_lazy(pattern) else []
    found = difference([rf"^(?:{pattern})(?![\s\S])"], longer)
    if found == NOTHING or not lengths(parse(found, edges=False)[0])[0]:  # `re` would keep it, for others to find
        raise NotUnderstood(
            "a lazy quantifier at the end of a terminal takes nothing: write one terminal up to where it ends"
        )
    return found[1:-1]


def _looks_out(node: RegexNode, before: int, behind: int) -> bool:
    """Return True if a node may look beyond the ends of a text in which at least so many characters stand around it."""
    kind, parts = node
    if kind in ("loop", "upto"):
        return _looks_out(parts if kind == "loop" else parts[0], before, behind)
    if kind == "either":
        return any(_looks_out(part, before, behind) for part in parts)
    if kind == "then":
        widths = [lengths(part)[0] for part in parts]
        return any(
            _looks_out(part, before + sum(widths[:at]), behind + sum(widths[at + 1 :])) for at, part in enumerate(parts)
        )
    if kind == "edge":
        return not (before and behind)
    most = lengths(parts[0])[1] if kind in ("ahead", "behind") else 0
    return most is None or most > (behind if kind == "ahead" else before)
