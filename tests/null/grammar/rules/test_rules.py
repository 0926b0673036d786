"""Rules about JSON beside the grammar: numbers that end, and arrays whose items differ."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import Any

import jsonschema
import numpy as np
import pytest
from byte_texts import takes
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd_grammar import (
    AnyJsonGrammar,
    Constraint,
    ExactGrammar,
    GrammarCompiler,
    GrammarError,
    GrammarFailure,
    GrammarMatcher,
    JsonSchemaGrammar,
    PrefixedGrammar,
    TokenTable,
)
from inferd_grammar.rules.items import canonical

BYTES = GrammarCompiler(TokenTable.of_bytes())
UNIQUE = {"type": "array", "uniqueItems": True}
TAGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}


def allows(constraint: Any, text: str) -> bool:
    return takes(JsonSchemaGrammar(constraint) if isinstance(constraint, dict | bool) else constraint, text)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("[1,2]", True), ("[1,1]", False), ("[1,1.0]", False), ("[1,true]", True), ("[1,10e-1]", False), ("[0,-0]", False),
        ("[0.5,0.50]", False), ("[1,12,1e1,10.0]", False), ("[100,1e2]", False), ("[100,1e3]", True),
        ('[{"a":1,"b":2},{"b":2,"a":1}]', False), ('[{"a":1},{"a":true}]', True), ('["a","a"]', False), ('["a","b"]', True),
        (r'["\n","\u000a"]', False), ("[[1],[1]]", False), ("[[1,1],[1]]", True), ("[null,null]", False), ("[[],[]]", False),
        ("[[],{}]", True), ("[]", True), ('["a,b","a"]', True), ('["a]","a"]', True), (r'["\"","\\"]', True),
    ],
)  # fmt: skip
def test_equal_items_cannot_be_closed(text: str, valid: bool) -> None:
    assert allows(UNIQUE, text) == valid
    assert allows(ExactGrammar(JsonSchemaGrammar(UNIQUE)), text) == valid
    assert allows(PrefixedGrammar('so ["a", ', JsonSchemaGrammar(UNIQUE)), f'so ["a", {text}') == valid


@pytest.mark.parametrize("other", [{"type": "string"}, {"const": 1}, {"type": "array", "maxItems": 1}])
def test_branches_of_another_kind_say_nothing_about_members(other: Any) -> None:
    """Beside a string or a number, an array of tags inside an object was held at the end of the text alone."""
    schema = {"anyOf": [other, {"type": "object", "properties": {"tags": UNIQUE}}]}
    assert BYTES.compile(JsonSchemaGrammar(schema)).refusal is None
    assert allows(schema, '{"tags":[1,2]}')
    assert not allows(schema, '{"tags":[1,1]}')


@pytest.mark.parametrize(
    ("schema", "text", "valid"),
    [
        ({"type": "object", "properties": {"t": TAGS, "o": {"type": "array"}}}, '{"t":["a"],"o":[1,1]}', True),
        ({"type": "object", "properties": {"t": TAGS, "o": {"type": "array"}}}, '{"t":["a","a"]}', False),
        ({"items": UNIQUE, "type": "array"}, "[[1],[1]]", True),
        ({"items": UNIQUE, "type": "array"}, "[[1],[1,1]]", False),
        ({"prefixItems": [UNIQUE, True], "type": "array"}, "[[1],[1,1]]", True),
        ({"patternProperties": {"^x": UNIQUE}, "type": "object"}, '{"x":[1,1]}', False),
        ({"patternProperties": {"^x": UNIQUE}, "type": "object"}, '{"y":[1,1]}', True),
        ({"additionalProperties": UNIQUE, "properties": {"a": {}}}, '{"a":[1,1]}', True),
        ({"additionalProperties": UNIQUE, "properties": {"a": {}}}, '{"b":[1,1]}', False),
        ({"anyOf": [UNIQUE, {"type": "string"}]}, "[1,1]", False),
        ({"oneOf": [UNIQUE, {"type": "string"}]}, "[1,2]", True),
        ({"allOf": [UNIQUE, {"maxItems": 9}]}, "[1,1]", False),
        ({"$ref": "#/$defs/u", "$defs": {"u": UNIQUE}}, "[1,1]", False),
    ],
)
def test_only_those_arrays_are_held_that_the_schema_means(schema: Any, text: str, valid: bool) -> None:
    assert allows(schema, text) == valid


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"anyOf": [UNIQUE, {"type": "array", "maxItems": 2}]}, "[1,1]", "[1,1,1]"),
        ({"properties": {"a": {"oneOf": [UNIQUE, {"minItems": 3}]}}, "required": ["a"]}, '{"a":[1,1,1]}', '{"a":[1,2,3]}'),
        ({"not": UNIQUE, "type": "array"}, "[1,1]", "[1,2]"),
        ({"type": "array", "contains": {"const": 5}, "minContains": 4}, "[5,0,5,5,5]", "[5,0,5,5]"),
        ({"type": "object", "not": {"propertyNames": {"maxLength": 1}}}, '{"ab":0}', '{"a":0}'),
        ({"allOf": [{"patternProperties": {name: {"type": "null"}}} for name in "ab"]}, '{"ab":null}', '{"a":0}'),
    ],
)  # fmt: skip
def test_what_no_grammar_holds_is_held_where_the_text_ends(schema: Any, valid: str, invalid: str) -> None:
    """Only the bracket that would close an invalid text is illegal."""
    assert BYTES.compile(JsonSchemaGrammar(schema)).refusal is not None
    assert allows(schema, valid)
    assert not allows(schema, invalid)


def test_what_no_grammar_holds_is_refused_where_no_end_is_found() -> None:
    schema = {"type": "string", "not": {"pattern": "(a|b)*a(a|b){20}"}, "minLength": 300, "maxLength": 301}
    with pytest.raises(GrammarError, match="not supported") as caught:
        BYTES.compile(JsonSchemaGrammar({"allOf": [schema, {"not": {"uniqueItems": True}}]}))
    assert caught.value.pointer is not None


def walked(matcher: GrammarMatcher, table: TokenTable, rng: random.Random, steps: int) -> list[int]:
    row = np.empty(table.words, np.int32)
    taken: list[int] = []
    for _ in range(steps):
        try:
            matcher.fill(row)
        except GrammarFailure:
            break
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        legal = [int(token) for token in np.flatnonzero(bits) if token not in table.eos_ids]
        if not legal:
            break
        taken.append(rng.choice(legal))
        assert matcher.accept(taken[-1:]) == 1
    return taken


@pytest.mark.parametrize("schema", [TAGS, {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, UNIQUE])
def test_masks_after_a_rollback_are_those_of_a_fresh_matcher(compiler: GrammarCompiler, schema: Any) -> None:
    table, rng = compiler.table, random.Random(3)
    compiled = compiler.compile(JsonSchemaGrammar(schema))
    rows = np.empty((2, table.words), np.int32)
    for _ in range(examples(8)):
        matcher, fresh = compiled.matcher(), compiled.matcher()
        taken = walked(matcher, table, rng, 30)
        keep = rng.randint(0, len(taken))
        matcher.rollback(len(taken) - keep)
        assert fresh.accept(taken[:keep]) == keep
        matcher.fill(rows[0])
        fresh.fill(rows[1])
        assert (rows[0] == rows[1]).all()
        assert matcher.fork().may_end() == fresh.may_end()


@pytest.mark.parametrize("schema", [TAGS, {"type": "array", "items": {"enum": list("abcdef")}, "uniqueItems": True}])
def test_every_legal_token_of_a_vocabulary_keeps_items_apart(compiler: GrammarCompiler, schema: Any) -> None:
    """The plain twin: JSON's own reader over what was written, against what the masks let through."""
    table, rng = compiler.table, random.Random(5)
    for _ in range(examples(30)):
        matcher = compiler.compile(JsonSchemaGrammar(schema)).matcher()
        text = b"".join(table.tokens[token] for token in walked(matcher, table, rng, 40))
        complete = text[: text.rfind(b",")] + b"]" if b"," in text else b"[]"
        try:
            items = json.loads(complete)
        except ValueError:
            continue  # the last comma stands inside a string
        assert len(items) == len(set(items)), complete


def values() -> st.SearchStrategy[Any]:
    flat = st.one_of(st.integers(-3, 3), st.floats(-2, 2), st.booleans(), st.none(), st.text("ab", max_size=2))

    def deeper(inner: Any) -> Any:
        return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)

    return st.recursive(flat, deeper, max_leaves=5)


@given(values(), values())
@settings(max_examples=examples(400), deadline=None)
def test_equality_is_that_of_json_schema(left: Any, right: Any) -> None:
    equal = jsonschema.Draft202012Validator({"const": left}).is_valid(right)
    assert (canonical(json.dumps(left).encode()) == canonical(json.dumps(right).encode())) == equal


NUMBER = {"type": "number"}


@pytest.mark.parametrize(
    ("constraint", "text", "taken"),
    [
        (NUMBER, "12345678901234567", True),
        (NUMBER, "123456789012345678", False),
        (NUMBER, "1.2345678901234567", True),
        (NUMBER, "1.23456789012345678", False),
        (NUMBER, "0.025010755222666936", True),
        (NUMBER, "0.000000000000000000000001", False),
        (NUMBER, "1e308", True),
        (NUMBER, "1e-308", True),
        (NUMBER, "1e1000", False),
        (NUMBER, "1.7976931348623157e+308", True),
        (NUMBER, "1.7976931348623158e308", False),
        (NUMBER, "9e308", False),
        (NUMBER, "9E+307", True),
        (NUMBER, "12345678901234567e291", True),
        (NUMBER, "12345678901234567e300", False),
        (NUMBER, "9e-999", True),
        (AnyJsonGrammar(), '["1e999",1e309]', False),
        (AnyJsonGrammar(), '["1e999",1e30]', True),
        (NUMBER, "-12345678901234567", True),
        (AnyJsonGrammar(), '["123456789012345678901",1234567]', True),
        (AnyJsonGrammar(), "[123456789012345678]", False),
        (AnyJsonGrammar(), '{"12345678901234567890":1}', True),
        ({"const": 1234567890123456768}, "1234567890123456768", True),
        ({"enum": [0.1234567890123456789, 3]}, "0.12345678901234568", True),
        ({"type": "integer", "minimum": 10**17}, "100000000000000000", True),
        ({"type": "integer", "maximum": 10**18, "minimum": 0}, "1000000000000000000", True),
        ({"type": "number", "multipleOf": 1e-9}, "12345678.123456789", True),
    ],
)
def test_numbers_have_at_most_17_digits_but_those_that_a_schema_asks_for(
    constraint: Any, text: str, taken: bool
) -> None:
    assert allows(constraint, text) == taken


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=examples(300), deadline=None)
def test_no_float_of_64_bits_is_refused_and_none_beyond_is_let_through(number: float) -> None:
    assert allows(NUMBER, json.dumps(number))
    assert not allows(NUMBER, f"{int(abs(number) % 90) + 10}e{int(abs(number) % 50) + 308}")


@pytest.mark.parametrize(("begun", "next_byte"), [("[1e30", "9"), ("[6E54", "0"), ("[12345678901234567e29", "2")])
def test_an_end_in_any_split_makes_no_number_infinite(begun: str, next_byte: str) -> None:
    """Masks held the exponent, but `0]` was taken as the way to the end of `[6E54`: 6E540 is read as infinity."""
    compiled = BYTES.compile(JsonSchemaGrammar({"type": "array", "items": NUMBER, "minItems": 1}))
    matcher, planner = compiled.matcher(), compiled.planner()
    assert planner is not None
    matcher.accept([byte + 1 for byte in begun.encode()])
    assert matcher.take([byte + 1 for byte in next_byte.encode()]) == 0
    assert matcher.ends_with([byte + 1 for byte in b"]"])
    for byte in begun.encode():
        assert planner.admit(byte + 1, 40) == byte + 1
    assert planner.admit(ord(next_byte) + 1, 2) != ord(next_byte) + 1


@pytest.mark.parametrize("limit", ["12345678901234567", "1.2345678901234567", "1e308"])
def test_a_number_that_is_full_can_only_end(compiler: GrammarCompiler, limit: str) -> None:
    matcher = compiler.compile(AnyJsonGrammar()).matcher()
    assert matcher.take(compiler.table.splitter.split(f"[{limit}".encode()).tokens(0))
    row = np.empty(compiler.table.words, np.int32)
    matcher.fill(row)
    legal = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    assert len(legal)
    first = {compiler.table.tokens[token][:1] for token in legal}
    assert first <= {b",", b"]", b"e", b"E"}, first


@pytest.mark.parametrize("constraint", [JsonSchemaGrammar(TAGS), AnyJsonGrammar()])
def test_rules_come_back_from_a_recipe(constraint: Constraint) -> None:
    """What a child has compiled is made again here, with its rules."""
    from inferd_grammar.backends.llguidance import LlguidanceBackend
    from inferd_grammar.limits import DEFAULT_LIMITS
    from inferd_grammar.matchers.matcher import GuardedMatcher

    table = TokenTable.of_bytes()
    backend = LlguidanceBackend(table)
    recipe = backend.compile(constraint, DEFAULT_LIMITS).recipe
    assert recipe is not None
    matcher = GuardedMatcher(backend.rebuild(recipe), table)
    text = '["a","a"]' if isinstance(constraint, JsonSchemaGrammar) else "[123456789012345678]"
    assert matcher.accept([byte + 1 for byte in text.encode()]) < len(text)


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [({"const": 2**53 + 1}, "/const"), ({"enum": [[2**53 + 1]]}, "/enum"), ({"minimum": 2**53 + 1}, "/minimum")],
)
def test_a_whole_number_that_would_be_rounded_is_refused(schema: Any, pointer: str) -> None:
    """The library reads 2**53 + 1 as 2**53, and let that through."""
    with pytest.raises(GrammarError, match="beyond") as caught:
        BYTES.compile(JsonSchemaGrammar({"type": "integer", **schema} if "minimum" in schema else schema))
    assert caught.value.pointer == pointer
    assert allows({"type": "integer", "maximum": 2**63 - 1}, "12345678")


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (JsonSchemaGrammar({"type": "object"}), '{"' + "x" * 8000),
        (AnyJsonGrammar(), "[" * 2000),
        (JsonSchemaGrammar(UNIQUE), "[" + ",".join(map(str, range(1000)))),
    ],
    ids=["a long name", "brackets", "items"],
)
def test_a_text_that_a_matcher_holds_takes_memory_by_its_length(constraint: Constraint, text: str) -> None:
    """Each token's place had a copy of all before it: 60,000 tokens of one name took 2 GB, and a tenant may hold 131,072."""
    matcher, ids = BYTES.compile(constraint).matcher(), [byte + 1 for byte in text.encode()]
    tracemalloc.start()
    try:
        assert matcher.accept(ids) == len(ids)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1000 * len(ids)
