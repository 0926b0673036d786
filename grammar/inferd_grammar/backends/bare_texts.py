"""Texts that stand without quotes and have to be values of a JSON schema: the texts of parameters, as some models write calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from inferd_grammar.backends.look_aheads import require_known
from inferd_grammar.constraints import AllOfGrammar, JsonSchemaGrammar, RegexGrammar
from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits
from inferd_grammar.references import read_by_place
from inferd_grammar.rewrites.formats import in_patterns
from inferd_grammar.rewrites.patterns import difference
from inferd_grammar.rewrites.regex_syntax import EVERYTHING, NotUnderstood, subtraction, write
from inferd_grammar.schema import DESCRIPTIONS, schema_text

_MEMBER = r"[^\\\[\]&~|-]"
_CLASS = rf"\[\^?-?(?:{_MEMBER}-{_MEMBER}|{_MEMBER})*-?\]"
_SAME_TO_ALL = re.compile(rf"(?P<begin>\^?)(?P<inside>(?:[^\\.\[\]|^$]|\\[^a-zA-Z0-9]|{_CLASS})*?)(?P<end>\$?)")
"""Patterns without anything that dialects read differently, or that is an anchor, except at their ends."""
_READ_IN_WAYS = re.compile(r"\(\?(?!:)|\{,|[*+?}]\+")
"""Groups with a meaning, and counts that are text, or let nothing go, in some dialects."""
_KNOWN = DESCRIPTIONS | {"format", "maxLength", "minLength", "pattern", "type"}


def bare_text(constraint: JsonSchemaGrammar, mark: str, limits: CompileLimits) -> AllOfGrammar | RegexGrammar:
    """Return what holds of the texts of a schema of texts. ``mark``: the first character of what ends them; "" for a token.

    Texts with a pattern or a format have no mark in them, and others none in their first `minLength` characters: to look for the
    whole end there takes the library too long. Raises GrammarError for what expressions cannot say.
    """
    schema = _checked(read_by_place(schema_text(constraint.schema), limits))
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
    if most is not None and most < least:
        raise GrammarError(f"no text has at least {least} and at most {most} characters", "")
    char = write(subtraction(EVERYTHING, ((ord(mark), ord(mark)),)) if mark else EVERYTHING)
    shapes = list(_shapes(schema, char))
    if not shapes:
        return RegexGrammar(rf"{char}{{{least}}}[\s\S]{{0,{'' if most is None else int(most) - least}}}")
    length = f"{char}{{{least},{'' if most is None else int(most)}}}"
    return AllOfGrammar(tuple(map(RegexGrammar, [length, *shapes])))


def _checked(schema: Any) -> dict[str, Any]:
    """Return a schema of texts alone. Raises GrammarError for any other."""
    if not isinstance(schema, dict) or schema.get("type") != "string":
        raise GrammarError("a text up to an end is one of a schema of type string, not of another one", "")
    other = next((key for key in schema if key not in _KNOWN), None)
    if other is not None:
        raise GrammarError(f"{other!r} of texts that stand without quotes is not supported", f"/{other}")
    return schema


def _shapes(schema: dict[str, Any], char: str) -> Iterator[str]:
    """Yield expressions of the whole texts that have a schema's pattern, and its format."""
    if "pattern" in schema:
        yield _whole(schema["pattern"], char)
    if (pattern := in_patterns(schema.get("format", ""))) is not None:
        yield pattern[1:-1]


def _whole(pattern: str, char: str) -> str:
    """Return an expression of the whole texts, of such characters, in which a pattern is found."""
    require_known(pattern, "/pattern")
    plain = _SAME_TO_ALL.fullmatch(pattern)
    if plain is not None and not _READ_IN_WAYS.search(pattern):
        before, behind = ("" if plain[edge] else f"{char}*" for edge in ("begin", "end"))
        return f"{before}(?:{plain['inside']}){behind}"
    try:
        return difference([pattern], [])[1:-1]
    except NotUnderstood as error:
        raise GrammarError(f"pattern of texts that stand without quotes: {error}", "/pattern") from error
