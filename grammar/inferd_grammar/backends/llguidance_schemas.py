"""Schemas as llguidance reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import llguidance

from inferd_grammar.backends.look_aheads import require_known
from inferd_grammar.backends.text import one_line
from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.regex_dialect import WITH_SPARED, Ambiguous, as_library, is_spared
from inferd_grammar.schema import DESCRIPTIONS, map_schemas, schema_text

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # exists in the stub only

# Applied over anything a schema says about itself: strict, and no white space outside strings.
_JSON_OPTIONS: JsonCompileOptions = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": False,
    "coerce_one_of": False,
    "lenient": False,
}
_OTHERS = ("patternProperties", "additionalProperties")
_OF_URIS = "/~$&'()*+,;=:@!"  # stand in a fragment as they are (RFC 3986)


def schema_grammar(schema: Any) -> str:
    """Return the grammar of a rewritten schema. Raises GrammarError."""
    if schema is False:
        raise GrammarError("schema false: no value is valid", "")
    # The library takes options for objects only.
    text = schema_text({} if schema is True else map_schemas(schema, _for_library))
    try:
        return llguidance.LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS)
    except ValueError as error:
        raise GrammarError(f"llguidance cannot read the schema: {one_line(str(error))}") from error


def loose_grammar(schema: Any) -> str:
    """Return the grammar of a schema as it is; the library leaves out what it does not know."""
    options = _JSON_OPTIONS | {"lenient": True, "coerce_one_of": True}
    return llguidance.LLMatcher.grammar_from_json_schema(
        schema_text(map_schemas(schema, _for_library)), overrides=options
    )


def library_pattern(pattern: str, pointer: str | None = None) -> str:
    """Return a pattern as the library writes it. Raises GrammarError."""
    require_known(pattern, pointer)
    try:
        return as_library(pattern)
    except Ambiguous as error:
        raise GrammarError(f"dialects of regular expressions differ about this pattern: {error}", pointer) from error


def _for_library(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with what is said about properties in one place: the library forgets patterns behind an `allOf`.

    Its patterns are written as the library reads them. What only describes values is left out, so that schemas that allow the
    same are equal.
    """
    if str(schema.get("$ref")).startswith("#/"):
        schema = {
            **schema,
            "$ref": f"#{quote(unquote(schema['$ref'][1:]), safe=_OF_URIS)}",
        }  # it wants URIs, such as #/$defs/List%5Bint%5D
    if "pattern" in schema:
        schema = {**schema, "pattern": library_pattern(schema["pattern"])}
    if "patternProperties" in schema:
        named = {library_pattern(pattern): part for pattern, part in schema["patternProperties"].items()}
        schema = {**schema, "patternProperties": named | _names_left_out(schema)}
    members = [key for key in ("properties", *_OTHERS) if key in schema]
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in DESCRIPTIONS:
            continue
        if key not in members:
            result[key] = value
        elif key == members[0]:
            result |= {member: schema[member] for member in members}
    return result


def _names_left_out(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a pattern of the names that others match no more as the library reads them: without it they were additional ones."""
    closed = schema.get("additionalProperties") is False and not any(
        "\x01" in name for name in schema.get("properties", ())
    )
    return {} if closed or not any(map(is_spared, schema["patternProperties"])) else {WITH_SPARED: False}
