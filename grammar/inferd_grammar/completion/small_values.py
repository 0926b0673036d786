"""Small values of the subschemas of a document: what a search for an end tries first where a value is due.

They are guesses, which a matcher judges: `not`, `if` and other conditions are passed over. References that come back to
themselves are followed as a fixed point: a value is known once those are that it has to hold.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, product
from typing import Any

from inferd_grammar.rewrites.base import View
from inferd_grammar.rewrites.dialect import Dialect
from inferd_grammar.rewrites.kinds import ALL, Kinds, canonical, of_types, of_value
from inferd_grammar.rewrites.patterns import finds, shortest_match
from inferd_grammar.rewrites.regex_syntax import NotUnderstood
from inferd_grammar.schema import iter_schemas

_MAX_VALUES = 128
_MAX_WAYS = 16
_MAX_CHAIN = 16
_MAX_STEPS = 4_000
_MAX_MEMBERS = 64
_MAX_BYTES = 4_000
_MISSED = "missed"  # a condition that does not hold
SAMPLES = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "duration": "P1D",
    "email": "a@a.aa",
    "hostname": "a.aa",
    "ipv4": "0.0.0.0",
    "ipv6": "::",
    "time": "00:00:00Z",
    "uri": "a:a",
    "uuid": "00000000-0000-4000-8000-000000000000",
}

_NOT = "!"
_Together = tuple[str, ...]
"""Pointers of schemas that hold for one value, in the order of the document; behind `!` one that does not hold."""


def small_values(root: Any) -> list[bytes]:
    """Return compact texts of small values, the shortest first, and that of the whole document in any case."""
    search = _SmallValues(root)
    texts = search.texts()
    whole = texts.get(("",))
    found = sorted({text for states, text in texts.items() if len(states) == 1}, key=len)[:_MAX_VALUES]
    return [text.encode() for text in (found if whole is None or whole in found else [*found, whole])]


class _SmallValues:
    """Values by what holds for them together."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._dialect = Dialect(root)
        self._at = dict(iter_schemas(root))
        self._values: dict[_Together, str] = {}
        self._users: dict[_Together, set[_Together]] = {}
        self._waiting: list[_Together] = [(pointer,) for pointer in self._at]

    def texts(self) -> dict[_Together, str]:
        """Return the texts of all values that are found within a bounded number of steps."""
        for _ in range(_MAX_STEPS):
            if not self._waiting:
                break
            state = self._waiting.pop()
            value = min(filter(None, (self._of_way(state, way) for way in self._ways(state))), key=len, default=None)
            known = self._values.get(state)
            if value is not None and len(value) < min(_MAX_BYTES, _MAX_BYTES if known is None else len(known)):
                self._values[state] = value
                self._waiting += self._users.get(state, ())
        return self._values

    def _member(self, user: _Together, parts: Iterator[str]) -> str | None:
        """Return the value of a member, where it is known; `user` is looked at again when it is."""
        state = tuple(dict.fromkeys(parts))
        if not state:
            return "0"
        if state not in self._users and len(state) > 1:
            self._waiting.append(state)
        self._users.setdefault(state, set()).add(user)
        return self._values.get(state)

    def _ways(self, state: _Together) -> Iterator[list[View]]:
        """Yield the ways in which the schemas may hold together, one branch of each union taken."""
        ways = product(*(self._one_ways(pointer, _MAX_CHAIN) for pointer in state))
        for way in islice(ways, _MAX_WAYS):
            views = [view for part in way for view in part]
            if False not in views:
                yield [view for view in views if isinstance(view, View)]

    def _one_ways(self, pointer: str, chain: int) -> list[list[View | bool]]:
        if pointer.startswith(_NOT):
            return [[View({"not": self._at.get(pointer.removeprefix(_NOT), False)}, pointer)]]
        schema = self._at.get(pointer, True)
        if not isinstance(schema, dict) or chain == 0:
            return [[schema if isinstance(schema, bool) else False]]
        view = self._dialect.view(schema, pointer)
        parts: list[list[list[View | bool]]] = [[[view]]]
        parts += [self._one_ways(place, chain - 1) for place in view.always(self._root)]
        for key in ("anyOf", "oneOf"):
            if key in view.words:
                places = [view.at(key, n) for n in range(len(view.words[key]))]
                parts.append([way for place in places for way in self._one_ways(place, chain - 1)])
        if "if" in view.words:
            parts.append([way for key in ("else", "then") for way in self._consequence(view, key, chain - 1)])
        return [[item for part in way for item in part] for way in islice(product(*parts), 4 * _MAX_WAYS)]

    def _consequence(self, view: View, key: str, chain: int) -> list[list[View | bool]]:
        condition: list[list[View | bool]] = [[View({_MISSED: view.words["if"]}, view.at("if"))]]
        condition = self._one_ways(view.at("if"), chain) if key == "then" else condition
        wanted = self._one_ways(view.at(key), chain) if key in view.words else [[]]
        return [[*first, *second] for first, second in islice(product(condition, wanted), _MAX_WAYS)]

    def _of_way(self, state: _Together, views: Sequence[View]) -> str | None:
        kinds = ALL
        for view in views:
            kinds &= of_types(view.words["type"]) if "type" in view.words else ALL
        listed = [view for view in views if {"const", "enum"} & view.words.keys()]
        if listed:
            return _listed(listed, [view.words["not"] for view in views if "not" in view.words], kinds)
        return min(filter(None, (self._of_kind(kind, state, views) for kind in sorted(kinds))), key=len, default=None)

    def _of_kind(self, kind: str, state: _Together, views: Sequence[View]) -> str | None:
        match kind:
            case "null":
                return "null"
            case "boolean":
                return "true"
            case "integer" | "fraction":
                return _number(views, kind == "integer")
            case "string":
                return _string(views)
            case "array":
                return self._array(state, views)
        return self._object(state, views)

    def _array(self, state: _Together, views: Sequence[View]) -> str | None:
        least = max((view.words.get("minItems", 0) for view in views), default=0)
        wanted = [
            view.at("contains") for view in views if "contains" in view.words and view.words.get("minContains", 1)
        ]
        if max(least, bool(wanted)) > _MAX_MEMBERS:
            return None
        items = [
            self._member(state, chain((p for view in views for p in _item(view, n)), wanted if n == 0 else ()))
            for n in range(max(least, bool(wanted)))
        ]
        known = [item for item in items if item is not None]
        return f"[{','.join(known)}]" if len(known) == len(items) else None

    def _object(self, state: _Together, views: Sequence[View]) -> str | None:
        listed = dict.fromkeys(name for view in views for name in view.words.get("properties", ()))
        needed = _needed_names(views)
        more = max((view.words.get("minProperties", 0) for view in views), default=0) - len(needed)
        if len(needed) + max(more, 0) > _MAX_MEMBERS:
            return None
        members: dict[str, str] = {}
        others = [name for name in (*listed, *_pattern_names(views)) if name not in needed] if more > 0 else []
        for name in (*needed, *others):
            value = self._member(state, (p for view in views for p in _property(view, name)))
            if value is None and name in needed:
                return None
            if value is not None and (name in needed or more > 0):
                members[name] = value
                more -= name not in needed
        ordered = [*(name for name in listed if name in members), *(name for name in members if name not in listed)]
        return f"{{{','.join(f'{_text(name)}:{members[name]}' for name in ordered)}}}"


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _needed_names(views: Sequence[View]) -> dict[str, None]:
    """Return the names that are required, and those that they require."""
    needed = dict.fromkeys(name for view in views for name in view.words.get("required", ()))
    for _ in range(_MAX_CHAIN):
        after = {
            other: None
            for view in views
            for name, others in view.words.get("dependentRequired", {}).items()
            for other in (others if name in needed else ())
        }
        if after.keys() <= needed.keys():
            break
        needed |= after
    return needed


def _pattern_names(views: Sequence[View]) -> Iterator[str]:
    """Yield a shortest name of each pattern of names."""
    for pattern in (pattern for view in views for pattern in view.words.get("patternProperties", ())):
        with suppress(NotUnderstood):
            yield shortest_match(pattern)


def _property(view: View, name: str) -> list[str]:
    """Return the pointers of the schemas that a property has to satisfy."""
    missed = view.words.get(_MISSED)
    if missed is not None:
        listed = missed.get("properties", {}) if isinstance(missed, dict) else {}
        return [_NOT + view.at("properties", name)] if name in listed else []
    found = [view.at("properties", name)] if name in view.words.get("properties", {}) else []
    for pattern in view.words.get("patternProperties", {}):
        with suppress(NotUnderstood):
            found += [view.at("patternProperties", pattern)] if finds(pattern, name) else []
    return found or ([view.at("additionalProperties")] if "additionalProperties" in view.words else [])


def _item(view: View, index: int) -> list[str]:
    if index < len(view.words.get("prefixItems", ())):
        return [view.at("prefixItems", index)]
    return [view.at("items")] if "items" in view.words else []


def _listed(views: Sequence[View], forbidden: Sequence[Any], kinds: Kinds) -> str | None:
    lists = [_values_of(view.words) for view in views]
    shared = set.intersection(*({canonical(value) for value in values} for values in lists))
    shared -= {canonical(value) for other in forbidden if isinstance(other, dict) for value in _values_of(other)}
    fitting = [_text(value) for value in lists[0] if of_value(value) in kinds and canonical(value) in shared]
    return min(fitting, key=len, default=None)


def _values_of(words: Mapping[str, Any]) -> Sequence[Any]:
    """Return the values that a schema lists."""
    return [words["const"]] if "const" in words else words.get("enum", [])


def _number(views: Sequence[View], whole: bool) -> str | None:
    bounds = [view.words[key] for view in views for key in _BOUNDS if key in view.words]
    steps = [view.words["multipleOf"] for view in views if "multipleOf" in view.words]
    near = [at + more for at in bounds for more in (0, 1, -1, 0.5, -0.5)]
    near += [step * (math.floor(at / step) + more) for step in steps for at in bounds for more in (0, 1)]
    if whole:
        near = [side for number in near for side in (math.floor(number), math.ceil(number))]
    fitting = [number for number in (0, *near) if all(_fits(number, view) for view in views)]
    return min((_text(number) for number in fitting), key=len, default=None)


_BOUNDS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum")


def _fits(number: float, view: View) -> bool:
    words = view.words
    return bool(
        number >= words.get("minimum", number)
        and number <= words.get("maximum", number)
        and ("exclusiveMinimum" not in words or number > words["exclusiveMinimum"])
        and ("exclusiveMaximum" not in words or number < words["exclusiveMaximum"])
        and number % words.get("multipleOf", number or 1) == 0
    )


def _string(views: Sequence[View]) -> str | None:
    least = max((view.words.get("minLength", 0) for view in views), default=0)
    samples = [SAMPLES.get(view.words["format"], "a") for view in views if "format" in view.words]
    for view in views:
        if "pattern" in view.words:
            try:
                samples.append(shortest_match(view.words["pattern"]))
            except NotUnderstood:
                return None
    text = max(samples, key=len, default="")
    return None if least > _MAX_BYTES else _text(text + (text[-1:] or "a") * (least - len(text)))
