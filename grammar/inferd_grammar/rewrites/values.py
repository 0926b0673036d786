"""`const` and `enum`, and their complements: one schema for each kind of value that is not listed at all, and for each
kind that is listed, what remains of it (other strings by a pattern, the gaps between numbers, other arrays and objects
member by member).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from inferd_grammar.rewrites.base import CannotRewrite, Schema, Translator, View, all_of, any_of
from inferd_grammar.rewrites.kinds import NUMBER, Kinds, canonical, number_type, of_value, typed
from inferd_grammar.rewrites.strings import none_of

# Above this a float no longer tells whole numbers apart.
_EXACT = 2**53
_MAX_NUMBERS = 256


def negative(key: str, view: View, kinds: Kinds, to: Translator) -> list[Schema]:
    """Return the complement of `const` or `enum` among `kinds`."""
    values = [view.words[key]] if key == "const" else view.words[key]
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        by_kind.setdefault(of_value(value), []).append(value)
    numbers = [*by_kind.pop("integer", ()), *by_kind.pop("fraction", ())]
    free = kinds - by_kind.keys() - (NUMBER if numbers else Kinds())
    options = [typed(free, kinds)] if free else []
    if numbers and kinds & NUMBER:
        options += _other_numbers(numbers, kinds & NUMBER, view.at(key))
    for kind, listed in by_kind.items():
        if kind in kinds:
            options.append(_others(kind, listed, view.at(key), to))
    return options


def _others(kind: str, listed: list[Any], pointer: str, to: Translator) -> Schema:
    """Return a schema of values of a kind except those listed."""
    if kind == "null":
        return False
    if kind == "boolean":
        return any_of([{"const": value} for value in (False, True) if value not in listed])
    if kind == "string":
        return {"type": "string", "pattern": none_of(listed)}
    distinct = {canonical(value): value for value in listed}.values()
    return all_of(
        [_other_array(v, pointer, to) if kind == "array" else _other_object(v, pointer, to) for v in distinct]
    )


def _other_numbers(values: list[Any], kinds: Kinds, pointer: str) -> list[Schema]:
    """Return the gaps between the numbers; whole numbers alone if `kinds` has no fractions."""
    if len(values) > _MAX_NUMBERS:
        raise CannotRewrite(f"the complement of more than {_MAX_NUMBERS} numbers is not supported", pointer)
    if any(abs(value) > _EXACT for value in values):
        raise CannotRewrite("numbers above 2**53 have no exact complement", pointer)
    kind = {"type": number_type(kinds)}
    points = sorted({canonical(value): value for value in values}.values())
    gaps = [{**kind, "exclusiveMaximum": points[0]}, {**kind, "exclusiveMinimum": points[-1]}]
    for low, high in pairwise(points):
        if kinds != {"integer"} or high - low > 1:
            gaps.append({**kind, "exclusiveMinimum": low, "exclusiveMaximum": high})
    return list(gaps)


def _other_array(value: list[Any], pointer: str, to: Translator) -> Schema:
    """Return a schema of arrays that are shorter, longer, or differ in one place."""
    size = len(value)
    options: list[Schema] = [{"type": "array", "maxItems": size - 1}] if size else []
    options.append({"type": "array", "minItems": size + 1})
    for place, item in enumerate(value):
        other = to.negative({"const": item}, pointer)
        options.append({"type": "array", "prefixItems": [True] * place + [other], "minItems": place + 1})
    return any_of(options)


def _other_object(value: dict[str, Any], pointer: str, to: Translator) -> Schema:
    """Return a schema of objects that lack a key, have one more, or differ in one value."""
    options: list[Schema] = []
    for key, item in value.items():
        options.append({"type": "object", "properties": {key: False}})
        other = to.negative({"const": item}, pointer)
        options.append({"type": "object", "required": [key], "properties": {key: other}})
    options.append({"type": "object", "required": list(value), "minProperties": len(value) + 1})
    return any_of(options)
