"""Objects: complements of `required` and `properties`, `propertyNames`, numbers of properties, patterns for all keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import Any
from urllib.parse import quote

from inferd_grammar.rewrites import formats
from inferd_grammar.rewrites.base import CannotRewrite, Schema, Translator, View, all_of, any_of
from inferd_grammar.rewrites.kinds import STRING, of_value
from inferd_grammar.rewrites.patterns import complement, finds, looks_around, plain, regions
from inferd_grammar.rewrites.regex_syntax import NotUnderstood
from inferd_grammar.rewrites.strings import length_between, one_of

_MAX_SUBSETS = 64
_MAX_NAMES = 32
EVERY_KEY = frozenset(("", ".*", "^.*$", "^.*", ".*$", "^", "$", "(.*)", "^(.*)$"))


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
    if refusals and not options and not others:
        raise refusals[0]
    for pattern, schema in view.words.get("patternProperties", {}).items():
        other = to.negative(schema, view.at("patternProperties", pattern))
        names = [name for name in to.names() if _finds(pattern, name) is True] if other is not False else []
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
    names = [n for n in to.names() if n not in listed and all(_finds(pattern, n) is False for pattern in patterns)]
    if not 0 < len(names) <= _MAX_NAMES:
        raise CannotRewrite("that some other key is there has no rewrite", view.at("additionalProperties"))
    return [_with(name, value) for name in names]


def _with(name: str, value: Schema) -> Schema:
    return {"type": "object", "required": [name], "properties": {name: value}}


def _finds(pattern: str, name: str) -> bool | None:
    """Return True if a pattern is found in a name; None for a pattern that is not understood."""
    try:
        return finds(pattern, name)
    except NotUnderstood:
        return None


def positive_names(view: View, to: Translator) -> list[Schema]:
    """Return `propertyNames` as patterns that every key matches. A condition is a length, a pattern, a list, a union or `not`."""
    return [_names(view.words["propertyNames"], view.at("propertyNames"), to)]


def _names(schema: Any, pointer: str, to: Translator) -> Schema:
    if isinstance(schema, bool):
        return schema or {"maxProperties": 0}
    view = to.view(schema, pointer)
    parts = [_names_by(key, view, to) for key in view.words if key not in ("type", "minLength", "maxLength")]
    if {"minLength", "maxLength"} & view.words.keys():
        parts.append(_only(length_between(view.words.get("minLength", 0), view.words.get("maxLength"))))
    if "string" not in (view.words.get("type", "string")):
        parts.append({"maxProperties": 0})
    return _all_names(parts)


def _all_names(parts: list[Schema]) -> Schema:
    """Return all conditions at once; patterns become the one that holds where all of them do, if they are understood."""
    patterns = [_lone_pattern(part) for part in parts]
    found = [pattern for pattern in patterns if pattern is not None]
    rest = [part for part, pattern in zip(parts, patterns, strict=True) if pattern is None]
    try:
        areas = regions(found) if len(found) > 1 else []
    except NotUnderstood:
        return all_of(parts)
    common = [regex for regex, members in areas if len(members) == len(found)]
    joined: list[Schema] = [_only(pattern) for pattern in (common if len(found) > 1 else found)]
    return all_of([*rest, *(joined or ([{"maxProperties": 0}] if found else []))])


def _lone_pattern(part: Schema) -> str | None:
    if isinstance(part, bool) or part.keys() != {"patternProperties", "additionalProperties"}:
        return None
    return str(next(iter(part["patternProperties"])))


def _names_by(key: str, view: View, to: Translator) -> Schema:
    word = view.words[key]
    if key == "pattern":
        return _only(_understood(plain, view))
    if key in ("const", "enum"):
        listed = [value for value in ([word] if key == "const" else word) if of_value(value) in STRING]
        return _only(one_of(listed)) if listed else {"maxProperties": 0}
    if key == "not":
        return _forbidden_names(word, view.at("not"), to)
    if key == "$ref" and (target := to.resolve(word)):
        return _names(target[1], target[0], to)
    if key == "allOf":
        return all_of([_names(schema, view.at(key, n), to) for n, schema in enumerate(word)])
    if key == "anyOf":
        return _only("|".join(f"(?:{_pattern_of(part, view.at(key, n), to)})" for n, part in enumerate(word)))
    if key == "oneOf":
        return _one_of_names(view, to)
    if key == "format":
        pattern = formats.of_names(view)
        return True if pattern is None else _only(pattern)
    raise CannotRewrite(f"{key} of property names is not supported", view.at(key))


def _one_of_names(view: View, to: Translator) -> Schema:
    """Return lists beside at most one pattern, if nothing that is listed is listed twice or found by the pattern."""
    listed: list[str] = []
    patterns: list[str] = []
    for n, part in enumerate(view.words["oneOf"]):
        words = to.view(part, view.at("oneOf", n)).words if isinstance(part, dict) else {}
        words = {key: word for key, word in words.items() if (key, word) != ("type", "string")}
        if words.keys() == {"pattern"}:
            patterns.append(words["pattern"])
        elif words.keys() in ({"enum"}, {"const"}):
            listed += [name for name in words.get("enum", [words.get("const")]) if isinstance(name, str)]
        else:
            raise CannotRewrite("this oneOf of property names is not supported", view.at("oneOf", n))
    twice = len(set(listed)) < len(listed) or any(_finds(p, name) is not False for p in patterns for name in listed)
    if twice or len(patterns) > 1:
        raise CannotRewrite("branches of this oneOf may hold together", view.at("oneOf"))
    return _only("|".join(f"(?:{pattern})" for pattern in [*patterns, *([one_of(listed)] if listed else [])]))


def _pattern_of(schema: Any, pointer: str, to: Translator) -> str:
    """Return the one pattern that a condition on names amounts to."""
    names = _names(schema, pointer, to)
    if not isinstance(names, dict) or names.get("additionalProperties") is not False:
        raise CannotRewrite("this union of conditions on property names is not supported", pointer)
    return str(next(iter(names["patternProperties"])))


def _forbidden_names(schema: Any, pointer: str, to: Translator) -> Schema:
    view = to.view(schema, pointer) if isinstance(schema, dict) else View({}, pointer)
    words = {key: word for key, word in view.words.items() if (key, word) != ("type", "string")}
    if words.keys() == {"pattern"}:
        pattern = words["pattern"]
        return (
            _only(_understood(complement, view)) if looks_around(pattern) else {"patternProperties": {pattern: False}}
        )
    if words.keys() in ({"const"}, {"enum"}):
        listed = words.get("enum", [words.get("const")])
        return {"properties": {key: False for key in listed if isinstance(key, str)}}
    raise CannotRewrite("this complement of property names is not supported", pointer)


def _understood(rewritten: Callable[[str], str], view: View) -> str:
    """Return the view's pattern rewritten. Raises CannotRewrite."""
    try:
        return rewritten(view.words["pattern"])
    except NotUnderstood as error:
        raise CannotRewrite(f"this look-around is not supported: {error}", view.at("pattern")) from error


def _only(pattern: str) -> Schema:
    """Return a schema of objects whose keys all match."""
    return {"patternProperties": {pattern: True}, "additionalProperties": False}


def positive_counts(view: View) -> tuple[View, list[Schema]]:
    """Return `minProperties` and `maxProperties` beside optional listed keys: which of those are there decides the rest.

    The view less what was rewritten, and what stands for it. The backend counts only keys that are not listed.
    """
    listed = [key for key, schema in view.words.get("properties", {}).items() if schema is not False]
    needed = list(view.words.get("required", []))
    optional = [key for key in listed if key not in needed]
    if not optional or not {"minProperties", "maxProperties"} & view.words.keys():
        return view, []
    low, high = int(view.words.get("minProperties", 0)), view.words.get("maxProperties")
    closed = view.words.get("additionalProperties") is False and not view.words.get("patternProperties")
    options = _closed(optional, len(set(needed)), low, high) if closed else _open(optional, low, high)
    if options is None:
        key = "minProperties" if low else "maxProperties"
        raise CannotRewrite(f"{key} over {len(optional)} optional keys needs too many cases", view.at(key))
    return view.without("minProperties", "maxProperties"), [any_of([*_not_objects(), *options])]


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


def positive_patterns(view: View) -> View:
    """Return patterns for keys made disjoint, as the backend wants them: each region of keys gets the schemas of all patterns
    that match there. A pattern that every key matches goes into the listed keys, the other patterns, and all the rest.

    Narrower: keys with characters on which dialects of regular expressions differ are refused where patterns meet.
    """
    patterns = view.words.get("patternProperties", {})
    every = [_there(view, "patternProperties", pattern) for pattern in patterns if pattern in EVERY_KEY]
    rest = [pattern for pattern in patterns if pattern not in EVERY_KEY]
    areas = _areas(rest) if len(rest) > 1 or any(map(looks_around, rest)) else None
    if not every and areas is None:
        return view
    words = dict(view.words)
    del words["patternProperties"]
    if every:
        listed = view.words.get("properties", {})
        words["properties"] = {key: all_of([_there(view, "properties", key), *every]) for key in listed}
        words["additionalProperties"] = all_of(every)
    found = {regex: [_there(view, "patternProperties", rest[n]) for n in members] for regex, members in areas or ()}
    found = found if areas is not None else {p: [_there(view, "patternProperties", p)] for p in rest}
    words["patternProperties"] = {regex: all_of([*parts, *every]) if parts else False for regex, parts in found.items()}
    empty = [key for key in ("properties", "patternProperties") if not words.get(key)]
    return replace(view, words=words).without(*empty)


def _areas(patterns: list[str]) -> list[tuple[str, list[int]]] | None:
    """Return disjoint patterns, each with the indices of those it lies in; None if these are disjoint, or not understood."""
    try:
        areas = regions(patterns)
    except NotUnderstood:
        return None
    return areas if any(len(members) > 1 for _, members in areas) or any(map(looks_around, patterns)) else None


def _there(view: View, key: str, name: str) -> Schema:
    """Return a reference to a subschema of the document, so that it keeps its pointer; one that is a boolean itself."""
    schema = view.words[key][name]
    return schema if isinstance(schema, bool) else {"$ref": f"#{quote(view.at(key, name))}"}


def _exactly(listed: list[str], kept: tuple[str, ...], **words: Any) -> Schema:
    """Return a schema of objects that have none of `listed` but for all of `kept`."""
    return {"type": "object", "required": list(kept), "properties": _absent(listed, kept), **words}


def _absent(listed: list[str], kept: tuple[str, ...]) -> dict[str, bool]:
    return {key: False for key in listed if key not in kept}


def _subsets(keys: list[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(keys) + 1):
        yield from combinations(keys, size)


def _not_objects() -> list[Schema]:
    return [{"type": ["null", "boolean", "number", "string", "array"]}]
