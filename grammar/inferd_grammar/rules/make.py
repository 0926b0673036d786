"""Makes the rules of a constraint, from its schema or from what another process wrote down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inferd_grammar.completion.split import MOST_MARKS
from inferd_grammar.constraints import Constraint
from inferd_grammar.errors import GrammarError
from inferd_grammar.rules.core import JsonRules
from inferd_grammar.rules.items import UniqueItems
from inferd_grammar.rules.names import are_few, may_repeat
from inferd_grammar.rules.numbers import DIGITS, DISTINCT_DIGITS, digits_for
from inferd_grammar.rules.parts import ValueRules, require_followed, tree_of
from inferd_grammar.rules.places import UniquePlaces
from inferd_grammar.rules.ways import PartsRule
from inferd_grammar.validation import SchemaValidator


def rules_for(
    root: Any, *, unique: bool = False, skip: int = 0, refusal: GrammarError | None = None, short: bool = False
) -> JsonRules:
    """Return the rules of a schema's document. `skip`: bytes of text before the JSON.

    With `unique`, `uniqueItems` is left to them; raises CannotRewrite where that cannot be exact. With a `refusal`, the reason
    why no grammar holds all of the schema, they let only those texts be closed that are valid under it. `short`: two numbers that
    differ must differ as floats.
    """
    if unique:
        UniquePlaces(root).require_exact()
    source = {
        "schema": root if unique or refusal is not None else None,
        "digits": digits_for(root, DISTINCT_DIGITS if short else DIGITS),
        "skip": skip,
        "unique": unique,
        "names": may_repeat(root),
        "few": may_repeat(root) and are_few(root),
        "refusal": None if refusal is None else [refusal.reason, refusal.pointer],
    }
    return rules_from(source)


def rules_of_value(root: Any, *, unique: bool, short: bool) -> ValueRules:
    """Return the rules of a value in a text of parts; as `rules_for`."""
    if unique:
        UniquePlaces(root).require_exact()
    return {
        "digits": digits_for(root, DISTINCT_DIGITS if short else DIGITS),
        "names": may_repeat(root),
        "few": may_repeat(root) and are_few(root),
        "unique": root if unique else None,
    }


def rules_for_parts(
    constraint: Constraint, values: Mapping[int, ValueRules], spell: Callable[[str], bytes], marks: int
) -> JsonRules | None:
    """Return the rules of a text of parts; None where it cannot be followed at all.

    `values` has its JSON values by their ids; `spell` is that of `tree_of`, `marks` how many special tokens the text may name.
    Raises GrammarError where a value with `uniqueItems` cannot be followed.
    """
    if marks > MOST_MARKS:
        if any(value["unique"] is not None for value in values.values()):
            raise GrammarError(f"uniqueItems is not supported beside more than {MOST_MARKS} special tokens")
        return None
    tree = tree_of(constraint, spell, lambda part: values[id(part)])
    source = {
        "parts": tree,
        "schema": None,
        "names": any(value["names"] for value in values.values()),
        "few": require_followed(tree) or any(value["few"] for value in values.values()),
    }
    return rules_from(source) if values else None


def rules_from(source: Any) -> JsonRules:
    """Return the rules from their `source`."""
    if "parts" in source:
        parts = PartsRule(source["parts"])
        return JsonRules(None, 0, None, source, names=source["names"], few=source["few"], parts=parts)
    refusal = None if source["refusal"] is None else GrammarError(*source["refusal"])
    return JsonRules(
        source["digits"],
        source["skip"],
        UniqueItems(UniquePlaces(source["schema"])) if source["unique"] else None,
        source,
        None if refusal is None else SchemaValidator(source["schema"]),
        refusal,
        source["names"],
        source["few"],
    )
