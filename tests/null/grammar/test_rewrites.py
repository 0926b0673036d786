"""Rewrites against the `jsonschema` library: what the result accepts the original accepts, and mostly the other way.

Each family has schemas of its own, tried on many random instances; random schemas mix all of them. Exact families must
agree on every instance, those that are narrower by design may refuse what is named in their modules.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

import jsonschema
import pytest

from inferd_grammar import CompileLimits, GrammarCompiler, GrammarError, GrammarFailure, JsonSchemaGrammar, TokenTable
from inferd_grammar.conformance.key_orders import orders
from inferd_grammar.rewrites import CannotRewrite, rewrite
from inferd_grammar.schema import read_schema

DRAFT7 = "http://json-schema.org/draft-07/schema#"
DRAFT4 = "http://json-schema.org/draft-04/schema#"
AB = {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
CLOSED = {"unevaluatedProperties": False}
TREE = {"properties": {"a": {"$ref": "#/$defs/tree"}, "b": {"type": "integer"}}, "required": ["b"]}
EXACT: dict[str, list[dict[str, Any]]] = {
    "formats": [{"format": "byte"}, {"type": "string", "format": "my own"}, {"not": {"format": "my own"}}],
    "values": [
        {"not": {"const": "ab"}},
        {"not": {"enum": ["a", "ab", "", 1, 2.5, None, True]}},
        {"type": "integer", "not": {"enum": [1, 2, 3]}},
        {"not": {"const": [1, "a"]}},
        {"not": {"const": {"a": 1}}},
        {"not": {"enum": [{"a": 1, "b": []}, {}, [], [[]]]}},
    ],
    "bounds": [
        *({"not": {key: 1}} for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
        *({"not": {key: 1}} for key in ("minLength", "maxLength", "minItems", "maxItems")),
        *({"not": {key: 1}} for key in ("minProperties", "maxProperties")),
        {"not": {"minLength": 0}, "type": ["string", "null"]},
    ],
    "types": [{"not": {"type": ["string", "integer", "null"]}}, {"not": {"not": {"type": "object"}}}],
    "patterns": [{"not": {"pattern": pattern}} for pattern in ("^a", "b$", "a|b", "^[ab]+$", "^(ab?)*1?$", "")]
    + [
        {"pattern": "a(?!b)"},
        {"not": {"pattern": r"(?<!a)b\b"}},
        {"patternProperties": {"a(?!b)": {"type": "integer"}}},
    ]
    + [{"propertyNames": {"pattern": "(?<!a)b"}}, {"propertyNames": {"not": {"pattern": "a(?!b)"}}}],
    "multiples": [
        {"not": {"multipleOf": 2}},
        {"not": {"multipleOf": 0.5}},
        {"type": "integer", "not": {"multipleOf": 3}},
    ],
    "objects": [
        {"not": {"required": ["a", "b"]}},
        {"not": {**AB, "required": ["a"]}},
        {"not": {"properties": {"a": True}, "additionalProperties": False}},
        {**AB, "minProperties": 1},
        {**AB, "maxProperties": 1},
        {**AB, "minProperties": 1, "maxProperties": 2, "required": ["b"]},
        {**AB, "minProperties": 1, "maxProperties": 1, "additionalProperties": False},
        {**AB, "additionalProperties": False, "anyOf": [{"required": ["a"], "maxProperties": 1}, {"minProperties": 2}]},
        {**AB, "oneOf": [{"required": ["a"], "maxProperties": 1}, {"required": ["b"], "maxProperties": 2}]},
        {"propertyNames": {"pattern": "^[ab]"}},
        {"propertyNames": {"enum": ["a", "c"], "maxLength": 1}},
        {"propertyNames": {"anyOf": [{"const": "a"}, {"minLength": 2}]}},
        {"propertyNames": {"oneOf": [{"enum": ["a", "b"]}, {"pattern": "^[c-z]"}]}},
        {"propertyNames": {"not": {"enum": ["a"]}}},
        {"propertyNames": {"not": {"anyOf": [{"pattern": "^b"}, {"const": "a"}]}}},
        {"propertyNames": {"oneOf": [{"pattern": "^[ab]"}, {"pattern": "b$"}, {"not": {"maxLength": 1}}]}},
        {"propertyNames": {"minLength": 1, "not": {"pattern": "^a"}}, "additionalProperties": {"type": "integer"}},
        {"propertyNames": {"not": {"pattern": "^a"}}, "patternProperties": {"b": {"type": "integer"}, "^a": False}},
        {"propertyNames": {"maxLength": 1}, "patternProperties": {"a": {"type": "integer"}}, "properties": {"ab": {}}},
        {"propertyNames": {"enum": ["a", "b"]}, "patternProperties": {"a": False}, **AB, "additionalProperties": False},
        {
            "propertyNames": {"maxLength": 1},
            "patternProperties": {"c": False},
            **AB,
            "additionalProperties": {"const": 1},
        },
        {"propertyNames": False},
        {"patternProperties": {".*": {"type": "integer"}, "^a": {"minimum": 1}}},
        {"patternProperties": {"a": {"type": "integer"}, "b": {"minimum": 1}}},
    ],
    "arrays": [
        {"not": {"prefixItems": [{"type": "string"}, {"const": 1}]}},
        {"not": {"items": {"type": "integer"}}},
        {"not": {"prefixItems": [True], "items": False}},
        {"contains": {"type": "integer"}},
        {"contains": {"const": "a"}, "minContains": 1},
        {"contains": False, "minContains": 0},
        {"not": {"contains": {"type": "integer"}}},
        {"uniqueItems": True, "items": {"enum": [1, "a", 1.0]}},
        {"uniqueItems": True, "items": {"type": "boolean"}, "minItems": 1},
        {"uniqueItems": True, "maxItems": 1},
        {"uniqueItems": True, "type": ["string", "integer"]},
    ],
    "one of": [
        {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "number", "minimum": 2}]},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"oneOf": [{"properties": {"a": {"const": n}}, "required": ["a"]} for n in (1, 2, "a")]},
        {"oneOf": [{"minimum": 0}, {"maximum": 2}, {"type": "array"}]},
        {"not": {"oneOf": [{"minimum": 1}, {"type": "integer"}, {"type": "string"}]}},
        {"required": ["a"], "allOf": [{"oneOf": [{"properties": {"a": {"enum": [n]}}} for n in (1, 2)]}]},
        {"oneOf": [{"$ref": "#/$defs/tree"}, {"type": "array"}], "$defs": {"tree": TREE}},
        {"oneOf": [True, False, {"type": "null"}]},
    ],
    "conditions": [
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"maxProperties": 1}},
        {"if": {"type": "integer"}, "else": {"type": "string"}},
        {"if": {"minimum": 1}},
        {"not": {"if": {"type": "integer"}, "then": {"minimum": 1}, "else": {"type": "array"}}},
        {
            "type": "object",
            "required": ["a"],
            "allOf": [
                {"if": {"properties": {"a": {"const": n}}}, "then": {"required": ["b"], "maxProperties": n + 1}}
                for n in (1, 2, 3)
            ],
        },
    ],
    "dependencies": [
        {"dependentRequired": {"a": ["b"], "c": ["a"]}},
        {"dependentSchemas": {"a": {"maxProperties": 1}, "b": False}},
        {"$schema": DRAFT7, "dependencies": {"a": ["b"], "b": {"required": ["c"]}}},
        {"not": {"dependentRequired": {"a": ["b"]}}},
    ],
    "dialects": [
        {"$schema": DRAFT7, "items": [{"not": {"type": "string"}}, True], "additionalItems": {"not": {"const": 1}}},
        {
            "$schema": DRAFT7,
            "definitions": {"s": {"type": "string"}},
            "not": {"$ref": "#/definitions/s", "maxLength": 1},
        },
        {"$schema": DRAFT7, "not": {"dependentRequired": {"a": ["b"]}, "type": "string"}},
        {"$schema": DRAFT7, "$ref": "#/definitions/x", "maxLength": 1, "definitions": {"x": {"type": "string"}}},
        {"$schema": DRAFT4, "minimum": 1, "exclusiveMinimum": True},
        {"$schema": DRAFT4, "not": {"const": 1, "maximum": 1, "exclusiveMaximum": True}},
        {"unevaluatedProperties": False, "properties": {"a": True}},
        {"unevaluatedItems": {"type": "string"}, "prefixItems": [True], "maxItems": 3.0},
    ],
    "unevaluated": [
        {**CLOSED, "allOf": [AB, {"patternProperties": {"^x": True}}]},
        {"$ref": "#/$defs/x", **CLOSED, "$defs": {"x": {"allOf": [AB]}}},
        {"allOf": [AB], "unevaluatedProperties": {"type": "null"}},
        {"allOf": [{"additionalProperties": {"type": "string"}}], **CLOSED},
        {
            "properties": {"c": {}},
            "anyOf": [{**AB, "required": ["a"]}, {"required": ["x"], "properties": {"x": {}}}],
            **CLOSED,
        },
        {"oneOf": [{"properties": {"a": {"const": "a"}}, "required": ["a"]}, {"properties": {"b": {}}}], **CLOSED},
        {"allOf": [{"oneOf": [{"required": ["a"], **AB}, {"maxProperties": 0}]}], **CLOSED},
        {"if": {"properties": {"a": {"const": "a"}}, "required": ["a"]}, "then": {"properties": {"b": {}}}, **CLOSED},
        {"properties": {"a": {}}, "dependentSchemas": {"a": {"properties": {"b": {}}}}, **CLOSED},
        {"not": AB, **CLOSED},
        {"not": {"allOf": [AB], **CLOSED}},
        {"properties": {"a": {"allOf": [{"properties": {"a": {}}}], **CLOSED}}},
        {"allOf": [{"prefixItems": [True, {"type": "string"}]}], "unevaluatedItems": False},
        {
            "anyOf": [{"prefixItems": [{"const": "a"}]}, {"prefixItems": [True, True]}],
            "unevaluatedItems": {"type": "null"},
        },
        {"prefixItems": [True], "contains": {"type": "string"}, "unevaluatedItems": False, "maxItems": 9},
        {"allOf": [{"items": {"type": "string"}}], "unevaluatedItems": False},
    ],
    "references": [
        {"$defs": {"tree": TREE}, "not": {"$ref": "#/$defs/tree"}},
        {"$defs": {"x": {"not": {"type": "string"}}, "y": {"$ref": "#/$defs/x"}}, "items": {"$ref": "#/$defs/y"}},
        {"not": {"type": "array"}, "properties": {"a": {"$ref": "#/not"}, "b~1": {"$ref": "#/properties/a"}}},
        {"not": True, "type": "string"},
        {"allOf": [{"not": False}, {"not": {"not": {"minimum": 1}}}]},
    ],
}
NARROWER: list[dict[str, Any]] = [
    {"format": "uri-reference"},
    {"not": {"properties": {"a": {"format": "uri-template"}}, "required": ["a"]}},
    {"not": {"patternProperties": {"^a": {"type": "integer"}}}, "properties": {"ab": True}},
    {"exclusiveMinimum": 1, "maximum": 1.5},
]


@pytest.mark.parametrize("family", EXACT)
def test_equal_to_the_original(family: str) -> None:
    rng = random.Random(family)
    for schema in EXACT[family]:
        before, after = validators(schema)
        for value in (instance(rng, 2) for _ in range(250)):
            assert after.is_valid(value) == before.is_valid(value), f"{schema} on {value!r}"


@pytest.mark.parametrize("schema", NARROWER, ids=str)
def test_narrower_than_the_original(schema: dict[str, Any]) -> None:
    rng = random.Random(str(schema))
    before, after = validators(schema)
    accepted = [value for value in (instance(rng, 2) for _ in range(250)) if after.is_valid(value)]
    assert accepted
    assert all(before.is_valid(value) for value in accepted)


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        (
            "regex",
            ["^[a-z0-9_-]+$", "(a|b(?:c)*){2,}", r"\d+\.[^\s]*", "", "x{1,3}?"],
            ["(", "[z-a]", "a**", "{2", "a{3,2}"],
        ),
        ("json-pointer", ["", "/a/b~0", "/é"], ["a", "/~2", "/~"]),
        ("relative-json-pointer", ["0", "1/a", "2#"], ["", "/a", "01", "1a"]),
        ("uri-reference", ["", "a/b?c#d", "http://x.org/%20", "//x", "./a:b"], ["a b", "%zz", "1:a", "é", "<>"]),
        ("iri-reference", ["é", "http://é.org/"], [" ", "%z"]),
        ("iri", ["http://é.org/a?b#c", "mailto:x@é.org"], ["é", "a b:c"]),
        ("uri-template", ["http://x/{id}{?a,b*}", "{+path:3}"], ["{", "{a b}", "a b", "{}"]),
        ("idn-email", ["é@é.org", "a@b"], ["a", "@b", "a b@c", "a@-b"]),
        ("idn-hostname", ["é.org", "a-b.c"], ["-a", "a b", "a..b"]),
        ("ip-address", ["127.0.0.1"], ["127.0.0.256", "::1"]),
        ("host-name", ["a.b"], ["a b", ""]),
        ("duration", ["P999999D", "P1Y2M3DT4H5M999999999S"], ["P1000000D", "PT1000000000S"]),
    ],
)
def test_formats_that_become_patterns(
    bytewise: GrammarCompiler, name: str, valid: list[str], invalid: list[str]
) -> None:
    compiled = bytewise.compile(JsonSchemaGrammar({"type": "string", "format": name}))
    assert [text for text in valid if not takes(compiled.matcher(), text, raw=True)] == []
    assert [text for text in invalid if takes(compiled.matcher(), text, raw=True)] == []


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("uuid", ["3f2504e0-4f89-41d3-9a0c-0305e82c3301"], ["3f2504e0", "3f2504e04f8941d39a0c0305e82c3301"]),
        ("date", ["2024-02-29", "1900-01-31"], ["2023-02-29", "1900-02-29", "2024-04-31", "2024-1-1"]),
        ("date-time", ["2024-02-29T23:59:59.5Z", "2024-01-01T00:00:00+01:00"], ["2024-01-01", "2024-01-01T24:00:00Z"]),
        ("time", ["00:00:00Z"], ["00:00", "25:00:00Z"]),
        ("duration", ["P1W", "P1Y2M3DT4H5M6S", "PT5S"], ["P", "P1Y2D", "PT", "1D"]),
        ("email", ["a.b+c@d-e.org"], ["a@", "a..b@c.de", "a b@c.de", f"{'a' * 65}@b.de"]),
        ("hostname", ["a-1.example.com"], ["-a.com", "a..b"]),
        ("ipv4", ["255.0.10.1"], ["256.1.1.1", "1.1.1", "01.1.1.1"]),
        (
            "ipv6",
            ["::", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1::8"],
            [":", "1:2", "1::2::3", "::01.2.3.4", "12345::", "fe80::1%eth0"],
        ),
        ("uri", ["http://a.b/c?d#e", "urn:x:y"], ["/a", "a b:c"]),
        ("json-pointer", ["/a~0", ""], ["a", "/~2"]),
        ("of-our-own", ["anything", ""], []),
    ],
)
def test_formats_of_names_are_held(bytewise: GrammarCompiler, name: str, valid: list[str], invalid: list[str]) -> None:
    """pydantic writes one for a dict with keys of such a type."""
    schema = {"type": "object", "propertyNames": {"format": name}, "additionalProperties": {"type": "integer"}}
    compiled = bytewise.compile(JsonSchemaGrammar(schema))
    assert [key for key in valid if not takes(compiled.matcher(), {key: 1}, raw=True)] == []
    assert [key for key in invalid if takes(compiled.matcher(), {key: 1}, raw=True)] == []


@pytest.mark.parametrize(
    ("pattern", "valid", "invalid"),
    [
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", ["1", "-0.5", "+12.", ".5"], ["", "-", ".", "+.", "1a"]),
        (r"^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{3,5}$", ["Ab1", "1aaAa"], ["ab1", "ABC", "A1", "Abcde1"]),
        (r"^(?!a|b\))(?![)|]x)[a-z)|]+$", ["c", ")a", "ba", "|y"], ["a", "ab", "b)", ")x", "|x"]),
        ("^(?!foo$)[a-z]+", ["fo", "food", "x"], ["foo", "1"]),
        ("^(?!-)[a-z-]{1,63}(?<!-)$", ["a", "a-b", "a" * 63], ["-a", "a-", "", "a" * 64]),
        ("^[a-z](?:[a-z0-9]|-(?=[a-z0-9])){0,38}$", ["a", "a-b-c", "a" * 39], ["a-", "a--b", "a" * 40]),
        (r"\bfoo\b", ["foo", "a foo!", "-foo-"], ["food", "_foo", "fo"]),
        (r"^(?:(?!\.{1,2}\/)[a-z.]+\/)*x$", ["x", "a/x", "a../x"], ["../x", "a/./x", "y"]),
        ("^(?!a)b|c", ["b", "bx", "ac"], ["a", "ab"]),
    ],
)
def test_look_arounds_are_held(bytewise: GrammarCompiler, pattern: str, valid: list[str], invalid: list[str]) -> None:
    """pydantic writes one for a Decimal, zod for an address."""
    compiled = bytewise.compile(JsonSchemaGrammar({"type": "string", "pattern": pattern}))
    assert [text for text in valid if not takes(compiled.matcher(), text, raw=True)] == []
    assert [text for text in invalid if takes(compiled.matcher(), text, raw=True)] == []


@pytest.mark.parametrize("pattern", ["a(?=b(?!c)).", "^(?!(a)b", r"(a)(?!\1)", "((?!a)b){0,900}c(?!d)", r"a\B"])
def test_other_look_arounds_are_refused(bytewise: GrammarCompiler, pattern: str) -> None:
    with pytest.raises(GrammarError):
        bytewise.compile(JsonSchemaGrammar({"type": "string", "pattern": pattern}))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (
            {"allOf": [{"$ref": "#/$defs/base"}, {"required": ["b"]}], **AB, **CLOSED},
            '{"a":"","b":1,"c":1}',
            '{"b":1,"d"',
        ),
        ({"$ref": "#/$defs/base", "patternProperties": {"^x": {}}, **CLOSED}, '{"c":1,"x":1}', '{"c":1,"a"'),
    ],
)
def test_a_name_that_nothing_looks_at_is_never_begun(
    bytewise: GrammarCompiler, schema: dict[str, Any], valid: str, invalid: str
) -> None:
    """It was found where the text would have been closed, so that a generation could fail there."""
    compiled = bytewise.compile(
        JsonSchemaGrammar({**schema, "$defs": {"base": {"properties": {"c": {"type": "integer"}}}}})
    )
    assert compiled.refusal is None
    assert takes(compiled.matcher(), valid)
    assert compiled.matcher().accept([byte + 1 for byte in invalid.encode()]) < len(invalid)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"propertyNames": {"not": {"anyOf": [{"pattern": "^x"}, {"const": "b"}]}}}, ["a", "bx"], ["x", "xa", "b"]),
        ({"propertyNames": {"minLength": 2, "not": {"pattern": "^x"}}}, ["ab"], ["a", "xa"]),
        (
            {"propertyNames": {"pattern": "^a([ab.]*b)?$", "maxLength": 63}},
            ["a", f"{'a' * 62}b"],
            ["ab.", f"{'a' * 63}b"],
        ),
        ({"propertyNames": {"not": {"format": "uuid"}}}, ["a"], ["3f2504e0-4f89-41d3-9a0c-0305e82c3301"]),
        (
            {"propertyNames": {"not": {"pattern": "^x-"}}, "patternProperties": {"^x": {"type": "integer"}}},
            ["x1"],
            ["x-"],
        ),
    ],
)
def test_conditions_on_names_are_held_by_masks(
    bytewise: GrammarCompiler, schema: dict[str, Any], valid: list[str], invalid: list[str]
) -> None:
    """They were left to the end of the text, and the search for one took seconds."""
    started = time.process_time()
    compiled = bytewise.compile(JsonSchemaGrammar({"type": "object", **schema}))
    assert time.process_time() - started < 0.5
    assert compiled.refusal is None
    assert [key for key in valid if not takes(compiled.matcher(), {key: 1}, raw=True)] == []
    assert [key for key in invalid if takes(compiled.matcher(), {key: 1}, raw=True)] == []


def test_a_branch_counts_the_properties_that_stand_beside_it(bytewise: GrammarCompiler) -> None:
    """The library refused it, so that the count was held at the end of the text alone."""
    branches = [{"required": ["a", "b"]}, {"required": ["b"], "maxProperties": 1}]
    compiled = bytewise.compile(
        JsonSchemaGrammar({"type": "object", **AB, "oneOf": branches, "additionalProperties": False})
    )
    assert compiled.refusal is None
    assert takes(compiled.matcher(), {"b": 1})
    assert takes(compiled.matcher(), {"a": "", "b": 1})
    assert not takes(compiled.matcher(), {"a": ""})


def test_the_order_of_keywords_takes_no_pattern_away(bytewise: GrammarCompiler) -> None:
    """The library forgot patterns of names that stand behind an `allOf`."""
    words = {"properties": {"a": {}}, "additionalProperties": False}
    schema = {**words, "allOf": [{"properties": {"a": {"type": "integer"}}}], "patternProperties": {"^x": {}}}
    assert takes(bytewise.compile(JsonSchemaGrammar(schema)).matcher(), '{"a":1,"xy":2}')


@pytest.mark.parametrize(
    ("format", "valid", "invalid"),
    [
        ("date", ["2024-02-29", "0001-01-01"], ["2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31"]),
        (
            "date-time",
            ["2024-02-29t23:59:59.5z", "2024-01-01T00:00:00+23:59"],
            ["2024-01-01T23:59:60Z", "2023-02-29T00:00:00Z"],
        ),
        ("time", ["00:00:00Z"], ["23:59:60Z", "24:00:00Z"]),
        ("email", [f"{'a' * 64}@b.de"], [f"{'a' * 65}@b.de", f"a@{'b' * 64}.de", f"a@b{'.b' * 127}"]),
        ("idn-email", ["é@é.de"], [f"{'é' * 65}@é.de", "mailto:é@é.de", "é.@é.de"]),
        ("hostname", [f"b{'.b' * 126}"], [f"b{'.b' * 127}"]),
        ("uri-template", ["{a.b}"], ["{.a..b}", "{a,.b.}"]),
        ("idn-hostname", ["bücher.de", "例え", "a-b"], ["a--b", "A\u0301b", "-a", "\u0301a"]),
    ],
)
def test_formats_hold_what_jsonschema_checks(
    bytewise: GrammarCompiler, format: str, valid: list[str], invalid: list[str]
) -> None:
    """The library knew no calendar, and let leap seconds through."""
    compiled = bytewise.compile(JsonSchemaGrammar({"type": "string", "format": format}))
    assert [text for text in valid if not takes(compiled.matcher(), text, raw=True)] == []
    assert [text for text in invalid if takes(compiled.matcher(), text, raw=True)] == []


@pytest.mark.parametrize("seed", range(3))
def test_random_schemas_accept_nothing_new(seed: int) -> None:
    rng = random.Random(seed)
    rewritten = refused = 0
    for _ in range(150):
        schema = document(rng)
        try:
            before, after = validators(schema)
        except GrammarError:
            refused += 1
            continue
        rewritten += 1
        for value in (instance(rng, 3) for _ in range(12)):
            assert before.is_valid(value) or not after.is_valid(value), f"{json.dumps(schema)} on {value!r}"
    assert rewritten > 5 * refused


def test_masks_of_random_schemas_accept_nothing_new(bytewise: GrammarCompiler) -> None:
    rng, accepted = random.Random(5), 0
    for _ in range(120):
        schema = document(rng)
        try:
            compiled = bytewise.compile(JsonSchemaGrammar(schema))
        except GrammarError:
            continue
        original = jsonschema.Draft202012Validator(schema)
        for value in (instance(rng, 2) for _ in range(8)):
            if takes(compiled.matcher(), value):
                accepted += 1
                assert original.is_valid(value), f"{json.dumps(schema)} on {value!r}"
    assert accepted > 150


@pytest.mark.parametrize("family", EXACT)
def test_masks_of_each_family(family: str, bytewise: GrammarCompiler) -> None:
    rng = random.Random(family)
    for schema in EXACT[family]:
        original, rewritten = validators(schema)
        if not any(rewritten.is_valid(instance(rng, 1)) for _ in range(30)):
            continue  # nothing is valid, and the library says so
        compiled = bytewise.compile(JsonSchemaGrammar(schema))
        for value in (instance(rng, 2) for _ in range(40)):
            texts = orders(value, schema, lambda part, item, v=original: v.evolve(schema=part).is_valid(item))
            found = any(takes(compiled.matcher(), text) for text in texts)
            assert not found or original.is_valid(value), f"{schema} on {value!r}"


@pytest.mark.parametrize(
    ("schema", "reason", "pointer"),
    [
        ({"not": {"propertyNames": {"minLength": 2}}}, "complement of propertyNames", "/not/propertyNames"),
        ({"properties": {"a": {"uniqueItems": True}}}, "uniqueItems needs", "/properties/a/uniqueItems"),
        (
            {"items": {"uniqueItems": True, "items": {"enum": list(range(9))}}},
            "over 9 values has more than 120 orders",
            "/items/uniqueItems",
        ),
        # Their number of orders has more digits than Python writes.
        ({"uniqueItems": True, "items": {"enum": list(range(3000))}}, "over 3000 values", "/uniqueItems"),
        ({"not": {"pattern": "(?m)a"}}, "another kind", "/not/pattern"),
        ({"not": {"type": "string", "format": "regex"}, "type": "string"}, "format 'regex'", "/not/format"),
        ({"anyOf": [{"not": {"patternProperties": {"a": False}}}]}, "no rewrite", "/anyOf/0/not/patternProperties/a"),
        ({"not": {"dependencies": {"a": ["b"]}}}, "in this draft", "/not/dependencies"),
        ({"contains": {"const": 1}, "minContains": 4}, "more than 120 ways", "/contains"),
        (
            {"anyOf": [{"properties": {key: {}}} for key in "abcde"], "unevaluatedProperties": False},
            "too many branches",
            "/anyOf",
        ),
        ({"properties": {key: {} for key in "abcdefgh"}, "minProperties": 4}, "too many cases", "/minProperties"),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": {"not": {"uniqueItems": True}}}},
            "uniqueItems",
            "/$defs/x/not/uniqueItems",
        ),
    ],
)
def test_refused_by_name_and_place(schema: dict[str, Any], reason: str, pointer: str) -> None:
    with pytest.raises(CannotRewrite, match=reason) as caught:
        rewrite(schema)
    assert caught.value.pointer == pointer


def test_complements_that_explode_are_refused() -> None:
    inner: dict[str, Any] = {"type": "string"}
    for n in range(9):
        inner = {"oneOf": [inner, {"minimum": n, "allOf": [inner]}]}
    with pytest.raises(GrammarError, match=r"more than \d+ steps"):
        rewrite({"not": inner})


def test_many_branches_with_a_tag_take_one_look_each() -> None:
    tag = {"type": "object", "required": ["kind"]}
    branches = [{**tag, "properties": {"kind": {"const": n}, "a": {"pattern": "(?=x)"}}} for n in range(300)]
    result = rewrite({"oneOf": branches}).schema
    assert isinstance(result, dict)
    assert len(result["anyOf"]) == 300
    with pytest.raises(GrammarError):  # a tag twice, and patterns have no complement here
        rewrite({"oneOf": [*branches, {**branches[7], "maxProperties": 9}]})


def test_lenient_leaves_out_and_names() -> None:
    schema = {"properties": {"a": {"uniqueItems": True, "type": "array"}}, "not": {"propertyNames": {"minLength": 2}}}
    result = rewrite(schema, lenient=True)
    assert sorted(result.dropped) == [("not", "/not"), ("uniqueItems", "/properties/a/uniqueItems")]
    assert result.schema == {"properties": {"a": {"type": "array"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"not": {"type": "string"}}, "default": {"not": {}}},
        {"$ref": "http://example.org/x", "not": {}},
        {"$defs": {"a": {"$id": "http://example.org/a", "$ref": "#/$defs/b"}}, "not": {"$ref": "#/$defs/a"}},
        {"$dynamicRef": "#x", "not": {}},
    ],
)
def test_left_as_it_is(schema: dict[str, Any]) -> None:
    assert rewrite(schema).schema is schema


@pytest.fixture(scope="module")
def bytewise() -> GrammarCompiler:
    return GrammarCompiler(TokenTable.of_bytes())


def validators(schema: dict[str, Any]) -> tuple[Any, Any]:
    """The original under its draft, and the rewritten schema, which is always of draft 2020-12."""
    read_schema(json.dumps(schema), CompileLimits())
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(schema), jsonschema.Draft202012Validator(rewrite(schema).schema)


def takes(matcher: Any, value: Any, *, raw: bool = False) -> bool:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=not raw).encode()
    try:
        return matcher.accept([byte + 1 for byte in text]) == len(text) and matcher.may_end()
    except GrammarFailure:
        return False  # all names that the object may have are used up


def instance(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if kind < 0.45 or depth == 0:
        return rng.choice([None, True, False, 0, 1, 2, 3, -1, 6, 1.5, -0.5, "", "a", "b", "ab", "foo", "a1"])
    if kind < 0.7:
        return [instance(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {key: instance(rng, depth - 1) for key in rng.sample(["a", "b", "c", "ab"], rng.randint(0, 3))}


def document(rng: random.Random) -> dict[str, Any]:
    defs = {"x": random_schema(rng, 2, refs=False), "tree": {"properties": {"a": {"$ref": "#/$defs/tree"}}}}
    root = random_schema(rng, 3, refs=True)
    return {"$defs": defs, **(root if isinstance(root, dict) else {"allOf": [root]})}


def random_schema(rng: random.Random, depth: int, *, refs: bool) -> Any:
    if depth == 0 or rng.random() < 0.1:
        simple = [True, False, {"type": "string"}, {"type": "integer"}, {"const": 1}, {"type": ["number", "null"]}]
        return rng.choice([*simple, {"$ref": "#/$defs/x"}, {"$ref": "#/$defs/tree"}] if refs else simple)
    schema: dict[str, Any] = {}
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        schema |= random_keyword(rng, depth, refs)
    return schema


def random_keyword(rng: random.Random, depth: int, refs: bool) -> dict[str, Any]:
    def child() -> Any:
        return random_schema(rng, depth - 1, refs=refs)

    def names() -> list[str]:
        return rng.sample("abc", rng.randint(1, 2))

    makers: list[Any] = [
        lambda: {"type": rng.choice(["string", "integer", "number", "object", "array", ["string", "object"]])},
        lambda: {"enum": [instance(rng, 1) for _ in range(rng.randint(1, 3))]},
        lambda: {"const": instance(rng, 1)},
        lambda: {rng.choice(["minimum", "maximum", "exclusiveMinimum"]): rng.choice([0, 1, 1.5])},
        lambda: {rng.choice(["minLength", "maxLength", "minItems", "maxItems", "maxProperties"]): rng.randint(0, 2)},
        lambda: {"multipleOf": rng.choice([1, 2, 0.5]), "pattern": rng.choice(["^a", "b$", "^.{2,3}$"])},
        lambda: {"required": names()},
        lambda: {"properties": {name: child() for name in names()}},
        lambda: {"patternProperties": {rng.choice(["^a", "b", ".*"]): child()}, "additionalProperties": child()},
        lambda: {"not": child()},
        lambda: {"contains": child(), "items": child()},
        lambda: {"prefixItems": [child(), child()]},
        lambda: {rng.choice(["allOf", "anyOf"]): [child() for _ in range(rng.randint(1, 3))]},
        lambda: {"oneOf": [child() for _ in range(rng.randint(1, 3))]},
        lambda: {"if": child(), "then": child(), "else": child()},
        lambda: {"dependentRequired": {"a": names()}, "dependentSchemas": {"b": child()}},
        lambda: {"propertyNames": rng.choice([{"pattern": "^[ab]"}, {"enum": ["a", "b"]}, {"maxLength": 1}])},
    ]
    made: dict[str, Any] = rng.choice(makers)()
    return made
