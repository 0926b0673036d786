"""Objects: complements of `required` and `properties`, `propertyNames`, numbers of properties, patterns for all keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations, islice
from math import comb
from typing import Any
from urllib.parse import quote

from inferd_grammar.rewrites.base import CannotRewrite, Schema, Translator, View, all_of, any_of
from inferd_grammar.rewrites.name_patterns import NamesCondition
from inferd_grammar.rewrites.patterns import (
    NOTHING,
    finds,
    found_in,
    in_doubt,
    is_plain,
    looks_around,
    may_find,
    narrowed,
    regions,
)
from inferd_grammar.rewrites.regex_dialect import WITH_SPARED, is_spared
from inferd_grammar.rewrites.regex_syntax import NotUnderstood

_MAX_SUBSETS = 64
_MAX_NAMES = 32
EVERY_KEY = frozenset(("", ".*", "^.*", ".*$", "^", "$", "(.*)"))


def negative_required(view: View) -> list[Schema]:
    """Return schemas of objects that lack one of the keys."""
    return [{"type": "object", "properties": {key: False}} for key in view.words["required"]]


def negative_properties(view: View, to: Translator, others: bool) -> list[Schema]:
    """Return schemas of objects in which a listed property is there and fails its schema, or that have a key they must not have.

    Narrower: a property whose complement cannot be said is passed over if anything else (`others`) tells the object
    apart.
    """
    options: list[Schema] = []
    refusals: list[CannotRewrite] = []
    for key, schema in view.words.get("properties", {}).items():
        try:
            other = to.negative(schema, view.at("properties", key))
        except CannotRewrite as refusal:
            refusals.append(refusal)
            continue
        if other is not False:
            options.append(_with(key, other))
    if refusals and (to.only_widens or not (options or others)):
        raise refusals[0]
    for pattern, schema in view.words.get("patternProperties", {}).items():
        other = to.negative(schema, view.at("patternProperties", pattern))
        names = [name for name in to.names() if found_in(name, pattern) is True] if other is not False else []
        if other is not False and not names:
            raise CannotRewrite("that some key matches has no rewrite", view.at("patternProperties", pattern))
        options += [_with(name, other) for name in names]
    if "additionalProperties" in view.words:
        other = to.negative(view.words["additionalProperties"], view.at("additionalProperties"))
        options += _another_key(view, other, to) if other is not False else []
    return options


def _another_key(view: View, value: Schema, to: Translator) -> list[Schema]:
    """Objects with a key that is not listed, and fails.

    Any key at all where few are listed; else narrower: one of the names that the document gives to properties.
    """
    listed, patterns = list(view.words.get("properties", {})), list(view.words.get("patternProperties", {}))
    if value is True and not patterns and 2 ** len(listed) <= _MAX_NAMES:
        return [_exactly(listed, kept, minProperties=len(kept) + 1) for kept in _subsets(listed)]
    others = (n for n in to.names() if n not in listed and all(found_in(n, pattern) is False for pattern in patterns))
    names = list(islice(others, _MAX_NAMES + 1))
    if not 0 < len(names) <= _MAX_NAMES:
        raise CannotRewrite("that some other key is there has no rewrite", view.at("additionalProperties"))
    return [_with(name, value) for name in names]


def _with(name: str, value: Schema) -> Schema:
    return {"type": "object", "required": [name], "properties": {name: value}}


def positive_names(view: View, to: Translator) -> list[Schema]:
    """Return `propertyNames` as patterns that every key matches."""
    word, pointer = view.words["propertyNames"], view.at("propertyNames")
    if word is False:
        return [{"maxProperties": 0}]
    if (forbidden := _forbidden_names(word, pointer, to)) is not None:
        return [forbidden]
    patterns = NamesCondition(word, pointer, to).patterns()
    return [{"maxProperties": 0} if pattern == NOTHING else _only(pattern) for pattern in patterns]


def _forbidden_names(schema: Any, pointer: str, to: Translator) -> Schema | None:
    """Return the names that must not be, for a `not` of a list or a pattern alone: nothing is narrower about these."""
    view = to.view(schema, pointer) if isinstance(schema, dict) else View({}, pointer)
    forbidden = view.words.get("not")
    if {key: word for key, word in view.words.items() if (key, word) != ("type", "string")}.keys() != {"not"}:
        return None
    words = dict(to.view(forbidden, view.at("not")).words) if isinstance(forbidden, dict) else {}
    if words.get("type") == "string":
        del words["type"]
    if words.keys() == {"pattern"} and not looks_around(words["pattern"]):
        return dict(positive_patterns(View({"patternProperties": {words["pattern"]: False}}, pointer)).words)
    if words.keys() in ({"const"}, {"enum"}):
        listed = words.get("enum", [words.get("const")])
        return {"properties": {key: False for key in listed if isinstance(key, str)}}
    return None


def names_beside_patterns(view: View, to: Translator) -> View:
    """Return a view with `propertyNames` taken into its patterns for keys, which the backend wants to be disjoint.

    The view as it is where it has but one of them, or where that cannot be said.
    """
    patterns = list(view.words.get("patternProperties", {}))
    listed = list(view.words.get("properties", {}))
    rest = _there(view, "additionalProperties") if "additionalProperties" in view.words else True
    if not patterns or "propertyNames" not in view.words or (listed and not isinstance(rest, bool)):
        return view
    try:
        names = NamesCondition(view.words["propertyNames"], view.at("propertyNames"), to).patterns()
        if not names:
            return view.without("propertyNames")
        areas = regions([*names, *patterns])
        kept = {key: all(finds(name, key) for name in names) for key in listed}
    except (CannotRewrite, NotUnderstood):
        return view
    if any(may_find(pattern, key) for key in listed if not is_plain(key) for pattern in patterns):
        return view
    inside = [(regex, members[len(names) :]) for regex, members in areas if {*range(len(names))} <= {*members}]
    found = {
        regex: all_of([_there(view, "patternProperties", patterns[n - len(names)]) for n in members])
        if members
        else rest
        for regex, members in inside
        if members or rest is not False  # which holds of names that are not listed alone
    }
    words = {**view.words, "patternProperties": found, "additionalProperties": False}
    words["properties"] = {key: kept[key] and _there(view, "properties", key) for key in listed}
    return replace(view, words=words).without("propertyNames", *([] if listed else ["properties"]))


def _only(pattern: str) -> Schema:
    """Return a schema of objects whose keys all match."""
    return {"patternProperties": {pattern: True}, "additionalProperties": False}


def positive_counts(view: View) -> tuple[View, list[Schema]]:
    """Return `minProperties` and `maxProperties` beside optional listed keys: which of those are there decides the rest.

    The view less what was rewritten, and what stands for it. The backend counts only keys that are not listed.
    """
    if not {"minProperties", "maxProperties"} & view.words.keys():
        return view, []
    views = [view, *view.beside]  # the backend counts what is left of all of them together
    named = [(key, schema) for one in views for key, schema in one.words.get("properties", {}).items()]
    listed = dict.fromkeys(key for key, schema in named if schema is not False)
    needed = list(dict.fromkeys(key for one in views for key in one.words.get("required", [])))
    optional = [key for key in listed if key not in needed]
    if not optional:
        return view, []
    low, high = int(view.words.get("minProperties", 0)), view.words.get("maxProperties")
    closed = any(
        one.words.get("additionalProperties") is False and not one.words.get("patternProperties") for one in views
    )
    options = _closed(optional, len(set(needed)), low, high) if closed else _open(optional, low, high)
    if options is None:
        key = "minProperties" if low else "maxProperties"
        raise CannotRewrite(f"{key} over {len(optional)} optional keys needs too many cases", view.at(key))
    others: Schema = {"type": ["null", "boolean", "number", "string", "array"]}
    return view.without("minProperties", "maxProperties"), [any_of([others, *options])]


def _closed(optional: list[str], needed: int, low: int, high: int | None) -> list[Schema] | None:
    """Return cases without other keys: at least `low - needed` of the optional ones, none but some `high - needed` of them."""
    least = max(low - needed, 0)
    most = len(optional) if high is None else min(int(high) - needed, len(optional))
    if most < least:
        return []
    if comb(len(optional), least) * comb(len(optional) - least, most - least) > _MAX_SUBSETS:
        return None
    return [
        {"type": "object", "required": list(there), "properties": _absent(optional, (*there, *also))}
        for there in combinations(optional, least)
        for also in combinations([key for key in optional if key not in there], most - least)
    ]


def _open(optional: list[str], low: int, high: int | None) -> list[Schema] | None:
    """Return cases with other keys: one for each set of optional ones that is, the backend counts what is left."""
    if 2 ** len(optional) > _MAX_SUBSETS:
        return None
    counts: dict[str, Any] = {"minProperties": low} | ({} if high is None else {"maxProperties": int(high)})
    return [_exactly(optional, there, **counts) for there in _subsets(optional)]


def positive_patterns(view: View, *, doubtful: bool = False) -> View:
    """Return patterns for keys made disjoint, as the backend wants them: each region of keys gets the schemas of all patterns
    that match there. A pattern that every key matches goes into the listed keys, the other patterns, and all the rest.

    Narrower: keys that hold characters on which dialects of regular expressions differ, and in which one may find a pattern,
    get `doubtful` for a schema; those that are listed have to be valid in each dialect.
    """
    patterns, listed = view.words.get("patternProperties", {}), view.words.get("properties", {})
    every = [_there(view, "patternProperties", pattern) for pattern in patterns if pattern in EVERY_KEY]
    rest = [pattern for pattern in patterns if pattern not in EVERY_KEY]
    is_open = bool(every) or view.words.get("additionalProperties") is not False
    areas = _areas(rest, listed, is_open) if rest else None
    asked = {key: [] if doubtful or is_plain(key) else [p for p in rest if may_find(p, key)] for key in listed}
    if not every and areas is None and not any(asked.values()):
        return view
    words = dict(view.words)
    del words["patternProperties"]
    words["properties"] = {
        key: all_of(
            [_there(view, "properties", key), *every, *(_there(view, "patternProperties", p) for p in asked[key])]
        )
        if every or asked[key]
        else schema
        for key, schema in listed.items()
    }
    if every:
        words["additionalProperties"] = all_of(every)
    found = {regex: [_there(view, "patternProperties", rest[n]) for n in members] for regex, members in areas or ()}
    found = found if areas is not None else {p: [_there(view, "patternProperties", p)] for p in rest}
    words["patternProperties"] = {
        regex: all_of([*parts, *every]) if parts else doubtful for regex, parts in found.items()
    }
    empty = [key for key in ("properties", "patternProperties") if not words.get(key)]
    return replace(view, words=words).without(*empty)


def _areas(patterns: list[str], listed: Iterable[str], is_open: bool) -> list[tuple[str, list[int]]] | None:
    """Return disjoint patterns, each with the indices of those it lies in; those of keys in doubt have none.

    None if the patterns are disjoint and no key is in doubt, or if they are not understood.
    """
    looking = any(map(looks_around, patterns))
    if len(patterns) == 1 and not looking and not is_open:
        return None
    try:
        doubt = in_doubt(patterns, listed)
        unsure = [(pattern, list[int]()) for pattern in (doubt, WITH_SPARED) if is_open and pattern is not None]
        if looking or (len(patterns) > 1 and _overlap(patterns)):
            return [*regions(patterns), *unsure]
        if doubt is None and (len(patterns) == 1 or not any(map(is_spared, patterns))):
            return None
        return [*((pattern, [n]) for n, pattern in enumerate(_narrowed(patterns))), *unsure]
    except NotUnderstood:
        return None


def _narrowed(patterns: list[str]) -> list[str]:
    """Return patterns that no key in doubt is in; those that are too large as they are: the backend refuses them beside these."""
    try:
        return narrowed(patterns)
    except NotUnderstood:
        return patterns


def _overlap(patterns: list[str]) -> bool:
    """Return True if some key may be in two patterns; where that is not known, the backend finds out."""
    try:
        return any(len(members) > 1 for _, members in regions(patterns))
    except NotUnderstood:
        return False


def _there(view: View, key: str, *name: str) -> Schema:
    """Return a reference to a subschema of the document, so that it keeps its pointer; one that is a boolean itself."""
    schema = view.words[key][name[0]] if name else view.words[key]
    return schema if isinstance(schema, bool) else {"$ref": f"#{quote(view.at(key, *name))}"}


def _exactly(listed: list[str], kept: tuple[str, ...], **words: Any) -> Schema:
    """Return a schema of objects that have none of `listed` except all of `kept`."""
    return {"type": "object", "required": list(kept), "properties": _absent(listed, kept), **words}


def _absent(listed: list[str], kept: tuple[str, ...]) -> dict[str, bool]:
    return {key: False for key in listed if key not in kept}


def _subsets(keys: list[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(keys) + 1):
        yield from combinations(keys, size)
