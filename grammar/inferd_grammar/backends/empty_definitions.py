"""Definitions that no value satisfies: for one of them llguidance refuses a whole schema, also where a property that refers to it
is optional, or another branch is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from inferd_grammar.errors import GrammarError
from inferd_grammar.schema import map_schemas

_EMPTY = re.compile(r"nsatisfiable schema: .*json-schema:///(#/\S+)")
_MOST_EMPTY = 64


def empty_definition(refusal: GrammarError) -> str | None:
    """Return the reference to the definition for which a schema was refused as unsatisfiable; None for other refusals."""
    found = _EMPTY.search(refusal.reason)
    return None if found is None else found[1]


def without_empty(document: Any, compiled: Callable[[Any], object]) -> Any:
    """Return a rewritten document with false in the place of references to definitions that `compiled` refuses as empty."""
    for _ in range(_MOST_EMPTY):
        name = _refused(document, compiled)
        if name is None or _refused({"$ref": name, "$defs": document["$defs"]}, compiled) is None:
            break
        document = map_schemas(document, partial(_without, name))
    return document


def _without(name: str, schema: dict[str, Any]) -> Any:
    return schema.get("$ref") != name and schema


def _refused(document: Any, compiled: Callable[[Any], object]) -> str | None:
    try:
        compiled(document)
    except GrammarError as refusal:
        return empty_definition(refusal)
    return None
