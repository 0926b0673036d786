"""Whether a pattern of a JSON schema is found in a text, in linear time; without the package jsonschema."""

from __future__ import annotations

import json
import re

from inferd_grammar.memo import memoised
from inferd_grammar.rewrites.patterns import finds, is_plain
from inferd_grammar.rewrites.regex_dialect import Ambiguous, as_library, foreign, is_spared
from inferd_grammar.rewrites.regex_syntax import NotUnderstood, parse

_READ_DIFFERENTLY = re.compile(r"\\[dDsSwWb]|\(\?[a-z]")
"""Syntax that dialects read differently, in patterns that no automaton here reads."""


class Unsupported(Exception):
    """Raised for what cannot be checked here: an expression that is not matched in linear time, or too much work."""


@memoised(4096)
def search(pattern: str, text: str) -> bool:
    """Return True if a pattern is found in a text. Raises Unsupported where that cannot be said."""
    try:
        return finds(pattern, text)
    except NotUnderstood:
        found = _search_by_library(pattern, text)
    if not found and _is_doubtful(pattern, text):
        raise Unsupported("dialects of regular expressions differ on this text")
    return found


def _is_doubtful(pattern: str, text: str) -> bool:
    """Return True if the pattern was not found, but some dialect of regular expressions might find it."""
    if is_plain(text):
        return False
    try:
        parse(pattern)
    except NotUnderstood:
        return ("\x01" in text and is_spared(pattern)) or _READ_DIFFERENTLY.search(pattern) is not None
    return True


def _search_by_library(pattern: str, text: str) -> bool:
    """Search by the grammar library's automaton over single bytes; it has no look-around and no back references either."""
    import llguidance

    if (name := foreign(pattern)) is not None:
        raise Unsupported(f"{name} is not supported in a regular expression")
    tokenizer = llguidance.LLTokenizer("byte")
    try:
        schema = json.dumps({"type": "string", "pattern": as_library(pattern)})
    except Ambiguous as error:
        raise Unsupported(f"dialects of regular expressions differ: {error}") from error
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    tokens = tokenizer.tokenize_str(json.dumps(text, ensure_ascii=False))
    if matcher.is_error():
        raise Unsupported(f"the pattern {pattern!r} is not supported")
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
