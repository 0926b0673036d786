"""The entry: whether a document needs rewriting, and can be rewritten at all."""

from __future__ import annotations

from typing import Any, NamedTuple

from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.base import Schema
from inferd_grammar.rewrites.formats import ENFORCED
from inferd_grammar.rewrites.objects import EVERY_KEY
from inferd_grammar.rewrites.translate import SchemaTranslator
from inferd_grammar.schema import iter_schemas, resolve

_TRIGGERS = frozenset(
    (
        *("contains", "dependencies", "dependentRequired", "dependentSchemas", "if", "maxProperties", "minProperties"),
        *("not", "oneOf", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
    )
)
_BASES = ("$dynamicRef", "$recursiveRef")


class Rewritten(NamedTuple):
    """A schema as the backend gets it, and (keyword, JSON pointer) of what it no longer says."""

    schema: Schema
    dropped: list[tuple[str, str]]


def rewrite(root: Any, *, lenient: bool = False) -> Rewritten:
    """The rewritten document; the document itself if it holds nothing to rewrite.

    `root` has passed `read_schema`. References other than `#` and `#/...`, and `$id` below the root, change what
    references mean: such documents are returned as they are. With `lenient` what has no rewrite is left out instead of
    refused. Raises GrammarError with the keyword's pointer.
    """
    places = list(iter_schemas(root))
    if not any(_needs_rewrite(schema) for _, schema in places) or any(_moves_base(p, s) for p, s in places):
        return Rewritten(root, [])
    translator = SchemaTranslator(lambda reference: resolve(root, reference), root, lenient=lenient)
    try:
        return Rewritten(translator.document(), translator.dropped)
    except RecursionError as error:
        raise GrammarError("the schema nests too deep to rewrite") from error


def _needs_rewrite(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    if isinstance(schema.get("format"), str) and schema["format"] not in ENFORCED:
        return True
    patterns = schema.get("patternProperties")
    return bool(_TRIGGERS & schema.keys()) or (len(patterns or ()) > 1 and bool(EVERY_KEY & patterns.keys()))


def _moves_base(pointer: str, schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    reference = schema.get("$ref", "#")
    local = isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))
    named = bool(pointer) and any(isinstance(schema.get(key), str) for key in ("$id", "id"))
    return named or not local or any(key in schema for key in _BASES)
