"""Arrays: `items`, `contains` and `uniqueItems`.

That some item holds a property is said place by place, for the first ten places: narrower where the only such item
stands behind them.
"""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

from inferd_grammar.rewrites.base import CannotRewrite, Schema, Translator, View, any_of
from inferd_grammar.rewrites.kinds import canonical

_PLACES = 10
_MAX_ORDERS = 120


def negative_items(view: View, to: Translator) -> list[Schema]:
    """Return schemas of arrays in which an item fails `prefixItems` or `items`."""
    prefix = view.words.get("prefixItems", [])
    options: list[Schema] = []
    for place, schema in enumerate(prefix):
        options += _item_at(place, to.negative(schema, view.at("prefixItems", place)))
    if "items" in view.words:
        other = to.negative(view.words["items"], view.at("items"))
        options += _some_item(other, len(prefix), view)
    return options


def positive_contains(view: View, to: Translator) -> list[Schema]:
    """Return `contains` as a schema: an item at one of the first places is valid. Raises CannotRewrite for counts above one."""
    if view.words.get("minContains", 1) == 0 and "maxContains" not in view.words:
        return []
    _require_plain(view)
    wanted = to.positive(view.words["contains"], view.at("contains"))
    return [any_of([*_not_arrays(), *_some_item(wanted, 0, view)])]


def negative_contains(view: View, to: Translator) -> list[Schema]:
    """Return schemas of arrays in which no item is valid."""
    if view.words.get("minContains", 1) == 0 and "maxContains" not in view.words:
        return []
    _require_plain(view)
    return [{"type": "array", "items": to.negative(view.words["contains"], view.at("contains"))}]


def positive_unique(view: View, to: Translator) -> list[Schema]:
    """Return `uniqueItems` over few possible items as a schema: every order of them, cut anywhere that `minItems` allows."""
    if not view.words["uniqueItems"] or view.words.get("maxItems", 2) <= 1:
        return []
    items = view.words.get("items", True)
    values = None if "prefixItems" in view.words else _values(items, view.at("items"), to)
    if values is None:
        raise CannotRewrite("uniqueItems needs items of few listed values", view.at("uniqueItems"))
    size = min(len(values), int(view.words.get("maxItems", len(values))))
    if math.perm(len(values), size) > _MAX_ORDERS:
        reason = f"uniqueItems over {len(values)} values has {math.perm(len(values), size)} orders"
        raise CannotRewrite(f"{reason}; the limit is {_MAX_ORDERS}", view.at("uniqueItems"))
    orders = [
        {"type": "array", "prefixItems": [{"const": value} for value in order], "maxItems": size}
        for order in permutations(values, size)
    ]
    return [any_of([*_not_arrays(), *orders])]


def at_most_all(view: View, to: Translator) -> list[Schema]:
    """Return that an array of different items of listed values has at most as many as there are."""
    items = view.words.get("items", True)
    values = None if "prefixItems" in view.words else _values(items, view.at("items"), to)
    return [] if values is None else [any_of([*_not_arrays(), {"type": "array", "maxItems": len(values)}])]


def _values(schema: Any, pointer: str, to: Translator) -> list[Any] | None:
    """Return all values that a schema may accept if they are listed, each once; None if they are not."""
    for _ in range(8):
        if not isinstance(schema, dict):
            return None
        view = to.view(schema, pointer)
        if "const" in view.words or "enum" in view.words:
            listed = [view.words["const"]] if "const" in view.words else view.words["enum"]
            return list({canonical(value): value for value in listed}.values())
        if view.words.get("type") in ("boolean", "null"):
            return [False, True] if view.words["type"] == "boolean" else [None]
        target = to.resolve(view.words["$ref"]) if "$ref" in view.words else None
        if target is None:
            return None
        pointer, schema = target
    return None


def _require_plain(view: View) -> None:
    for key in ("minContains", "maxContains"):
        if key in view.words and (key, view.words[key]) != ("minContains", 1):
            raise CannotRewrite(f"{key} is not supported", view.at(key))


def _not_arrays() -> list[Schema]:
    return [{"type": ["null", "boolean", "number", "string", "object"]}]


def _some_item(schema: Schema, start: int, view: View) -> list[Schema]:
    """Return schemas of arrays with an item that `schema` accepts, at `start` or behind."""
    if schema is True:
        return [{"type": "array", "minItems": start + 1}]
    end = min(start + _PLACES, int(view.words.get("maxItems", start + _PLACES)))
    return [option for place in range(start, end) for option in _item_at(place, schema)]


def _item_at(place: int, schema: Schema) -> list[Schema]:
    if schema is False:
        return []
    return [{"type": "array", "prefixItems": [True] * place + [schema], "minItems": place + 1}]
