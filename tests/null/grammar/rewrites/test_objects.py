"""Keywords about the names of an object together."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from inferd_grammar import GrammarCompiler, JsonSchemaGrammar, TokenTable

BYTES = GrammarCompiler(TokenTable.of_bytes())


@pytest.mark.parametrize("names", [{"not": {"const": "a"}}, {"pattern": "^[a-z]+$"}, {"maxLength": 2}])
@pytest.mark.parametrize("others", [False, True])
def test_listed_names_are_no_other_names_beside_a_condition_on_all(names: dict[str, Any], others: bool) -> None:
    """With `additionalProperties: false` no listed property could be there."""
    schema = {
        "type": "object",
        "propertyNames": names,
        "patternProperties": {"^x": {"type": "integer"}},
        "properties": {"c": {"type": "string"}, "a": {}},
        "additionalProperties": others,
    }
    compiled = BYTES.compile(JsonSchemaGrammar(schema))
    validator = jsonschema.Draft202012Validator(schema)
    for value in ({"c": "s"}, {"c": 1}, {"c": "s", "x": 1}, {"x": "s"}, {"a": 1}, {"z": 1}, {"zzz": 1}, {"-": 1}, {}):
        text = [byte + 1 for byte in json.dumps(value, separators=(",", ":")).encode()]
        matcher = compiled.matcher()
        assert (matcher.accept(text) == len(text) and matcher.may_end()) == validator.is_valid(value), value
