"""Complements of `multipleOf` and of `integer`: the gaps between neighbouring multiples.

Narrower: the gaps go on for ever, and only the 64 on each side of zero are written down. Numbers farther out are
refused although valid.
"""

from __future__ import annotations

from decimal import Decimal

from inferd_grammar.rewrites.base import CannotRewrite, Schema, View
from inferd_grammar.rewrites.kinds import NUMBER, Kinds

_GAPS = 64


def positive(view: View) -> tuple[View, list[Schema]]:
    """Return the view as it is. Raises CannotRewrite for a step that the backend misreads, such as 0.07."""
    step = view.words.get("multipleOf", 1)
    if not _is_read_exactly(step):
        raise CannotRewrite(f"a multipleOf of {step} is not supported: floats round it", view.at("multipleOf"))
    return view, []


def _is_read_exactly(step: float) -> bool:
    """Return True if a step keeps its digits as the backend takes its point away: ten times the float, until it is whole."""
    whole, tens = float(step), 0
    while whole % 1:
        whole, tens = whole * 10, tens + 1
    return Decimal(whole) == Decimal(str(step)).scaleb(tens)


def negative(view: View, kinds: Kinds) -> list[Schema]:
    """Return schemas of numbers that are no multiple; whole ones alone if `kinds` has no fractions."""
    step = Decimal(str(view.words["multipleOf"]))
    return between(step, whole=kinds & NUMBER == {"integer"})


def between(step: Decimal, *, whole: bool = False) -> list[Schema]:
    """Return schemas of numbers that lie between two multiples of `step`."""
    if whole and step == 1:
        return []
    kind = "integer" if whole else "number"
    return [
        {"type": kind, "exclusiveMinimum": _number(step * n), "exclusiveMaximum": _number(step * (n + 1))}
        for n in range(-_GAPS, _GAPS)
    ]


def _number(value: Decimal) -> int | float:
    return int(value) if value == int(value) else float(value)
