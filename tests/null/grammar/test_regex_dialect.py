"""Patterns of schemas mean what Python's `re` and ECMA-262 read in them, or are refused by name."""

from __future__ import annotations

import json
import random
import re
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from byte_texts import takes

from inferd_grammar import (
    Constraint,
    GbnfGrammar,
    GrammarCompiler,
    GrammarError,
    JsonSchemaGrammar,
    JsonTextGrammar,
    LarkGrammar,
    RegexGrammar,
    TokenTable,
)

BYTES = GrammarCompiler(TokenTable.of_bytes())
READ = [
    r"^\w+$",
    r"^\W+$",
    r"^\D+$",
    r"^\S+$",
    r"^\s+$",
    r"^[^\w]+$",
    r"^[^\d]+$",
    r"^[\Wx]+$",
    r"^[^\W\d]+$",
    r"^[\s\S]$",
]
READ += [r"^[[a]+$", r"^[a&&b]+$", r"^[~a]+$", r"^[]a]+$", r"^[^]a]+$", r"^[:alpha:]+$", r"^[[:alpha:]]+$", r"^\<a\>$"]
READ += [
    r"^[\b]$",
    r"^\0$",
    r"^a{$",
    r"^{}$",
    r"^\x41\u0042$",
    r"^(?:a{2}){3}$",
    r"^a{2,}?b??$",
    r"^[\]\[-]+$",
    r"(?x)^a b$",
]
LETTERS = [
    *"abABx12_-[]{}&~<>:. \t\n",
    "²",
    "٣",
    "é",
    "\x1c",
    "\x85",
    "\u2028",
    "\ufeff",
    "\u0301",
    "🐢",
    "\x00",
    "\x08",
    "aa",
    "AB",
]


@pytest.mark.filterwarnings("ignore:Possible (nested set|set difference|set intersection|set symmetric)")
@pytest.mark.parametrize("pattern", READ)
def test_no_text_passes_that_python_refuses(pattern: str) -> None:
    """`\\W` let letters beyond ASCII through, and `[[a]` was a class in a class."""
    compiled, rng = BYTES.compile(JsonSchemaGrammar({"type": "string", "pattern": pattern})), random.Random(pattern)
    texts = {*LETTERS, *("".join(rng.choices(LETTERS, k=rng.randint(0, 4))) for _ in range(150))}
    taken = set()
    for text in texts:
        ids, matcher = [byte + 1 for byte in json.dumps(text, ensure_ascii=False).encode()], compiled.matcher()
        if matcher.accept(ids) == len(ids) and matcher.may_end():
            taken.add(text)
    found = {text for text in texts if re.search(pattern, text)}
    assert taken <= found
    assert {text for text in found if text.isascii() and text.isprintable()} <= taken


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [("^.$", "\r\u2028\u2029"), ("^a|.$", "\r\u2028\u2029"), (r"^\s$", "\x85\x1c"), (r"^[\s_]$", "\x85\x1c")],
)
def test_no_text_passes_that_ecma_262_refuses(pattern: str, texts: str) -> None:
    """Its `.` takes no line end, and its white space has no U+0085: `.` took a carriage return."""
    for text in texts:
        assert not _takes({"type": "string", "pattern": pattern}, text), ascii(text)
    assert _takes({"type": "string", "pattern": pattern}, "\u3000")


def test_a_dot_takes_every_character_where_the_pattern_says_so() -> None:
    assert _takes({"type": "string", "pattern": "(?s)^.$"}, "\r")


@pytest.mark.parametrize("pattern", ["^a++$", "^a*+b$", "^a{2}+$", "^a{2}{3}$", "^a???$", "^a{,2}$", "^[+--]$"])
def test_what_dialects_read_differently_is_refused(pattern: str) -> None:
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: {}}}):
        with pytest.raises(GrammarError, match="dialects") as caught:
            BYTES.compile(JsonSchemaGrammar(schema))
        assert caught.value.pointer is not None


@pytest.mark.parametrize("pattern", ["a++a", "(?:a?)+*", "[[a]]", "[a&&b]", "[a--b]", "[a~~b]", "[[:alpha:]]", "a{,2}"])
def test_an_expression_that_would_mean_something_else_in_python_is_refused(pattern: str) -> None:
    """`a++a` took `aa`, which Python's possessive count does not."""
    with pytest.raises(GrammarError):
        BYTES.compile(RegexGrammar(pattern))


@pytest.mark.parametrize(
    "pattern", [r"\w+", r"\W+", r"\s+", r"\S+", r"[\w.]+", r"[^\w]", r"[^\d\s]+", r"[\s\S]", r"(?i)\w[$\W]"]
)
def test_classes_of_an_expression_are_those_of_python(pattern: str) -> None:
    """Rust counts marks as letters, and other spaces."""
    compiled, rng = BYTES.compile(RegexGrammar(pattern)), random.Random(pattern)
    for text in {*LETTERS, *("".join(rng.choices(LETTERS, k=rng.randint(1, 3))) for _ in range(100))}:
        ids, matcher = [byte + 1 for byte in text.encode()], compiled.matcher()
        taken = matcher.accept(ids) == len(ids) and matcher.may_end()
        assert taken == (re.fullmatch(pattern, text) is not None), text


def taken_whole(pattern: str, text: str) -> bool:
    matcher, ids = BYTES.compile(RegexGrammar(pattern)).matcher(), [byte + 1 for byte in text.encode()]
    return matcher.accept(ids) == len(ids) and matcher.may_end()


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r'{"a": "[^"{]*"}', '{"a": "x"}'),
        (r"a{x}{2}", "a{x}}"),
        (r"\<b\>[\<\>]+", "<b><>"),
        (r"\A[0-9]+\Z", "12"),
        (r"[\b]\{", "\b{"),
    ],
)
def test_marks_that_python_takes_for_characters_are_characters(pattern: str, text: str) -> None:
    """A brace that counts nothing was a refusal, and `\\<` the edge of a word."""
    assert re.fullmatch(pattern, text)
    assert taken_whole(pattern, text)


AHEAD = [
    r"(?=.*[0-9])(?=.*[a-z])[0-9a-z]{2,4}",
    r"^(?!ab)[ab1]+$",
    r"(?!ab$)[ab1]{2}",
    r"(?=a|b1)[ab1]{1,3}",
    r"(?=[ab]{2}$)(?!bb)[ab1]*",
    r"(?!.*aa).{1,4}",
]
LOOKING = [
    r"a\b|1",
    r"(?:a$|b)1?",
    r"a(?=b)b1?",
    r"(?=a$|b)a|b",
    r"(?=a(?=b))ab?1?",
    r"\bab",
    r"[ab1]+(?<!b)",
    r"(?:a(?!1)|b1|1)*",
    r"(?<=x)a|1\b",
]


@pytest.mark.parametrize("pattern", AHEAD + LOOKING)
def test_an_expression_with_look_arounds_is_read_as_python_does(pattern: str) -> None:
    """They were refused, though a schema's pattern may begin with them."""
    for count in range(5):
        for text in map("".join, product("ab1", repeat=count)):
            assert taken_whole(pattern, text) == (re.fullmatch(pattern, text) is not None), text
    shortest = BYTES.compile(RegexGrammar(pattern)).shortest()
    assert shortest is not None
    assert re.fullmatch(pattern, shortest.decode())


@pytest.mark.parametrize("pattern", [r"b(?!(a)\1)a", r"b(?=a(?=b))ab", r"(?!(?i)a)b"])
def test_look_arounds_that_are_not_understood_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match=r"look|back reference"):
        BYTES.compile(RegexGrammar(pattern))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"^(a)\1$", "a back reference"),
        (r"^(?P<q>a)(?P=q)$", "a back reference"),
        (r"^(?<q>['\"])a\k<q>$", "a back reference"),
        ("^(?>a+)b$", "an atomic group"),
        ("^(a)?(?(1)b|c)$", "a group with a condition"),
        ("(?#why)a", "a comment"),
        (r"a\Bb", "the inside of a word"),
        (r"^\h+$", r"\\h"),
        ("/^abc$/", "slashes"),
        (r"^\ud83d\ude00$", "half of a surrogate pair"),
        (r"[\uD800-\uDBFF][\uDC00-\uDFFF]", "half of a surrogate pair"),  # JavaScript's validators have it
    ],
)
def test_what_the_library_does_not_read_is_refused_by_its_name(pattern: str, name: str) -> None:
    """Its messages spoke of flags and escapes that nobody had written."""
    with pytest.raises(GrammarError, match=name) as refusal:
        BYTES.compile(
            JsonSchemaGrammar({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}})
        )
    assert refusal.value.pointer == "/properties/a/pattern"
    with pytest.raises(GrammarError, match=name):
        BYTES.compile(RegexGrammar(pattern))


@pytest.mark.parametrize("pattern", [r"^\07$", r"^[\07]$", r"^a\012$", r"^[\1]$", r"^[a\\\01]$"])
@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_an_octal_escape_is_refused_instead_of_read_as_a_null_character_and_digits(pattern: str, mode: Any) -> None:
    with pytest.raises(GrammarError, match="an octal escape"):
        BYTES.compile(JsonSchemaGrammar({"type": "string", "pattern": pattern}, mode))


@pytest.mark.parametrize("constraint", [RegexGrammar("a\\"), JsonSchemaGrammar({"type": "string", "pattern": "\\"})])
def test_a_backslash_that_escapes_nothing_is_refused_instead_of_left_out(constraint: Constraint) -> None:
    with pytest.raises(GrammarError, match="a backslash at the end"):
        BYTES.compile(constraint)


@pytest.mark.parametrize("pattern", [r"^[\[(]\d[\])]$", r"^\\1?$", r"^[\\1]$", "^[(?>]$", "/a$", r"^\(\?#$"])
def test_what_only_looks_like_it_is_read(pattern: str) -> None:
    shortest = BYTES.compile(JsonSchemaGrammar({"type": "string", "pattern": pattern})).shortest()
    assert shortest is not None
    assert re.search(pattern, json.loads(shortest)) is not None


def test_a_dash_behind_a_kind_of_characters_is_a_character() -> None:
    schema = {"type": "string", "pattern": r"^[\p{Lu}\p{N}-_]+$"}
    matcher = BYTES.compile(JsonSchemaGrammar(schema)).matcher()
    ids = {token: i for i, token in enumerate(BYTES.table.tokens)}
    assert matcher.accept([ids[bytes([byte])] for byte in b'"A-_9"']) == 6


def test_half_of_a_surrogate_pair_in_a_pattern_is_a_refusal() -> None:
    """It was an error of encoding."""
    with pytest.raises(GrammarError):
        BYTES.compile(JsonSchemaGrammar({"type": "string", "pattern": r"^\uD83D\uDE00$"}))


def _takes(schema: object, value: object) -> bool:
    ids = [byte + 1 for byte in json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()]
    matcher = BYTES.compile(JsonSchemaGrammar(schema)).matcher()  # type: ignore[arg-type]
    return matcher.accept(ids) == len(ids) and matcher.may_end()


OPEN_CLASSES = [r'^[^"]$', r"^[^\\]$", r'^[^"\\]$', r'^[^"\n]$', r"^[^!-/]$", r"^[\x00-\x1f]$", r'^(?:[^"\x01]|\x01)$']


@pytest.mark.parametrize("pattern", OPEN_CLASSES)
def test_a_class_with_all_control_characters_takes_no_quote_or_backslash_that_it_lacks(pattern: str) -> None:
    for text in ['"', "\\", "\n", "\x02", "a", "#", "^"]:
        assert _takes({"type": "string", "pattern": pattern}, text) == bool(re.search(pattern, text)), text


@pytest.mark.parametrize("pattern", [r"^\P{P}$", r"^\p{Cc}$", r"^[\p{Cc}x]$"])
def test_a_kind_of_characters_takes_no_quote_that_it_lacks(pattern: str) -> None:
    assert not _takes({"type": "string", "pattern": pattern}, '"')
    assert not _takes({"type": "string", "pattern": pattern}, "\\")
    assert _takes({"type": "string", "pattern": pattern}, "\n")


def test_a_name_that_a_pattern_as_the_library_reads_it_leaves_out_is_no_additional_one() -> None:
    schema = {"patternProperties": {'^[^"]+$': {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    taken = [_takes({"type": "object", **schema}, {name: value}) for name in ("a", '"', "\x01") for value in (1, "x")]
    assert taken == [True, False, False, True, False, False]


@pytest.mark.parametrize(
    "pattern", [r"(?x)^ [^a\ #] $", r'(?x)^ [^"] $', r"(?x)^ \W $", r"(?x: ^ [ #] ) b", r"(?x)^ \S + $"]
)
def test_patterns_with_white_space_that_does_not_count_mean_what_python_reads(pattern: str) -> None:
    """They were left to the library, whose classes are others, and which counts no white space in a class."""
    for text in [*LETTERS, "#", "# b", "  b", '"', "\x1f"]:
        assert not _takes({"type": "string", "pattern": pattern}, text) or re.search(pattern, text), text
    assert any(_takes({"type": "string", "pattern": pattern}, text) for text in ("# b", "-", "a"))


@pytest.mark.parametrize("constraint", [JsonSchemaGrammar({"pattern": "(?x)a # ["}), RegexGrammar("(?x)a # [")])
def test_comments_are_refused_beside_white_space_that_does_not_count(
    constraint: JsonSchemaGrammar | RegexGrammar,
) -> None:
    with pytest.raises(GrammarError, match="a comment"):
        BYTES.compile(constraint)


@pytest.mark.parametrize("pattern", ["(?i)^[^i]$", "^(?i:[^a-z])$", "(?i)^[^\u0131]$", "(?i)^[^\\u012a-\\u0133]$"])
def test_a_class_without_regard_to_case_has_no_letter_that_python_takes_for_an_i(pattern: str) -> None:
    for constraint in (JsonSchemaGrammar({"type": "string", "pattern": pattern}), RegexGrammar(pattern)):
        mark = '"' if isinstance(constraint, JsonSchemaGrammar) else ""
        for letter in "\u0130\u0131ix":
            matcher, data = BYTES.compile(constraint).matcher(), f"{mark}{letter}{mark}".encode()
            taken = matcher.accept([byte + 1 for byte in data]) == len(data) and matcher.may_end()
            assert taken == (re.search(pattern, letter) is not None), letter


@pytest.mark.parametrize(
    "pattern", [r"\w", r"\W", r"[\w]", r"[\w.]", r"[\w^]", r"[]\w]", r"[\W_]", r"[\w\u03b9]", r"[^\w.]"]
)
def test_a_mark_whose_capital_is_a_letter_is_no_character_of_a_word(pattern: str) -> None:
    """Rust's expressions put U+0345 to its capital letter where case makes no difference."""
    matcher = BYTES.compile(RegexGrammar(f"(?i){pattern}")).matcher()
    for letter in "\u0345\u03b9\u0399aZ0_.^]! ":
        data = letter.encode()
        taken = matcher.accept([byte + 1 for byte in data]) == len(data) and matcher.may_end()
        matcher.rollback(matcher.depth)
        expected = re.fullmatch(f"(?i){pattern}", letter) is not None
        assert taken == expected or (pattern.startswith("[^") and not taken), letter


LETTERS_OF_UNICODE_16 = "\U00010d40\U0001ccf5\U00010d4a\U00011f50"
"""Digits and letters that Python 3.11 does not know."""


@pytest.mark.parametrize(
    "pattern", [r"\d", r"\w", r"[\d.]", r"[a\w]", r"[^\W]", r"[^\D]", r"[^\W_]", r"(?i)\w", r"(?i)[\dx]"]
)
@pytest.mark.parametrize("written", [RegexGrammar, lambda text: LarkGrammar(f"start: /{text}/")])
def test_digits_and_letters_are_those_of_every_version_of_python(pattern: str, written: Any) -> None:
    one = written(pattern)
    assert [takes(one, letter) for letter in LETTERS_OF_UNICODE_16] == [False] * 4
    for letter in "1\u0663x\u00e9 .":
        assert takes(one, letter) == bool(re.fullmatch(pattern, letter)), letter


@pytest.mark.parametrize("pattern", [r"\D", r"\W", r"[\W]", r"[^\w]", r"[^\d]"])
def test_what_one_version_of_python_takes_for_a_letter_is_no_other_character_either(pattern: str) -> None:
    assert not takes(RegexGrammar(pattern), "\U00010d40")
    assert takes(RegexGrammar(pattern), ",")


@pytest.mark.parametrize("pattern", [r"[^\W\d_]+", r"[\W]+", r"[a\W]+", r"[^\W]+", r"[^\S\n]+", r"[^\D5]+"])
def test_a_class_in_a_class_is_read_whole_where_its_texts_are_written_as_json(pattern: str) -> None:
    inside = JsonTextGrammar(RegexGrammar(pattern))
    for letter in 'aZ15_ -\u00e9\t\n]"\\':
        assert takes(inside, json.dumps(letter, ensure_ascii=False)) == bool(re.fullmatch(pattern, letter)), letter


OF_XML = "[^\xa0-\ud7ff\ue000-\ufffd]"
BESIDE_SURROGATES = "\ud7fe\ud7ff\ue000\ufffd\ufffea"


@pytest.mark.parametrize(
    "pattern", [OF_XML, r"[^\u00a0-\uD7FF\ue000-\uFFFD]", r"[^\x{a0}-\x{d7ff}\x{E000}-\x{fffd}]", "[^d7ffe000\ud7ff]"]
)
def test_a_class_of_all_others_takes_nothing_beside_the_surrogates_that_it_names(pattern: str) -> None:
    """The library turns what lies between U+D7FF and U+E000 round."""
    meant = re.compile("[^d7ffe000\ud7ff]" if "d7ffe" in pattern else OF_XML)
    for letter in BESIDE_SURROGATES:
        expected = meant.fullmatch(letter) is not None
        assert takes(RegexGrammar(pattern), letter) == expected, ascii(letter)
        assert takes(LarkGrammar(f"start: /{pattern}/"), letter) == expected, ascii(letter)
        assert takes(JsonTextGrammar(RegexGrammar(pattern)), f'"{letter}"') == expected, ascii(letter)


def test_a_class_of_a_schema_and_of_gbnf_takes_nothing_beside_the_surrogates_that_it_names() -> None:
    schema = JsonSchemaGrammar({"type": "string", "pattern": f"^{OF_XML}$"})
    for letter in BESIDE_SURROGATES:
        expected = re.fullmatch(OF_XML, letter) is not None
        assert takes(schema, f'"{letter}"') == expected, ascii(letter)
        assert takes(GbnfGrammar(f"root ::= {OF_XML}"), letter) == expected, ascii(letter)


@pytest.mark.parametrize(
    "pattern",
    [
        r"[^\p{Cn}\p{Co}]",
        r"[^\P{Cn}\P{Co}a]",
        r"[^\uD7FF\p{Private_Use}]",
        r"[^\p{Cn}\uE000]",
        r"[^\p{gc=cn}\p{Age=V6_0}]",
    ],
)
def test_properties_that_end_at_the_surrogates_leave_nothing_beside_them(pattern: str) -> None:
    """Both characters passed under each of these."""
    for constraint in (RegexGrammar(pattern), JsonSchemaGrammar({"type": "string", "pattern": f"^({pattern}|b)$"})):
        quote = "" if isinstance(constraint, RegexGrammar) else '"'
        with suppress(GrammarError):  # no character is left
            assert not any(takes(constraint, f"{quote}{letter}{quote}") for letter in "\ud7ff\ue000")
    plain = RegexGrammar(r"[^\p{Co}\p{Lu}]")
    assert [takes(plain, letter) for letter in "\ud7ff\ue000Aa"] == [True, False, False, True]


@pytest.mark.parametrize("pattern", [r"\bfoo\s*.", r"a.(?!c)\s"])
def test_a_dot_does_not_keep_line_feeds_from_the_rest_of_an_expression(pattern: str) -> None:
    for text in ("foo\n-", "foo \n", "ab\n", "a\n\n", "foo\r-"):
        expected = re.fullmatch(pattern, text) is not None and "\r" not in text
        assert takes(RegexGrammar(pattern), text) == expected, text


@pytest.mark.parametrize("pattern", [r"(?a)\w+", r"(?ia:\d)"])
def test_a_flag_that_only_python_has_is_refused_by_its_name(pattern: str) -> None:
    for constraint in (RegexGrammar(pattern), JsonSchemaGrammar({"type": "string", "pattern": pattern})):
        with pytest.raises(GrammarError, match="a flag of Python's alone"):
            BYTES.compile(constraint)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("{3}abc", "regex parse error: repetition operator missing expression, at '{3}abc'"),
        ("abc[z-a]d", "regex parse error: invalid character class range, the start must be <= the end, at 'z-a'"),
        (r"x\p{Foo}y", r"regex parse error: Unicode property not found, at '\\p{Foo}'"),
        ("(?m)^a$", "'$' at each line, (?m), is not supported in a regular expression"),
        (r"(?m)^a\n^b", "'^' at each line, (?m), is not supported in a regular expression"),
    ],
)
def test_what_is_no_expression_is_told_with_its_piece_on_one_line(pattern: str, reason: str) -> None:
    """The library's lines, with a mark below the piece, had become one with the whole expression in it four times."""
    schema = {"items": {"type": "string", "pattern": pattern}}
    for constraint, pointer in ((RegexGrammar(pattern), None), (JsonSchemaGrammar(schema), "/items/pattern")):
        with pytest.raises(GrammarError) as refused:
            BYTES.compile(constraint)
        assert (refused.value.reason, refused.value.pointer) == (reason, pointer)


@pytest.mark.parametrize("member", [r"[^\u001f-\u007e\W]", r"[^\u0000-\u007f\S]", r"[\u0000-\u007f\W]", r"[^\s\S]?"])
@pytest.mark.parametrize("around", ["^{}$", "^(?!x){}$"])
def test_what_a_class_has_in_some_dialect_alone_is_in_doubt_also_where_that_makes_it_everything(
    member: str, around: str
) -> None:
    pattern = around.format(member)
    length = {"type": "string", "minLength": 1, "maxLength": 1}
    for schema, wanted in (({**length, "pattern": pattern}, True), ({**length, "not": {"pattern": pattern}}, False)):
        for letter in "\xff\u0100\xa0\u0800\U00010000a ":
            with suppress(GrammarError):  # nothing is left
                is_taken = takes(JsonSchemaGrammar(schema), f'"{letter}"')
                assert not is_taken or (re.search(pattern, letter) is not None) == wanted
