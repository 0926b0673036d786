"""A walk over a JSON schema that lets through only what a backend enforces.

xgrammar and outlines_core drop keywords without an error: siblings of `enum` and `$ref`, `uniqueItems`, `minimum` in the
one, names that are required but not declared in both. So what is not known to be enforced is refused, by name and place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from inferd_grammar.errors import GrammarError
from inferd_grammar.schema import DESCRIPTIONS, escape, iter_schemas, resolve

_NOTES = DESCRIPTIONS | {"$defs", "$schema", "definitions"}
_BOUNDS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum")
_KINDS = {
    "object": ("additionalProperties", "properties", "required"),
    "array": ("items", "maxItems", "minItems"),
    "string": ("maxLength", "minLength"),
    "integer": (),
    "number": (),
    "boolean": (),
    "null": (),
}
_ALONE = ("$ref", "anyOf", "const", "enum")
_MAX_BOUND = 2**53


@dataclass(frozen=True)
class Whitelist:
    """The part of JSON Schema that one backend enforces.

    Fields:
        name: of the backend, for messages.
        bounds: whether it holds bounds of integers.
        recursion: whether a schema may refer to itself.
        max_count: largest `maxLength`, `minLength`, `maxItems`, `minItems`; compile time grows with them.
    """

    name: str
    bounds: bool
    recursion: bool
    max_count: int

    def check(self, root: Any) -> None:
        """Raise GrammarError, with the pointer of the keyword, unless all of the schema is enforced."""
        closing: set[str] = set()
        for pointer, schema in iter_schemas(root):
            if pointer not in closing:
                self._check_one(root, schema, pointer)
            if isinstance(schema, dict) and schema.get("additionalProperties") is False:
                closing.add(f"{pointer}/additionalProperties")
        if not self.recursion and (loop := _loop(root)) is not None:
            raise GrammarError(f"{self.name} does not enforce a schema that refers to itself", loop)

    def _check_one(self, root: Any, schema: Any, pointer: str) -> None:
        if not isinstance(schema, dict):
            self._refuse(f"the schema {'true' if schema else 'false'}", pointer)
        words = [key for key in schema if key not in _NOTES]
        alone = next((key for key in _ALONE if key in words), None)
        if alone is not None:
            if len(words) > 1:
                other = next(key for key in words if key != alone)
                self._refuse(f"{other!r} beside {alone!r}", f"{pointer}/{escape(other)}")
            if alone == "$ref" and resolve(root, schema["$ref"]) is None:
                self._refuse(f"the reference {schema['$ref']!r}", f"{pointer}/$ref")
            return
        self._check_typed(schema, words, pointer)

    def _check_typed(self, schema: Mapping[str, Any], words: list[str], pointer: str) -> None:
        kind = schema.get("type")
        if not isinstance(kind, str):
            self._refuse("a schema without one 'type'", f"{pointer}/type" if "type" in schema else pointer)
        known = ("type", *_KINDS[kind], *(_BOUNDS if self.bounds and kind == "integer" else ()))
        for key in words:
            if key not in known:
                self._refuse(f"{key!r}", f"{pointer}/{escape(key)}")
            self._check_size(key, schema[key], f"{pointer}/{escape(key)}")
        if kind == "object":
            self._check_object(schema, pointer)
        if kind == "array" and not isinstance(schema.get("items"), dict):
            self._refuse("an array whose 'items' is no schema object", pointer)

    def _check_size(self, key: str, value: Any, pointer: str) -> None:
        if key in ("maxItems", "maxLength", "minItems", "minLength") and value > self.max_count:
            self._refuse(f"{key!r} above {self.max_count}", pointer)
        if key in _BOUNDS and (isinstance(value, bool) or value != int(value) or abs(value) > _MAX_BOUND):
            self._refuse(f"the bound {value}", pointer)

    def _check_object(self, schema: Mapping[str, Any], pointer: str) -> None:
        """Raise GrammarError unless it is closed and declares all required names: an open object takes those with any value."""
        if schema.get("additionalProperties") is not False:
            self._refuse("an object without 'additionalProperties': false", pointer)
        declared = schema.get("properties") or {}
        missing = next((name for name in schema.get("required") or () if name not in declared), None)
        if missing is not None:
            self._refuse(f"the required name {missing!r}, which is not declared,", f"{pointer}/required")

    def _refuse(self, what: str, pointer: str) -> NoReturn:
        raise GrammarError(f"{self.name} does not enforce {what}", pointer)


def _loop(root: Any) -> str | None:
    """Return the pointer of a schema from which a chain of references and subschemas leads back to it, or None."""
    edges = _edges(root)
    done: set[str] = set()
    for start in edges:
        open_, stack = {start}, [(start, iter(edges[start]))]
        while stack and start not in done:
            here, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                open_.discard(here)
                done.add(here)
            elif following in open_:
                return following
            elif following not in done:
                open_.add(following)
                stack.append((following, iter(edges[following])))
    return None


def _edges(root: Any) -> dict[str, list[str]]:
    """Return, for each subschema, those it holds and the one it refers to, all by pointer."""
    schemas = dict(iter_schemas(root))
    edges: dict[str, list[str]] = {pointer: [] for pointer in schemas}
    for pointer, schema in schemas.items():
        if isinstance(schema, dict) and (found := resolve(root, str(schema.get("$ref")))) is not None:
            edges[pointer].append(found[0])
        above = pointer
        while above:
            above = above.rpartition("/")[0]
            if above in edges:
                edges[above].append(pointer)
                break
    return edges
