"""Converts constraints of the protocol to those of the grammar package."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from inferd import protocol as p
from inferd_grammar import (
    AllOfGrammar,
    AnyJsonGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    GbnfGrammar,
    JsonSchemaGrammar,
    LarkGrammar,
    PrefixedGrammar,
    RegexGrammar,
    TaggedGrammar,
    TagGrammar,
)

MAX_NESTING = 16
"""The deepest nesting of constraints."""
MODES = ("strict", "best_effort")
UNSET = p.ConstraintSpec("")
USES: Mapping[str, frozenset[str]] = {
    "json_schema": frozenset({"value", "mode"}),
    "any_json": frozenset(),
    "regex": frozenset({"value"}),
    "lark": frozenset({"value"}),
    "gbnf": frozenset({"value"}),
    "choice": frozenset({"options"}),
    "tagged": frozenset({"tags"}),
    "all_of": frozenset({"members"}),
    "exact": frozenset({"members"}),
    "prefixed": frozenset({"value", "members"}),
}
"""The fields that each kind uses; the others must keep their defaults."""


def to_grammar(constraint: p.ConstraintSpec) -> Constraint:
    """Return the grammar package's constraint.

    Raises InvalidRequest for an unknown kind, a field that the kind does not use, and too much nesting; ConstraintError for
    a best_effort schema inside another constraint.
    """
    _check_nesting(constraint)
    return _convert(constraint)


def _convert(constraint: p.ConstraintSpec) -> Constraint:
    _check_fields(constraint)
    match constraint.kind:
        case "json_schema":
            return JsonSchemaGrammar(constraint.value, "best_effort" if constraint.mode == "best_effort" else "strict")
        case "any_json":
            return AnyJsonGrammar()
        case "regex":
            return RegexGrammar(constraint.value)
        case "lark":
            return LarkGrammar(constraint.value)
        case "gbnf":
            return GbnfGrammar(constraint.value)
        case "choice":
            return ChoiceGrammar(tuple(constraint.options))
        case "exact":
            return ExactGrammar(_only_member(constraint))
        case "prefixed":
            for member in constraint.members:
                _strict(member)
            return PrefixedGrammar(constraint.value, _only_member(constraint) if constraint.members else None)
        case "all_of":
            return AllOfGrammar(tuple(_convert(_strict(member)) for member in constraint.members))
    tags = ((tag, _convert(_strict(tag.content))) for tag in constraint.tags)
    return TaggedGrammar(tuple(TagGrammar(tag.begin, content, tag.end) for tag, content in tags))


def _check_nesting(constraint: p.ConstraintSpec) -> None:
    level = [constraint]
    for _ in range(MAX_NESTING + 1):
        level = [part for each in level for part in (*each.members, *(tag.content for tag in each.tags))]
        if not level:
            return
    raise p.InvalidRequest(f"constraints are nested more than {MAX_NESTING} deep")


def _check_fields(constraint: p.ConstraintSpec) -> None:
    uses = USES.get(constraint.kind)
    if uses is None:
        raise p.InvalidRequest(f"constraint kind {constraint.kind!r} is not one of {', '.join(USES)}")
    if constraint.mode not in MODES:
        raise p.InvalidRequest(f"constraint mode {constraint.mode!r} is not one of {', '.join(MODES)}")
    for field in dataclasses.fields(p.ConstraintSpec):
        given = getattr(constraint, field.name)
        if field.name not in uses and field.name != "kind" and given != getattr(UNSET, field.name):
            raise p.InvalidRequest(f"a constraint of kind {constraint.kind} has no {field.name}")


def _only_member(constraint: p.ConstraintSpec) -> Constraint:
    if len(constraint.members) != 1:
        raise p.InvalidRequest(f"a constraint of kind {constraint.kind} has one member, not {len(constraint.members)}")
    return _convert(constraint.members[0])


def _strict(constraint: p.ConstraintSpec) -> p.ConstraintSpec:
    """Refuse best_effort where the finished text is not that of the schema alone."""
    if constraint.best_effort:
        raise p.ConstraintError("mode best_effort is for a whole output: not inside all_of, tagged or prefixed")
    return constraint
