"""Guesses at small valid values of a schema, from the values, names and bounds that it mentions.

For schemas of which a grammar holds only a part: there the search from the start of a text mostly leads nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, combinations, islice, product
from typing import Any

from inferd_grammar.completion.small_values import small_values
from inferd_grammar.rewrites.patterns import shortest_match
from inferd_grammar.rewrites.regex_syntax import NotUnderstood
from inferd_grammar.schema import iter_schemas

_MAX_GUESSES = 3_000
_MAX_VALUES = 40
_MAX_NAMES = 12
_PLAIN: tuple[Any, ...] = (0, "", "a", None, True, [], {}, 1, 1.5, -1, "aaaa")
_NUMBERS = ("const", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")


def guess(root: Any, holds: Callable[[Any], bool], affordable: Callable[[], bool]) -> Iterator[bytes]:
    """Yield compact texts of values that `holds` accepts, smaller kinds first, from a bounded number of guesses, while they are
    `affordable`.
    """
    for value in islice(_guesses(root), _MAX_GUESSES):
        if not affordable():
            return
        if holds(value):
            yield json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _guesses(root: Any) -> Iterator[Any]:
    yield from map(json.loads, small_values(root))
    values, names = _values(root), _names(root)
    required = [name for name in names if name in _required(root)]
    yield from values
    yield from ({name: value} for name, value in product(names, values))
    yield from ([value] for value in values)
    yield from ({**dict.fromkeys(required, value)} for value in values)
    yield from ([left, right] for left, right in product(values[:10], values[:10]))
    yield from ([[value]] for value in values)
    yield from ({name: [value]} for name, value in product(names, values[:12]))
    yield from ([{name: value}] for name, value in product(names, values[:12]))
    yield from ({name: {inner: value}} for name, inner, value in product(names[:6], names[:6], values[:8]))
    pairs = product(combinations(names, 2), values[:8], values[:8])
    yield from ({one: left, two: right} for (one, two), left, right in pairs)
    yield from (dict.fromkeys(some, value) for some in combinations(names, 3) for value in values[:6])


def _values(root: Any) -> list[Any]:
    found = chain(_listed(root), _PLAIN)
    different = {json.dumps(value, sort_keys=True): value for value in found}
    return list(different.values())[:_MAX_VALUES]


def _listed(root: Any) -> Iterator[Any]:
    for _, schema in iter_schemas(root):
        if not isinstance(schema, dict):
            continue
        yield from schema.get("enum", [])[:3]
        yield from _near(schema)
        yield from ("a" * int(schema[key]) for key in ("minLength", "maxLength") if schema.get(key, 99) < 40)
        if isinstance(schema.get("pattern"), str):
            with suppress(NotUnderstood):
                yield shortest_match(schema["pattern"])


def _near(schema: Any) -> Iterator[Any]:
    """Yield numbers on both sides of a schema's bounds, and multiples above its least one."""
    for key in _NUMBERS:
        number = schema.get(key)
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            yield from (number, number + 1, number - 1)
    step, least = schema.get("multipleOf"), schema.get("minimum", 0)
    if step and isinstance(least, (int, float)):
        yield from (step * (least // step + n) for n in range(1, 5))


def _names(root: Any) -> list[str]:
    names: dict[str, None] = {}
    for _, schema in iter_schemas(root):
        if not isinstance(schema, dict):
            continue
        names |= dict.fromkeys(chain(schema.get("required", ()), schema.get("properties", ())))
        for pattern in schema.get("patternProperties", ()):
            with suppress(NotUnderstood):
                names[shortest_match(pattern)] = None
    return [*list(names)[:_MAX_NAMES], "a", "aaaa"]


def _required(root: Any) -> set[str]:
    places = (schema for _, schema in iter_schemas(root) if isinstance(schema, dict))
    return {name for schema in places for name in schema.get("required", ()) if isinstance(name, str)}
