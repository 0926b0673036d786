"""Schemas that refer to themselves: what has no finite value is refused, all others compile at once and have an end."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import numpy as np
import pytest

from inferd_grammar import GrammarCompiler, GrammarError, JsonSchemaGrammar, TokenTable
from inferd_grammar.rewrites.endless import without_endless

BYTES = GrammarCompiler(TokenTable.of_bytes())
SELF = {"$ref": "#"}
NAMES = "abcdefgh"
Schema = Any


def node(properties: Schema, *required: str, **more: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def refer(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def tagged(kind: str, *members: str) -> Schema:
    """An expression of some kind whose members are expressions."""
    properties = {"op": {"const": kind}, **{name: refer("e") for name in members}}
    return node(properties, "op", *members, additionalProperties=False)


EXPRESSIONS = {"$defs": {"e": {"oneOf": [tagged("add", "l", "r"), tagged("neg", "l"), tagged("one")]}}, **refer("e")}
ALL_OF_THEM = list(NAMES)
RECURSIVE = {
    "only references": {"properties": dict.fromkeys(NAMES, SELF)},
    "all required, or null": node({n: {"anyOf": [SELF, {"type": "null"}]} for n in NAMES}, *NAMES),
    "all required, or text": {"anyOf": [{"type": "string"}, node(dict.fromkeys(NAMES, SELF), *NAMES)]},
    "lists of itself": node({name: {"type": "array", "items": SELF} for name in NAMES}, *NAMES),
    "expressions": EXPRESSIONS,
    "mutual": {
        "$defs": {
            "a": node({name: refer("b") for name in NAMES}),
            "b": node({"back": {"oneOf": [refer("a"), {"type": "null"}]}}, "back"),
        },
        **refer("a"),
    },
    "beside a keyword": {"type": "object", "properties": {name: {**SELF, "minProperties": 1} for name in NAMES}},
    "beside a name": {"type": "object", "properties": {name: {**SELF, "required": ["a"]} for name in "abc"}},
    "in allOf": {"type": "object", "properties": {n: {"allOf": [SELF, {"type": "object"}]} for n in NAMES}},
    "under not": node({"a": {"not": SELF}, "b": {"not": SELF}, "c": SELF}),
    "with conditions": {
        **node({"t": {"enum": ["x", "y"]}, **dict.fromkeys(NAMES, SELF)}, "t"),
        "if": {"properties": {"t": {"const": "x"}}},
        "then": {"required": ["a", "b"]},
    },
    "unique": {
        "type": "array",
        "uniqueItems": True,
        "items": {"anyOf": [{"type": "string"}, node({"a": SELF, "b": SELF})]},
    },
    "anchor": {
        "$defs": {"n": {"$anchor": "n", **node({"v": {"type": "integer"}, "next": {"$ref": "#n"}}, "v")}},
        "$ref": "#n",
    },
    "id": {"$id": "https://example.com/t", **node({"next": {"$ref": "https://example.com/t"}, "other": SELF})},
}


@pytest.mark.parametrize("schema", RECURSIVE.values(), ids=RECURSIVE)
def test_a_recursive_schema_compiles_within_a_second_and_has_an_end(schema: Schema) -> None:
    started = time.process_time()
    end = BYTES.compile(JsonSchemaGrammar(schema)).shortest()
    assert time.process_time() - started < 1
    assert end is not None
    jsonschema.Draft202012Validator(schema).validate(json.loads(end))


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (SELF, ""),
        ({"$defs": {"a": refer("b"), "b": refer("a")}, **refer("a")}, "/$defs/b"),
        (node({"v": {"type": "integer"}, "next": SELF}, "next"), "/properties/next"),
        ({"type": "array", "items": SELF, "minItems": 1}, "/items"),
        ({"type": "array", "prefixItems": [{}, SELF], "minItems": 2}, "/prefixItems/1"),
        ({"type": "object", "required": ["a"], "additionalProperties": SELF}, "/additionalProperties"),
        ({"anyOf": [node({"a": SELF}, "a"), {"type": "array", "items": SELF, "minItems": 1}]}, "/anyOf/0/properties/a"),
        (
            {"$defs": {"a": node({"b": refer("b")}, "b"), "b": {"allOf": [refer("a")]}}, **refer("a")},
            "/$defs/b/allOf/0",
        ),
    ],
)
def test_a_schema_without_a_finite_value_is_refused_instead_of_written_for_ever(schema: Schema, pointer: str) -> None:
    with pytest.raises(GrammarError, match="requires itself again without an end") as caught:
        BYTES.compile(JsonSchemaGrammar(schema))
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    "dialect", ["https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"]
)
def test_a_branch_without_an_end_is_not_begun(dialect: str) -> None:
    endless = node({"x": {"$ref": "#/definitions/t"}}, "x")
    branches = [{"$ref": "#/definitions/t"}, {"type": "string"}]
    schema = {
        "$schema": dialect,
        "definitions": {"t": endless},
        **node({"v": {"anyOf": branches}, "w": branches[0]}, "v"),
    }
    matcher = BYTES.compile(JsonSchemaGrammar(schema)).matcher()
    ids = {token: i for i, token in enumerate(BYTES.table.tokens)}
    assert matcher.take([ids[bytes([byte])] for byte in b'{"v":']) == 5
    row = np.empty(matcher.words, np.int32)
    matcher.fill(row)
    legal = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    assert {BYTES.table.tokens[token] for token in legal} == {b'"'}
    assert matcher.take([ids[bytes([byte])] for byte in b'"","w":']) < 7


def test_a_document_whose_values_all_end_is_left_as_it_is() -> None:
    assert all(without_endless(schema) is schema for schema in RECURSIVE.values())


@pytest.mark.parametrize(
    "begun", ['{"op":"add","l":', '{"op":"add","l":{"op":"one"},"r":{"op":', '{"op":"neg","l":{"op":"a']
)
def test_what_may_end_is_not_steered_away_from(begun: str) -> None:
    """A planner admits what a text of expressions goes on with, wherever it stands."""
    compiled = BYTES.compile(JsonSchemaGrammar(EXPRESSIONS))
    planner = compiled.planner()
    assert planner is not None
    ids = {token: i for i, token in enumerate(BYTES.table.tokens)}
    wanted = [ids[bytes([byte])] for byte in begun.encode()]
    assert [planner.admit(token, 400 - n) for n, token in enumerate(wanted)] == wanted


def test_definitions_that_meet_without_an_end_are_held_at_the_end_of_the_text() -> None:
    """A dialect built on another one: each place of the one is a place of the other, too, which the library does not join."""
    base = {"type": ["object", "boolean"], "properties": {"not": refer("base"), "title": {"type": "string"}}}
    more = {"properties": {"not": refer("more"), "x": {"type": "integer"}}}
    compiled = BYTES.compile(
        JsonSchemaGrammar({"$defs": {"base": base, "more": {"allOf": [refer("base"), more]}}, **refer("more")})
    )
    for text, valid in (
        (b'{"not":{"not":true,"x":1}}', True),
        (b'{"not":{"x":"s"}}', False),
        (b'{"not":{"title":1}}', False),
    ):
        matcher = compiled.matcher()
        assert (matcher.accept([byte + 1 for byte in text]) == len(text) and matcher.may_end()) == valid, text
