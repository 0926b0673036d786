"""What each keyword asks of a value, where `jsonschema`'s own check would not do: patterns in linear time, branches that end at
their first error, numbers as they are written. All work is counted. Needs the package jsonschema.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import attrs
from jsonschema import ValidationError
from jsonschema.validators import extend
from referencing.jsonschema import lookup_recursive_ref

from inferd_grammar.evaluated import Follow, evaluated_names
from inferd_grammar.pattern_search import Unsupported, search
from inferd_grammar.rewrites.formats import wide
from inferd_grammar.rewrites.patterns import search_steps
from inferd_grammar.rewrites.rewrite import moves_base
from inferd_grammar.schema import find_keyword, iter_schemas, resolve

# The first two depend on the chain of references to them; the third follows every chain, which nothing else would bound.
_BY_WAY = ("$dynamicRef", "$recursiveRef", "unevaluatedItems")
_BY_PATTERN = ("patternProperties", "additionalProperties")


class Budget(threading.local):
    """Counts how many more keywords may be looked at for the text of this thread."""

    left = 0
    steps = 0
    """Of searches for patterns so far: they cost, and are not bounded here, because texts are."""

    quiet = False
    """True where nobody asks what is wrong."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], tuple[bool, Any, Any]] = {}

    def kept(self, is_valid: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        """Return `is_valid` memoised by schema and value: nested branches would ask 2**depth times."""

        def found(validator: Any, value: Any) -> bool:
            key, before = (id(validator.schema), id(value)), self.quiet
            if key not in self.known:
                self.quiet = True
                try:  # both are held, so that nothing else gets their ids
                    self.known[key] = is_valid(validator, value), validator.schema, value
                finally:
                    self.quiet = before
            return self.known[key][0]

        return found

    def spend(self, looks: int) -> None:
        """Raise Unsupported where not so many are left."""
        self.left -= looks
        if self.left < 0:
            raise Unsupported("it takes too many steps")

    def counted(self, name: str, check: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        """Return the `check` of the keyword `name`, charged by the entries of keyword and value, and by keys times patterns where
        it matches each key with each pattern.
        """
        by_pattern = name in _BY_PATTERN

        def paid(validator: Any, keyword: Any, value: Any, schema: Any) -> Iterator[Any]:
            self.spend(1 + (_entries(keyword) + _entries(value)) // 16)
            if name == "pattern" and isinstance(value, str):
                self.steps += search_steps(keyword, value)
            if by_pattern:
                patterns, keys = schema.get("patternProperties", ()), value if isinstance(value, dict) else ()
                self.spend(_entries(value) * len(patterns))
                self.steps += sum(search_steps(pattern, key) for pattern in patterns for key in keys)
            yield from check(validator, keyword, value, schema) or ()

        return paid


def counted_validator(kind: Any, schema: Any, budget: Budget) -> Any:
    """Return a validator's class with the checks of this module, each paid for by the budget."""
    follow, kept = _follower(schema), not any(find_keyword(schema, [key]) for key in _BY_WAY)
    own: Mapping[str, Callable[..., Any]] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        "format": _format,
        "multipleOf": _multiple_of,
        "$ref": _reference(follow, budget if kept else None),
        "anyOf": _any_of,
        "oneOf": _one_of,
    }
    own = {**own, "items": _items(kind.VALIDATORS["items"]), "additionalItems": _additional_items}
    if "unevaluatedProperties" in kind.VALIDATORS:
        own = {**own, "unevaluatedProperties": _unevaluated_properties(follow, budget)}
    found = extend(kind, {name: budget.counted(name, check) for name, check in {**kind.VALIDATORS, **own}.items()})
    found.evolve = attrs.evolve  # the library's takes its own class for a schema with a `$schema`
    if kept:
        found.is_valid = budget.kept(found.is_valid)
    return found


def _follower(root: Any) -> Follow:
    """Return a function that follows references. In a document without `$id` and `$anchor` it resolves pointers itself, because
    the library would take a property called `id` for a name.
    """
    local = not moves_base(list(iter_schemas(root)))

    def follow(validator: Any, keyword: str, reference: str) -> Any:
        target = resolve(root, reference) if local else None
        if target is not None:
            return validator.evolve(schema=target[1])
        resolver = validator._resolver
        found = lookup_recursive_ref(resolver) if keyword == "$recursiveRef" else resolver.lookup(reference)
        return validator.evolve(schema=found.contents, _resolver=found.resolver)

    return follow


def _reference(follow: Follow, budget: Budget | None) -> Callable[..., Iterator[Any]]:
    """`budget`: memoises whether a schema holds; None if nothing does."""

    def check(validator: Any, reference: Any, value: Any, _schema: Any) -> Iterator[Any]:
        target = follow(validator, "$ref", reference)
        if budget is None or not target.is_valid(value):
            yield from (ValidationError(""),) if budget is not None and budget.quiet else target.iter_errors(value)

    return check


def _entries(value: Any) -> int:
    return len(value) if isinstance(value, (dict, list)) else 0


def _any_of(validator: Any, branches: Any, value: Any, _schema: Any) -> Iterator[Any]:
    """Ends each branch at its first error, unlike the library's."""
    if not any(validator.evolve(schema=branch).is_valid(value) for branch in branches):
        yield ValidationError(f"{value!r} is not valid under any of the given schemas")


def _one_of(validator: Any, branches: Any, value: Any, _schema: Any) -> Iterator[Any]:
    holding = [branch for branch in branches if validator.evolve(schema=branch).is_valid(value)]
    if not holding:
        yield ValidationError(f"{value!r} is not valid under any of the given schemas")
    elif len(holding) > 1:
        yield ValidationError(f"{value!r} is valid under each of {', '.join(map(repr, holding))}")


def _items(check: Callable[..., Any]) -> Callable[..., Any]:
    """A list is `prefixItems` as older drafts write it, whatever the draft: masks read it so, and many such schemas name none."""

    def checked(validator: Any, items: Any, value: Any, schema: Any) -> Iterator[Any]:
        if not isinstance(items, list):
            yield from check(validator, items, value, schema) or ()
        elif isinstance(value, list):
            for place, (item, part) in enumerate(zip(value, items, strict=False)):
                yield from validator.descend(item, part, path=place, schema_path=place)

    return checked


def _additional_items(validator: Any, rest: Any, value: Any, schema: Any) -> Iterator[Any]:
    """Counts beside a list alone; the library's takes the length of a boolean."""
    items = schema.get("items")
    if isinstance(items, list) and isinstance(value, list):
        for place, item in enumerate(value[len(items) :], len(items)):
            yield from validator.descend(item, rest, path=place)


def _pattern(validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[Any]:
    if isinstance(value, str) and not search(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _format(validator: Any, name: Any, value: Any, _schema: Any) -> Iterator[Any]:
    pattern = wide(name) if isinstance(name, str) else None
    if isinstance(value, str) and pattern is not None and not search(pattern, value):
        yield ValidationError(f"{value!r} is not a {name!r}")


def _multiple_of(validator: Any, step: Any, value: Any, _schema: Any) -> Iterator[Any]:
    """Reckons with numbers as they are written, as masks do: by floats 0.58 is no multiple of 0.01."""
    if validator.is_type(value, "number") and Fraction(str(value)) % Fraction(str(step)):
        yield ValidationError(f"{value!r} is not a multiple of {step}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, _schema: Any) -> Iterator[Any]:
    if not isinstance(value, dict):
        return
    for pattern, schema in patterns.items():
        for key, item in value.items():
            if search(pattern, key):
                yield from validator.descend(item, schema, path=key, schema_path=pattern)


def _additional_properties(validator: Any, additional: Any, value: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(value, dict):
        return
    listed, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [key for key in value if key not in listed and not any(search(pattern, key) for pattern in patterns)]
    if additional is False and extra:
        yield ValidationError(f"additional properties are not allowed: {extra}")
    elif isinstance(additional, dict):
        for key in extra:
            yield from validator.descend(value[key], additional, path=key)


def _unique_items(validator: Any, unique: Any, value: Any, _schema: Any) -> Iterator[Any]:
    """Linear in the size of the value: comparing each with each is not."""
    if unique and isinstance(value, list) and len({_canonical(item) for item in value}) < len(value):
        yield ValidationError(f"{value!r} has non-unique elements")


def _canonical(value: Any) -> str:
    """Equal for values that are equal in JSON: 1 is 1.0 but not true, and objects have no order."""

    def plain(part: Any) -> Any:
        if isinstance(part, float) and part.is_integer():
            return int(part)
        if isinstance(part, list):
            return [plain(item) for item in part]
        return {key: plain(item) for key, item in part.items()} if isinstance(part, dict) else part

    return json.dumps(plain(value), sort_keys=True)


def _unevaluated_properties(follow: Follow, budget: Budget) -> Callable[..., Iterator[Any]]:
    def counted_search(pattern: str, name: str) -> bool:
        budget.steps += search_steps(pattern, name)
        return search(pattern, name)

    def followed(validator: Any, keyword: str, reference: str) -> Any:
        budget.spend(1)  # for each way to a schema: whether it holds is known
        return follow(validator, keyword, reference)

    def check(validator: Any, unevaluated: Any, value: Any, schema: Any) -> Iterator[Any]:
        if not isinstance(value, dict):
            return
        rest = {key: word for key, word in schema.items() if key != "unevaluatedProperties"}
        known = evaluated_names(validator.evolve(schema=rest), value, followed, counted_search)
        for name in (name for name in value if name not in known):
            if any(validator.evolve(schema=unevaluated).iter_errors(value[name])):
                yield ValidationError(f"unevaluated property {name!r} is not allowed, or not valid")

    return check
