"""Which arrays of a document have to be unique: a walk over schema and value side by side.

A place in a value is known by the ways in which its schemas may hold there: of `anyOf` and `oneOf`, `then` and `else` some
branch does, and a matcher does not know which. Where the ways agree about an array, `uniqueItems` is exact; and where those
that do not differ in the value of a name which all require: then the text tells which of them it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.base import CannotRewrite, View
from inferd_grammar.rewrites.dialect import Dialect
from inferd_grammar.rewrites.kinds import canonical, of_types, of_value
from inferd_grammar.rewrites.patterns import finds
from inferd_grammar.rewrites.regex_syntax import NotUnderstood
from inferd_grammar.schema import iter_schemas, resolve

_MAX_WAYS = 32
_MAX_PLACES = 2_000
_MAX_CHAIN = 32
_MAX_KNOWN = 10_000

ValidTogether = frozenset[str]
"""Pointers of the schemas that hold for one value together."""
ValuePlace = frozenset[ValidTogether]
"""The ways in which a value may be valid."""
OTHER = object()
"""Stands for a name that no schema lists."""


class UniquePlaces:
    """Places of one document. `find` is for matchers; the rest decides at compile time whether they can be exact."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._dialect = Dialect(root)
        self._at = dict(iter_schemas(root))
        self._visited: set[str] = set()
        self._known: dict[tuple[ValuePlace, str | int | object], ValuePlace] = {}
        self._taking: dict[tuple[ValuePlace, str], ValuePlace] = {}
        self.start = self._place([("", root)])

    def require_exact(self) -> None:
        """Raises CannotRewrite with the keyword's pointer where it cannot be said which arrays have to be unique."""
        seen, stack = {self.start}, [self.start]
        while stack:
            place = stack.pop()
            for following in self._children(place):
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
            self._require_agreement(place)
            if len(seen) > _MAX_PLACES:
                raise GrammarError(f"uniqueItems: the schema has more than {_MAX_PLACES} places to look at")
        for pointer, schema in self._at.items():
            if _is_unique(schema) and pointer not in self._visited:
                raise CannotRewrite("uniqueItems is not supported here", f"{pointer}/uniqueItems")

    def is_unique(self, place: ValuePlace) -> bool:
        """Return True if an array there has to be unique, in any way that takes arrays."""
        return any(self._verdicts(place))

    def taking(self, place: ValuePlace, kind: str) -> ValuePlace:
        """Return the ways that may take an array, or an object."""
        taking = self._taking.get((place, kind))
        if taking is None:
            taking = frozenset(way for way in place if self._takes(way, kind))
            if len(self._taking) < _MAX_KNOWN:
                self._taking[place, kind] = taking
        return taking

    def may_repeat(self, place: ValuePlace) -> ValuePlace:
        """Return the ways under which an array there may have equal items."""
        return frozenset(way for way in place if not self._asks_unique(way))

    def with_value(self, place: ValuePlace, name: str, value: Any) -> ValuePlace:
        """Return the ways under which a property may have a value, as far as lists of values tell."""
        return frozenset(
            way for way in place if (listed := self._listed(way, name)) is None or canonical(value) in listed
        )

    def with_member(self, place: ValuePlace, key: str | int, member: ValuePlace) -> ValuePlace:
        """Return the ways under which a member may be valid in one of those of `member`."""
        return frozenset(way for way in place if self.child(frozenset((way,)), key) & member)

    def child(self, place: ValuePlace, key: str | int | object) -> ValuePlace:
        """Return the place of a member: of a name, an index, or OTHER."""
        known = self._known.get((place, key))
        if known is None:
            known = self._child(place, key)
            if len(self._known) < _MAX_KNOWN:
                self._known[place, key] = known
        return known

    # -- Inside ---------------------------------------------------------------------------------------------------

    def _verdicts(self, place: ValuePlace) -> set[bool]:
        return set(map(self._asks_unique, self.taking(place, "array")))

    def _asks_unique(self, way: ValidTogether) -> bool:
        return any(_is_unique(self._at.get(pointer)) for pointer in way)

    def _listed(self, way: ValidTogether, name: str) -> frozenset[str] | None:
        """Return the values that a property may have under one way; None where it does not list them."""
        found: set[str] = set()
        for member in self.child(frozenset((way,)), name):
            lists = [values for view in self._views(member) if (values := _values(view)) is not None]
            if not lists:
                return None
            found |= frozenset.intersection(*lists)
        return frozenset(found)

    def _groups(self, place: ValuePlace) -> list[ValuePlace]:
        """Return the ways in groups, so that objects tell different groups apart: all require a name with other values."""
        groups: list[ValuePlace] = []
        for way in sorted(place, key=sorted):
            joined = [group for group in groups if not all(self._apart(way, other) for other in group)]
            groups = [group for group in groups if group not in joined]
            groups.append(frozenset((way,)).union(*joined))
        return groups

    def _apart(self, left: ValidTogether, right: ValidTogether) -> bool:
        for name in self._required(left) & self._required(right):
            one, other = self._listed(left, name), self._listed(right, name)
            if one is not None and other is not None and not one & other:
                return True
        return False

    def _required(self, way: ValidTogether) -> set[str]:
        return {name for view in self._views(way) for name in view.words.get("required", ())}

    def _require_agreement(self, place: ValuePlace) -> None:
        if len(self._verdicts(place)) > 1:
            where = next(p for way in place for p in sorted(way) if _is_unique(self._at.get(p)))
            raise CannotRewrite("uniqueItems holds in some branches only", f"{where}/uniqueItems")

    def _takes(self, way: ValidTogether, kind: str) -> bool:
        return all(self._schema_takes(pointer, kind) for pointer in way)

    def _schema_takes(self, pointer: str, kind: str) -> bool:
        schema = self._at.get(pointer)
        if not isinstance(schema, dict):
            return schema is not False
        words = self._dialect.view(schema, pointer).words
        listed = words.get("enum", [words["const"]] if "const" in words else None)
        return ("type" not in words or kind in of_types(words["type"])) and (
            listed is None or any(of_value(value) == kind for value in listed)
        )

    def _place(self, schemas: list[tuple[str, Any]]) -> ValuePlace:
        ways = [self._ways(pointer, schema, 0) for pointer, schema in schemas]
        return frozenset(_together(ways))

    def _ways(self, pointer: str, schema: Any, depth: int) -> list[ValidTogether]:
        """Return the ways in which a schema and what applies to the same value may hold."""
        self._visited.add(pointer)
        if not isinstance(schema, dict) or depth > _MAX_CHAIN:
            return [ValidTogether({pointer})]
        view = self._dialect.view(schema, pointer)
        parts: list[list[ValidTogether]] = [[ValidTogether({pointer})]]
        for key in ("anyOf", "oneOf"):
            if key in view.words:
                branches = [(view.at(key, n), part) for n, part in enumerate(view.words[key])]
                parts.append([way for at, part in branches for way in self._ways(at, part, depth + 1)])
        for at, part in self._always(view):
            parts.append(self._ways(at, part, depth + 1))
        if {"then", "else"} & view.words.keys() and "if" in view.words:
            either = [(view.at(key), view.words.get(key, True)) for key in ("then", "else")]
            parts.append([way for at, part in either for way in self._ways(at, part, depth + 1)])
        return _together(parts)

    def _always(self, view: View) -> Iterator[tuple[str, Any]]:
        reference = view.words.get("$ref")
        target = resolve(self._root, reference) if isinstance(reference, str) else None
        if target is not None:
            yield target
        yield from ((view.at("allOf", n), part) for n, part in enumerate(view.words.get("allOf", ())))

    def _child(self, place: ValuePlace, key: str | int | object) -> ValuePlace:
        kind = "array" if isinstance(key, int) else "object"
        return frozenset(
            way
            for whole in place
            if self._takes(whole, kind)
            for way in self._place([member for p in sorted(whole) for member in self._members(p, key)])
        )

    def _members(self, pointer: str, key: str | int | object) -> list[tuple[str, Any]]:
        schema = self._at.get(pointer)
        if not isinstance(schema, dict):
            return []
        view = self._dialect.view(schema, pointer)
        if isinstance(key, int):
            return _items(view, key)
        return _properties(view, key)

    def _children(self, place: ValuePlace) -> Iterator[ValuePlace]:
        """Yield the places of all members that schemas tell apart; of several patterns, each alone.

        For names that patterns find in one way and none or others in another, one place stands for all of them.
        """
        views = [view for way in place for view in self._views(way)]
        sizes = [len(view.words.get("prefixItems", ())) for view in views]
        yield from (self.child(place, index) for index in range(max(sizes, default=0) + 1))
        names = {name for view in views for name in view.words.get("properties", ())}
        for group in self._groups(self.taking(place, "object")):
            yield from (self.child(group, name) for name in (*sorted(names), OTHER))
            found = [found for way in group for view in self._views(way) for found in self._of_patterns(view)]
            yield from found
            if len(group) > 1 and found:
                yield self.child(group, OTHER).union(*found)

    def _views(self, way: ValidTogether) -> Iterator[View]:
        schemas = ((pointer, self._at.get(pointer)) for pointer in way)
        yield from (self._dialect.view(schema, pointer) for pointer, schema in schemas if isinstance(schema, dict))

    def _of_patterns(self, view: View) -> Iterator[ValuePlace]:
        for pattern, schema in view.words.get("patternProperties", {}).items():
            yield self._place([(view.at("patternProperties", pattern), schema)])


def _together(parts: list[list[ValidTogether]]) -> list[ValidTogether]:
    count = 1
    for part in parts:
        count *= len(part)
    if count > _MAX_WAYS:
        raise GrammarError(f"uniqueItems: more than {_MAX_WAYS} ways in which branches may hold together")
    return list({ValidTogether().union(*ways): None for ways in product(*parts)})


def _items(view: View, index: int) -> list[tuple[str, Any]]:
    prefix = view.words.get("prefixItems", ())
    if index < len(prefix):
        return [(view.at("prefixItems", index), prefix[index])]
    return [(view.at("items"), view.words["items"])] if "items" in view.words else []


def _properties(view: View, key: str | object) -> list[tuple[str, Any]]:
    found = []
    if isinstance(key, str):
        if key in view.words.get("properties", {}):
            found.append((view.at("properties", key), view.words["properties"][key]))
        for pattern, schema in view.words.get("patternProperties", {}).items():
            if _may_find(pattern, key):
                found.append((view.at("patternProperties", pattern), schema))
    if not found and "additionalProperties" in view.words:
        found.append((view.at("additionalProperties"), view.words["additionalProperties"]))
    return found


def _may_find(pattern: str, key: str) -> bool:
    try:
        return finds(pattern, key)
    except NotUnderstood:
        return True


def _values(view: View) -> frozenset[str] | None:
    """Return the values that a schema lists, as `canonical` has them; None where it lists none."""
    if not {"const", "enum"} & view.words.keys():
        return None
    return frozenset(map(canonical, [view.words["const"]] if "const" in view.words else view.words["enum"]))


def _is_unique(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("uniqueItems") is True


def holds_unique(root: Any) -> bool:
    """Return True if some array of a document has to be unique."""
    return any(_is_unique(schema) for _, schema in iter_schemas(root))
