"""Texts of regular expressions, choices and grammars inside of JSON strings, and up to a mark."""

from __future__ import annotations

import json
import random

import pytest

from inferd_grammar import (
    AnyJsonGrammar,
    ChoiceGrammar,
    Constraint,
    GrammarError,
    JsonSchemaGrammar,
    JsonTextGrammar,
    LarkGrammar,
    RegexGrammar,
    SequenceGrammar,
    TextGrammar,
    UntilGrammar,
)
from tests.support.byte_texts import BYTES, random_text, takes

LIKED = '"\\\n<'
END = "\n</value>\n"
PATTERNS = [
    r"[a-z]{2,3}", r'"[^"]*"', r"(?:a|\n)+", r".{1,3}", r"(?s:.){0,3}", r"^\d\s\w$", r"\\n|\x0a|\t", r"[^\n]*\n?",
    r"(?i)ab|[^B]c",
    r"a{2}b{1,}?", r"(?P<name>x)|(?:y|)", r"[\x00-\x1f]{2}", r"(?=.*\n)[ab\n]+", r"é+|🐢", r"\p{Lu}\P{L}",
    r"[\w\s]{1,2}", r"\[\]\{\}", r"[]\"\\-]+", r"a|^b$", r"",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_of_an_expression_are_taken_as_json_writes_them_and_no_others(pattern: str) -> None:
    plain, inside, rng = RegexGrammar(pattern), JsonTextGrammar(RegexGrammar(pattern)), random.Random(3)
    for _ in range(25):
        text = random_text(plain, rng, LIKED)
        assert text is None or takes(inside, json.dumps(text, ensure_ascii=False))
        written = random_text(inside, rng, LIKED)
        if written is not None:
            value = json.loads(written)
            assert takes(plain, value)
            changed = value + rng.choice(['"', "\\", "\n", "a"])
            assert takes(inside, json.dumps(changed, ensure_ascii=False)) == takes(plain, changed)


def test_a_choice_is_one_of_its_options_as_json_writes_them() -> None:
    options = ('say "hi"', "a\nb", "", "é\\")
    for option in options:
        assert takes(JsonTextGrammar(ChoiceGrammar(options)), json.dumps(option, ensure_ascii=False))
    assert not takes(JsonTextGrammar(ChoiceGrammar(options)), '"a"')


def test_a_text_in_a_string_stands_between_others() -> None:
    call = SequenceGrammar(
        (TextGrammar('{"input":'), JsonTextGrammar(LarkGrammar('start: /[a-z\\n]+/ "\\""')), TextGrammar("}"))
    )
    assert takes(call, '{"input":"a\\nb\\""}')
    assert not takes(call, '{"input":"a\\nb"}')


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        (AnyJsonGrammar(), "not AnyJson"),
        (JsonSchemaGrammar({}), "not JsonSchema"),
        (RegexGrammar(r"\p{Greek}"), "Greek"),
        (RegexGrammar(r"(?x: a b)"), "a group that begins with"),
        (RegexGrammar(r"(a)\1"), "a back reference"),
        (RegexGrammar(r"(?-u:\xff)"), "a group that begins with"),
        (ChoiceGrammar(()), "at least one option"),
        (RegexGrammar("a" * 20_000), "max_regex"),
        (RegexGrammar("a)"), "nothing opens"),
        (RegexGrammar("(a"), "without an end"),
        (RegexGrammar("*a"), "behind nothing"),
    ],
)
def test_what_cannot_be_held_in_a_string_is_refused_by_name(inner: Constraint, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        BYTES.compile(JsonTextGrammar(inner))


@pytest.mark.parametrize(
    "inner",
    [
        RegexGrammar(r"[a<\n/]*"),
        RegexGrammar(r"[\s\S]*"),
        ChoiceGrammar(("a", "\n</value>", "a\n")),
        LarkGrammar("start: /[a\\n]+/"),
        LarkGrammar('start: (WORD | "\\n" WORD)* "\\n"?\nWORD: /a+/\n%ignore / /'),
        LarkGrammar("start: (A NL)*\nA: /a+/\nNL: /\\n/"),
        LarkGrammar('start: (STRING | NL)+\nSTRING: /"[a<]*"/\nNL: /\\n/'),
        LarkGrammar('start: A (OP? A)*\nOP: "<" | "<="\nA: /[a\\n]*a/\n%ignore / /'),
        LarkGrammar('start: (A | "<")+\nA: /a(\\n+a)?/'),
    ],
)
@pytest.mark.parametrize("end", [END, "</value>"])
def test_a_text_up_to_an_end_is_one_of_a_grammar_without_that_end(inner: Constraint, end: str) -> None:
    rng, held = random.Random(8), UntilGrammar(end, inner)
    for _ in range(60):
        text = random_text(inner, rng, LIKED, most=20)
        if text is not None:
            text = text.rstrip(" ")
            assert takes(held, text + end) == ((text + end).find(end) == len(text)), text
        written = random_text(held, rng, LIKED)
        if written is not None:
            assert written.endswith(end)
            assert takes(inner, written.removesuffix(end).rstrip(" "))
            assert written.find(end) == len(written) - len(end)


def test_a_character_of_the_end_that_its_first_one_tells_apart_may_be_in_a_text() -> None:
    held = UntilGrammar(END, LarkGrammar('start: (A | "<" | "<=" | "</value>")+\nA: /a+/'))
    assert takes(held, f"a<=a<</value>{END}")
    assert not takes(held, f"a\n{END}")


def test_what_follows_an_end_is_not_taken_for_more_of_the_text() -> None:
    for inner in (RegexGrammar(r"[a<\n]*"), LarkGrammar("start: /[a\\n]*/")):
        call = SequenceGrammar((TextGrammar("<value>\n"), UntilGrammar(END, inner), TextGrammar("</call>")))
        for text in ("", "a", "a\n", "\n", "a\n\n"):
            assert takes(call, f"<value>\n{text}{END}</call>"), text
        assert not takes(call, f"<value>\nb{END}</call>")
        assert not takes(call, f"<value>\na{END}{END}</call>")


@pytest.mark.parametrize(
    "grammar",
    [
        'start: ("<" | /[a\\n]/)+',
        "start: /[^>]+/",
        'start: A\nA: "b"\n%ignore /[<\\n]/',
        "start: /a(\\n(x?|b)<){1}/",
        'start: "a" "<"\n%ignore /[ \\n]/',
    ],
)
def test_a_grammar_that_may_hold_the_beginning_of_an_end_is_refused_by_name(grammar: str) -> None:
    with pytest.raises(GrammarError, match=r"may hold '.n<', with which '.n</value>.n' begins"):
        BYTES.compile(UntilGrammar(END, LarkGrammar(grammar)))


def test_a_text_up_to_an_end_is_of_a_kind_that_is_known() -> None:
    with pytest.raises(GrammarError, match="schema of type string"):
        BYTES.compile(UntilGrammar(END, JsonSchemaGrammar({})))
