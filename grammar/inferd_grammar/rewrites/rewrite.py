"""The entry: whether a document needs rewriting, and can be rewritten at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.base import CannotRewrite, Schema
from inferd_grammar.rewrites.dialect import COUNTS, Dialect
from inferd_grammar.rewrites.formats import BOUNDS, ENFORCED
from inferd_grammar.rewrites.open_bounds import clip, close, has_fractions, is_far, is_open
from inferd_grammar.rewrites.patterns import looks_around
from inferd_grammar.rewrites.short_numbers import add_short_numbers, needs_short_numbers
from inferd_grammar.rewrites.translate import SchemaTranslator
from inferd_grammar.schema import iter_schemas, resolve

_TRIGGERS = frozenset(
    (
        *("contains", "dependencies", "dependentRequired", "dependentSchemas", "if", "maxProperties", "minProperties"),
        *("not", "oneOf", "patternProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties"),
        "uniqueItems",
    )
)
# Steps for a document, and for each subschema: complements of complements can grow exponentially.
_STEPS, _STEPS_EACH = 5_000, 4
_BASES = ("$dynamicRef", "$recursiveRef")


class Rewritten(NamedTuple):
    """A schema as the backend gets it, (keyword, JSON pointer) of what it no longer says, whether a matcher has to hold
    `uniqueItems`, and whether valid values may be left out, so that it may be one that nothing satisfies.
    """

    schema: Schema
    dropped: list[tuple[str, str]]
    unique: bool = False
    narrowed: bool = False


def rewrite(root: Any, *, lenient: bool = False, hold_unique: bool = False, always: bool = False) -> Rewritten:
    """Return the rewritten document; the document itself if it holds nothing to rewrite, unless it is to be done `always`: then
    every reference names one of the result's own `$defs`.

    `root` has passed `read_schema`. References other than `#` and `#/...`, and `$id` below the root, change what
    references mean: such documents are returned as they are. With `lenient` what has no rewrite is left out instead of
    refused. With `hold_unique` the caller holds `uniqueItems` where that has no rewrite. Raises GrammarError with the keyword's
    pointer.
    """
    places = list(iter_schemas(root))
    fractions, alone = has_fractions(root), Dialect(root).reference_alone
    if not always and not any(_needs_rewrite(schema, fractions, alone) for _, schema in places):
        return Rewritten(root, [])
    if moves_base(places):
        _require_no_flags(places)
        return Rewritten(root, [])
    names = list(dict.fromkeys(name for _, schema in places for name in _names(schema)))
    steps = _STEPS + _STEPS_EACH * len(places)
    translator = SchemaTranslator(root, lambda reference: resolve(root, reference), names, steps, lenient=lenient)
    translator.holds_unique = hold_unique
    try:
        result = translator.document()
    except RecursionError as error:
        raise GrammarError("the schema nests too deep to rewrite") from error
    close(result, fractions)
    clip(result)
    add_short_numbers(result)
    return Rewritten(result, translator.dropped, translator.left_unique, translator.narrowed)


def _names(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        yield from (name for name in schema.get("required", ()) if isinstance(name, str))


def _needs_rewrite(schema: Any, fractions: bool, reference_alone: bool) -> bool:
    if not isinstance(schema, dict):
        return False
    if reference_alone and "$ref" in schema and len(schema) > 1:
        return True
    if isinstance(schema.get("format"), str) and (schema["format"] not in ENFORCED or schema["format"] in BOUNDS):
        return True
    if looks_around(str(schema.get("pattern"))):
        return True
    if any(isinstance(schema.get(key), float) for key in COUNTS) or _has_open_flag(schema) or is_far(schema):
        return True
    if is_open(schema, fractions) or needs_short_numbers(schema) or isinstance(schema.get("multipleOf"), float):
        return True
    return bool(_TRIGGERS & schema.keys())


def _has_open_flag(schema: dict[str, Any]) -> bool:
    """Return True if there is draft 4's boolean `exclusiveMinimum`, which the backend passes over."""
    return any(isinstance(schema.get(key), bool) for key in ("exclusiveMaximum", "exclusiveMinimum"))


def _require_no_flags(places: list[tuple[str, Any]]) -> None:
    for pointer, schema in places:
        if isinstance(schema, dict) and _has_open_flag(schema):
            raise CannotRewrite("boolean exclusive bounds are not supported beside $id", pointer)


def moves_base(places: list[tuple[str, Any]]) -> bool:
    """Return True if a reference means something else than its pointer into the document."""
    schemas = [(pointer, schema) for pointer, schema in places if isinstance(schema, dict)]
    bases = [p for p, schema in schemas if p and any(_is_base(schema.get(key)) for key in ("$id", "id"))]
    for pointer, schema in schemas:
        reference = schema.get("$ref")
        if any(key in schema for key in _BASES) or ("$ref" in schema and not _is_local(reference)):
            return True
        if reference is not None and any(f"{pointer}/".startswith(f"{base}/") for base in bases):
            return True
    return False


def _is_base(name: Any) -> bool:
    """Return True if the reference is a fragment alone, which names a place and leaves the base as it is."""
    return isinstance(name, str) and not name.startswith("#")


def _is_local(reference: Any) -> bool:
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))
