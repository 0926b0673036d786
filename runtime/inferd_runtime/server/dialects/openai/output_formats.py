"""``response_format`` and vLLM's ``structured_outputs``: what an answer's text has to be."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from inferd.chat import OutputFormat
from inferd_runtime.carriable import read_json
from inferd_runtime.server.dialects.refusals import naming, refusal

PLACE, BAD_WORDS = "structured_outputs", "bad_words"
GUIDED = {
    **{f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar", "json_object")},
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}
"""Older names, and SGLang's, each of a field of ``structured_outputs``."""
_GBNF_RULE = re.compile(r"^[^\S\n]*+[a-zA-Z0-9_-]++\s*+::=", re.MULTILINE)
"""How a rule begins in GBNF; in Lark one colon stands behind its name, and `::=` in quotes is text."""


class TextFormat(Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """Any text."""


class JsonObjectFormat(Struct, tag="json_object", tag_field="type", forbid_unknown_fields=True):
    """Any JSON object, or one of the schema, where it is given as llama.cpp's server and hosted services take it, or as
    ``value``, which is what Hugging Face's client sends.
    """

    schema: dict[str, Any] | None = None
    value: dict[str, Any] | None = None


SchemaName = Annotated[str, Meta(max_length=256)]
"""Any text, as no one reads it: clients send that of a class, such as pydantic's ``Page[Item]``."""


class NamedSchema(Struct, forbid_unknown_fields=True):
    """A JSON Schema; its name says nothing, and clients of services that ask for none send none."""

    name: SchemaName | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True):
    """JSON of a schema."""

    json_schema: NamedSchema


ResponseFormat: TypeAlias = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """Exactly one of the first five."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: None = None
    disable_any_whitespace: Literal[False] | None = None
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: None = None


def output_format(
    form: ResponseFormat | None, structured: StructuredOutputs | None, place: str = PLACE
) -> OutputFormat | None:
    """Return what the answer is held to, None for any text. ``place``: the field that ``structured`` came from.

    Raises InvalidRequest, which names the field.
    """
    asked = None if form is None else _response_format(form)
    if structured is not None:
        if asked is not None:
            raise refusal(place, f"response_format and {place} exclude each other")
        asked = _structured(structured, place)
    if asked is not None:
        with naming(_place_of(form) if structured is None else place):
            asked.constraint()
    return asked


def text_without(words: Sequence[str]) -> OutputFormat:
    """Return the format of all texts that have none of the words in them. Raises InvalidRequest for what no grammar can hold."""
    wanted = "|".join("".join(f"\\x{{{ord(letter):x}}}" for letter in word) for word in words)
    any_text = "(?s:.*)"
    form = OutputFormat("lark", f"start: TEXT\nTEXT: /{any_text}/ & ~/{any_text}({wanted}){any_text}/")
    with naming(BAD_WORDS):
        form.constraint()
    return form


def _place_of(form: ResponseFormat | None) -> str:
    if isinstance(form, JsonSchemaFormat):
        return "response_format.json_schema"
    return f"response_format.{'schema' if isinstance(form, JsonObjectFormat) and form.value is None else 'value'}"


def _response_format(form: ResponseFormat) -> OutputFormat | None:
    match form:
        case TextFormat():
            return None
        case JsonObjectFormat(schema=dict(), value=dict()):
            raise refusal(
                "response_format.value", "response_format.schema and response_format.value exclude each other"
            )
        case (
            JsonObjectFormat(None, schema)
            | JsonObjectFormat(schema)
            | JsonSchemaFormat(json_schema=NamedSchema(schema=schema))
        ):
            if schema is None:
                return OutputFormat("json_object")
            return OutputFormat("json_schema", json.dumps(schema, ensure_ascii=False))


def _structured(asked: StructuredOutputs, place: str) -> OutputFormat:
    kinds = {
        "json": asked.json is not None, "regex": asked.regex is not None, "choice": asked.choice is not None,
        "grammar": asked.grammar is not None, "json_object": bool(asked.json_object),
    }  # fmt: skip
    given = [name for name, wanted in kinds.items() if wanted]
    if len(given) != 1:
        raise refusal(place, f"exactly one of {', '.join(kinds)} must be given, not {' and '.join(given) or 'none'}")
    if asked.json is not None:
        return OutputFormat("json_schema", _schema_text(asked.json, place if place in GUIDED else f"{place}.json"))
    if asked.regex is not None:
        return OutputFormat("regex", asked.regex)
    if asked.choice is not None:
        return OutputFormat("choice", options=asked.choice)
    if asked.grammar is not None:
        return OutputFormat("gbnf" if _GBNF_RULE.search(asked.grammar) else "lark", asked.grammar)
    return OutputFormat("json_object")


def _schema_text(schema: str | dict[str, Any], place: str) -> str:
    if isinstance(schema, dict):
        return json.dumps(schema, ensure_ascii=False)
    with naming(place):
        if not isinstance(read_json(schema, "the schema"), dict):
            raise refusal(place, "the schema must be a JSON object")
    return schema
