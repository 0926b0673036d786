"""Grammars inside of JSON strings: the same texts, as JSON writes them."""

from __future__ import annotations

import json
import random
from itertools import product

import pytest
from tiers import examples

from inferd_grammar import GrammarError, JsonTextGrammar, LarkGrammar
from inferd_grammar.backends.lark_library import written_plainly
from inferd_grammar.limits import DEFAULT_LIMITS
from tests.null.grammar.backends.test_lark_library import FEATURES
from tests.support.byte_texts import BYTES, random_text, takes

LIKED = '"\\\n'
GRAMMARS = FEATURES | {
    "words and strings with line feeds between": 'start: (STRING | NAME)+\nSTRING: /"[^"]*"/\nNAME: /[a-z]+/\n%ignore /[ \\n]+/',
    "SQL": 'start: "SELECT" NAME ("," NAME)* ("WHERE" NAME OP ESCAPED_STRING)? ";"?\nOP: "<" | "<=" | "="\nNAME: /[a-z_]+/\n'
    "%import common.ESCAPED_STRING\n%import common.WS\n%ignore WS",
    "any text": "start: /(?:.|\\n)*/",
    "lines": 'start: (/[^\\n"]+/ "\\n")+',
    "statements": "start: (stmt NL)+\n"
    'stmt: "print" "(" STR ")" | "\\t" stmt\nSTR: /"(\\\\.|[^"\\\\\\n])*"/\nNL: /\\n/\n%ignore / +/',
    "a word that may end with a line feed": 'start: (A | "\\n" | "\\\\")~1..6\nA: /[ab]+\\n?/',
    "terminals that may be empty": 'start: A B A\nA: /[\\n"]*/\nB: /b/\n%ignore / /',
    "quotes that nest": 'start: "(" start ")" | "\\"" start "\\"" | "x" | start "\\n" start',
    "letters of any script": 'start: (W | "é")+\nW: /\\w{1,3}"/',
    "a patch": 'start: "*** Begin Patch" LF hunk+ "*** End Patch" LF?\nhunk: "*** Add File: " /(.+)/ LF add_line+\n'
    'add_line: "+" /(.*)/ LF\n%import common.LF',
    "cases": 'start: "select"i /[^a]{1,2}/i "\\n"',
}
ESCAPED = [("a\nb", r'"a\nb"'), ('"\\\t\x01é🐢\x7f/', '"\\"\\\\\\t\\u0001é🐢\x7f/"')]


def _plain(grammar: str) -> LarkGrammar:
    """Return a grammar as it is written for the library; one with classes as it stands: such are written once."""
    return LarkGrammar(grammar if r"\w" in grammar else written_plainly(grammar, DEFAULT_LIMITS))


def _ends_ignored(grammar: str, text: str) -> str:
    """Return a text without what a grammar ignores at its end: Lark takes that everywhere, its matcher where more may follow."""
    return text.rstrip(" \n\t\r\f") if "%ignore /[ \\n]+/" in grammar or "WS\n" in grammar else text.rstrip(" ")


def _is_text(grammar: str, text: str) -> bool:
    plain = _plain(grammar)
    return takes(plain, text) or ("%ignore" in grammar and takes(plain, _ends_ignored(grammar, text)))


def _changed(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(['"', "\\", "\n", "a", "b", "x", "\t", "\x01", ""]) + text[at + rng.randrange(2) :]


@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS)
def test_texts_of_a_grammar_are_taken_as_json_writes_them_and_no_others(grammar: str) -> None:
    rng, inside = random.Random(5), JsonTextGrammar(LarkGrammar(grammar))
    plain = _plain(grammar)
    for _ in range(25):
        if (text := random_text(plain, rng, LIKED)) is not None:
            assert takes(inside, json.dumps(text, ensure_ascii=False)), text
        if (written := random_text(inside, rng, LIKED)) is None:
            continue
        value = json.loads(written)
        assert json.dumps(value, ensure_ascii=False) == written
        assert _is_text(grammar, value), value
        changed = _changed(value.rstrip(), rng)
        if changed == changed.rstrip():
            assert takes(inside, json.dumps(changed, ensure_ascii=False)) == _is_text(grammar, changed), changed


@pytest.mark.parametrize(("text", "written"), ESCAPED)
def test_what_json_escapes_is_written_in_one_way(text: str, written: str) -> None:
    inside = JsonTextGrammar(LarkGrammar("start: /(.|\\n)*/"))
    assert json.dumps(text, ensure_ascii=False) == written
    assert takes(inside, written)
    for other in (r'"\/"', r'"\u000a"', '"\n"', r'"\u001"', '"', '"a', r'"\x41"', r'"\u0041"', "x"):
        assert not takes(inside, other)


def test_a_lexeme_that_may_go_on_with_an_escape_ends_before_another_one() -> None:
    grammar = JsonTextGrammar(LarkGrammar('start: (LINE "\\"" | LINE "\\\\" | LINE)+\nLINE: /[a-z]+(\\n[a-z]+)?/'))
    for text in ('a"', "a\nb\\", 'a\nb"c\\d', "ab"):
        assert takes(grammar, json.dumps(text))
    for text in ("a\n", 'a\n"', "\\"):
        assert not takes(grammar, json.dumps(text))


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('start: %json {"type": "string"}', "one that Lark itself reads"),
        ("start: A\nA: /a(?=b)/", "looks at what stands before or behind"),
        ('start: "a" start', "no text matches"),
        ("start: A\nA: /\\p{Greek}/", "'.*Greek.*' in an expression"),
        ("start: " + " ".join(f"/a{n}\\n?/ /[b\\n]/" for n in range(600)), "max_rules"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_in_a_string_is_refused_by_name(grammar: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        BYTES.compile(JsonTextGrammar(LarkGrammar(grammar)))


def test_each_part_of_a_long_sequence_comes_in_its_turn() -> None:
    """Which is written in halves: from part to part a sequence of 1,200 took eight seconds."""
    grammar = JsonTextGrammar(LarkGrammar("start: " + " ".join(f"/a{n}\\n?/ /[b\\n]/" for n in range(30))))
    parts = [f"a{n}{'' if n % 3 else chr(10)}b" for n in range(30)]
    assert takes(grammar, json.dumps("".join(parts)))
    for n in range(30):
        assert not takes(grammar, json.dumps("".join([*parts[:n], *parts[n + 1 :]])))


EVERY_TEXT = ["".join(letters) for size in range(5) for letters in product('a"\n\\', repeat=size)]
PIECES = ("[a]", '["\\n]', "[^a]", "[^\\n]", '[a"]')
COUNTS = ("", "+", "{1,2}", "*a", '?"')
TAILS = ("", "a", "\\n", "\\n?a", '"', '(\\n"|a)')


def _random_grammar(rng: random.Random) -> str:
    names = [f"T{number}" for number in range(rng.randint(1, 3))]

    def item(depth: int) -> str:
        kind = rng.randrange(4 if depth else 1)
        if not kind:
            return rng.choice(names)
        first, second = item(depth - 1), item(depth - 1)
        return {1: f"({first} {second})", 2: f"({first} | {second})", 3: f"({first}){rng.choice('?*+')}"}[kind]

    terminals = [f"{name}: /{rng.choice(PIECES)}{rng.choice(COUNTS)}{rng.choice(TAILS)}/" for name in names]
    return "\n".join([f"start: {item(2)} {item(2)}", *terminals])


@pytest.mark.parametrize("seed", range(examples(40)))
def test_of_any_grammar_no_short_text_is_missing_and_none_is_added(seed: int) -> None:
    grammar = _random_grammar(random.Random(seed))
    plain, inside = LarkGrammar(written_plainly(grammar, DEFAULT_LIMITS)), JsonTextGrammar(LarkGrammar(grammar))
    for text in EVERY_TEXT:
        assert takes(inside, json.dumps(text)) == takes(plain, text), (grammar, text)
