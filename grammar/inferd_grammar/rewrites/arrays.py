"""Arrays: `items`, `contains` and `uniqueItems`.

That some items hold a property is said place by place, for the first ten places, or those of `prefixItems` and as many more as
have to hold it: narrower where such items stand behind them.
"""

from __future__ import annotations

import math
from itertools import combinations, permutations
from typing import Any

from inferd_grammar.rewrites.base import CannotRewrite, Schema, Translator, View, any_of
from inferd_grammar.rewrites.kinds import canonical

_PLACES = 10
_MOST_PLACES = 30
_MAX_ORDERS = 120


def negative_items(view: View, to: Translator) -> list[Schema]:
    """Return schemas of arrays in which an item fails `prefixItems` or `items`."""
    prefix = view.words.get("prefixItems", [])
    options: list[Schema] = []
    for place, schema in enumerate(prefix):
        options += _item_at(place, to.negative(schema, view.at("prefixItems", place)))
    if "items" in view.words:
        if view.words.get("maxItems", math.inf) > len(prefix) + _PLACES:
            to.narrow()
        other = to.shared(to.negative(view.words["items"], view.at("items")))
        options += _some_item(other, len(prefix), view)
    return options


def positive_contains(view: View, to: Translator) -> list[Schema]:
    """Return `contains` as a schema: so many items among those at the first places are valid. Raises CannotRewrite."""
    low, high = _counts(view)
    if low == 0 and high is None:
        return []
    if _PLACES < low <= view.words.get("maxItems", low) and not isinstance(view.words["contains"], bool):
        raise CannotRewrite(f"minContains above {_PLACES} is not supported", view.at("minContains"))
    return [any_of([*_not_arrays(), *_with_valid_items(low, high, view, to)])]


def negative_contains(view: View, to: Translator) -> list[Schema]:
    """Return schemas of arrays in which fewer items are valid, or more."""
    low, high = _counts(view)
    fewer = _with_valid_items(0, low - 1, view, to) if low else []
    return fewer + ([] if high is None else _with_valid_items(high + 1, None, view, to))


def _counts(view: View) -> tuple[int, int | None]:
    high = view.words.get("maxContains")
    return int(view.words.get("minContains", 1)), None if high is None else int(high)


def _with_valid_items(low: int, high: int | None, view: View, to: Translator) -> list[Schema]:
    """Return schemas of arrays with at least `low` items that `contains` accepts and at most `high`, all at the first places."""
    wanted = to.shared(to.positive(view.words["contains"], view.at("contains")))
    other = True if high is None else to.shared(to.negative(view.words["contains"], view.at("contains")))
    if wanted is True and high is None:
        return [{"type": "array", "minItems": low}]
    end = _PLACES
    if (
        _ways(longer := len(view.words.get("prefixItems", ())) + low, low, high) <= _MAX_ORDERS
        and longer <= _MOST_PLACES
    ):
        end = max(end, longer)
    if view.words.get("maxItems", math.inf) > end:
        to.narrow()
    end = min(end, int(view.words.get("maxItems", end)))
    counts = _numbers(end, low, high) if wanted is not False else range(low, 1)
    if wanted is not False and _ways(end, low, high) > _MAX_ORDERS:
        raise CannotRewrite(f"so many valid items have more than {_MAX_ORDERS} ways to stand", view.at("contains"))
    rest = {} if other is True else {"items": other}
    return [
        {"type": "array", **_items_at(places, wanted, other), **rest}
        for count in counts
        for places in combinations(range(end), count)
    ]


def _numbers(end: int, low: int, high: int | None) -> range:
    """Return how many of the first places may have a valid item."""
    return range(low, low + 1 if high is None else min(high, end) + 1)


def _ways(end: int, low: int, high: int | None) -> int:
    return sum(math.comb(end, count) for count in _numbers(end, low, high))


def _items_at(places: tuple[int, ...], schema: Schema, other: Schema) -> dict[str, Any]:
    if not places:
        return {}
    items = [schema if place in places else other for place in range(places[-1] + 1)]
    return {"prefixItems": items, "minItems": len(items)}


def positive_unique(view: View, to: Translator) -> list[Schema]:
    """Return `uniqueItems` over few possible items as a schema: every order of them, cut anywhere that `minItems` allows."""
    if not view.words["uniqueItems"] or view.words.get("maxItems", 2) <= 1:
        return []
    items = view.words.get("items", True)
    values = None if "prefixItems" in view.words else _values(items, view.at("items"), to)
    if values is None:
        raise CannotRewrite("uniqueItems needs items of few listed values", view.at("uniqueItems"))
    size = min(len(values), int(view.words.get("maxItems", len(values))))
    # Of more values than that, one is already too many: how many orders there are may have thousands of digits.
    if len(values) > _MAX_ORDERS or math.perm(len(values), size) > _MAX_ORDERS:
        reason = f"uniqueItems over {len(values)} values has more than {_MAX_ORDERS} orders"
        raise CannotRewrite(reason, view.at("uniqueItems"))
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
