"""Key orders of an instance that a grammar may want: objects are unordered in JSON, and ordered in a grammar.

For each object the names are ranked as `properties` list them: what the schema itself lists first, then what stands
behind `$ref`, `anyOf`, `allOf` and so on, of branches those that hold for the instance. Names that are only required
come behind, others last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from inferd_grammar.rewrites.patterns import finds
from inferd_grammar.rewrites.regex_syntax import NotUnderstood
from inferd_grammar.schema import resolve

Holds = Callable[[Any, Any], bool]
"""A function that returns True if a value is valid under a subschema."""
# The order in which parts of one schema object meet in the grammar: with and without a rewrite of `oneOf`.
_REWRITTEN = ("$ref", "anyOf", "allOf", "oneOf", "if", "then", "else", "dependencies", "dependentSchemas", "not")
_AS_IT_IS = ("$ref", "oneOf", "anyOf", "allOf")
_SEQUENCES = ((_REWRITTEN, False), (_AS_IT_IS, False), (_REWRITTEN, True))
"""These, with the parts behind the schema's own `properties`, or before them: a condition on one name comes first."""
_NAMING = ("properties", "required", "dependencies", "dependentRequired", "dependentSchemas")
_DEPTH = 32


def orders(data: Any, root: Any, holds: Holds) -> Iterator[Any]:
    """Return the instance as it is, then with its keys in the schema's orders, then the same with whole numbers written without
    a point: JSON Schema holds `6000.0` and `6000` equal. Each text once.
    """
    seen: list[str] = []
    for notation in (_as_it_is, _whole):
        for arranger in (None, *(_Arranger(root, holds, *each) for each in _SEQUENCES)):
            value = data if arranger is None else arranger.arrange(data, [root], _DEPTH)
            value = notation(value)
            if repr(value) not in seen:
                seen.append(repr(value))
                yield value


def _as_it_is(value: Any) -> Any:
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return {name: _whole(item) for name, item in value.items()} if isinstance(value, dict) else value


class _Arranger:
    """Arranges values under one document."""

    def __init__(self, root: Any, holds: Holds, sequence: tuple[str, ...], parts_first: bool) -> None:
        self._root = root
        self._holds = holds
        self._sequence = sequence
        self._parts_first = parts_first

    def arrange(self, data: Any, schemas: list[Any], depth: int) -> Any:
        """Return the value under all of these schemas."""
        if depth == 0 or not isinstance(data, (dict, list)):
            return data
        views = [view for schema in schemas for view in self._views(schema, data, depth)]
        if isinstance(data, list):
            return [self.arrange(item, _items(views, n), depth - 1) for n, item in enumerate(data)]
        ranks: dict[str, int] = {}
        for key in _NAMING:
            for name in (name for view in views for name in _names(view, key)):
                ranks.setdefault(name, len(ranks))
        names = sorted(data, key=lambda name: ranks.get(name, len(ranks)))
        return {name: self.arrange(data[name], _members(views, name), depth - 1) for name in names}

    def _views(self, schema: Any, data: Any, depth: int) -> Iterator[dict[str, Any]]:
        """Return the schema objects that hold for the value together with this one, in the grammar's order."""
        if not isinstance(schema, dict) or depth == 0:
            return
        if not self._parts_first:
            yield schema
        for key in self._sequence:
            if key in schema:
                for part in self._parts(key, schema, data):
                    yield from self._views(part, data, depth - 1)
        if self._parts_first:
            yield schema

    def _parts(self, key: str, schema: dict[str, Any], data: Any) -> list[Any]:
        word = schema[key]
        if key == "$ref":
            target = resolve(self._root, word) if isinstance(word, str) else None
            return [] if target is None else [target[1]]
        if key == "allOf":
            return list(word)
        if key in ("dependencies", "dependentSchemas"):
            return [part for name, part in word.items() if name in data and isinstance(part, dict)]
        if key == "not":
            return [word]
        if key in ("if", "then", "else"):
            return [word] if self._holds(word, data) else []
        held = [part for part in word if self._holds(part, data)]
        return held or list(word)


def _names(view: dict[str, Any], key: str) -> Iterator[str]:
    for name in view.get(key, ()):
        yield name
        if key.startswith("depend") and isinstance(view[key][name], list):
            yield from view[key][name]


def _items(views: list[dict[str, Any]], place: int) -> list[Any]:
    found = []
    for view in views:
        items = view.get("items")
        prefix = items if isinstance(items, list) else view.get("prefixItems", [])
        rest = view.get("additionalItems") if isinstance(items, list) else items
        schema = prefix[place] if place < len(prefix) else rest
        found += [] if schema is None else [schema]
    return found


def _members(views: list[dict[str, Any]], name: str) -> list[Any]:
    found = []
    for view in views:
        listed = view.get("properties", {})
        matched = [schema for pattern, schema in view.get("patternProperties", {}).items() if _finds(pattern, name)]
        found += ([listed[name]] if name in listed else []) + matched
        if name not in listed and not matched and "additionalProperties" in view:
            found.append(view["additionalProperties"])
    return found


def _finds(pattern: str, name: str) -> bool:
    try:
        return finds(pattern, name)
    except NotUnderstood:
        return False
