"""Schemas that hold together for one value: the library cannot intersect a definition that comes back to itself.

What meets is written out as one object schema, whose members are what meets there in turn. Each set of schemas that meet becomes
a definition once, so that the document stays finite where definitions meet without an end. An equivalence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, combinations, product
from typing import Any

from inferd_grammar.errors import GrammarError
from inferd_grammar.memo import memoised
from inferd_grammar.rewrites.base import Schema, all_of, any_of
from inferd_grammar.rewrites.kinds import ALL, canonical, of_types, of_value
from inferd_grammar.rewrites.patterns import are_apart, found_in, in_doubt, regions
from inferd_grammar.rewrites.regex_dialect import WITH_SPARED
from inferd_grammar.rewrites.regex_syntax import NotUnderstood
from inferd_grammar.rewrites.strings import one_of
from inferd_grammar.schema import map_schemas

_BRANCHES = ("allOf", "anyOf")
_NAMED = ("properties", "patternProperties")
_MEMBERS = (*_NAMED, "additionalProperties", "prefixItems", "items")
_AT_VALUE = ("$ref", *_BRANCHES)
_MAX_LOOKS, _SEARCH = 200_000, 100
"""What one document may cost, 4 us each: a schema in a choice of branches, or a name under it; and a search for a pattern."""
_TOO_MANY = "the schemas that hold together are too many to write out"
_MAX_WRITTEN = 50_000
"""Schemas that are written out: llguidance takes no document of more."""
_Parts = dict[int, dict[str, Any]]
"""Keywords of the schemas that meet, less references and branches; by the ids of those, which the document keeps alive."""


class Joiner:
    """Joins what meets in one translated document."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._defs: dict[str, Schema] = dict(root.get("$defs", {}))
        self._made: dict[str, Schema] = {}
        self._names: dict[frozenset[int], str] = {}
        self._waiting: list[tuple[str, list[Schema]]] = []
        self._looks = 0
        self._written = 0

    def document(self) -> Schema:
        """Return the whole document. Raises GrammarError where too much meets, or it is not known what a pattern matches."""
        whole = self._one({key: value for key, value in self._root.items() if key != "$defs"})
        while self._waiting:
            name, schemas = self._waiting.pop()
            self._made[name] = self._one(schemas[0]) if len(schemas) == 1 else self._together(schemas)
        return _without_empty(whole, self._made)

    def _one(self, schema: Schema) -> Schema:
        """Return a schema with which nothing meets."""
        if isinstance(schema, bool):
            return schema
        if schema.keys() == {"$ref"}:
            return self._defined([self._target(schema)])
        if schema.keys() == {"anyOf"}:
            return any_of([self._one(part) for part in schema["anyOf"]])
        if schema.keys().isdisjoint(_AT_VALUE):
            return {key: self._members(key, value) for key, value in schema.items()}
        return self._together([schema])

    def _members(self, key: str, value: Any) -> Any:
        if key in _NAMED:
            return {name: self._one(part) for name, part in value.items()}
        if key == "prefixItems":
            return [self._one(part) for part in value]
        return self._one(value) if key in _MEMBERS else value

    def _together(self, schemas: list[Schema]) -> Schema:
        ways = {frozenset(parts): list(parts.values()) for parts in self._ways(schemas, {}, [])}
        return any_of([self._merged(parts) for parts in ways.values()])

    def _merged(self, parts: list[dict[str, Any]]) -> Schema:
        """Return one schema of what holds under all parts."""
        whole: dict[str, Any] = {}
        rest: list[Schema] = []
        for key, value in (item for words in parts for item in words.items()):
            if key == "required":
                whole[key] = list(dict.fromkeys([*whole.get(key, ()), *value]))
            elif key in whole:
                rest.append({key: value})
            elif key not in _MEMBERS:
                whole[key] = value
        members = self._properties(parts) | self._items(parts)
        self._written += 1 + sum(len(value) for value in members.values() if not isinstance(value, bool))
        if self._written > _MAX_WRITTEN:
            raise GrammarError(_TOO_MANY)
        return all_of([whole | members, *rest])

    def _properties(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        names = dict.fromkeys(name for words in parts for name in words.get("properties", ()))
        self._look(len(names) * len(parts))
        named = {name: self._defined([one for words in parts for one in _of_name(words, name)]) for name in names}
        matched = {
            pattern: self._defined([one for words in parts for one in _of_pattern(words, held)])
            for pattern, held in _disjoint(_groups(parts), _matched(parts, names))
        }
        others = self._defined([words.get("additionalProperties", True) for words in parts])
        found = {"properties": named, "patternProperties": matched, "additionalProperties": others}
        return {key: value for key, value in found.items() if value not in (True, {})}

    def _items(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        places = range(max(len(words.get("prefixItems", ())) for words in parts))
        first = [self._defined([_of_place(words, place) for words in parts]) for place in places]
        items = self._defined([words.get("items", True) for words in parts])
        return ({"prefixItems": first} if first else {}) | ({} if items is True else {"items": items})

    def _ways(self, waiting: list[Schema], parts: _Parts, unions: list[list[Schema]]) -> Iterator[_Parts]:
        """Yield the parts of which all hold, for each choice of branches; each schema that is met again adds nothing."""
        while waiting:
            schema, *waiting = waiting
            if schema is False:
                return
            if schema is True or id(schema) in parts:
                continue
            parts[id(schema)] = {key: value for key, value in schema.items() if key not in _AT_VALUE}
            waiting += schema.get("allOf", [])
            waiting += [self._target(schema)] if "$ref" in schema else []
            unions = [*unions, schema["anyOf"]] if "anyOf" in schema else unions
        patterns = sum("pattern" in words for words in parts.values())
        self._look(len(parts) + _SEARCH * patterns)
        if not _may_meet(parts):
            return
        if not unions:
            yield parts
        for branch in unions[0] if unions else ():
            yield from self._ways([branch], dict(parts), unions[1:])

    def _look(self, count: int) -> None:
        self._looks += count
        if self._looks > _MAX_LOOKS:
            raise GrammarError(_TOO_MANY)

    def _target(self, schema: dict[str, Any]) -> Schema:
        target = self._defs.get(schema["$ref"].removeprefix("#/$defs/"))
        if target is None:
            raise GrammarError("a reference leads to no definition")
        return target

    def _defined(self, schemas: list[Schema]) -> Schema:
        """Return a reference to what holds for a value under all of the schemas; what says nothing of members as it is."""
        flat = list(self._flat(schemas))
        if False in flat:
            return False
        found = {id(schema): schema for schema in flat if isinstance(schema, dict) and schema}
        if len(found) < 2 and all(schema.keys().isdisjoint((*_AT_VALUE, *_MEMBERS)) for schema in found.values()):
            return next(iter(found.values()), True)
        name = self._names.get(frozenset(found))
        if name is None:
            name = self._names[frozenset(found)] = f"set{len(self._names)}"
            self._waiting.append((name, list(found.values())))
        return {"$ref": f"#/$defs/{name}"}

    def _flat(self, schemas: list[Schema]) -> Iterator[Schema]:
        """Yield schemas without those that are but references, or `allOf`, to others."""
        seen: set[int] = set()
        waiting = list(schemas)
        while waiting:
            schema, *waiting = waiting
            if id(schema) in seen and not isinstance(schema, bool):
                continue
            seen.add(id(schema))
            if isinstance(schema, bool) or not schema.keys() <= {"$ref", "allOf"}:
                yield schema
                continue
            waiting += schema.get("allOf", [])
            waiting += [self._target(schema)] if "$ref" in schema else []


def _may_meet(parts: _Parts) -> bool:
    """Return False if no value has the types, and is among the values, that all parts list."""
    kinds = ALL
    for words in parts.values():
        kinds &= of_types(words["type"]) if "type" in words else ALL
    listed = [words.get("enum", [words.get("const")]) for words in parts.values() if {"const", "enum"} & words.keys()]
    patterns = [words["pattern"] for words in parts.values() if "pattern" in words]
    found = {canonical(value): value for value in listed[0] if of_value(value) in kinds} if listed else {}
    for values in listed[1:]:
        found = {key: found[key] for key in map(canonical, values) if key in found}
    return bool(kinds) and (
        not listed
        or any(
            not isinstance(value, str) or all(found_in(value, p) is not False for p in patterns)
            for value in found.values()
        )
    )


def _without_empty(whole: Schema, made: dict[str, Schema]) -> Schema:
    """Return the document with false in the place of references to definitions that no value satisfies, as far as that shows."""
    empty, found = set[str](), {""}
    while not found <= empty:
        empty |= found
        made = {name: map_schemas(schema, partial(_pruned, empty)) for name, schema in made.items()}
        found = {f"#/$defs/{name}" for name, schema in made.items() if schema is False}
    whole = map_schemas(whole, partial(_pruned, empty))
    return whole if isinstance(whole, bool) else {**whole, "$defs": made}


def _pruned(empty: set[str], schema: dict[str, Any]) -> Schema:
    named = schema.get("properties", {})
    if schema.get("$ref") in empty or False in schema.get("allOf", ()):
        return False
    if schema.get("type") == "object" and any(named.get(name) is False for name in schema.get("required", ())):
        return False
    if "anyOf" not in schema:
        return schema
    left = [part for part in schema["anyOf"] if part is not False]
    return {**schema, "anyOf": left} if left else False


def _groups(parts: list[dict[str, Any]]) -> tuple[tuple[str, ...], ...]:
    return tuple(dict.fromkeys(tuple(words["patternProperties"]) for words in parts if "patternProperties" in words))


def _matched(parts: list[dict[str, Any]], names: Iterable[str]) -> tuple[str, ...]:
    """Return the listed names that a pattern may match to which a part that lists them says what it does of others."""
    patterns = {pattern for words in parts for pattern in words.get("patternProperties", ())}
    closed = [words for words in parts if words.get("additionalProperties", True) not in (True, {})]

    def is_matched(name: str, words: dict[str, Any]) -> bool:
        others = patterns - words.get("patternProperties", {}).keys()
        return name in words.get("properties", ()) and any(found_in(name, one) is not False for one in others)

    return tuple(name for name in names if any(is_matched(name, words) for words in closed))


@memoised(1024)
def _disjoint(groups: tuple[tuple[str, ...], ...], listed: tuple[str, ...]) -> list[tuple[str, set[str] | None]]:
    """Return disjoint patterns of names, each with those of all groups that it lies in; None for one of names in doubt.

    None matches one of `listed`.
    """
    patterns = list(dict.fromkeys(chain.from_iterable(groups)))
    pairs = (pair for one, other in combinations(groups, 2) for pair in product(one, other) if pair[0] != pair[1])
    if not listed and all(map(are_apart, pairs)):
        return [(pattern, {pattern}) for pattern in patterns]
    patterns = [pattern for pattern in patterns if pattern != WITH_SPARED]
    try:
        cut = regions([*patterns, one_of(listed)] if listed else patterns)
        areas = [(regex, {patterns[n] for n in found}) for regex, found in cut if len(patterns) not in found]
        doubt = in_doubt(patterns, listed)
    except NotUnderstood as error:
        raise GrammarError("patterns of names that hold together are too much to tell apart") from error
    return [*areas, *((pattern, None) for pattern in (doubt, WITH_SPARED) if pattern is not None)]


def _of_name(words: dict[str, Any], name: str) -> Iterator[Schema]:
    """Yield what is asked of a name; of one on which dialects differ what each of them asks."""
    found = {pattern: found_in(name, pattern) for pattern in words.get("patternProperties", ())}
    yield from (words["patternProperties"][pattern] for pattern, is_found in found.items() if is_found is not False)
    if name in words.get("properties", ()):
        yield words["properties"][name]
    elif not any(found.values()) and "additionalProperties" in words:
        yield words["additionalProperties"]


def _of_pattern(words: dict[str, Any], held: set[str] | None) -> list[Schema]:
    """Return what is asked of a name that is not listed, of which `held` are all patterns; false if that is not sure."""
    if held is None:
        return [False]
    found = [schema for pattern, schema in words.get("patternProperties", {}).items() if pattern in held]
    return found or [words.get("additionalProperties", True)]


def _of_place(words: dict[str, Any], place: int) -> Schema:
    """Return what is asked of an item."""
    first: list[Schema] = words.get("prefixItems", [])
    return first[place] if place < len(first) else words.get("items", True)


def loosened(schema: Schema) -> Schema:
    """Return a translated schema that counts no properties, and says nothing about names which are not listed where it had
    patterns for them: wider.
    """
    return map_schemas(schema, _without_patterns)  # type: ignore[no-any-return]


def _without_patterns(schema: dict[str, Any]) -> Schema:
    left = {"maxProperties", "minProperties"}
    if "patternProperties" in schema:
        left |= {"patternProperties", "additionalProperties"}
    return {key: value for key, value in schema.items() if key not in left}


def parted(schema: Schema, *, alone: bool = False) -> Schema:
    """Return a translated schema that says nothing by a reference where something else holds beside it: wider. With `alone`,
    nothing by a branch either.
    """

    def joins(part: Schema) -> bool:
        return alone or part in (True, {}) or _refers(part)

    return map_schemas(schema, partial(_without_joined, joins=joins))  # type: ignore[no-any-return]


def _without_joined(schema: dict[str, Any], joins: Callable[[Schema], bool]) -> Schema:
    parts = [{key: value} for key, value in schema.items() if key in ("$ref", "anyOf")] + schema.get("allOf", [])
    words = {key: value for key, value in schema.items() if key not in ("$ref", *_BRANCHES)}
    if len(parts) + bool(words) == 1:
        return schema
    kept = [part for part in parts if not joins(part)] or ([] if words else parts[:1])
    return {**words, "allOf": kept} if kept else words


def _refers(schema: Schema) -> bool:
    """Return True if a reference says something about the value itself."""
    if isinstance(schema, bool):
        return False
    return "$ref" in schema or any(_refers(part) for key in _BRANCHES for part in schema.get(key, ()))
