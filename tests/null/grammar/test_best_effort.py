"""best_effort: what masks do not hold is named, and found in the finished text."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from byte_texts import taken

from inferd_grammar import Checked, Compiled, GrammarCompiler, GrammarError, JsonSchemaGrammar, TokenTable
from inferd_grammar.validation import SchemaValidator

TAGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}


@pytest.fixture(scope="module")
def bytewise() -> GrammarCompiler:
    return GrammarCompiler(TokenTable.of_bytes())


def build(compiler: GrammarCompiler, schema: Any) -> Compiled:
    return compiler.compile(JsonSchemaGrammar(schema, mode="best_effort"))


def takes(compiled: Compiled, text: str) -> bool:
    return taken(compiled.matcher(), text)


def test_what_is_only_checked_is_named(bytewise: GrammarCompiler) -> None:
    schema = {"type": "object", "properties": {"tags": TAGS}, "required": ["tags"], "additionalProperties": False}
    compiled = build(bytewise, schema)
    assert compiled.checked == (Checked("uniqueItems", "/properties/tags/uniqueItems"),)
    assert takes(compiled, '{"tags":["a","a"]}')
    assert not takes(compiled, '{"tags":[1]}')
    problem = compiled.validate('{"tags":["a","a"]}')
    assert problem is not None
    assert (problem.keyword, problem.pointer) == ("uniqueItems", "/tags")
    assert problem.schema_pointer == "/properties/tags/uniqueItems"
    assert compiled.validate('{"tags":["a","b"]}') is None


def test_nothing_is_left_to_check_where_masks_hold_everything(bytewise: GrammarCompiler) -> None:
    compiled = build(bytewise, {"not": {"type": "string"}})
    assert compiled.checked == ()
    assert not takes(compiled, '"a"')
    assert bytewise.compile(JsonSchemaGrammar({"type": "null"})).validate("1") is None  # strict: masks alone


def test_a_one_of_that_is_only_checked_still_asks_for_a_branch(bytewise: GrammarCompiler) -> None:
    compiled = build(bytewise, {"type": "string", "oneOf": [{"format": "uri-template"}, {"minLength": 12}]})
    assert compiled.checked == (Checked("oneOf", "/oneOf"),)
    assert takes(compiled, '"{a}"')
    assert takes(compiled, '"long enough }"')
    assert not takes(compiled, '"short }"')


def test_a_grammar_the_library_cannot_build_becomes_any_json(bytewise: GrammarCompiler) -> None:
    names = {r"\p{L}": {"type": "integer"}, "a": {"minimum": 1}}  # whether they overlap is not known
    compiled = build(bytewise, {"patternProperties": names, "required": ["b"]})
    assert Checked("minimum", "/patternProperties/a/minimum") in compiled.checked
    assert takes(compiled, "[1]")
    assert compiled.validate('{"a":"x","b":1}') is not None


def test_a_reference_to_itself_beside_other_keywords_is_held_by_masks(bytewise: GrammarCompiler) -> None:
    """It was any JSON; strict held it."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n", "required": ["a"]}}}
    compiled = build(bytewise, {"$ref": "#/$defs/n", "$defs": {"n": node}})
    assert compiled.checked == ()
    assert takes(compiled, '{"next":{"a":1}}')
    assert not takes(compiled, '{"next":{}}')


@pytest.mark.parametrize(
    ("schema", "reason", "pointer"),
    [
        (
            {"properties": {"a/b": {"type": "string", "pattern": r"(a)\1"}}},
            r"back reference, \1,",
            "/properties/a~1b/pattern",
        ),
        ({"patternProperties": {"^(?>a)": {}}}, "atomic group", "/patternProperties/^(?>a)"),
        ({"not": {"pattern": "a++"}}, "dialects of regular expressions differ", "/not/pattern"),
        ({"pattern": "(?=a(?=b))a"}, "is not supported", "/pattern"),
        (
            {"properties": {"a": {"$ref": "http://example.org/x"}}},
            "'http://example.org/x' leads to",
            "/properties/a/$ref",
        ),
        ({"items": {"$ref": "#/$defs/none"}}, "'#/$defs/none' leads to", "/items/$ref"),
        ({"items": {"$ref": "#none"}}, "'#none' leads to", "/items/$ref"),
    ],
)
def test_what_nothing_can_check_is_refused_before_the_text(
    bytewise: GrammarCompiler, schema: Any, reason: str, pointer: str
) -> None:
    """It compiled, and then every text was one that cannot be checked."""
    with pytest.raises(GrammarError, match=re.escape(reason)) as caught:
        build(bytewise, schema)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("schema", [False, {"type": "string", "const": 1}, {"allOf": [{"not": {}}]}])
def test_schemas_that_nothing_satisfies_are_refused(bytewise: GrammarCompiler, schema: Any) -> None:
    with pytest.raises(GrammarError, match=r"valid|nsatisfiable"):
        build(bytewise, schema)


def test_a_reference_that_comes_back_to_itself_is_refused() -> None:
    schema = {"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}}
    with pytest.raises(GrammarError, match="comes back to itself"):
        SchemaValidator(schema)
    SchemaValidator({"properties": {"a": {"$ref": "#"}}})


@pytest.mark.parametrize(
    ("schema", "text", "message"),
    [
        ({}, "{", "not JSON"),
        ({}, '{"a":1,"a":2}', "keys repeat"),
        ({}, "[" * 70 + "]" * 70, "deeper than 64"),
        ({"pattern": "(a|a)*(a+)+$"}, json.dumps("a" * 60 + "b"), "does not match"),
        ({"patternProperties": {"^a": {"type": "null"}}}, '{"ab":1}', "is not of type"),
        ({"patternProperties": {"^a": {}}, "additionalProperties": False}, '{"ab":1,"b":2}', "not allowed"),
        ({"additionalProperties": {"type": "null"}, "properties": {"a": {}}}, '{"a":1,"b":2}', "is not of type"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}, "1", "1"),
    ],
)
def test_problems(schema: Any, text: str, message: str) -> None:
    problem = SchemaValidator(schema).problem(text)
    assert problem is not None
    assert message in problem.message


def test_references_by_name_and_definitions_that_nothing_refers_to_are_no_reason_to_refuse() -> None:
    """Those that are not known are looked for where schemas are reached alone."""
    named = {"$id": "http://a.example/b", "properties": {"x": {"type": "string"}}, "$anchor": "here"}
    schema = {
        "$id": "http://a.example/",
        "properties": {
            "a": {"$ref": "b"},
            "c": {"$ref": "b#here"},
            "d": {"$ref": "http://json-schema.org/draft-07/schema#"},
        },
        "$defs": {"b": named, "unused": {"$ref": "http://elsewhere.example/"}},
    }
    assert SchemaValidator(schema).problem('{"a":{"x":1}}') is not None
    assert SchemaValidator(schema).problem('{"a":{"x":""},"c":{}}') is None


@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_multiples_of_a_cent_are_multiples_as_they_are_written(bytewise: GrammarCompiler, mode: Any) -> None:
    """Masks let them through, and the check of the finished text, which reckoned with floats, did not."""
    compiled = bytewise.compile(JsonSchemaGrammar({"type": "number", "multipleOf": 0.01}, mode))
    for cents in range(200):
        text = f"{cents / 100:.2f}".rstrip("0").rstrip(".")
        assert takes(compiled, text), text
        assert compiled.validate(text) is None, text
    assert SchemaValidator({"multipleOf": 0.01}).problem("0.575") is not None
    assert SchemaValidator({"multipleOf": 7}).problem("1e30") is not None
    assert SchemaValidator({"multipleOf": 1e-300}).problem("1e300") is None
    assert SchemaValidator({"multipleOf": 2}).problem("true") is None


@pytest.mark.parametrize("draft", ["", "draft-07/schema", "draft/2019-09/schema", "draft/2020-12/schema"])
def test_tuples_of_older_drafts_are_checked_in_every_draft(bytewise: GrammarCompiler, draft: str) -> None:
    """Generators write them without a draft, or under a later one: the check of a finished text ended with an AttributeError."""
    named = {"$schema": f"https://json-schema.org/{draft}"} if draft else {}
    cents = {"type": "number", "multipleOf": 0.07}  # held at the end of the text
    pair = {"type": "array", "items": [{"type": "string"}, cents], "additionalItems": {"type": "null"}, "minItems": 2}
    strict = bytewise.compile(JsonSchemaGrammar({**named, **pair}))
    assert takes(strict, '["a",0.14]')
    assert not takes(strict, '["a",0.15]')
    lenient = bytewise.compile(JsonSchemaGrammar({**named, **pair, "uniqueItems": True}, "best_effort"))
    texts = ('["a",0.14]', '["a",0.14,null]', '["a",0.15]', "[1,0.14]", '["a",0.14,2]')
    assert [lenient.validate(text) is None for text in texts] == [True, True, False, False, False]
    problem = lenient.validate('["a",0.15]')
    assert problem is not None
    assert problem.schema_pointer == "/items/1/multipleOf"
    assert SchemaValidator({**named, "items": True, "additionalItems": False}).problem("[1]") is None


def test_of_a_format_what_every_reader_asks_for_is_held() -> None:
    assert SchemaValidator({"format": "uri-template"}).problem('"no }"') is None
    assert SchemaValidator({"format": "date"}).problem('"2024-13-01"') is None  # not what every reader refuses
    assert SchemaValidator({"format": "date"}).problem('"no date"') is not None


def test_without_the_library_best_effort_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, bytewise: GrammarCompiler
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(GrammarError, match="package jsonschema"):
        build(bytewise, {"const": "without the library"})


def doubling(key: str, depth: int) -> dict[str, Any]:
    """Branches that double with every level, over an array whose check fails at the end of each."""
    twice = {f"d{i}": {key: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": {**twice, f"d{depth}": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize(("key", "blamed"), [("anyOf", "anyOf"), ("allOf", "uniqueItems")])
def test_branches_of_branches_are_looked_at_once(key: str, blamed: str) -> None:
    """Looks doubled with every level: valid texts of 72 bytes could not be closed (`calqulus-pipeline`)."""
    validator = SchemaValidator(doubling(key, 15))
    assert validator.problem('["a","b"]', 100) is None
    assert validator.spent < 100
    problem = validator.problem('["a","a"]')
    assert problem is not None
    assert problem.keyword == blamed


def test_what_holds_of_one_value_is_not_said_of_another() -> None:
    part = {"$ref": "#/$defs/part"}
    defs = {"part": {"anyOf": [{"type": "integer"}, {"properties": {"x": part}, "required": ["x"], "type": "object"}]}}
    validator = SchemaValidator({"items": part, "$defs": defs})
    assert validator.problem('[1,2,{"x":1},{"x":{"x":1}}]') is None
    problem = validator.problem('[1,{"x":1},{"x":true},{"x":{"x":1}}]')
    assert problem is not None
    assert problem.pointer == "/2"
    assert validator.problem('[1,{"x":{"x":{}}}]') is not None


def test_a_long_text_may_take_more_looks() -> None:
    """30,000 were all, so that a long array was said to be not valid."""
    assert SchemaValidator({"items": {"type": "integer", "minimum": 0}}).problem(json.dumps([*range(30_000)])) is None


def test_checking_a_text_has_a_budget() -> None:
    ways = doubling("allOf", 12)
    ways["$defs"]["d12"] = {"prefixItems": [{}], "properties": {"a": {}}}
    for keyword, text in (("unevaluatedItems", "[1]"), ("unevaluatedProperties", '{"a":1}')):
        endless = SchemaValidator({**ways, keyword: False}).problem(text, 2_000)
        assert endless is not None
        assert "too many steps" in endless.message
    keys = {f"k{i}": i for i in range(900)}
    patterns = SchemaValidator({"patternProperties": {f"^{i}$": False for i in range(100)}})
    refused = patterns.problem(json.dumps(keys))
    assert refused is not None
    assert "too many steps" in refused.message
    assert SchemaValidator({"properties": {key: {"type": "integer"} for key in keys}}).problem(json.dumps(keys)) is None


@pytest.mark.parametrize(
    ("text", "unique"),
    [("[1,1.0]", False), ("[1,true]", True), ("[0,false]", True), ('["1",1]', True), ("[[1],[1.0]]", False),
     ('[{"a":1,"b":2},{"b":2,"a":1}]', False), ("[null,0,[],{}]", True), ("[1e2,100]", False)],
)  # fmt: skip
def test_unique_items_are_compared_as_json_values(text: str, unique: bool) -> None:
    assert (SchemaValidator({"uniqueItems": True}).problem(text) is None) == unique
    assert SchemaValidator({"uniqueItems": False}).problem(text) is None


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" + "0" * 400, "NaN", "-Infinity"])
@pytest.mark.parametrize("schema", [{"multipleOf": 0.5}, {"multipleOf": 2}, {"items": {"multipleOf": 3}}])
def test_a_number_beyond_floats_is_a_problem_and_no_error(number: str, schema: dict[str, object]) -> None:
    """It came to a mask of a schema that is held at the end of its text, and ended the step with an OverflowError."""
    for text in (number, f"[{number}]"):
        assert SchemaValidator(schema).problem(text) is not None


def test_naming_what_is_only_checked_is_bounded(bytewise: GrammarCompiler) -> None:
    """A schema of 340 KB had 800 keywords under one long key: their pointers were a reply of 240 MB."""
    tags = {f"p{number}": TAGS for number in range(60)}
    long, longer = "k" * 10_000, "l" * 500_000
    compiled = build(bytewise, {"properties": {long: {"properties": tags}, "few": TAGS}})
    assert set(compiled.checked) == {
        Checked("uniqueItems", f"/properties/{long}/properties"),
        Checked("uniqueItems", "/properties/few/uniqueItems"),
    }
    assert not takes(compiled, '{"few":[1]}')
    assert build(bytewise, {"properties": {longer: TAGS}}).checked == (Checked("uniqueItems", "/properties"),)
    assert len(build(bytewise, {"properties": {"k": {"properties": tags}}}).checked) == 60


def test_a_branch_that_never_ends_is_checked_as_masks_hold_it(bytewise: GrammarCompiler) -> None:
    """strict took such a schema, and best_effort refused it: the reference comes back to itself."""
    circle = {"type": "object", "allOf": [{"$ref": "#/$defs/circle"}]}
    compiled = build(bytewise, {"anyOf": [TAGS, {"$ref": "#/$defs/circle"}], "$defs": {"circle": circle}})
    assert compiled.validate('["a"]') is None
    assert compiled.validate("{}") is not None
    assert not takes(compiled, "{}")


def spent_on(schema: Any, value: Any) -> int:
    validator = SchemaValidator(schema)
    validator.problem(json.dumps(value))
    return validator.spent


def test_a_search_for_a_large_pattern_costs_what_it_takes() -> None:
    """Else the search for an end looks at such texts for 20 s, in one of the few threads that compile."""
    small, large, text = r"[a-z]+\b", r"[\s\S]{1000}\b[\s\S]{1000}\b", "a" * 300
    assert spent_on({"pattern": small}, text) < 40
    assert spent_on({"pattern": large}, text) > 1000
    assert spent_on({"patternProperties": {small: True}}, {text: 1}) < 40
    assert spent_on({"patternProperties": {large: True}}, {text: 1}) > 1000


DRAFT = "http://json-schema.org/draft-07/schema#"
SLOW = {"pattern": "^(a|a)*$"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$schema": DRAFT, **SLOW}, "a" * 60 + "b"),
        ({"$schema": DRAFT, "properties": {"a": {"$schema": DRAFT, **SLOW}}}, {"a": "a" * 60 + "b"}),
        ({"$schema": DRAFT, "properties": {"a": {"$ref": "#"}, "b": SLOW}}, {"a": {"b": "a" * 60 + "b"}}),
    ],
    ids=["root", "inside", "reference"],
)
def test_a_schema_that_names_its_draft_is_checked_in_linear_time(schema: dict[str, Any], value: Any) -> None:
    """The library took a class of its own for it, whose patterns are Python's: 60 letters held the process for ever."""
    validator = SchemaValidator(schema)
    assert not validator.holds(schema, value)
    assert validator.problem(json.dumps(value)) is not None


def test_a_schema_of_another_draft_inside_is_refused() -> None:
    with pytest.raises(GrammarError, match="another draft") as caught:
        SchemaValidator({"properties": {"a": {"$schema": DRAFT, "type": "string"}}})
    assert caught.value.pointer == "/properties/a/$schema"
