"""Proves that two schemas have no value in common. False only means that no proof was found.

Seen are: different kinds; listed values that the other side rejects; a key that one side requires and for which the
two sides have disjoint schemas (a discriminator), or that the other side forbids; ranges and counts that do not meet;
patterns and formats of which no string has both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inferd_grammar.rewrites.base import Schema, Translator, View
from inferd_grammar.rewrites.formats import wide
from inferd_grammar.rewrites.kinds import ALL, NUMBER, OBJECT, Kinds, canonical, of_types, of_value
from inferd_grammar.rewrites.patterns import are_apart, found_in
from inferd_grammar.rewrites.regex_syntax import literal_prefix

_DEPTH = 12
_RANGES = (
    (NUMBER, ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    (Kinds({"string"}), ("minLength",), ("maxLength",)),
    (Kinds({"array"}), ("minItems",), ("maxItems",)),
    (Kinds({"object"}), ("minProperties",), ("maxProperties",)),
)


def kinds_of(schema: Schema, pointer: str, to: Translator, depth: int = _DEPTH) -> Kinds:
    """Return the kinds a schema may let through; never too few.

    Only keywords that every rewrite leaves in place tell: the result is what other keywords may take for granted.
    """
    if isinstance(schema, bool):
        return ALL if schema else Kinds()
    return kinds_of_view(to.view(schema, pointer), to, depth)


def kinds_of_view(view: View, to: Translator, depth: int = _DEPTH) -> Kinds:
    """Return `kinds_of` for a view."""
    words = view.words
    kinds = of_types(words["type"]) if "type" in words else ALL
    if "const" in words:
        kinds &= Kinds({of_value(words["const"])})
    if "enum" in words:
        kinds &= Kinds(of_value(value) for value in words["enum"])
    if depth == 0:
        return kinds
    if "$ref" in words and (target := to.resolve(words["$ref"])):
        kinds &= kinds_of(target[1], target[0], to, depth - 1)
    for part, place in _parts(view, "allOf"):
        kinds &= kinds_of(part, place, to, depth - 1)
    for key in ("anyOf", "oneOf"):
        if key in words:
            kinds &= Kinds().union(*(kinds_of(part, place, to, depth - 1) for part, place in _parts(view, key)))
    return kinds


def overlap(left: list[View], right: list[View], to: Translator, depth: int = _DEPTH) -> Kinds:
    """Return the kinds of which some value may be valid under all of `left` and all of `right`."""
    to.visit(left[0].pointer if left else "")
    left, right = _flat(left, to, depth), _flat(right, to, depth)
    common = ALL
    for view in [*left, *right]:
        common &= kinds_of_view(view, to, max(depth - 1, 0))
    if depth <= 0 or not common:
        return common
    if _values_miss(left, right, to) or _values_miss(right, left, to):
        return Kinds()
    shared = Kinds(
        kind
        for kind in common
        if not _ranges_miss([*left, *right], kind)
        and not (kind == "string" and _strings_miss(left, right, to))
        and not (kind == "object" and _objects_miss(left, right, to, depth))
    )
    if shared and (_branches_miss(left, right, to, depth) or _branches_miss(right, left, to, depth)):
        return Kinds()
    return shared


def told_apart(branches: list[list[View]], to: Translator) -> bool:
    """Return True if all are objects with a required key for which each lists values of its own: one look at each branch."""
    tags: list[dict[str, set[str]]] = []
    for branch in branches:
        to.visit(branch[0].pointer)
        flat = _flat(branch, to, _DEPTH)
        kinds = ALL
        for view in flat:
            kinds &= kinds_of_view(view, to, 2)
        tags.append(_tags(flat, to) if kinds <= OBJECT else {})
    common = set(tags[0]).intersection(*tags[1:]) if tags else set()
    return any(len(set().union(*(tag[key] for tag in tags))) == sum(len(tag[key]) for tag in tags) for key in common)


def _tags(flat: list[View], to: Translator) -> dict[str, set[str]]:
    """Return the required keys whose values are listed, and those values."""
    tags: dict[str, set[str]] = {}
    for key in {key for view in flat for key in view.words.get("required", ())}:
        for view in _flat(_members(flat, key, to) or [], to, _DEPTH):
            if "const" in view.words or "enum" in view.words:
                listed = [view.words["const"]] if "const" in view.words else view.words["enum"]
                tags[key] = {canonical(value) for value in listed}
    return tags


def views_of(schema: Schema, pointer: str, to: Translator) -> list[View] | None:
    """Return the schema as views that all hold; None for false."""
    if isinstance(schema, bool):
        return [] if schema else None
    return [to.view(schema, pointer)]


def _parts(view: View, key: str) -> Iterator[tuple[Any, str]]:
    for n, part in enumerate(view.words.get(key, ())):
        yield part, view.at(key, n)


def _flat(views: list[View], to: Translator, depth: int) -> list[View]:
    """Return the views with references and `allOf` followed. A part that is false stays as an empty `enum`."""
    result, stack, left = [], list(reversed(views)), depth * 4
    while stack and left:
        view = stack.pop()
        left -= 1
        result.append(view)
        parts = list(_parts(view, "allOf"))
        if "$ref" in view.words and (target := to.resolve(view.words["$ref"])):
            parts.append((target[1], target[0]))
        for part, place in reversed(parts):
            inner = views_of(part, place, to)
            stack += [View({"enum": []}, place)] if inner is None else inner
    return result


def _values_miss(left: list[View], right: list[View], to: Translator) -> bool:
    """Return True if one side lists its values and the other rejects each of them."""
    for view in left:
        if "const" in view.words or "enum" in view.words:
            listed = [view.words["const"]] if "const" in view.words else view.words["enum"]
            if all(any(_rejects(other, value, to) for other in right) for value in listed):
                return True
    return False


def _rejects(view: View, value: Any, to: Translator) -> bool:
    """Return True if a value is provably invalid; looks at values, kinds, bounds and the members of an object."""
    words, kind = view.words, of_value(value)
    if kind not in kinds_of_view(view, to):
        return True
    if "const" in words and canonical(value) != canonical(words["const"]):
        return True
    if "enum" in words and canonical(value) not in map(canonical, words["enum"]):
        return True
    if kind == "object":
        return any(key not in value for key in words.get("required", ()))
    if kind in NUMBER:
        return _out_of_range(value, words)
    size = len(value) if kind in ("string", "array") else 0
    low, high = ("minLength", "maxLength") if kind == "string" else ("minItems", "maxItems")
    return kind in ("string", "array") and not words.get(low, 0) <= size <= words.get(high, size)


def _out_of_range(value: float, words: Any) -> bool:
    return (
        value < words.get("minimum", value)
        or value > words.get("maximum", value)
        or ("exclusiveMinimum" in words and value <= words["exclusiveMinimum"])
        or ("exclusiveMaximum" in words and value >= words["exclusiveMaximum"])
    )


def _ranges_miss(views: list[View], kind: str) -> bool:
    """Return True if the bounds of all views together leave nothing of a kind."""
    for kinds, lows, highs in _RANGES:
        if kind in kinds:
            low = [(view.words[key], key.startswith("ex")) for view in views for key in lows if key in view.words]
            high = [(view.words[key], key.startswith("ex")) for view in views for key in highs if key in view.words]
            return any(a > b or (a == b and (open_a or open_b)) for a, open_a in low for b, open_b in high)
    return False


def _prefixes_miss(views: list[View]) -> bool:
    """Return True if two patterns ask for different beginnings."""
    starts = [literal_prefix(view.words["pattern"]) for view in views if "pattern" in view.words]
    return any(not a.startswith(b) and not b.startswith(a) for a in starts for b in starts)


def _strings_miss(left: list[View], right: list[View], to: Translator) -> bool:
    """Return True if no string has the patterns and formats of both sides."""
    if _prefixes_miss([*left, *right]):
        return True
    one, other = list(dict.fromkeys(_asked(left))), list(dict.fromkeys(_asked(right)))
    return bool(one and other and one != other) and to.may_prove() and are_apart((*one, *other))


def _asked(views: list[View]) -> Iterator[str]:
    """Yield patterns in which every string is found that is valid under some view."""
    for view in views:
        if "pattern" in view.words:
            yield view.words["pattern"]
        if (pattern := wide(view.words.get("format", ""))) is not None:
            yield pattern


def _objects_miss(left: list[View], right: list[View], to: Translator, depth: int) -> bool:
    """Return True if some required key can hold no value that suits both sides."""
    needed = {key for view in [*left, *right] for key in view.words.get("required", ())}
    return any(_members_miss(_members(left, key, to), _members(right, key, to), to, depth) for key in needed)


def _members(views: list[View], key: str, to: Translator) -> list[View] | None:
    """Return the schemas that the views ask of a property; None if one forbids it."""
    found: list[View] = []
    for view in views:
        place, schema = view.at("properties", key), view.words.get("properties", {}).get(key, True)
        matched = any(found_in(key, pattern) is not False for pattern in view.words.get("patternProperties", ()))
        if key not in view.words.get("properties", {}) and not matched:
            place, schema = view.at("additionalProperties"), view.words.get("additionalProperties", True)
        inner = views_of(schema, place, to)
        if inner is None:
            return None
        found += inner
    return found


def _members_miss(left: list[View] | None, right: list[View] | None, to: Translator, depth: int) -> bool:
    return left is None or right is None or bool(left and right and not overlap(left, right, to, depth - 1))


def _branches_miss(left: list[View], right: list[View], to: Translator, depth: int) -> bool:
    """Return True if some `anyOf` or `oneOf` of the left side has no branch that meets the right side."""
    for view in left:
        for key in ("anyOf", "oneOf"):
            if key in view.words and depth > 2:
                rest = [other for other in left if other is not view] + [view.without(key)]
                branches = [views_of(part, place, to) for part, place in _parts(view, key)]
                if all(b is None or not overlap([*rest, *b], right, to, depth - 3) for b in branches):
                    return True
    return False
