"""Converts constraints of the protocol to those of the grammar package."""

from __future__ import annotations

from typing import Literal

from inferd import protocol as p
from inferd_grammar import (
    AllOfGrammar,
    AnyJsonGrammar,
    AnyOfGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    GbnfGrammar,
    JsonSchemaGrammar,
    JsonTextGrammar,
    LarkGrammar,
    PrefixedGrammar,
    RegexGrammar,
    RepeatedGrammar,
    SequenceGrammar,
    TaggedGrammar,
    TagGrammar,
    TextGrammar,
    UntilGrammar,
)


def to_grammar(constraint: p.ConstraintSpec) -> Constraint:
    """Return the grammar package's constraint for one that ``check_constraint`` has passed."""
    match constraint.kind:
        case "json_schema":
            mode: Literal["strict", "best_effort"] = "best_effort" if constraint.mode == "best_effort" else "strict"
            return JsonSchemaGrammar(constraint.value, mode, constraint.soft_max_length, constraint.soft_max_items)
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
            return ExactGrammar(to_grammar(constraint.members[0]))
        case "prefixed":
            return PrefixedGrammar(constraint.value, to_grammar(constraint.members[0]) if constraint.members else None)
        case "all_of":
            return AllOfGrammar(tuple(to_grammar(member) for member in constraint.members))
        case "text":
            return TextGrammar(constraint.value)
        case "until":
            return UntilGrammar(constraint.value, to_grammar(constraint.members[0]) if constraint.members else None)
        case "json_text":
            return JsonTextGrammar(to_grammar(constraint.members[0]))
        case "sequence":
            return SequenceGrammar(tuple(to_grammar(member) for member in constraint.members))
        case "any_of":
            return AnyOfGrammar(tuple(to_grammar(member) for member in constraint.members))
        case "repeated":
            return RepeatedGrammar(to_grammar(constraint.members[0]), constraint.least, constraint.most or None)
    tags = ((tag, to_grammar(tag.content)) for tag in constraint.tags)
    return TaggedGrammar(tuple(TagGrammar(tag.begin, content, tag.end) for tag, content in tags))
