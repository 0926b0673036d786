"""The properties that a schema has evaluated, which `unevaluatedProperties` passes over; the caller searches for patterns.

jsonschema has the same, and searches by Python's engine, which can backtrack for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Follow = Callable[[Any, str, str], Any]
"""Returns a validator of what a reference leads to, from the validator of the schema that refers, and the keyword."""
Search = Callable[[str, str], bool]


def evaluated_names(validator: Any, value: dict[str, Any], follow: Follow, search: Search) -> set[str]:
    """Return the properties of an object that a schema, under which it is valid, evaluates: all with `unevaluatedProperties`."""
    schema = validator.schema
    if not isinstance(schema, dict):
        return set()
    if {"additionalProperties", "unevaluatedProperties"} & schema.keys():
        return set(value)
    names = {name for name in schema.get("properties", ()) if name in value}
    names |= {name for pattern in schema.get("patternProperties", ()) for name in value if search(pattern, name)}
    for part in _that_hold(validator, value, schema, follow):
        names |= evaluated_names(part, value, follow, search)
    return names


def _that_hold(validator: Any, value: dict[str, Any], schema: dict[str, Any], follow: Follow) -> Iterator[Any]:
    """Yield validators of the schemas that hold for the same object because this one does."""
    for key in ("$ref", "$dynamicRef", "$recursiveRef"):
        if key in schema:
            yield follow(validator, key, schema[key])
    yield from (validator.evolve(schema=part) for part in schema.get("allOf", ()))
    for key in ("anyOf", "oneOf"):
        branches = [validator.evolve(schema=part) for part in schema.get(key, ())]
        yield from (branch for branch in branches if branch.is_valid(value))
    if "if" in schema:
        condition = validator.evolve(schema=schema["if"])
        met = condition.is_valid(value)
        if met:
            yield condition
        yield validator.evolve(schema=schema.get("then" if met else "else", True))
    for name, part in schema.get("dependentSchemas", {}).items():
        if name in value:
            yield validator.evolve(schema=part)
