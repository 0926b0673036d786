"""Texts that stand without quotes and have to be values of a JSON schema: the texts of parameters, as some models write calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inferd_grammar.constraints import AllOfGrammar, JsonSchemaGrammar, RegexGrammar
from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits
from inferd_grammar.references import read_by_place
from inferd_grammar.rewrites.formats import ALIASES, ENFORCED, NAMES, PATTERNS
from inferd_grammar.rewrites.patterns import difference
from inferd_grammar.rewrites.regex_syntax import NotUnderstood
from inferd_grammar.rewrites.strings import length_between
from inferd_grammar.schema import DESCRIPTIONS, schema_text

_KNOWN = DESCRIPTIONS | {"format", "maxLength", "minLength", "pattern", "type"}


def bare_text(constraint: JsonSchemaGrammar, limits: CompileLimits) -> AllOfGrammar:
    """Return expressions that all hold of the texts of a schema of texts. Raises GrammarError for what they cannot say."""
    schema = read_by_place(schema_text(constraint.schema), limits)
    if not isinstance(schema, dict) or schema.get("type") != "string":
        raise GrammarError("a text up to an end is one of a schema of type string, not of another one", "")
    other = next((key for key in schema if key not in _KNOWN), None)
    if other is not None:
        raise GrammarError(f"{other!r} of texts that stand without quotes is not supported", f"/{other}")
    return AllOfGrammar(tuple(RegexGrammar(pattern[1:-1]) for pattern in _whole_patterns(schema)))


def _whole_patterns(schema: dict[str, Any]) -> Iterator[str]:
    """Yield patterns `^...$` of whole texts."""
    yield length_between(schema.get("minLength", 0), schema.get("maxLength"))
    if "pattern" in schema:
        yield _anchored(schema["pattern"], "pattern")
    name = ALIASES.get(schema.get("format", ""), schema.get("format", ""))
    pattern = {**PATTERNS, **NAMES}.get(name)
    if pattern is None and name in ENFORCED:
        raise GrammarError(f"format {name!r} of texts that stand without quotes is not supported", "/format")
    if pattern is not None:
        yield _anchored(pattern, "format")


def _anchored(pattern: str, keyword: str) -> str:
    try:
        return difference([pattern], [])
    except NotUnderstood as error:
        raise GrammarError(f"{keyword} of texts that stand without quotes: {error}", f"/{keyword}") from error
