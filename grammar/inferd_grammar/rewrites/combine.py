"""`oneOf`, `not`, `if`, `dependencies`: what is left of each once complements exist.

oneOf [A, B]           = (A and not B) or (B and not A); `not` is left out where A and B are provably disjoint
not A                  = the complement of A
if A then B else C     = (A and B) or (not A and C)
dependencies {k: A}    = (k is absent) or (k is there, and A)
"""

from __future__ import annotations

from typing import Any

from inferd_grammar.rewrites.base import Schema, Translator, View, all_of, any_of
from inferd_grammar.rewrites.disjoint import kinds_of, overlap, told_apart, views_of
from inferd_grammar.rewrites.kinds import ALL, NUMBER, OBJECT, Kinds, typed

SchemaPlace = tuple[Any, str]
"""A subschema and its pointer."""
DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")


def positive_one_of(view: View, kinds: Kinds, to: Translator) -> list[Schema]:
    """Return schemas for: one branch and, of the kinds in which they may overlap, none of the others."""
    branches = view.words["oneOf"]
    beside = (*view.beside, view.without("oneOf"))
    shared_by = rivals(view, to)
    options = []
    for n, branch in enumerate(branches):
        within = kinds & kinds_of(branch, view.at("oneOf", n), to)
        others: list[Schema] = []
        for m, shared in shared_by[n].items():
            other = to.negative(branches[m], view.at("oneOf", m), within & shared)
            others.append(any_of([typed(within - shared, within) if within - shared else False, other]))
        if within:
            options.append(all_of([to.positive(branch, view.at("oneOf", n), within, beside), *others]))
    return [any_of(options)]


def negative_one_of(view: View, kinds: Kinds, to: Translator) -> list[Schema]:
    """Return schemas for: no branch at all, or two that are not disjoint."""
    places = [(branch, view.at("oneOf", n)) for n, branch in enumerate(view.words["oneOf"])]
    options = [all_of([to.negative(branch, place, kinds) for branch, place in places])]
    for n, others in enumerate(rivals(view, to)):
        pairs = [m for m in others if m > n and others[m] & kinds]
        options += [all_of([to.positive(*places[n], kinds), to.positive(*places[m], kinds)]) for m in pairs]
    return options


def positive_if(view: View, kinds: Kinds, to: Translator) -> list[Schema]:
    """Return schemas for: `then` where `if` holds, `else` where its complement does."""
    if not {"then", "else"} & view.words.keys():
        return []
    condition = view.words["if"], view.at("if")
    met = all_of([to.positive(*condition, kinds), to.positive(view.words.get("then", True), view.at("then"), kinds)])
    missed = all_of([to.negative(*condition, kinds), to.positive(view.words.get("else", True), view.at("else"), kinds)])
    return [any_of([met, missed])]


def negative_if(view: View, kinds: Kinds, to: Translator) -> list[Schema]:
    """Return schemas for: `if` without `then`, or neither `if` nor `else`."""
    condition = view.words["if"], view.at("if")
    options: list[Schema] = []
    if "then" in view.words:
        other = to.negative(view.words["then"], view.at("then"), kinds)
        options.append(all_of([to.positive(*condition, kinds), other]))
    if "else" in view.words:
        other = to.negative(view.words["else"], view.at("else"), kinds)
        options.append(all_of([to.negative(*condition, kinds), other]))
    return options


def exclusive_cases(parts: list[SchemaPlace], beside: tuple[View, ...], to: Translator) -> list[SchemaPlace]:
    """Return those members of an `allOf` that are `if` and `then` alone, if there are several, their conditions exclude each
    other on objects that have the keys which the conditions look at, and it is known which hold for others.
    """
    cases = [place for place in parts if _is_case(place, to)]
    conditions = [_condition(place, to) for place in cases]
    there = View({"type": "object", "required": _keys(conditions)}, "")
    apart = told_apart([[there, condition] for condition in conditions], to) or all(
        not overlap([*beside, there, left], [*beside, there, right], to)
        for n, left in enumerate(conditions)
        for right in conditions[n + 1 :]
    )
    return cases if len(cases) > 1 and apart and _are_known_without(conditions, beside) else []


def positive_cases(cases: list[SchemaPlace], kinds: Kinds, beside: tuple[View, ...], to: Translator) -> Schema:
    """Return a schema: a condition and its consequence, or none of the conditions: so many cases instead of all combinations."""
    conditions = [_condition(place, to) for place in cases]
    there: Schema = {"type": "object", "required": _keys(conditions)}
    options = [
        all_of([to.positive(part["if"], f"{at}/if", kinds), there, to.positive(part["then"], f"{at}/then", kinds)])
        for part, at in cases
    ]
    options.append(all_of([there, *_missed(cases, conditions, kinds, to)]))

    def asked(within: Kinds, missed: str) -> list[Schema]:
        held = [place for place, view in zip(cases, conditions, strict=True) if not view.words.get(missed)]
        return [to.positive(part["then"], f"{at}/then", within) for part, at in held]

    for key in _optional(conditions, beside):
        options.append(all_of([{"type": "object", "properties": {key: False}}, *asked(OBJECT, "required")]))
    if kinds - OBJECT and all(map(_is_plain, conditions)):
        options.append(all_of([typed(kinds - OBJECT, kinds), *asked(kinds - OBJECT, "type")]))
    return any_of(options)


def _missed(cases: list[SchemaPlace], conditions: list[View], kinds: Kinds, to: Translator) -> list[Schema]:
    """Return the complements of conditions among objects that have the keys which these look at, of listed values together."""
    listed: dict[str, list[Any]] = {}
    others: list[Schema] = []
    for (part, at), condition in zip(cases, conditions, strict=True):
        keys = _keys([condition])
        if len(keys) > 1 or not _is_plain(condition):
            others.append(to.negative(part["if"], f"{at}/if", kinds))
            continue
        asked, place = condition.words["properties"][keys[0]], condition.at("properties", keys[0])
        words = to.view(asked, place).words if isinstance(asked, dict) else {}
        if words.keys() in ({"const"}, {"enum"}):
            listed.setdefault(keys[0], []).extend(words.get("enum", [words.get("const")]))
        else:
            others.append({"properties": {keys[0]: to.negative(asked, place)}})
    for key, values in listed.items():
        others.append({"properties": {key: to.negative_view(View({"enum": values}, cases[0][1]), ALL)}})
    return others


def _are_known_without(conditions: list[View], beside: tuple[View, ...]) -> bool:
    """Return True if all conditions require the keys that may be absent, and miss without them, or look at that one key alone."""
    keys, optional = _keys(conditions), _optional(conditions, beside)
    if not optional:
        return True
    missing = all({*optional} <= {*view.words.get("required", ())} for view in conditions)
    return all(map(_is_plain, conditions)) and (missing or len(keys) == 1)


def _optional(conditions: list[View], beside: tuple[View, ...]) -> list[str]:
    """Return the keys that the conditions look at and an object may lack."""
    needed = {name for view in beside for name in view.words.get("required", ())}
    return [key for key in _keys(conditions) if key not in needed]


def _is_plain(condition: View) -> bool:
    """Return True for a condition about properties and nothing else, which other values than objects meet or `type` excludes."""
    words = condition.words
    looked = {*words.get("properties", ())}
    return (
        words.keys() <= {"properties", "required", "type"}
        and words.get("type", "object") == "object"
        and {*words.get("required", ())} <= looked
    )


def _keys(conditions: list[View]) -> list[str]:
    return list(dict.fromkeys(key for view in conditions for key in view.words.get("properties", {})))


def _is_case(place: SchemaPlace, to: Translator) -> bool:
    part, pointer = place
    return (
        isinstance(part, dict)
        and to.view(part, pointer).words.keys() == {"if", "then"}
        and isinstance(part["if"], dict)
    )


def _condition(place: SchemaPlace, to: Translator) -> View:
    return to.view(place[0]["if"], f"{place[1]}/if")


def positive_dependencies(key: str, view: View, to: Translator) -> list[Schema]:
    """Return one union for each key that has a consequence."""
    result = []
    for name, wanted in view.words[key].items():
        there = {"type": "object", "required": [name]}
        met = all_of([there, _wanted(wanted, view.at(key, name), to)])
        result.append(any_of([{"properties": {name: False}}, met]))
    return result


def negative_dependencies(key: str, view: View, to: Translator) -> list[Schema]:
    """Return schemas for: some key is there and its consequence is not."""
    result: list[Schema] = []
    for name, wanted in view.words[key].items():
        schema = {"required": wanted} if isinstance(wanted, list) else wanted
        other = to.negative(schema, view.at(key, name), Kinds({"object"}))
        result.append(all_of([{"type": "object", "required": [name]}, other]))
    return result


def _wanted(wanted: Any, pointer: str, to: Translator) -> Schema:
    if isinstance(wanted, list):
        return {"required": wanted} if wanted else True
    return to.positive(wanted, pointer, Kinds({"object"}))


def rivals(view: View, to: Translator) -> list[dict[int, Kinds]]:
    """Return, for each branch, the others that are not provably disjoint from it, and the kinds of value they may share."""
    beside = [*view.beside, view.without("oneOf")]
    branches = [views_of(branch, view.at("oneOf", n), to) for n, branch in enumerate(view.words["oneOf"])]
    result: list[dict[int, Kinds]] = [{} for _ in branches]
    if told_apart([[*beside, *branch] for branch in branches if branch is not None], to):
        return result
    for n, left in enumerate(branches):
        for m in range(n + 1, len(branches)):
            right = branches[m]
            if left is None or right is None:
                continue
            if shared := overlap([*beside, *left], [*beside, *right], to):
                # Whole numbers and fractions cannot be told apart by type.
                result[n][m] = result[m][n] = shared | NUMBER if shared & NUMBER else shared
    return result
