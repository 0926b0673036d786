"""Schemas that ask for themselves again without an end, such as an object that requires an object of its own kind.

No finite value is valid under them, and a text that has begun one would go on for ever. Sound: a schema counts as endless
only if whatever it accepts has to hold another value that is endless itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.base import View
from inferd_grammar.rewrites.dialect import Dialect
from inferd_grammar.rewrites.kinds import ALL, ARRAY, OBJECT, of_types
from inferd_grammar.schema import iter_schemas


def without_endless(root: Any) -> Any:
    """Return the document with its endless subschemas made unsatisfiable; the document itself if it has none.

    Raises GrammarError with a pointer on the circle if the whole document is endless.
    """
    search = _Endings(root)
    endless = search.endless()
    if "" in endless:
        raise GrammarError("no finite value is valid: the schema requires itself again without an end", search.circle())
    if not endless:
        return root
    copy = json.loads(json.dumps(root))
    schemas = dict(iter_schemas(copy))
    for pointer in endless:
        schemas[pointer].pop("$ref", None)  # which stands alone in older drafts
        schemas[pointer]["allOf"] = [*schemas[pointer].get("allOf", ()), False]
    return copy


class _Endings:
    """Least fixed point: a schema may end if what it cannot do without may end."""

    def __init__(self, root: Any) -> None:
        dialect = Dialect(root)
        self._root = root
        self._views = {p: dialect.view(schema, p) for p, schema in iter_schemas(root) if isinstance(schema, dict)}
        self._open = set(self._views)

    def endless(self) -> set[str]:
        """Return the pointers of all subschemas that never end."""
        users: dict[str, list[str]] = {}
        for pointer, view in self._views.items():
            for part in (*view.always(self._root), *self._branches(view), *_members(view)):
                users.setdefault(part, []).append(pointer)
        waiting = list(self._views)
        while waiting:
            pointer = waiting.pop()
            if pointer in self._open and self._missing(self._views[pointer]) is None:
                self._open.remove(pointer)
                waiting += users.get(pointer, ())
        return self._open

    def circle(self) -> str:
        """Return the pointer at which a way from the root through what never ends comes back to itself."""
        seen, pointer = set[str](), ""
        while pointer not in seen:
            seen.add(pointer)
            last, pointer = pointer, self._missing(self._views[pointer]) or pointer
        return last

    def _missing(self, view: View) -> str | None:
        """Return a part without which no value of the schema ends, and which is not known to end; None if there is none."""
        for part in view.always(self._root):
            if part in self._open:
                return part
        for key in ("anyOf", "oneOf"):
            branches = [view.at(key, n) for n in range(len(view.words.get(key, ())))]
            if branches and self._open.issuperset(branches):
                return branches[0]
        kinds = of_types(view.words["type"]) if "type" in view.words else ALL
        if kinds - ARRAY - OBJECT or {"const", "enum"} & view.words.keys():
            return None
        missing = [self._first_open(of_kind(view)) for kind, of_kind in _NEEDED if kind & kinds]
        return None if None in missing or not missing else missing[0]

    def _first_open(self, parts: Iterator[str]) -> str | None:
        return next((part for part in parts if part in self._open), None)

    def _branches(self, view: View) -> Iterator[str]:
        for key in ("anyOf", "oneOf"):
            yield from (view.at(key, n) for n in range(len(view.words.get(key, ()))))


def _needed_members(view: View) -> Iterator[str]:
    words = view.words
    for name in words.get("required", ()):
        if name in words.get("properties", {}):
            yield view.at("properties", name)
        elif not words.get("patternProperties") and "additionalProperties" in words:
            yield view.at("additionalProperties")


def _needed_items(view: View) -> Iterator[str]:
    prefix, least = len(view.words.get("prefixItems", ())), view.words.get("minItems", 0)
    yield from (view.at("prefixItems", n) for n in range(min(prefix, least)))
    if least > prefix and "items" in view.words:
        yield view.at("items")


def _members(view: View) -> Iterator[str]:
    yield from _needed_members(view)
    yield from _needed_items(view)


_NEEDED = ((OBJECT, _needed_members), (ARRAY, _needed_items))
