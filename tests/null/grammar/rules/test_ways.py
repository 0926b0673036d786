"""Rules about the JSON values inside of texts that are made of parts: calls of tools."""

from __future__ import annotations

import json
import math
import random
from typing import cast

import numpy as np
import pytest
from byte_texts import BYTES, takes
from tiers import examples

from inferd_grammar import (
    AnyJsonGrammar,
    AnyOfGrammar,
    Constraint,
    ExactGrammar,
    GrammarCompiler,
    GrammarMatcher,
    JsonSchemaGrammar,
    PrefixedGrammar,
    RegexGrammar,
    RepeatedGrammar,
    SequenceGrammar,
    TaggedGrammar,
    TagGrammar,
    TextGrammar,
    TokenTable,
    UntilGrammar,
)
from inferd_grammar.rules import ways
from inferd_grammar.rules.core import RuledCore
from inferd_grammar.rules.items import Written
from inferd_grammar.rules.names import NamesPlace, RepeatedName
from inferd_grammar.rules.numbers import NumberPlace, _behind_token, behind
from inferd_grammar.rules.ways import PartsRule

NUMBER = JsonSchemaGrammar({"type": "number"})
LARGE = JsonSchemaGrammar({"type": "integer", "minimum": 10**17})
POINT = JsonSchemaGrammar({"type": "object", "properties": {"x": {"type": "number"}}, "additionalProperties": False})
FEW = JsonSchemaGrammar(
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}
)
ONE = JsonSchemaGrammar({**FEW.schema, "propertyNames": {"enum": ["a"]}, "minProperties": 1})
SETS = JsonSchemaGrammar({"type": "object", "additionalProperties": {"type": "array", "uniqueItems": True}})
CALL = TagGrammar(
    "<c>",
    AnyOfGrammar(
        (SequenceGrammar((TextGrammar("at "), POINT)), SequenceGrammar((TextGrammar("any "), AnyJsonGrammar())))
    ),
    "</c>",
)
CALLS = TaggedGrammar((CALL,))
VALUE = {"digits": 17, "names": False, "few": False, "unique": None}
FULL, LONGER = "12345678901234567", "123456789012345678"


@pytest.mark.parametrize(
    ("constraint", "valid", "invalid"),
    [
        (CALLS, f'{LONGER}<c>at {{"x":{FULL}}}</c>{LONGER}', f'<c>at {{"x":{LONGER}}}</c>'),
        (CALLS, f'<c>any [{FULL}]</c><c>any ["{LONGER}"]</c>', f"<c>any [{FULL}]</c><c>any [{LONGER}]</c>"),
        (CALLS, "1e999<c>any [1e308,9e307]</c>1e999", "<c>any [1e309]</c>"),
        (CALLS, '<c>at {"x":1.7976931348623157e308}</c>', '<c>at {"x":1.7976931348623158e308}</c>'),
        (CALLS, f"<c>any {FULL}</c>", f"<c>any {LONGER}</c>"),
        (CALLS, '<c>any "]}"</c><c>any [1]</c>', f'<c>any "]}}"</c><c>any [{LONGER}]</c>'),
        (SequenceGrammar((NUMBER, TextGrammar("kg "), NUMBER)), f"{FULL}kg 1", f"{FULL}kg {LONGER}"),
        (SequenceGrammar((NUMBER, TextGrammar(" e"))), "1e308 e", "1e309 e"),
        (SequenceGrammar((NUMBER, TextGrammar("e."))), "12.345678901234567e1e.", "12.3456789012345678e1e."),
        (SequenceGrammar((NUMBER, TextGrammar("e."))), "1e030e.", "1e0030e."),
        (SequenceGrammar((LARGE, TextGrammar("!"))), f"{LONGER}!", f"{LONGER}9!"),
        (SequenceGrammar((UntilGrammar("--"), NUMBER)), f"{LONGER}- --1", f"--{LONGER}"),
        (RepeatedGrammar(SequenceGrammar((NUMBER, TextGrammar(";")))), f"1;{FULL};", f"1;{LONGER};"),
        (PrefixedGrammar("go ", CALLS), f'go {LONGER}<c>at {{"x":{FULL}}}</c>', f'go <c>at {{"x":{LONGER}}}</c>'),
    ],
)  # fmt: skip
def test_numbers_end_in_the_arguments_of_a_call(constraint: Constraint, valid: str, invalid: str) -> None:
    """A tool was called with 92294514e3405698311726, which is read as infinity; others went on until the tokens were used up."""
    for one in (constraint, *([] if isinstance(constraint, PrefixedGrammar) else [ExactGrammar(constraint)])):
        assert takes(one, valid)
        assert not takes(one, invalid)


@pytest.mark.parametrize(
    ("constraint", "valid", "invalid"),
    [
        (CALLS, '{"a":1,"a":1}<c>any {"a":{"a":1},"b":[]}</c>{"a":1,"a":1}', '<c>any {"a":1,"a":1}</c>'),
        (CALLS, '<c>any {"a":1}</c><c>any {"a":1}</c>', '<c>any {"a":1}</c><c>any {"a":1,"a":1}</c>'),
        (CALLS, '<c>any [{"a":1},{"a":1}]</c>', r'<c>any [{"\n":1,"\u000a":1}]</c>'),
        (SequenceGrammar((FEW, TextGrammar(";"), FEW)), '{"a":1,"b":2};{"b":1}', '{"a":1};{"b":1,"b":1}'),
        (SequenceGrammar((TextGrammar("{"), SETS, TextGrammar("}"))), '{{"a":[1],"b":[1]}}', '{{"a":[1],"a":[2]}}'),
        (SequenceGrammar((TextGrammar("{"), SETS, TextGrammar("}"))), '{{"a":[1,2],"b":[]}}', '{{"a":[1,1],"b":[]}}'),
        (RepeatedGrammar(FEW), '{"a":1}{"a":1}', '{"a":1}{"a":1,"a":1}'),
    ],
)  # fmt: skip
def test_names_differ_in_the_arguments_of_a_call(constraint: Constraint, valid: str, invalid: str) -> None:
    """An argument of type `dict[Literal["a", "b"], int]` had the name `a` ten times."""
    for one in (constraint, ExactGrammar(constraint)):
        assert takes(one, valid)
        assert not takes(one, invalid)


def test_forced_text_of_a_call_repeats_no_name() -> None:
    compiled = BYTES.compile(SequenceGrammar((TextGrammar("x"), ONE, TextGrammar("."))))
    assert compiled.may_meet_dead_ends
    matcher = compiled.matcher()
    for text, forced in ((b"x", b'{"a":'), (b'{"a":1,', b'"a')):
        assert matcher.accept([byte + 1 for byte in text]) == len(text)
        assert matcher.forced() == forced


def test_where_the_names_of_a_call_run_out_it_ends() -> None:
    compiled = BYTES.compile(TaggedGrammar((TagGrammar("<c>", FEW, "</c>"),)))
    planner, matcher, text = compiled.planner(), compiled.matcher(), ""
    assert planner is not None
    for wanted in '<c>{"b":1,"a":2,"b':
        token = planner.admit(ord(wanted) + 1, 100)
        assert matcher.accept([token]) == 1
        text += chr(token - 1)
        if token != ord(wanted) + 1:
            break
    assert text[:-1] == '<c>{"b":1,"a":2'
    assert not text.endswith(",")


def test_texts_that_begin_alike_are_followed_as_one() -> None:
    """A token cost half a millisecond under hundreds of tools, whose calls all begin with the same words."""
    texts = ["call ", "call", "", *(f"call tool_{i}: " for i in range(300))]
    calls = [["sequence", ["text", text], ["value", VALUE]] for text in texts]
    rule, text = PartsRule(["tagged", ["<c>", ["any", *calls], ";"]]), bytearray()
    place, most = rule.start, 0
    for byte in b"a <c>call tool_29: [1":
        place = rule.behind(place, Written(text, bytes((byte,))))
        most = max(most, len(place.ways))
        text.append(byte)
    assert most <= 12
    assert [digits for _, digits in place.numbers] == [17]


def test_a_token_that_ends_where_it_began_has_written_a_name() -> None:
    """Behind a quote that opens a name a text stands where it stood before: `":1,"` is a name and opens the next."""
    rule = PartsRule(["sequence", ["text", "x"], ["value", {**VALUE, "names": True}], ["text", "."]])
    place, text = rule.start, bytearray()
    for token in (b'x{"', b'":1,"', b'a":1,"'):
        place = rule.behind(place, Written(text, token))
        text += token
    for token in (b'":1', b'a":'):
        with pytest.raises(RepeatedName):
            rule.behind(place, Written(text, token))


@pytest.mark.parametrize("text", ["call 1;", "call1;", "1;", "call t: [1];", "call tool: [1];1;call tool: {};"])
def test_each_of_several_texts_that_begin_alike_is_followed(text: str) -> None:
    starts = [TextGrammar("call "), TextGrammar("call"), TextGrammar("call t: "), TextGrammar("call tool: ")]
    one = AnyOfGrammar((AnyJsonGrammar(), *(SequenceGrammar((start, AnyJsonGrammar())) for start in starts)))
    constraint = RepeatedGrammar(SequenceGrammar((one, TextGrammar(";"))))
    assert takes(constraint, text)
    assert not takes(constraint, text.replace("1", LONGER).replace("{}", '{"":1,"":1}'))


def test_what_cannot_be_followed_is_not_refused_for_its_numbers() -> None:
    """Where a call is an expression nothing tells what is JSON: the values before it are held, those behind it are not."""
    tags = TaggedGrammar((CALL, TagGrammar("<e>", RegexGrammar("[a-z]*"), "</e>")))
    assert not takes(tags, f"<c>any {LONGER}</c>")
    assert takes(tags, f"<e>a</e><c>any {LONGER}</c>")
    assert takes(SequenceGrammar((RegexGrammar("[a-z]*"), NUMBER)), f"a{LONGER}")
    assert not takes(SequenceGrammar((NUMBER, RegexGrammar("[a-z]*"))), LONGER)


def test_numbers_of_calls_that_must_differ_as_floats_have_15_digits() -> None:
    """Behind a prefix they had 17, and were rounded to the whole number that the schema excludes."""
    fraction = JsonSchemaGrammar({"type": "number", "not": {"type": "integer"}})
    for constraint in (PrefixedGrammar("x", fraction), SequenceGrammar((TextGrammar("x"), fraction))):
        assert takes(constraint, "x0.123456789012345")
        assert not takes(constraint, "x0.99999999999999999")


def test_what_another_process_compiled_holds_numbers_in_calls() -> None:
    recipe = BYTES.compile(CALLS).recipe
    assert recipe is not None
    core = BYTES._backend.rebuild(recipe)
    for byte in f"<c>any [{FULL}".encode():
        core.push(byte + 1)
    row = np.empty(BYTES.table.words, np.int32)
    core.fill(row, row.ctypes.data)
    assert not row[(ord("8") + 1) >> 5] >> ((ord("8") + 1) & 31) & 1


def legal_tokens(matcher: GrammarMatcher, table: TokenTable) -> list[int]:
    row = np.empty(table.words, np.int32)
    matcher.fill(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits) if i not in table.eos_ids]


DIGITS = b"0123456789.e+"


@pytest.mark.parametrize("begun", ["<c>any [", '<c>at {"x":'])
def test_every_legal_token_keeps_numbers_of_calls_finite(compiler: GrammarCompiler, begun: str) -> None:
    table, rng = compiler.table, random.Random(11)
    compiled = compiler.compile(ExactGrammar(CALLS))
    for _ in range(examples(20)):
        matcher = compiled.matcher()
        start = table.splitter.split(begun.encode()).tokens(0)
        assert matcher.accept(start) == len(start)
        text = b""
        for _ in range(60):
            legal = legal_tokens(matcher, table)
            ways = [i for i in legal if set(table.tokens[i]) <= set(DIGITS)]
            if not ways:
                break
            token = rng.choice(ways)
            assert matcher.accept([token]) == 1
            text += table.tokens[token]
        else:
            pytest.fail(f"{text!r} goes on")
        assert math.isfinite(json.loads(text)), text


@pytest.mark.hypothesis
def test_masks_of_names_in_calls_are_those_of_brute_force(compiler: GrammarCompiler) -> None:
    """The plain twin reads the whole value anew for each token."""
    table, rng = compiler.table, random.Random(5)
    maps = JsonSchemaGrammar({"type": "object", "additionalProperties": {"anyOf": [{"const": 1}, {"$ref": "#"}]}})
    compiled = compiler.compile(ExactGrammar(SequenceGrammar((TextGrammar('{"a'), maps, TextGrammar(";")))))
    rows, refused = np.empty((2, table.words), np.int32), 0
    for number in range(examples(20)):
        core, text = cast(RuledCore, compiled._core.copy()), (b"", b'{"a":1,"a')[number % 2]
        for token in table.splitter.split(b'{"a' + text).tokens(0):
            core.push(token)
        for _ in range(30):
            for one, row in ((core, rows[0]), (core._inner, rows[1])):
                one.fill(row, row.ctypes.data)
            legal, more = (set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))) for row in rows)
            quoted = [int(i) for i in more if b'"' in table.tokens[i]]
            repeating = {i for i in quoted if repeats(text + table.tokens[i])}
            assert legal == more - repeating, text
            refused += len(repeating)
            if not legal or b"}" in text[-1:]:
                break
            short = [int(i) for i in legal if set(table.tokens[i]) <= set(b'{"an:1,')]
            token = rng.choice(short or sorted(int(i) for i in legal))
            core.push(token)
            text += table.tokens[token]
    assert refused


def repeats(text: bytes) -> bool:
    try:
        NamesPlace().behind(text)
    except RepeatedName:
        return True
    return False


@pytest.mark.hypothesis
def test_masks_of_calls_after_a_rollback_are_those_of_a_fresh_matcher(compiler: GrammarCompiler) -> None:
    table, rng = compiler.table, random.Random(3)
    compiled = compiler.compile(ExactGrammar(CALLS))
    start = table.splitter.split(b"a <c>any [").tokens(0)
    rows = np.empty((2, table.words), np.int32)
    for _ in range(examples(12)):
        matcher, fresh, taken = compiled.matcher(), compiled.matcher(), list(start)
        assert matcher.accept(start) == len(start)
        for _ in range(30):
            legal = legal_tokens(matcher, table)
            some = [i for i in legal if set(table.tokens[i]) & set(DIGITS + b'[]{}":,<')]
            if not legal:
                break
            taken.append(rng.choice(some or legal))
            assert matcher.accept(taken[-1:]) == 1
        keep = rng.randint(0, len(taken))
        matcher.rollback(len(taken) - keep)
        assert fresh.accept(taken[:keep]) == keep
        for one, row in ((matcher.fork(), rows[0]), (fresh, rows[1])):
            one.fill(row)
        assert (rows[0] == rows[1]).all()


@pytest.mark.parametrize("left", [24, 30, 60])
def test_a_call_is_ended_in_time_behind_a_number_that_is_full(left: int) -> None:
    compiled = BYTES.compile(CALLS)
    planner, matcher, text = compiled.planner(), compiled.matcher(), ""
    assert planner is not None
    for spent in range(left):
        legal = legal_tokens(matcher, BYTES.table)
        byte = f"<c>any [{LONGER}"[len(text) :][:1] or "9"
        token = planner.admit(ord(byte) + 1 if ord(byte) + 1 in legal else legal[0], left - spent)
        if token in BYTES.table.eos_ids:
            break
        assert matcher.accept([token]) == 1
        text += chr(token - 1)
    assert text.startswith("<c>any [123456")
    assert LONGER not in text
    assert matcher.may_end()


def test_a_long_text_that_a_call_forces_is_not_followed_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant of 60 KB kept the step loop for 160 ms at each look at what is forced."""
    followed, step = [], ways._step
    monkeypatch.setattr(ways, "_step", lambda *arguments: followed.append(1) or step(*arguments))
    word = JsonSchemaGrammar({"type": "object", "properties": {"x": {"const": "y" * 5000}}, "required": ["x"]})
    matcher = BYTES.compile(TaggedGrammar((TagGrammar("<c>", word, "</c>"),))).matcher()
    begun = [byte + 1 for byte in b'<c>{"x":"']
    assert matcher.accept(begun) == len(begun)
    followed.clear()
    assert matcher.forced().startswith(b"y" * 5000)
    assert len(followed) < 50


def test_places_behind_long_texts_are_not_kept() -> None:
    """What grammars of all tenants force, up to 200 KB each, would have stayed in memory, up to 262,144 times."""
    kept = _behind_token.cache_info().currsize
    assert behind(NumberPlace(), b'"' + b"y" * 5000 + b'",12') == behind(NumberPlace(), b"12")
    assert _behind_token.cache_info().currsize <= kept + 1
