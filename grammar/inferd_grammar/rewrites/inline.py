"""References that stand beside other keywords: the library cannot intersect a definition that comes back to itself.

`{"allOf": [{"$ref": A}, B]}` becomes `{"allOf": [the definition of A, B]}`, an equivalence. Members of objects and arrays
keep their references, so that the document stays finite.
"""

from __future__ import annotations

from typing import Any

from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.base import Schema, all_of
from inferd_grammar.schema import map_schemas

_BRANCHES = ("allOf", "anyOf")
_NAMED = ("patternProperties", "properties")
_ONE = ("additionalProperties", "items")
_MAX_CHAIN = 8
_MAX_COPIES = 2_000


class Inliner:
    """Puts definitions in the place of references where something else holds beside them, in one translated document."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._defs: dict[str, Schema] = dict(root.get("$defs", {}))
        self._made: dict[str, Schema] = {}
        self._members: dict[int, str] = {}
        self._copies = 0

    def document(self) -> Schema:
        """Return the whole document. Raises GrammarError where references lead to each other without end, or to too much."""
        for name, schema in self._defs.items():
            self._made[name] = self._schema(schema)
        whole = self._schema({key: value for key, value in self._root.items() if key != "$defs"})
        return whole if isinstance(whole, bool) else {**whole, "$defs": self._made}

    def _schema(self, schema: Schema, *, beside: bool = False, chain: int = 0) -> Schema:
        """Return a schema without such references; `beside` if others hold for the same value, `chain` inside of definitions."""
        if isinstance(schema, bool):
            return schema
        if "$ref" in schema and (beside or len(schema) > 1):
            return self._inlined(schema, chain)
        several = beside or bool(schema.keys() - {"anyOf"})
        return {key: self._part(key, value, several, chain) for key, value in schema.items()}

    def _inlined(self, schema: dict[str, Any], chain: int) -> Schema:
        self._copies += 1
        target = self._defs.get(schema["$ref"].removeprefix("#/$defs/"))
        if target is None or chain >= _MAX_CHAIN or self._copies > _MAX_COPIES:
            raise GrammarError("the references beside other keywords are too many to write out")
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return all_of([self._schema(part, beside=True, chain=chain + 1) for part in (target, rest)])

    def _part(self, key: str, value: Any, several: bool, chain: int) -> Any:
        if key in _BRANCHES:
            together = several if key == "anyOf" else several or len(value) > 1
            return [self._schema(part, beside=together, chain=chain) for part in value]
        if key == "prefixItems":
            return [self._member(part, chain) for part in value]
        if key in _NAMED:
            return {name: self._member(part, chain) for name, part in value.items()}
        return self._member(value, chain) if key in _ONE else value

    def _member(self, schema: Schema, chain: int) -> Schema:
        """Return a schema of another value. In a copy of a definition it becomes a definition of its own, made once."""
        if not chain or isinstance(schema, bool) or schema.keys() == {"$ref"}:
            return self._schema(schema)
        name = self._members.get(id(schema))
        if name is None:
            name = self._members[id(schema)] = f"member{len(self._members)}"
            self._made[name] = self._schema(schema)
        return {"$ref": f"#/$defs/{name}"}


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


def parted(schema: Schema) -> Schema:
    """Return a translated schema that says nothing by a reference where something else holds beside it: wider."""
    return map_schemas(schema, _without_joined)  # type: ignore[no-any-return]


def _without_joined(schema: dict[str, Any]) -> Schema:
    parts = [{key: value} for key, value in schema.items() if key in ("$ref", "anyOf")] + schema.get("allOf", [])
    words = {key: value for key, value in schema.items() if key not in ("$ref", *_BRANCHES)}
    if len(parts) + bool(words) == 1:
        return schema
    kept = [part for part in parts if part not in (True, {}) and not _refers(part)] or ([] if words else parts[:1])
    return {**words, "allOf": kept} if kept else words


def _refers(schema: Schema) -> bool:
    """Return True if a reference says something about the value itself."""
    if isinstance(schema, bool):
        return False
    return "$ref" in schema or any(_refers(part) for key in _BRANCHES for part in schema.get(key, ()))
