"""Constraints that have hung, crashed or emptied some grammar library, and what must become of them here."""

from __future__ import annotations

import json
from typing import Any

from inferd.protocol import ConstraintSpec


def schema(value: Any) -> ConstraintSpec:
    """A JSON schema as programs send it."""
    return ConstraintSpec("json_schema", value if isinstance(value, str) else json.dumps(value))


def nested_one_of(depth: int) -> dict[str, Any]:
    """Twice as large with every level."""
    value: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        value = {"oneOf": [value, {"type": "object", "properties": {"a": value}}]}
    return value


def patterns(count: int) -> dict[str, Any]:
    """Many patterns that must hold together; their automaton is a product."""
    return {"type": "string", "allOf": [{"pattern": f"^.*{chr(97 + n % 26)}.{{{n}}}x.*$"} for n in range(count)]}


def object_of(count: int) -> dict[str, Any]:
    """An object with so many optional keys."""
    return {"type": "object", "properties": {f"key{n}": {"type": "string"} for n in range(count)}}


REFUSED = {
    "oneOf nested 10": schema(nested_one_of(10)),
    "oneOf nested 14": schema(nested_one_of(14)),
    "JSON 200 levels deep": schema("[" * 200 + "]" * 200),
    "JSON 20,000 levels deep": schema("[" * 20_000 + "]" * 20_000),
    "enum of 20,000": schema({"enum": [f"v{n}" for n in range(20_000)]}),
    "multipleOf 1,000,003": schema({"type": "integer", "multipleOf": 1_000_003}),
    "multipleOf of several primes": schema({"allOf": [{"multipleOf": prime} for prime in (97, 101, 103)]}),
    "allOf of 50 patterns": schema(patterns(50)),
    "reference to itself": schema({"$ref": "#"}),
    "remote reference": schema({"$ref": "http://127.0.0.1:9/schema.json"}),
    "reference to a file": schema({"$ref": "file:///etc/hostname"}),
    "10 MB": schema('{"const":"' + "x" * 10_000_000 + '"}'),
    "number of 401 digits": schema({"type": "integer", "multipleOf": 10**400 + 1}),
    "lone surrogate": schema('{"const":"\\ud800"}'),
    "pattern that is no pattern": schema({"type": "string", "pattern": "(" * 1000}),
    "not JSON": schema("{" * 100_000),
}
"""Must end in ConstraintError or LimitExceeded."""

HELD = {
    "(a|b)*a(a|b){20}": ConstraintSpec("regex", "(a|b)*a(a|b){20}"),
    "counted thrice": ConstraintSpec("regex", "((a{0,100}b){0,100}c){0,100}"),
    "a pattern counted thrice": schema({"type": "string", "pattern": "(?:(?:a{1000}){1000}){1000}"}),
    ".{0,5000}": ConstraintSpec("regex", ".{0,5000}"),
    "maxLength 1e6": schema({"type": "string", "maxLength": 1_000_000}),
    "minLength 1e6": schema({"type": "string", "minLength": 1_000_000}),
    "minItems 1e6": schema({"type": "array", "minItems": 1_000_000}),
    "maxItems 1e5 of objects": schema({"type": "array", "maxItems": 100_000, "items": object_of(3)}),
    "2,000 optional keys": schema(object_of(2000)),
    "multipleOf 99,991": schema({"type": "integer", "multipleOf": 99_991}),
    "enum of 9,999": schema({"enum": [f"v{n}" for n in range(9999)]}),
    "allOf of 16 patterns": schema(patterns(16)),
    "number beyond 64 bits": schema({"type": "integer", "maximum": 10**30}),
    "one byte for ever, further on": ConstraintSpec("lark", 'start: /[a-z ]{0,12}/ "|" A "a"\nA: /a+/'),
    "200 times .*": ConstraintSpec("regex", ".*" * 200 + "x"),
    "empty choices of one regex": ConstraintSpec("regex", "|".join(["a?"] * 2000)),
}
"""Another library's trouble: here either a typed error, or a grammar that runs."""
