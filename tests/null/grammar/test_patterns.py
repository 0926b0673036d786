"""Complements and regions of patterns against Python's `re`, on texts where all dialects agree."""

from __future__ import annotations

import random
import re
import time

import pytest

from inferd_grammar.rewrites.patterns import complement, finds, regions
from inferd_grammar.rewrites.regex_syntax import NotUnderstood, literal_prefix
from inferd_grammar.rewrites.strings import none_of, one_of

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
PATTERNS += ["^(a|ab)(c|bcd)*$", ".", "^.{0,3}$", "a{2}b?", "\\x61\\u0062", "[a-c]+?x", "(?:a|)b*$", "[\\]]"]


def texts(seed: str) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(LETTERS, k=rng.randint(0, 7))) for _ in range(400)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_complement_matches_what_the_pattern_does_not(pattern: str) -> None:
    other = re.compile(complement(pattern))
    for text in texts(pattern):
        found = re.search(pattern, text) is not None
        assert (other.search(text) is not None) != found, text
        assert finds(pattern, text) == found, text


@pytest.mark.parametrize(
    "patterns", [["a", "b"], ["a*b", "aaa*"], ["x_", "[0-9]{2,}"], ["^a", "^b"], ["fo", "oz", "a"]]
)
def test_regions_are_disjoint_and_complete(patterns: list[str]) -> None:
    areas = regions(patterns)
    for text in texts(str(patterns)):
        found = [n for n, pattern in enumerate(patterns) if re.search(pattern, text)]
        assert [members for regex, members in areas if re.search(regex, text)] == ([found] if found else [])


def test_texts_on_which_dialects_differ_are_in_no_complement() -> None:
    assert re.search(complement("^a$"), "a\n") is None
    assert re.search(complement("^\\w+$"), "é") is None
    assert re.search(complement("^\\w+$"), "-")
    assert [members for regex, members in regions(["\\w", "x"]) if re.search(regex, "é")] == [[]]
    with pytest.raises(NotUnderstood):
        finds("\\w", "é")


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)b",
        "(?i)a",
        "a\\b",
        "\\1",
        "(a",
        "a)",
        "[b-a]",
        "a{2",
        "a**",
        "(^a)",
        "[[a]]",
        "\\p{L}",
        "a{65}",
        "[a&&b]",
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
