"""Outlines as a front end: what its `Generator` takes as an output type, as a constraint of this package.

Outlines turns Python types into regular expressions over Python literals: `bool` becomes `True|False`, `Optional` may
end in `None`, a string may hold line feeds, a tuple stands in parentheses. Here such types become JSON. What is bare
text in Outlines stays bare text: its regular expressions and their combinations, choices, and at the top also strings
of a `Literal` or an `Enum`, and dates and times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from enum import EnumMeta
from typing import Any, get_args, get_origin

from inferd_grammar.constraints import (
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
    TextGrammar,
    UntilGrammar,
)
from inferd_grammar.errors import GrammarError

_CONSTRAINTS = (
    AllOfGrammar, AnyJsonGrammar, AnyOfGrammar, ChoiceGrammar, ExactGrammar, GbnfGrammar, JsonSchemaGrammar, LarkGrammar,
    JsonTextGrammar, PrefixedGrammar, RegexGrammar, RepeatedGrammar, SequenceGrammar, TaggedGrammar, TextGrammar, UntilGrammar,
)  # fmt: skip
_SCALARS = (str, bool, int, float, type(None))


def constraint_of(output_type: Any) -> Constraint:
    """Return the constraint that an Outlines output type stands for; a constraint of this package is returned as it is.

    Takes Outlines terms, Python types (plain, typing, dataclass, TypedDict, Enum, pydantic), genson builders, callables
    (JSON of their arguments) and plain values. Objects made from Python types are closed: no undeclared keys.

    Raises GrammarError for what has no such meaning, and if Outlines is not installed.
    """
    if isinstance(output_type, _CONSTRAINTS):
        return output_type
    dsl = _dsl()
    if isinstance(output_type, dsl.Term):
        return _of_term(output_type)
    if isinstance(output_type, str):
        return ChoiceGrammar((output_type,))
    if isinstance(output_type, _SCALARS) and output_type is not None:
        return JsonSchemaGrammar({"const": output_type})
    return _of_type(output_type)


def _dsl() -> Any:
    """Return `outlines.types.dsl`, imported when it is first needed: it brings pydantic, and takes a second."""
    try:
        from outlines.types import dsl
    except ImportError as error:
        needs = (
            "Outlines types need the package outlines, which is there up to Python 3.13: pip install inferd[outlines]"
        )
        raise GrammarError(needs) from error
    return dsl


def _of_term(term: Any) -> Constraint:
    from outlines import grammars

    dsl = _dsl()
    if isinstance(term, dsl.JsonSchema):
        return _of_json_schema(term)
    if isinstance(term, dsl.CFG):
        return AnyJsonGrammar() if term.definition == grammars.json else LarkGrammar(term.definition)
    if isinstance(term, dsl.Choice):
        return _of_values(term.items)
    return _python_literal(term) or RegexGrammar(_regex(term))


def _of_json_schema(term: Any) -> JsonSchemaGrammar:
    pattern = term.whitespace_pattern
    if pattern is not None and re.fullmatch(pattern, "") is None:
        raise GrammarError(f"JSON is written without white space, which whitespace_pattern {pattern!r} does not allow")
    return JsonSchemaGrammar(term.schema)


def _python_literal(term: Any) -> Constraint | None:
    """Return JSON for the terms that Outlines uses for Python's own types, where they stand alone."""
    from outlines import types

    for known, kind in ((types.string, "string"), (types.boolean, "boolean"), (types.integer, "integer")):
        if term == known:
            return JsonSchemaGrammar({"type": kind})
    return JsonSchemaGrammar({"type": "number"}) if term == types.number else None


def _regex(term: Any) -> str:
    """Return the regular expression of a term. Schemas inside it are held to what outlines_core writes out in full."""
    dsl = _dsl()
    for part in _parts(term):
        if isinstance(part, dsl.JsonSchema):
            from inferd_grammar.backends.outlines import WHITELIST

            WHITELIST.check(json.loads(part.schema))
    try:
        pattern: str = dsl.to_regex(term)
    except (TypeError, ValueError) as error:
        raise GrammarError(f"Outlines cannot write {type(term).__name__} as a regular expression: {error}") from error
    return pattern


def _parts(term: Any) -> Iterator[Any]:
    yield term
    inner = [getattr(term, "term", None), *(getattr(term, "terms", None) or ())]
    for part in inner:
        if part is not None:
            yield from _parts(part)


def _of_type(kind: Any) -> Constraint:
    from outlines import types
    from outlines.types import utils

    if utils.is_genson_schema_builder(kind):
        return JsonSchemaGrammar(kind.to_json())
    if utils.is_literal(kind):
        return _of_values(get_args(kind))
    if utils.is_enum(kind):
        return _of_enum(kind)
    for test, term in ((utils.is_datetime, types.datetime), (utils.is_date, types.date), (utils.is_time, types.time)):
        if test(kind):
            return RegexGrammar(_regex(term))
    if not isinstance(kind, type) and get_origin(kind) is None and utils.is_callable(kind):
        return JsonSchemaGrammar(_closed(utils.get_schema_from_signature(kind)))
    return JsonSchemaGrammar(_type_schema(kind))


def _of_enum(kind: EnumMeta) -> Constraint:
    """Return values as bare text or JSON; functions among the members as JSON of the arguments of one of them."""
    members = list(_dsl()._get_enum_members(kind))
    if not any(callable(member) for member in members):
        return _of_values(members)
    schemas = [_part_schema(member) for member in members]
    if any("$defs" in schema for schema in schemas):
        raise GrammarError(f"{kind.__name__}: functions with structured arguments are not supported in an Enum")
    return JsonSchemaGrammar({"anyOf": schemas})


def _part_schema(member: Any) -> dict[str, Any]:
    from outlines.types import utils

    if callable(member):
        return _closed(utils.get_schema_from_signature(member))
    return {"const": member}


def _of_values(values: Iterable[Any]) -> Constraint:
    """Return the constraint for listed values: text alone is bare; other values, and text among them, are JSON."""
    listed = list(values)
    if all(isinstance(value, str) for value in listed):
        return ChoiceGrammar(tuple(listed))
    for value in listed:
        if not isinstance(value, _SCALARS):
            raise GrammarError(f"{value!r} is no JSON value")
    return JsonSchemaGrammar({"enum": listed})


def _type_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a Python type, by pydantic; terms of Outlines inside it match whole strings."""
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
    from pydantic.json_schema import GenerateJsonSchema

    class Generate(GenerateJsonSchema):
        def generate_inner(self, schema: Any) -> dict[str, Any]:
            made: dict[str, Any] = super().generate_inner(schema)
            if schema["type"] == "function-plain" and "pattern" in made:
                made = {**made, "pattern": f"^(?:{made['pattern']})$"}
            return made

        def dict_schema(self, schema: Any) -> dict[str, Any]:
            keys = schema.get("keys_schema", {"type": "str"})
            if keys["type"] not in ("str", "any"):
                raise GrammarError(f"keys of a JSON object are plain text, not {keys['type']}")
            return super().dict_schema(schema)

    try:
        return _closed(TypeAdapter(kind).json_schema(schema_generator=Generate))
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError) as error:
        shown = getattr(kind, "__name__", repr(kind))
        raise GrammarError(f"{shown} has no JSON schema: {str(error).splitlines()[0]}") from error


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a class, its objects closed where it does not say otherwise."""
    parts = {name: _closed(part) for name, part in schema.get("$defs", {}).items()}
    made = {**schema, "$defs": parts} if parts else schema
    return {**made, "additionalProperties": made.get("additionalProperties", False)} if "properties" in made else made
