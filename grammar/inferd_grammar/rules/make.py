"""Makes the rules of a constraint, from its schema or from what another process wrote down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inferd_grammar.errors import GrammarError
from inferd_grammar.rules.core import JsonRules
from inferd_grammar.rules.items import UniqueItems
from inferd_grammar.rules.names import are_few, may_repeat
from inferd_grammar.rules.numbers import DIGITS, DISTINCT_DIGITS, digits_for
from inferd_grammar.rules.parts import Tree, UniqueInParts
from inferd_grammar.rules.places import UniquePlaces
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


def rules_for_parts(tree: Tree, roots: Iterable[Any]) -> JsonRules:
    """Return the rule that holds `uniqueItems` in a text of parts. `roots`: the documents of its values that have to be watched.

    Raises CannotRewrite where that cannot be exact, GrammarError where a text cannot be followed.
    """
    for root in roots:
        UniquePlaces(root).require_exact()
    return rules_from({"parts": tree, "schema": None})


def rules_from(source: Any) -> JsonRules:
    """Return the rules from their `source`."""
    if "parts" in source:
        return JsonRules(None, 0, UniqueInParts(source["parts"]), source)
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
