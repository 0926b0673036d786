"""Names of properties differ: one that the object has already cannot be closed.

JSON's readers disagree about a name that repeats, and most forget a value. A grammar tells listed names apart by their order;
what no schema lists it would let through again and again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from inferd_grammar.completion.json_place import START, JsonPlace
from inferd_grammar.errors import RuleBroken
from inferd_grammar.persistent import Stack, below, each, top
from inferd_grammar.rewrites.regex_syntax import NotUnderstood, parse
from inferd_grammar.schema import iter_schemas
from inferd_grammar.tokens import TokenTable

_PARTS = frozenset(("$ref", "allOf", "anyOf", "const", "enum", "oneOf"))
_OBJECTS = frozenset(("additionalProperties", "patternProperties", "properties", "propertyNames", "required"))
_CLOSING = re.compile(rb'(?:[^"\\]|\\.)*"', re.DOTALL)
_MARKS = re.compile(rb'["{}\[\]]')
_LOOPS = re.compile(r"'loop'")

Names = tuple[str, bytes, Any]
"""The newest name of an object, as it is and written with the fewest escapes, and those before it in the same form; None
behind the first.
"""


class RepeatedName(RuleBroken):
    """Raised where a name is closed that the object has already."""


class NamesPlace(NamedTuple):
    """Where a text stands: the names in each open bracket; None where there are none."""

    open: Stack[Names | None] = None
    json: JsonPlace = START

    @property
    def written(self) -> Names | None:
        """The names of the innermost bracket."""
        return top(self.open)

    def behind(self, text: bytes) -> NamesPlace:
        """Return the place behind further bytes. Raises RepeatedName."""
        if _MARKS.search(text) is None:
            return NamesPlace(self.open, self.json.behind(text))
        reached = self
        for _, place in self.steps(text):
            reached = place
        return reached

    def steps(self, text: bytes) -> Iterator[tuple[int, NamesPlace]]:
        """Yield the places along further bytes, each behind how many. Raises RepeatedName."""
        place, at = self, 0
        while at < len(text):
            size = place.json.step(text, at)
            place, at = place._behind(text[at : at + size]), at + size
            yield at, place

    def _behind(self, step: bytes) -> NamesPlace:
        before, after = self.json, self.json.behind(step)
        if after.depth > before.depth:
            return NamesPlace((None, self.open), after)
        if after.depth < before.depth:
            return NamesPlace(below(self.open), after)
        if before.mode == "name" and after.mode == "colon":
            name = str(json.loads(b'"%s"' % before.name))
            if any(name == other for other, _ in each_name(self.written)):
                raise RepeatedName
            return NamesPlace(((name, spelt(name), self.written), below(self.open)), after)
        return NamesPlace(self.open, after)


def each_name(names: Names | None) -> Iterator[tuple[str, bytes]]:
    """Yield the names of an object, as they are and as they are written, the newest first."""
    while names is not None:
        name, raw, names = names
        yield name, raw


class OpeningTokens:
    """Tokens that may open a bracket and break a rule inside of it, of one vocabulary. Immutable."""

    def __init__(self, table: TokenTable, ids: Iterable[int]) -> None:
        self.ids = list(ids)
        self._starting: dict[bytes, list[int]] = {}
        """By their first byte."""
        self._holding: dict[bytes, list[int]] = {}
        """By each byte and each two that stand before a bracket of theirs."""
        for i in self.ids:
            token = table.tokens[i]
            before = token[: max(token.rfind(b"["), token.rfind(b"{"))]
            self._starting.setdefault(before[:1], []).append(i)
            for piece in {before[at : at + size] for size in (1, 2) for at in range(len(before) + 1 - size)}:
                self._holding.setdefault(piece, []).append(i)

    def behind(self, ends: Iterable[bytes]) -> Iterator[int]:
        """Yield those in which one of these ends stands before a bracket, or a part of it where they begin."""
        for end in {end[-2:] for end in ends}:
            yield from self._holding.get(end, ())
            if len(end) > 1:
                yield from self._starting.get(end[-1:], ())


class NameTokens:
    """The tokens that may close a name, for one vocabulary. Immutable."""

    def __init__(self, table: TokenTable) -> None:
        self._plain: dict[bytes, list[int]] = {}
        """By what stands before the first quote, where nothing is escaped there."""
        self._escaped: list[int] = []
        self._whole: dict[bytes, list[int]] = {}
        """By each text that stands between two quotes of theirs, where nothing is escaped."""
        self._repeating: list[int] = []
        """Those in which such a text stands twice, or something is escaped between quotes."""
        for i, token in enumerate(table.tokens):
            closing = _CLOSING.match(token)
            if closing is not None and b"\\" in closing[0]:
                self._escaped.append(i)
            elif closing is not None:
                self._plain.setdefault(closing[0][:-1], []).append(i)
            between = token.split(b'"')[1:-1]
            if len(set(between)) < len(between) or any(b"\\" in text for text in between):
                self._repeating.append(i)
            else:
                for text in between:
                    self._whole.setdefault(text, []).append(i)
        self.opening = OpeningTokens(table, (i for i in self._repeating if b"{" in table.tokens[i]))
        """Those that may repeat a name in an object which they open themselves."""

    def closing(self, place: NamesPlace) -> Iterator[int]:
        """Yield tokens among which all are that close a name which its object has already."""
        yield from self._repeating
        for names in each(place.open):
            for _, raw in each_name(names):
                yield from self._whole.get(raw, ())
        if place.json.mode == "name" and place.written is not None:
            yield from self.ending(place.json.name, (raw for _, raw in each_name(place.written)))

    def ending(self, begun: bytes, texts: Iterable[bytes]) -> Iterator[int]:
        """Yield tokens among which all are that end a string, begun so far, as one of some texts."""
        yield from self._escaped
        if b"\\" in begun:
            yield from (i for ids in self._plain.values() for i in ids)
            return
        for text in texts:
            if text.startswith(begun):
                yield from self._plain.get(text[len(begun) :], ())


def spelt(name: str) -> bytes:
    """Return a string as it is written with the fewest escapes."""
    return json.dumps(name, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass")


def may_repeat(root: Any) -> bool:
    """Return True if some object of a document may have names that are not listed."""
    return any(_is_open(schema) for _, schema in iter_schemas(root))


def are_few(root: Any) -> bool:
    """Return True if some object may run out of names."""
    return any(
        not _is_endless(pattern)
        for _, schema in iter_schemas(root)
        if isinstance(schema, dict)
        for pattern in (*schema.get("patternProperties", ()), *_of_names(schema.get("propertyNames", {})))
    )


def _is_open(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return schema is True
    kinds = schema.get("type", () if _PARTS & schema.keys() else ("array", "object"))
    if "array" in kinds and "items" not in schema and "unevaluatedItems" not in schema:
        return True  # of items of any kind
    if "type" in schema and "object" not in kinds:
        return False
    if False in (schema.get("additionalProperties"), schema.get("unevaluatedProperties")):
        return bool(schema.get("patternProperties"))
    return not _PARTS & schema.keys() or bool(_OBJECTS & schema.keys())


def _of_names(schema: Any) -> list[str]:
    """Return the pattern of a condition on names; one that nothing is known of for others, none for lengths alone."""
    if not isinstance(schema, dict) or not schema.keys() - {"type", "minLength", "maxLength", "format"}:
        return []
    return [schema["pattern"]] if schema.keys() <= {"type", "pattern"} and "pattern" in schema else ["("]


def _is_endless(pattern: str) -> bool:
    try:
        return _LOOPS.search(repr(parse(pattern)[0])) is not None
    except NotUnderstood:
        return False
