"""Texts that stand without quotes and have to be values of a JSON schema: the texts of parameters, as some models write calls."""

from __future__ import annotations

import re
from typing import Any

from inferd_grammar.constraints import AllOfGrammar, JsonSchemaGrammar, RegexGrammar
from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits
from inferd_grammar.references import read_by_place
from inferd_grammar.rewrites.formats import ALIASES, ENFORCED, NAMES, PATTERNS
from inferd_grammar.rewrites.patterns import difference
from inferd_grammar.rewrites.regex_syntax import EVERYTHING, NotUnderstood, subtraction, write
from inferd_grammar.schema import DESCRIPTIONS, schema_text

_MEMBER = r"[^\\\[\]&~|-]"
_CLASS = rf"\[\^?-?(?:{_MEMBER}-{_MEMBER}|{_MEMBER})*-?\]"
_SAME_TO_ALL = re.compile(rf"(?P<begin>\^?)(?P<inside>(?:[^\\.\[\]|^$]|\\[^a-zA-Z0-9]|{_CLASS})*?)(?P<end>\$?)")
"""Patterns without anything that dialects read differently, or that is an anchor, except at their ends."""
_KNOWN = DESCRIPTIONS | {"format", "maxLength", "minLength", "pattern", "type"}


def bare_text(constraint: JsonSchemaGrammar, end: str, limits: CompileLimits) -> AllOfGrammar:
    """Return expressions that all hold of the texts of a schema of texts which end where ``end`` first comes.

    In its first `minLength` characters, and where it has a pattern or a format anywhere, the first character of the end is left
    out: to look for the whole end there takes the library too long. Raises GrammarError for what expressions cannot say.
    """
    schema = read_by_place(schema_text(constraint.schema), limits)
    if not isinstance(schema, dict) or schema.get("type") != "string":
        raise GrammarError("a text up to an end is one of a schema of type string, not of another one", "")
    other = next((key for key in schema if key not in _KNOWN), None)
    if other is not None:
        raise GrammarError(f"{other!r} of texts that stand without quotes is not supported", f"/{other}")
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if most is not None and most < least:
        raise GrammarError(f"no text has at least {least} and at most {most} characters", "")
    char = write(subtraction(EVERYTHING, ((ord(end[0]), ord(end[0])),)))
    if "pattern" not in schema and _format(schema) is None:
        free = rf"[\s\S]{{0,{'' if most is None else most - least}}}"
        return AllOfGrammar((RegexGrammar(f"{char}{{{least}}}{free}"),))
    patterns = [f"{char}{{{least},{'' if most is None else most}}}"]
    if "pattern" in schema:
        patterns.append(_whole(schema["pattern"], char))
    if (shape := _format(schema)) is not None:
        patterns.append(shape[1:-1])
    return AllOfGrammar(tuple(map(RegexGrammar, patterns)))


def _format(schema: dict[str, Any]) -> str | None:
    """Return the pattern `^...$` of a format, None where there is none. Raises GrammarError for one that has none here."""
    name = ALIASES.get(schema.get("format", ""), schema.get("format", ""))
    pattern = {**PATTERNS, **NAMES}.get(name)
    if pattern is None and name in ENFORCED:
        raise GrammarError(f"format {name!r} of texts that stand without quotes is not supported", "/format")
    return pattern


def _whole(pattern: str, char: str) -> str:
    """Return an expression of the whole texts, of such characters, in which a pattern is found."""
    plain = _SAME_TO_ALL.fullmatch(pattern)
    if plain is not None and "(?" not in plain["inside"].replace("(?:", "") and "{," not in pattern:
        before, behind = ("" if plain[edge] else f"{char}*" for edge in ("begin", "end"))
        return f"{before}(?:{plain['inside']}){behind}"
    try:
        return difference([pattern], [])[1:-1]
    except NotUnderstood as error:
        raise GrammarError(f"pattern of texts that stand without quotes: {error}", "/pattern") from error
