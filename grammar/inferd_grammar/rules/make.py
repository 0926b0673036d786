"""Makes the rules of a constraint, from its schema or from what another process wrote down."""

from __future__ import annotations

from typing import Any

from inferd_grammar.rules.core import JsonRules
from inferd_grammar.rules.items import UniqueItems
from inferd_grammar.rules.numbers import digits_for
from inferd_grammar.rules.places import UniquePlaces


def rules_for(root: Any, *, unique: bool, skip: int = 0) -> JsonRules:
    """Return the rules of a schema's document; `unique` if `uniqueItems` is left to them, which raises CannotRewrite where that
    cannot be exact. `skip`: bytes of text before the JSON.
    """
    places = UniquePlaces(root) if unique else None
    if places is not None:
        places.require_exact()
    digits = digits_for(root)
    held = None if places is None else UniqueItems(places)
    return JsonRules(digits, skip, held, {"schema": root if unique else None, "digits": digits, "skip": skip})


def rules_from(source: Any) -> JsonRules:
    """Return the rules from their `source`."""
    held = None if source["schema"] is None else UniqueItems(UniquePlaces(source["schema"]))
    return JsonRules(source["digits"], source["skip"], held, source)
