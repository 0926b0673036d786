"""`unevaluatedProperties` and `unevaluatedItems` as `additionalProperties` and `items`.

Which members other keywords look at is known for each way in which a schema may hold: of `allOf` and `$ref` all parts do, of
`anyOf` any set of branches, of `oneOf` one, of `if` one of two. A value is valid if in some way that holds all members are
looked at or pass, and in no other case: an equivalence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any
from urllib.parse import quote

from inferd_grammar.rewrites import combine
from inferd_grammar.rewrites.base import CannotRewrite, Schema, Translator, View, all_of, any_of

KEYWORDS = ("unevaluatedProperties", "unevaluatedItems")
_ELSEWHERE = ("$dynamicRef", "$recursiveRef", "dependencies")
_MAX_CHAIN = 16
_MAX_TOGETHER = 4
_MAX_WAYS = 128
Place = tuple[Any, str]
"""A subschema and its pointer."""


@dataclass(frozen=True)
class Evaluated:
    """One way in which schemas may hold for a value, and the members that they look at.

    Fields:
        names, patterns: of properties; `every_name` if all are looked at.
        size: items at the beginning; `every_item` if all are looked at.
        found: pointers of `contains`: items that it accepts count wherever they stand.
        held, missed: branches that hold and that do not.
        told: pointers of keywords that this says everything about: one of their branches is held, or missed.
    """

    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    every_name: bool = False
    size: int = 0
    every_item: bool = False
    found: tuple[str, ...] = ()
    held: tuple[Place, ...] = ()
    missed: tuple[Place, ...] = ()
    told: frozenset[str] = frozenset()

    def beside(self, other: Evaluated) -> Evaluated:
        """Return what both look at."""
        return Evaluated(
            tuple(dict.fromkeys((*self.names, *other.names))),
            tuple(dict.fromkeys((*self.patterns, *other.patterns))),
            self.every_name or other.every_name,
            max(self.size, other.size),
            self.every_item or other.every_item,
            tuple(dict.fromkeys((*self.found, *other.found))),
            (*self.held, *other.held),
            (*self.missed, *other.missed),
            self.told | other.told,
        )

    def adds_to(self, other: Evaluated) -> bool:
        """Return True if this looks at members at which `other` does not."""
        return other.beside(self)._members() != other._members()

    def _members(self) -> Evaluated:
        return replace(self, held=(), missed=(), told=frozenset())


def settled(view: View, to: Translator) -> View:
    """Return the view with unevaluated members as additional ones, if these are the same for every value."""
    if not any(key in view.words for key in KEYWORDS):
        return view
    try:
        ways = _ways(view.without(*KEYWORDS), to, _MAX_CHAIN)
    except CannotRewrite:
        return view
    return _closed(view, ways[0]) if len(ways) == 1 else view


def positive(view: View, to: Translator) -> tuple[View, list[Schema]]:
    """Return the view without unevaluated members, and a union of the ways in which all members are looked at or pass.

    Branches that the ways repeat are left out of the view, except a `oneOf` of which two may hold. Raises CannotRewrite for
    too many ways, and for references that are only known where the schema is used.
    """
    if not any(key in view.words for key in KEYWORDS):
        return view, []
    rest = view.without(*KEYWORDS)
    ways = _ways(rest, to, _MAX_CHAIN)
    members = {key: view.words[key] for key in KEYWORDS if key in view.words}
    options = []
    for way in ways:
        alone = _closed(replace(view, words=members), way)
        parts = [to.positive(dict(alone.words), view.pointer)]
        parts += [to.positive(*place) for place in way.held]
        parts += [to.negative(*place) for place in way.missed]
        options.append(all_of(parts))
    return _without_told(rest, ways[0].told, to), [any_of(options)]


def _without_told(view: View, told: frozenset[str], to: Translator) -> View:
    """Return the view without what is told elsewhere; what looks at no members is not."""
    words = dict(view.words)
    for key, *beside in (("anyOf",), ("if", "then", "else"), ("oneOf",)):
        if key in words and view.at(key) in told and not (key == "oneOf" and any(combine.rivals(view, to))):
            words = {word: value for word, value in words.items() if word not in (key, *beside)}
    schemas = words.get("dependentSchemas", {})
    left = {name: schema for name, schema in schemas.items() if view.at("dependentSchemas", name) not in told}
    return replace(view, words={**words, "dependentSchemas": left} if schemas else words)


def _closed(view: View, way: Evaluated) -> View:
    """Return the view with its unevaluated members as additional ones, beside those that a way looks at."""
    words, names = dict(view.words), dict(view.names)
    others, items = (words.pop(key, True) for key in KEYWORDS)
    if others is not True and not way.every_name:
        words["properties"] = {**dict.fromkeys(way.names, True), **words.get("properties", {})}
        words["patternProperties"] = {**dict.fromkeys(way.patterns, True), **words.get("patternProperties", {})}
        words["additionalProperties"], names["additionalProperties"] = others, "unevaluatedProperties"
        if "$ref" in words:  # the names of what stands in a reference would come first
            words["allOf"] = [*words.get("allOf", []), {"$ref": words.pop("$ref")}]
    if items is not True and not way.every_item:
        prefix = words.get("prefixItems", [])
        words["prefixItems"] = [*prefix, *[True] * (way.size - len(prefix))]
        found = [{"$ref": f"#{quote(place)}"} for place in (view.at("unevaluatedItems"), *way.found)]
        words["items"] = {"anyOf": found[items is False :]} if way.found else items
        names["items"] = "unevaluatedItems"
    empty = [key for key in ("properties", "patternProperties", "prefixItems") if not words.get(key)]
    return replace(view, words=words, names=names).without(*empty)


def _ways(view: View, to: Translator, chain: int) -> list[Evaluated]:
    """Return the ways in which a schema may hold."""
    to.visit(view.pointer)
    for key in _ELSEWHERE:
        if key in view.words or chain == 0:
            raise CannotRewrite("what is unevaluated here is not known", view.at(key))
    ways = [_own(view, to)]
    for place in _always(view, to):
        ways = _together(ways, _ways_of(place, to, chain), view)
    for pointer, options in _unions(view, to, chain):
        if any(option.adds_to(way) for option in options for way in ways):
            told = Evaluated(told=frozenset((pointer,)))
            ways = _together(ways, [told.beside(option) for option in options], view)
    return ways


def _ways_of(place: Place, to: Translator, chain: int) -> list[Evaluated]:
    schema, pointer = place
    return _ways(to.view(schema, pointer), to, chain - 1) if isinstance(schema, dict) else [Evaluated()]


def _together(left: list[Evaluated], right: list[Evaluated], view: View) -> list[Evaluated]:
    if len(left) * len(right) > _MAX_WAYS:
        raise CannotRewrite(f"unevaluated members: more than {_MAX_WAYS} ways to hold", view.pointer)
    return [one.beside(other) for one, other in product(left, right)]


def _own(view: View, to: Translator) -> Evaluated:
    words = view.words
    contains = (view.at("contains"),) if "contains" in words and to.draft != "2019-09" else ()
    return Evaluated(
        tuple(words.get("properties", ())),
        tuple(words.get("patternProperties", ())),
        bool({"additionalProperties", "unevaluatedProperties"} & words.keys()),
        len(words.get("prefixItems", ())),
        bool({"items", "unevaluatedItems"} & words.keys()),
        contains,
    )


def _always(view: View, to: Translator) -> Iterator[Place]:
    yield from ((part, view.at("allOf", n)) for n, part in enumerate(view.words.get("allOf", ())))
    if "$ref" in view.words:
        target = to.resolve(view.words["$ref"])
        if target is None:
            raise CannotRewrite(f"reference {view.words['$ref']!r} does not exist", view.at("$ref"))
        yield target[1], target[0]


def _unions(view: View, to: Translator, chain: int) -> Iterator[tuple[str, list[Evaluated]]]:
    """Yield the pointer of each keyword with branches, and the ways in which they may hold."""
    words = view.words
    if "oneOf" in words:
        yield view.at("oneOf"), [way for each in _branches("oneOf", view, to, chain) for way in each]
    if "anyOf" in words:
        yield view.at("anyOf"), _any_of(view, to, chain)
    if "if" in words:
        met = _held((words["if"], view.at("if")), to, chain)
        then = _held((words.get("then", True), view.at("then")), to, chain)
        other = _held((words.get("else", True), view.at("else")), to, chain)
        missed = Evaluated(missed=((words["if"], view.at("if")),))
        yield view.at("if"), [*_together(met, then, view), *_together([missed], other, view)]
    for name, schema in words.get("dependentSchemas", {}).items():
        absent, there = ({"properties": {name: False}}, view.pointer), ({"required": [name]}, view.pointer)
        present = _held((schema, view.at("dependentSchemas", name)), to, chain)
        ways = _together([Evaluated(held=(there,))], present, view)
        yield view.at("dependentSchemas", name), [Evaluated(held=(absent,)), *ways]


def _held(place: Place, to: Translator, chain: int) -> list[Evaluated]:
    """Return the ways in which a branch may hold, the branch itself among what holds."""
    return [Evaluated(held=(place,)).beside(way) for way in _ways_of(place, to, chain)]


def _branches(key: str, view: View, to: Translator, chain: int) -> list[list[Evaluated]]:
    return [_held((part, view.at(key, n)), to, chain) for n, part in enumerate(view.words[key])]


def _any_of(view: View, to: Translator, chain: int) -> list[Evaluated]:
    """Return the ways of one branch, and of several where these may hold together and each looks at something."""
    branches = _branches("anyOf", view, to, chain)
    ways = [way for each in branches for way in each]
    alone = replace(view, words={**view.words, "oneOf": view.words["anyOf"]}).without("anyOf")
    if not any(combine.rivals(alone, to)):
        return ways
    adding = [each for each in branches if any(way.adds_to(Evaluated()) for way in each)]
    if len(adding) > _MAX_TOGETHER:
        raise CannotRewrite("unevaluated members: too many branches may hold together", view.at("anyOf"))
    for count in range(2, len(adding) + 1):
        for some in combinations(adding, count):
            together = [Evaluated()]
            for each in some:
                together = _together(together, each, view)
            ways += together
    return ways
