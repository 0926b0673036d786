"""JSON schemas: what is refused, with its reason and (where known) its place; and what the text looks like."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import pytest

from inferd_grammar import (
    AnyJsonGrammar,
    CompileLimits,
    Constraint,
    GrammarCompiler,
    GrammarError,
    GrammarMatcher,
    JsonSchemaGrammar,
    TokenTable,
)

Make = Callable[[Constraint], GrammarMatcher]


@pytest.mark.parametrize(
    ("schema", "reason", "pointer"),
    [
        (r'{"const": "\ud83d"}', "surrogates not allowed", None),
        ({"type": 5}, "'type' must be", "/type"),
        ({"type": "frob"}, "'type' must be", "/type"),
        ({"properties": {"a": {"type": "string", "minimum": "x"}}}, "'minimum' must be", "/properties/a/minimum"),
        ({"required": "a"}, "'required' must be", "/required"),
        ({"items": 5}, "a schema is an object or a boolean, not 5", "/items"),
        ({"anyOf": []}, "'anyOf' must be", "/anyOf"),
        ({"minLength": -1}, "'minLength' must be", "/minLength"),
        ({"multipleOf": 0}, "'multipleOf' must be", "/multipleOf"),
        ({"type": "integer", "multipleOf": 10**400}, "beyond what 64-bit floats hold", None),
        ({"type": "number", "exclusiveMinimum": -(10**309)}, "beyond what 64-bit floats hold", None),
        ('{"enum": [1e400]}', "beyond what 64-bit floats hold", None),
        ('{"default": %s}' % ("1" * 5000), "beyond what 64-bit floats hold", None),
        (5, "a schema is an object or a boolean", ""),
        (False, "no value is valid", ""),
        ("not json", "not JSON text", None),
        ('{"a": 1, "a": 2}', "keys repeat", None),
        ('{"minimum": NaN}', "NaN is not JSON", None),
        ({1: 2}, "key 1 is not text", None),
        ({"minimum": float("inf")}, "schema is not JSON", None),
        ({"enum": [object()]}, "schema is not JSON", None),
        ('{"const": "\ud800"}', "not Unicode", None),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$dynamicRef": "#x"}}}, "$dynamicRef", "/$defs/a/$dynamicRef"),
        ({"oneOf": [{"format": "regex"}, {"type": "string"}], "type": "string"}, "format 'regex'", "/oneOf/0/format"),
        ({"items": {"$ref": "http://example.org/x"}}, "example.org", "/items/$ref"),
        ({"$ref": "#/$defs/gone"}, "does not exist", "/$ref"),
        (
            {"$id": "https://a.example/s/a.json", "items": {"$ref": "b.json#/$defs/c"}},
            "the $ref 'b.json#/$defs/c' leads to another document, https://a.example/s/b.json, and none is fetched",
            "/items/$ref",
        ),
        ({"$ref": "#"}, "requires itself again", ""),
        ({"pattern": "("}, "regex parse error", "/pattern"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "greater than maximum", None),
        ({"exclusiveMinimum": True}, "'exclusiveMinimum' must be", "/exclusiveMinimum"),
        ({"items": {"divisibleBy": 2}}, "'divisibleBy' is not supported", "/items/divisibleBy"),
        ({"disallow": "string"}, "'disallow' is not supported", "/disallow"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "'x-guidance' is not supported", "/x-guidance"),
    ],
)
def test_refused_with_reason_and_place(
    compiler: GrammarCompiler, schema: Any, reason: str, pointer: str | None
) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.compile(JsonSchemaGrammar(schema))
    assert reason in caught.value.reason
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"description": "x" * 1000}, "max_bytes is 999"),
        ('{"items":' * 9 + "{}" + "}" * 9, "max_depth 8"),
        ("[" * 900, "schema"),
        ({"items": {"enum": list(range(11))}}, "enum has 11 members; max_enum is 10"),
        ({"allOf": [{"pattern": "a"}] * 4}, "allOf has 4 patterns; max_all_of is 3"),
        (
            {"allOf": [{"$ref": "#/$defs/a"}] * 4, "$defs": {"a": {"pattern": "a"}}},
            "allOf has 4 patterns; max_all_of is 3",
        ),
        ({"allOf": [{}] * 21}, "allOf has 21 members; max_branches is 20"),
        ({"multipleOf": 1001}, "multipleOf amounts to 1001; max_multiple_of is 1000"),
        ({"multipleOf": 0.12345}, "multipleOf amounts to 12345"),
        ({"multipleOf": 1e300}, "max_multiple_of"),
        ({"allOf": [{"multipleOf": 31}, {"multipleOf": 37}]}, "multipleOf amounts to 1147"),
        ({"$ref": "#/$defs/a", "multipleOf": 31, "$defs": {"a": {"multipleOf": 37}}}, "multipleOf amounts to 1147"),
        ({"pattern": "a" * 51}, "regex has 51 characters; max_regex is 50"),
        ({"patternProperties": {"a" * 51: {}}}, "regex has 51 characters"),
    ],
)
def test_limits_are_named(table: TokenTable, schema: Any, reason: str) -> None:
    limits = CompileLimits(
        max_bytes=999, max_depth=8, max_enum=10, max_all_of=3, max_branches=20, max_multiple_of=1000, max_regex=50
    )
    with pytest.raises(GrammarError, match=reason):
        GrammarCompiler(table, limits=limits).compile(JsonSchemaGrammar(schema))


def test_deep_text_does_not_exhaust_the_stack(compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match="max_depth"):
        compiler.compile(JsonSchemaGrammar('{"not":' * 100_000))


def test_names_of_keywords_may_be_names_of_properties(make: Make) -> None:
    schema = {
        "properties": {"type": {"type": "integer"}, "x-guidance": {}},
        "required": ["type"],
        "default": {"type": 5},
    }
    matcher = make(JsonSchemaGrammar({"type": "object", **schema}))
    assert matcher.forced().startswith(b'{"type":')


@pytest.mark.parametrize("schema", [True, {}, "true", "{}"])
def test_schemas_that_allow_everything(make: Make, table: TokenTable, schema: Any) -> None:
    assert accepts(make(JsonSchemaGrammar(schema)), table, '{"a":[1,null,"x"]}')
    assert accepts(make(AnyJsonGrammar()), table, '{"a":[1,null,"x"]}')


@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_flags_of_open_bounds_are_no_bounds_in_later_drafts(
    compiler: GrammarCompiler, mode: Literal["strict", "best_effort"]
) -> None:
    """OpenAPI 3.0 has draft 4's and names no draft, zod-to-json-schema writes them under 2019-09; as a bound, true is 1."""
    price = {"type": "number", "minimum": 2, "exclusiveMinimum": False, "maximum": 4, "exclusiveMaximum": True}
    document = {"$ref": "#/components/schemas/Price", "components": {"schemas": {"Price": price}}}
    drafts = ("http://json-schema.org/draft-04/schema#", "https://json-schema.org/draft/2019-09/schema#")
    for schema in (price, document, *({"$schema": draft, **price} for draft in drafts)):
        compiled = compiler.compile(JsonSchemaGrammar(schema, mode))
        taken = [text for text in ("1.5", "2", "3.5", "4") if accepts(compiled.matcher(), compiler.table, text)]
        assert taken == ["2", "3.5"]
        assert mode == "strict" or compiled.validate("4") is not None


def test_text_is_compact(make: Make, table: TokenTable) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    value = {"name": "Ada L", "age": 36}
    constraint = JsonSchemaGrammar({**schema, "required": ["name", "age"], "additionalProperties": False})
    assert accepts(make(constraint), table, json.dumps(value, separators=(",", ":")))
    assert not accepts(make(constraint), table, json.dumps(value))
    assert not accepts(make(AnyJsonGrammar()), table, "[1, 2]")


def test_an_object_with_many_optional_keys_survives_its_first_key(make: Make, table: TokenTable) -> None:
    """With the library's default limits it compiles and breaks at run time."""
    schema = {"type": "object", "properties": {f"k{n}": {"type": "integer"} for n in range(600)}}
    assert accepts(make(JsonSchemaGrammar(schema)), table, '{"k7":1}')


def accepts(matcher: GrammarMatcher, table: TokenTable, text: str) -> bool:
    """Whether the masks lead through `text`, in whatever tokens, to a place where it may end."""
    rest = text.encode()
    while rest:
        step = next((i for i in candidates(table, rest) if matcher.accept([i])), None)
        if step is None:
            return False
        rest = rest[len(table.tokens[step]) :]
    return matcher.may_end()


def candidates(table: TokenTable, rest: bytes) -> list[int]:
    """Tokens that `rest` starts with, longest first: masks leave one of them on forced spans."""
    return sorted(
        (i for i, token in enumerate(table.tokens) if token and rest.startswith(token)),
        key=lambda i: -len(table.tokens[i]),
    )


@pytest.mark.parametrize("links", [100, 2000, 20_000])
def test_a_chain_of_references_is_followed_or_refused(compiler: GrammarCompiler, links: int) -> None:
    """Two thousand once ended in Python's own RecursionError."""
    chain = {f"a{at}": {"$ref": f"#/$defs/a{at + 1}"} for at in range(links)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**chain, f"a{links}": {"type": "integer"}}}
    if links > 100:
        with pytest.raises(GrammarError):
            compiler.compile(JsonSchemaGrammar(schema))
    else:
        assert not compiler.compile(JsonSchemaGrammar(schema)).matcher().ended()


def test_long_keys_with_much_under_them_are_refused_before_their_pointers_are_made(make: Make) -> None:
    schema = {"properties": {"k" * 300_000: {"properties": {f"p{number}": {"type": "null"} for number in range(60)}}}}
    with pytest.raises(GrammarError, match="max_pointers is 16000000"):
        make(JsonSchemaGrammar(schema))


def test_a_hundred_thousand_keys_that_repeat_are_told_at_once(make: Make) -> None:
    """They were counted one by one, each among all."""
    text = "{" + ",".join(f'"{number % 90_000}":1' for number in range(90_010)) + "}"
    with pytest.raises(GrammarError, match="keys repeat in one object"):
        make(JsonSchemaGrammar(text))
