"""Definitions that no value satisfies, in places where nothing has to stand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from byte_texts import taken

from inferd_grammar import (
    Constraint,
    GrammarCompiler,
    GrammarError,
    JsonSchemaGrammar,
    TaggedGrammar,
    TagGrammar,
    TokenTable,
)

BYTES = GrammarCompiler(TokenTable.of_bytes())
BASE = {"type": "object", "properties": {"k": {"type": "string"}}, "additionalProperties": False}
DERIVED = {"allOf": [{"$ref": "#/definitions/Base"}, {"properties": {"b": {}}, "required": ["b"]}]}
SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "derived": {"$ref": "#/definitions/Derived%5B1%5D"},
        "either": {"anyOf": [{"$ref": "#/definitions/Derived%5B1%5D"}, {"$ref": "#/definitions/Base"}]},
        "pair": {"type": "object", "required": ["of"], "properties": {"of": {"$ref": "#/definitions/Derived%5B1%5D"}}},
        "never": {"$ref": "#/definitions/Never"},
    },
    "additionalProperties": False,
    "definitions": {"Base": BASE, "Derived[1]": DERIVED, "Never": {"not": {}}},
}


def takes(constraint: Constraint, text: str) -> bool:
    return taken(BYTES.compile(constraint).matcher(), text)


@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_a_definition_that_no_value_satisfies_does_not_have_the_whole_schema_refused(mode: Any) -> None:
    alone = JsonSchemaGrammar(SCHEMA, mode)
    assert takes(alone, '{"a":1,"either":{"k":"x"}}')
    for name in ("derived", "pair", "never"):
        assert not takes(alone, json.dumps({name: {}}, separators=(",", ":"))), name


def test_nor_a_text_of_parts_with_such_a_schema() -> None:
    tagged = TaggedGrammar((TagGrammar("<call>", JsonSchemaGrammar(SCHEMA), "</call>"),))
    assert takes(tagged, '<call>{"either":{"k":"x"}}</call>')
    assert not takes(tagged, '<call>{"never":1}</call>')


@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_one_that_has_to_stand_is_refused(mode: Any) -> None:
    with pytest.raises(GrammarError, match="nsatisfiable"):
        BYTES.compile(JsonSchemaGrammar({**SCHEMA, "required": ["derived"]}, mode))


def test_nor_one_of_which_no_grammar_holds_all() -> None:
    """Names that may match several patterns are left to the end of the text, and the definition was in the way again."""
    often = {f".*{name}.*{name}.*{name}.*": {"type": "integer"} for name in "abcde"}
    held = {"type": "object", "patternProperties": often, "additionalProperties": False}
    schema = {"anyOf": [{"$ref": "#/definitions/Derived%5B1%5D"}, held], "definitions": SCHEMA["definitions"]}
    assert takes(JsonSchemaGrammar(schema), '{"aaabbb":1}')
    assert not takes(JsonSchemaGrammar(schema), '{"aaabbb":"x"}')
