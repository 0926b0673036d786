"""Backends that drop keywords without a word take only what is known to be enforced, and name what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from inferd_grammar import GrammarCompiler, GrammarError, JsonSchemaGrammar, TokenTable
from inferd_grammar.backends.portable_regex import portable
from inferd_grammar.backends.whitelist import Whitelist

STRICT = Whitelist("strict", bounds=False, recursion=False, max_count=10)
LARGE = Whitelist("large", bounds=True, recursion=True, max_count=10)
CLOSED = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": False}
LIST = {"$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}}, "$ref": "#/$defs/l"}


@pytest.mark.parametrize(
    "schema",
    [
        CLOSED,
        {"type": "array", "items": CLOSED, "minItems": 1, "maxItems": 3, "title": "list"},
        {"anyOf": [{"type": "string", "maxLength": 9}, {"const": None}, {"enum": [1, "a"]}]},
        {"$defs": {"n": {"type": "number"}}, "$ref": "#/$defs/n", "description": "a number"},
        {"type": "object", "properties": {"additionalProperties": {"type": "null"}}, "additionalProperties": False},
    ],
)
def test_enforced_schemas_pass(schema: Any) -> None:
    STRICT.check(schema)
    LARGE.check(schema)


@pytest.mark.parametrize(
    ("schema", "reason", "pointer"),
    [
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "'uniqueItems'", "/uniqueItems"),
        ({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 2}]}, "'minimum'", "/anyOf/1/minimum"),
        ({"type": "string", "format": "date"}, "'format'", "/format"),
        ({"type": "string", "pattern": "^a$"}, "'pattern'", "/pattern"),
        ({"enum": [1, "a"], "type": "string"}, "'type' beside 'enum'", "/type"),
        ({"$ref": "#/$defs/a", "minLength": 1, "$defs": {"a": {"type": "string"}}}, "'minLength' beside", "/minLength"),
        ({"allOf": [{"type": "string"}]}, "without one 'type'", ""),
        ({"type": ["string", "null"]}, "without one 'type'", "/type"),
        ({"type": "array", "items": {}}, "without one 'type'", "/items"),
        ({"type": "array"}, "'items' is no schema", ""),
        ({"type": "array", "items": True}, "'items' is no schema", ""),
        ({"anyOf": [{"type": "null"}, True]}, "the schema true", "/anyOf/1"),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, "additionalProperties", ""),
        ({**CLOSED, "required": ["a", "b"]}, "required name 'b'", "/required"),
        ({**CLOSED, "minProperties": 1}, "'minProperties'", "/minProperties"),
        ({"type": "string", "maxLength": 11}, "'maxLength' above 10", "/maxLength"),
        ({"$ref": "https://example.com/s.json"}, "reference 'https://example.com/s.json'", "/$ref"),
        ({**CLOSED, "properties": {"a": False}}, "schema false", "/properties/a"),
        (LIST, "refers to itself", "/$defs/l"),
    ],
)
def test_what_would_be_dropped_is_named(schema: Any, reason: str, pointer: str) -> None:
    with pytest.raises(GrammarError, match=f"strict does not enforce .*{reason}") as caught:
        STRICT.check(schema)
    assert caught.value.pointer == pointer


def test_backends_differ_in_bounds_and_recursion() -> None:
    LARGE.check({"type": "integer", "minimum": 2, "exclusiveMaximum": 2**40})
    LARGE.check(LIST)
    with pytest.raises(GrammarError, match=r"does not enforce the bound 1\.5"):
        LARGE.check({"type": "integer", "minimum": 1.5})
    with pytest.raises(GrammarError, match="does not enforce 'minimum'"):
        LARGE.check({"type": "number", "minimum": 1})
    with pytest.raises(GrammarError, match="does not enforce the bound True"):  # draft 4's flag
        LARGE.check({"type": "integer", "minimum": 2, "exclusiveMinimum": True})


@pytest.mark.parametrize("name", ["outlines", "xgrammar"])
def test_an_explicit_backend_refuses_and_nothing_else_steps_in(table: TokenTable, name: str) -> None:
    pytest.importorskip({"outlines": "outlines_core"}.get(name, name), reason="the optional backend is not installed")
    compiler = GrammarCompiler(table, backend=name)
    with pytest.raises(GrammarError, match=f"{name} does not enforce 'uniqueItems'") as caught:
        compiler.compile(JsonSchemaGrammar({**CLOSED, "properties": {"a": {"type": "null", "uniqueItems": True}}}))
    assert caught.value.pointer == "/properties/a/uniqueItems"
    with pytest.raises(GrammarError, match="strict JSON schemas only"):
        compiler.compile(JsonSchemaGrammar(CLOSED, mode="best_effort"))


@pytest.mark.parametrize("pattern", ["a|b", "(?:a|é)*?x+", "[a-z0-9_]{2,5}", r"[^\]\-a]", r"\.\{\}\n", ""])
def test_portable_patterns_are_left_alone(pattern: str) -> None:
    assert portable(pattern, "some") == pattern


@pytest.mark.parametrize(
    "pattern", ["^a", "a$", r"\d", r"\bfoo", "(?i)a", "(?=a)", "[a&&b]", "[[a]]", r"[\w]", "a**", r"\x41", "[", "a{,2}"]
)
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="some does not take"):
        portable(pattern, "some")


def test_a_dot_is_written_out() -> None:
    assert portable(r"a.\.", "some") == r"a[^\n]\."
