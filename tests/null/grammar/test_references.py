"""References that are no places: what they lead to, against jsonschema's own resolution."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from inferd_grammar import GrammarCompiler, GrammarError, JsonSchemaGrammar, SequenceGrammar, TextGrammar, TokenTable
from inferd_grammar.validation import SchemaValidator

BYTES = GrammarCompiler(TokenTable.of_bytes())
DRAFT4 = "http://json-schema.org/draft-04/schema#"
LATEST = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
TREE = {
    "$id": "https://a.example/tree",
    "$dynamicAnchor": "node",
    "properties": {"kids": {"items": {"$dynamicRef": "#node"}}, "n": {"type": "integer"}},
}
INTEGER = {"type": "integer"}
CASES: list[tuple[dict[str, Any], list[Any]]] = [
    ({"$id": "Node", "properties": {"a": {"$ref": "Node"}}, "type": "object"}, [{"a": {"a": {}}}, {"a": {"a": 1}}, {"a": 1}]),
    ({**LATEST, **TREE, "type": "object"}, [{"kids": [{"n": 1}]}, {"kids": [{"n": "x"}]}, {"kids": [1]}]),
    (
        {**LATEST, "$id": "https://a.example/x", "$dynamicAnchor": "node", "$ref": "tree", "unevaluatedProperties": False,
         "$defs": {"t": TREE}},
        [{"kids": [{"n": 1}]}, {"kids": [{"m": 1}]}, {"m": 1}],
    ),
    (
        {"$id": "https://a.example/s", "$ref": "item#/$defs/n", "$defs": {"i": {"$id": "item", "$defs": {"n": INTEGER}}}},
        [1, "a"],
    ),
    ({"$ref": "#at", "$defs": {"x": {"$anchor": "at", **INTEGER}}}, [1, "a"]),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://a.example/s", "items": {"$ref": "i"}, "type": "array",
      "definitions": {"x": {"id": "i", "minimum": 1, "exclusiveMinimum": True}}}, [[2], [1], []]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/x", "maxLength": 1,
      "definitions": {"x": {"type": "string"}}}, ["abc", 1]),
    ({"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveAnchor": True, "type": "object",
      "properties": {"a": {"$recursiveRef": "#"}}}, [{"a": {}}, {"a": 1}]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "values"), CASES)
def test_a_reference_leads_where_the_specification_says(schema: dict[str, Any], values: list[Any]) -> None:
    """Such documents were held at the end of a text alone, or read by the library, which knows nothing of drafts."""
    compiled = BYTES.compile(JsonSchemaGrammar(schema))
    assert compiled.refusal is None
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    for value in values:
        ids = [byte + 1 for byte in json.dumps(value, separators=(",", ":")).encode()]
        matcher = compiled.matcher()
        assert (matcher.accept(ids) == len(ids) and matcher.may_end()) == validator.is_valid(value), value


def test_a_path_that_is_a_place_is_read_as_one() -> None:
    """LiteLLM writes references of pydantic models so for Anthropic's dialect; nothing else can be meant."""
    schema = {"type": "object", "properties": {"a": {"$ref": "/$defs/A"}}, "required": ["a"], "$defs": {"A": INTEGER}}
    matcher = BYTES.compile(JsonSchemaGrammar(schema)).matcher()
    assert matcher.accept([byte + 1 for byte in b'{"a":7}']) == 7
    assert BYTES.compile(JsonSchemaGrammar(schema)).matcher().accept([byte + 1 for byte in b'{"a":"']) == 5
    for other in ({**schema, "$id": "https://a.example/s"}, {**schema, "$defs": {}}):
        with pytest.raises(GrammarError):
            BYTES.compile(JsonSchemaGrammar(other))


def test_a_dynamic_reference_that_depends_on_its_user_is_held_at_the_end() -> None:
    inner = {"$dynamicAnchor": "T", "type": "integer"}
    schema = {
        **LATEST,
        "$ref": "list",
        "$defs": {
            "list": {"$id": "list", "items": {"$dynamicRef": "#T"}, "$defs": {"any": {"$dynamicAnchor": "T"}}},
            "user": {"$id": "user", "$ref": "list", "$defs": {"T": inner}},
        },
    }
    assert BYTES.compile(JsonSchemaGrammar(schema)).refusal is not None


@pytest.mark.parametrize("address", ["https://a.example/s#schema", "#schema", "a schema"])
def test_an_address_that_nothing_refers_to_is_passed_over(address: str) -> None:
    """The library refuses some, and what was left of the schema was held at the end of the text alone."""
    assert BYTES.compile(JsonSchemaGrammar({**LATEST, "$id": address, **INTEGER})).refusal is None


@pytest.mark.parametrize(
    "dialect", ["http://json-schema.org/schema#", "https://a.example/dialect", "vscode://schemas/x"]
)
def test_a_dialect_that_nobody_knows_is_read_as_the_latest(dialect: str) -> None:
    """The library looked for its document, and all of the schema was held at the end of the text alone."""
    compiled = BYTES.compile(
        JsonSchemaGrammar({"$schema": dialect, "$ref": "#n", "$defs": {"x": {"$anchor": "n", **INTEGER}}})
    )
    assert compiled.refusal is None
    assert compiled.matcher().accept([byte + 1 for byte in b"7"]) == 1
    assert compiled.matcher().accept([byte + 1 for byte in b'"']) == 0


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_resource_that_names_the_draft_of_its_document_is_no_dialect_of_its_own(scheme: str) -> None:
    """As in Backstage's schema, and by https in goreleaser's: nothing was rewritten, and all of it was refused."""
    draft = f"{scheme}://json-schema.org/draft-07/schema"
    inner = {"$id": "b", "$schema": draft, "not": {"type": "string"}, "properties": {"c": {"$ref": "#/definitions/n"}}}
    schema = {"$schema": f"{draft}#", "$id": "https://a.example/a", "anyOf": [{**inner, "definitions": {"n": INTEGER}}]}
    compiled = BYTES.compile(JsonSchemaGrammar(schema))
    assert compiled.refusal is None
    taken = [
        text for text in (b'"s"', b"1", b'{"c":1}', b'{"c":"s"}') if compiled.matcher().ends_with([n + 1 for n in text])
    ]
    assert taken == [b"1", b'{"c":1}']


@pytest.mark.parametrize("draft", ["draft-04", "draft-07"])
def test_by_another_address_of_a_draft_nothing_beside_a_reference_is_passed_over(draft: str) -> None:
    """`https` for `http`, which `jsonschema` does not know and reads as the latest draft; we passed it over as the draft does."""
    parts = {"a": {"minimum": 3, "exclusiveMinimum": True} if draft == "draft-04" else {"exclusiveMinimum": 3}}
    named = {"$ref": "#/definitions/a", "type": "integer", "maximum": 9}
    compiled = BYTES.compile(
        JsonSchemaGrammar({"$schema": f"https://json-schema.org/{draft}/schema#", **named, "definitions": parts})
    )
    taken = [n for n in (3, 4, 9, 10, 4.5) if compiled.matcher().ends_with([byte + 1 for byte in str(n).encode()])]
    assert taken == [4, 9]


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
def test_a_document_may_refer_to_the_schema_of_its_draft(draft: str) -> None:
    """As that of OpenAPI 3.0 does: it was refused as one that refers to another document."""
    dialect = f"http://json-schema.org/{draft}/schema#"
    properties = {"any": {"$ref": dialect}, "text": {"$ref": f"{dialect}/properties/title"}}
    schema = {"$schema": dialect, "type": "object", "properties": properties, "additionalProperties": False}
    compiled = BYTES.compile(JsonSchemaGrammar(schema))
    assert compiled.refusal is None
    validator = jsonschema.validators.validator_for(schema)(schema)
    for value in ({"any": {"items": {"type": "null"}}}, {"any": {"items": {"type": 1}}}, {"text": "a"}, {"text": 1}):
        ids = [byte + 1 for byte in json.dumps(value, separators=(",", ":")).encode()]
        assert (compiled.matcher().accept(ids) == len(ids)) == validator.is_valid(value), value


@pytest.mark.parametrize("reference", ["#/$defs/List[int]|%25", "#/$defs/List%5Bint%5D%7C%25"])
def test_a_reference_to_a_name_that_is_no_uri_is_followed(reference: str) -> None:
    """Generators write the names of generic types so; where nothing was rewritten, and in calls of tools, these were refused."""
    schema = {"type": "array", "items": {"$ref": reference}, "minItems": 1, "$defs": {"List[int]|%": INTEGER}}
    for constraint in (JsonSchemaGrammar(schema), SequenceGrammar((JsonSchemaGrammar(schema), TextGrammar(".")))):
        matcher = BYTES.compile(constraint).matcher()
        assert matcher.accept([byte + 1 for byte in b"[7]"]) == 3


@pytest.mark.parametrize("mode", ["strict", "best_effort"])
@pytest.mark.parametrize(
    ("schema", "reason", "pointer"),
    [
        ({"$id": 5, "properties": {"a": {"$ref": "#x"}}}, "must be text", "/$id"),
        ({"$id": "http://[x", "properties": {"a": {"$ref": "b"}}}, "is no URI", "/$id"),
        ({"$defs": {"x": {"$id": "http://a/", "$defs": {"y": {"$id": "//["}}}}}, "is no URI", "/$defs/x/$defs/y/$id"),
        ({"$schema": "http://[", "type": "integer"}, "must be a URI", "/$schema"),
        ({"$schema": DRAFT4, "id": 5, "properties": {"a": {"$ref": "#x"}}}, "must be text", "/id"),
        ({"$anchor": ["a"]}, "must be text", "/$anchor"),
        ({"$id": "http://a/", "items": {"$ref": "http://[x"}}, "URI|leads to", None),
    ],
)
def test_a_name_that_is_none_is_refused_instead_of_breaking_the_compiler(
    schema: dict[str, Any], reason: str, pointer: str | None, mode: Any
) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        BYTES.compile(JsonSchemaGrammar(schema, mode))
    assert pointer is None or caught.value.pointer == pointer


INSIDE = {"$id": "http://a/x", "items": {"$ref": "#/$defs/b"}}


@pytest.mark.parametrize("mode", ["strict", "best_effort"])
@pytest.mark.parametrize(
    ("schema", "reason", "pointer"),
    [
        ({"$schema": DRAFT4, "id": "http://a/", "maximum": 3, "exclusiveMaximum": True, "not": {"$ref": "b"}},
         r"'b' leads to another document, http://a/b", "/not/$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": INSIDE, "b": {"type": "integer"}}},
         r"'#/\$defs/b' leads to nothing in http://a/x", "/$defs/a/items/$ref"),
    ],
    ids=["another document", "a resource inside"],
)  # fmt: skip
def test_a_reference_that_nobody_knows_is_refused_before_what_it_keeps_from_being_read(
    schema: dict[str, Any], reason: str, pointer: str, mode: Any
) -> None:
    """The message named bounds or a format, which are read by place; best_effort took one, and could check no text."""
    with pytest.raises(GrammarError, match=reason) as caught:
        BYTES.compile(JsonSchemaGrammar(schema, mode))
    assert caught.value.pointer == pointer


def test_a_reference_that_nobody_follows_may_lead_anywhere() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}, "b": {"$ref": "http://a/b"}}}
    assert BYTES.compile(JsonSchemaGrammar(schema)).shortest() == b"0"


@pytest.mark.parametrize("draft", ["draft-04", "draft-07"])
def test_a_property_called_id_is_no_name_to_the_check_of_a_finished_text(draft: str) -> None:
    """The validator failed on references through `items` beside one."""
    key = "id" if draft == "draft-04" else "$id"
    items = {"properties": {key: {"type": "integer"}, "z": {"$ref": f"#/properties/list/items/properties/{key}"}}}
    schema = {"$schema": f"http://json-schema.org/{draft}/schema#", "properties": {"list": {"items": items}}}
    validator = SchemaValidator(schema)
    assert validator.problem('{"list":[{"z":1}]}') is None
    assert validator.problem('{"list":[{"z":"1"}]}') is not None
