"""Complements and regions of patterns against Python's `re`, on texts where all dialects agree."""

from __future__ import annotations

import itertools
import random
import re
import time

import pytest

from inferd_grammar.rewrites.automata import Nfa, classes_of
from inferd_grammar.rewrites.ends import consuming
from inferd_grammar.rewrites.patterns import (
    are_apart,
    complement,
    finds,
    in_doubt,
    looks_around,
    regions,
    shortest_match,
    with_length,
    without_looks,
)
from inferd_grammar.rewrites.regex_syntax import EVERYTHING, NotUnderstood, literal_prefix, parse, shortest_text
from inferd_grammar.rewrites.strings import none_of, one_of
from inferd_grammar.rewrites.word_edges import without_edges

LETTERS = "ab5c0A-x1 .*(foz/]^"
PATTERNS = [
    "^[.,*\\-\\s{}()]+$",
    "^[ab]",
    "a5b",
    "^([a-z][0-9])+$",
    "^a|b$",
    "(foo|fo)z?",
    "^[0-9]{2,4}-x$",
    "^$",
    "",
    "[^a]",
]
LOOKING = ["^a(?!b).*", "(?<=a)x", "^[abx]*(?<!ab)$", "a(?=b|$)", r"\bfoo\b", "(?:(?!ab)[abx])+$", "(^a|b$)", "x$|^$"]
LOOKING += [
    "^(?=.*b)(?!.*x)a",
    "^(?:a|b(?=a))*$",
    r"^[abx]*(?<=^a|x)b",
    "^(?!x$)(?:x|a)*(?<!a)$",
    "a$x",
    "(?<!a)(?!b).",
]
LOOKING += [r"\bfoo\b|x", r"\b[ab]+\b", "(?<![ab])x", "x(?![^b])", "x(?=a|b)", "(?<=x)b(?=x)", r"b(?=a?\b)"]
LOOKING += [r"^\b$", "(?:^|5)x(?:x|$)b?", "a(^|b)", r"^(?:a\b)?\W*$", "(b$)?a", r"^(?:-?\b|0)a$", "(?:a$|b)(?:^x)?"]
LOOKING += [r"(?i)^[abx]*(?<!a)$", r"^(?!(?i:AB))(?s:a.)", r"(?i)\bFOO\b", r"(?i)^(?!X)(?-i:a|x)"]
ADDRESS = r"^https?:\/\/(?:www\.)?[-a-zA-Z0-9@:%._\+~#=]{1,256}\.[a-zA-Z0-9()]{1,6}\b(?:[-a-zA-Z0-9()@:%_\+.~#?&\/=]*)$"
PATTERNS += ["^(a|ab)(c|bcd)*$", ".", "^.{0,3}$", "a{2}b?", "\\x61\\u0062", "[a-c]+?x", "(?:a|)b*$", "[\\]]"]
PATTERNS += ["(?i)^[^A]+$", "(?i)FOO|X", "^(?i:a)b*", "(?s)^a.b?$", "(?is)^[X-Z]|(?-i:A)$", "(?P<name>a)(?u:5)"]


def texts(seed: str) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(LETTERS, k=rng.randint(0, 7))) for _ in range(400)]


@pytest.mark.parametrize("pattern", PATTERNS + LOOKING)
def test_the_complement_matches_what_the_pattern_does_not(pattern: str) -> None:
    other = re.compile(complement(pattern))
    for text in texts(pattern):
        found = re.search(pattern, text) is not None
        assert (other.search(text) is not None) != found, text
        assert finds(pattern, text) == found, text


@pytest.mark.parametrize("pattern", LOOKING)
def test_look_arounds_become_patterns_that_say_the_same(pattern: str) -> None:
    parts = [re.compile(part) for part in without_looks(pattern)]
    assert not any(looks_around(part.pattern) for part in parts)
    for text in texts(pattern):
        assert all(part.search(text) for part in parts) == (re.search(pattern, text) is not None), text


def test_an_edge_behind_long_counts_needs_no_automaton() -> None:
    """This one, which is on many pages about addresses, took two minutes and was refused."""
    (plain,) = without_looks(ADDRESS)
    assert not looks_around(plain)
    found = re.compile(plain)
    for text in (
        "http://a.b",
        "https://www.a-b.org/c?d=e",
        "http://a.b(",
        "http://a.(/x",
        "http://.b",
        "ftp://a.b",
        "http://a.((",
    ):
        assert (found.search(text) is not None) == (re.search(ADDRESS, text) is not None), text


def test_the_end_of_an_expression_is_no_look_around_to_it() -> None:
    """An expression is searched to the end of a text, line ends included."""
    node = without_edges(parse(rf"^(?:{ADDRESS.strip('^$')})(?![\s\S])")[0])
    assert shortest_text(node) == "http://0.0"


@pytest.mark.parametrize("pattern", [r"\bfoo\b", r"foo\b.*", r"^.*\bfoo\b.*$", r"^.*\/foo(\?.*)?\b"])
@pytest.mark.parametrize("text", ["é /foo", "/foo é", "/foo?é=1", "/foo-é", "é/foo", "éfoo", "fooé", "/foo?é"])
def test_an_edge_of_a_word_says_nothing_about_letters_elsewhere(pattern: str, text: str) -> None:
    """A text of another language than English was refused for them; dialects differ on such a letter beside the edge alone."""
    found = all(re.search(part, text) for part in without_looks(pattern))
    readings = [re.search(pattern, text, flags) is not None for flags in (re.NOFLAG, re.ASCII)]
    assert found == all(readings)


def test_edges_that_repeat_are_left_to_automata() -> None:
    with pytest.raises(NotUnderstood, match="repeat"):
        without_edges(parse(r"^(?:a\b-?)*$")[0])
    assert [re.search(part, "a-a-") is not None for part in without_looks(r"^(?:a\b-?)*$")] == [True]


def test_a_pattern_that_is_searched_again_is_not_cut_into_classes_again() -> None:
    nfa = Nfa.of(parse(ADDRESS)[0])
    classes = classes_of([nfa], EVERYTHING)
    assert nfa.targets(classes) is nfa.targets(list(classes))


PASSWORD = r"^(?=.*[A-Z])(?=.*\d)(?=.*[!-/]).{8,}$"
NEVER_FOUND = ("a$x", r"^\b$")


@pytest.mark.parametrize("pattern", sorted({*LOOKING, ADDRESS, PASSWORD} - {*NEVER_FOUND}))
def test_a_shortest_match_meets_what_is_looked_for(pattern: str) -> None:
    """A text of such a pattern could not be steered to an end."""
    assert re.search(pattern, shortest_match(pattern)) is not None


@pytest.mark.parametrize("pattern", NEVER_FOUND)
def test_what_nothing_matches_has_no_shortest_match(pattern: str) -> None:
    with pytest.raises(NotUnderstood):
        shortest_match(pattern)


def test_random_patterns_agree_with_their_rewrites() -> None:
    rng, checked = random.Random(7), 0
    samples = ["".join(letters) for size in range(5) for letters in itertools.product("ab-", repeat=size)]
    while checked < 150:
        pattern = rng.choice(["^", ""]) + random_pattern(rng, 2) + rng.choice(["$", ""])
        try:
            expected, parts = re.compile(pattern), [re.compile(part) for part in without_looks(pattern)]
            other = re.compile(complement(pattern))
        except (re.error, NotUnderstood):
            continue
        checked += looks_around(pattern)
        for text in samples:
            found = expected.search(text) is not None
            assert all(part.search(text) for part in parts) == found, (pattern, text)
            assert (other.search(text) is None) == found, (pattern, text)


def random_pattern(rng: random.Random, depth: int) -> str:
    pieces = ["a", "b", "[ab]", "[^a]", "-", ".", r"\b", "^", "$", "(?<=a)", "(?<!ab)"]
    pieces += [f"{mark}{random_pattern(rng, depth - 1)})" for mark in ("(", "(?=", "(?!") if depth]
    parts = [rng.choice(pieces) + rng.choice(["", "", "*", "+", "{1,2}"]) for _ in range(rng.randint(1, 4))]
    return "".join(parts) if rng.random() < 0.7 else "|".join(parts)


@pytest.mark.parametrize(
    ("pattern", "plain"),
    [
        (r"\bfoo\b", r"(?:^|\W)foo(?:$|\W)"),
        (r"(?<!\$)\w+(?= ?(?:kg|g)\b)", r"(?:^|[^\$])\w+(?: ?(?:kg|g)(?:$|\W))"),
        (r"(?<![^a-z])x(?!\d)", r"(?:^|[a-z])x(?:$|\D)"),
        (r"\b\w*\b", None),
        (r"a(?!bc)", None),
        (r"foo(?!\d)|x", None),
    ],
)
def test_looks_at_the_ends_of_a_search_become_characters(pattern: str, plain: str | None) -> None:
    """An automaton of the whole text beside a `maxLength` was too much for the library."""
    assert (consuming(pattern) == pattern) if plain is None else (without_looks(pattern) == [plain])


def test_a_count_that_is_a_length_is_told_apart_from_the_rest() -> None:
    pattern = "^[a-z](?:[a-z0-9]|-(?=[a-z0-9])){0,38}$"
    assert without_looks(pattern)[1:] == [r"^[\s\S]{1,39}$"]
    other = complement(pattern)
    for text, valid in (("a" * 39, True), ("a" * 40, False), ("a-" * 19 + "a", True), ("a-", False), ("", False)):
        assert all(re.search(part, text) for part in without_looks(pattern)) == valid
        assert (re.search(other, text) is None) == valid


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [("^a(?:[ab]*b)?$", 0, 5), ("^[ab]+$", 3, 4), ("^[ab]", 1, 3), ("^(?!x)[abx]+$", 1, 6), ("^[ax][ab]*b$", 2, 5)],
)
def test_a_length_goes_into_the_loop_of_a_pattern(pattern: str, least: int, most: int) -> None:
    short = re.compile(with_length(pattern, least, most))
    for text in ("".join(letters) for size in range(8) for letters in itertools.product("abx", repeat=size)):
        valid = re.search(pattern, text) is not None and least <= len(text) <= most
        assert (short.search(text) is not None) == valid, text


def test_a_length_that_no_one_loop_holds_is_refused() -> None:
    with pytest.raises(NotUnderstood):
        with_length("^(?:a+b)*c+$", 0, 20)


def test_patterns_are_apart_only_where_no_dialect_sees_an_overlap() -> None:
    assert are_apart(("^[0-9]{4}$", "^[0-9]{4}-"))
    assert not are_apart(("^[ab]+$", "^[bc]+$"))
    assert not are_apart((r"^\w+$", "^\u00e9$"))  # a letter in Python
    assert not are_apart(("^a$", "^a\n$"))  # Python's `$` also stands before a last line end
    assert not are_apart(("^a(?!b)", "^ab"))  # not looked into


@pytest.mark.parametrize(
    "patterns", [["a", "b"], ["a*b", "aaa*"], ["x_", "[0-9]{2,}"], ["^a", "^b"], ["fo", "oz", "a"]]
)
def test_regions_are_disjoint_and_complete(patterns: list[str]) -> None:
    areas = regions(patterns)
    for text in texts(str(patterns)):
        found = [n for n, pattern in enumerate(patterns) if re.search(pattern, text)]
        assert [members for regex, members in areas if re.search(regex, text)] == ([found] if found else [])


def test_letters_that_are_others_without_regard_to_case_in_some_dialects_are_in_no_complement() -> None:
    for pattern in ("(?i)i", "(?i:[a-z])", "(?i)K|S"):
        other = re.compile(complement(pattern))
        assert not any(
            other.search(letter) for letter in "iIkKsS\u0130\u0131\u017f\u212a" if re.search(pattern, letter)
        )
    with pytest.raises(NotUnderstood, match="case"):
        complement("(?i)\u017f")


def test_texts_on_which_dialects_differ_are_in_no_complement() -> None:
    assert re.search(complement("^a$"), "a\n") is None
    assert re.search(complement("^\\w+$"), "é") is None
    assert re.search(complement("^\\w+$"), "-")
    assert not [regex for regex, _ in regions(["\\w", "x"]) if re.search(regex, "é")]
    doubt = in_doubt(["\\w", "x"])
    assert doubt is not None
    assert [text for text in ("é", "é-", "-", "a") if re.search(doubt, text)] == ["é", "é-"]
    with pytest.raises(NotUnderstood):
        finds("\\w", "é")


def test_letters_beyond_ascii_are_no_digits_to_any_dialect() -> None:
    """What must hold no digit was held to ASCII altogether."""
    without = re.compile(complement(r"\d"))
    for text in ("é", "größer", "привет", "שלום", "日本語", "한국", "🐢", "“”…", "ﬁ"):
        assert without.search(text), text
    digits = [char for char in map(chr, range(0x110000)) if char.isdecimal()]
    assert not without.search("1")
    assert not any(without.search(char) for char in digits)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a(?=b))",
        "(?<=a(?!b))",
        "(?=a)*b",
        "(?m)a",
        "a\\B",
        "\\1",
        "(a",
        "a)",
        "[b-a]",
        "a{2",
        "a**",
        "\\p{L}",
        "a{1001}",
        "[a--b]",
        "^*a",
        "\\",
    ],
)
def test_what_is_not_understood_is_refused(pattern: str) -> None:
    with pytest.raises(NotUnderstood):
        complement(pattern)


@pytest.mark.parametrize("pattern", ["(a|b)*a(a|b){20}", "((a{0,60}b){0,60}c){0,60}"])
def test_what_grows_too_large_is_refused_at_once(pattern: str) -> None:
    started = time.process_time()
    with pytest.raises(NotUnderstood, match="too large"):
        complement(pattern)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("pattern", ["(?:(?:a{1000}){1000}){1000}", "(" * 40 + "a" + "+)" * 40, "(?:a{1000}){51}"])
def test_counts_of_counts_are_refused_before_anything_walks_through_them(pattern: str) -> None:
    """What is written out a billion times takes no memory, as its parts are the same, and for ever to be looked at."""
    with pytest.raises(NotUnderstood, match="counts of counts"):
        parse(pattern)
    with pytest.raises(NotUnderstood, match="counts of counts"):
        shortest_match(pattern)


@pytest.mark.parametrize("pattern", ["(" * 1000, "(?:" * 1000, "(" * 300 + "a" + ")" * 300])
def test_groups_that_nest_too_deeply_are_refused_before_python_gives_up(pattern: str) -> None:
    with pytest.raises(NotUnderstood, match="nest"):
        parse(pattern)


def test_counts_of_counts_up_to_a_bound_are_understood() -> None:
    assert shortest_match("^(?:(?:a{10}){10}b+){10}$") == ("a" * 100 + "b") * 10


def test_lists_of_strings() -> None:
    strings = ["a", "ab", "", "a/b", "[x]", "é\n", "-^", "abc"]
    for text in [*strings, "b", "abcd", "a/", "é", "x", "[", "\n", "--"]:
        # Python's `$` also stands before a last line end; the library's does not.
        inside, outside = (f"{pattern[:-1]}\\Z" for pattern in (one_of(strings), none_of(strings)))
        assert (re.search(inside, text) is not None) == (text in strings)
        assert (re.search(outside, text) is None) == (text in strings)


def test_beginnings() -> None:
    assert literal_prefix("^pkg:a/.+") == "pkg:a/"
    assert literal_prefix("^ab?c") == "a"
    assert [literal_prefix(pattern) for pattern in ("ab", "^a|b", "^(?i)a", "^.a", "^a*")] == [""] * 5
