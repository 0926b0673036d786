"""Trees of expressions: what they say about their texts, against all texts of a few characters."""

from __future__ import annotations

import re
from itertools import product

import pytest

from inferd_grammar.rewrites.regex_syntax import NotUnderstood
from inferd_grammar.rewrites.regex_tree import OneChar, beginnings, may_be_empty, neighbours, read_tree

TEXTS = ["".join(letters) for size in range(6) for letters in product("ab<", repeat=size)]
PATTERNS = [
    "", "a", "ab", "a?<", "(a|b<)*", "a+<?", "(?:a?b?<?){2}", "[^b]{1,2}", "(a|)(b|)<", "a{0}b", "(ab?)+", "(<a?)*", "b{2,}<a",
    "a(b|<?)a",
    "(?:a|b)?(?:<|b)",
]  # fmt: skip


def texts_of(pattern: str) -> list[str]:
    return [text for text in TEXTS if re.fullmatch(pattern, text)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_two_characters_meet_where_a_text_has_them_side_by_side(pattern: str) -> None:
    texts = texts_of(pattern)
    found = neighbours(read_tree(pattern), "a", "<")
    assert found.begins == any(text.startswith("<") for text in texts)
    assert found.ends == any(text.endswith("a") for text in texts)
    assert found.meet == any("a<" in text for text in texts)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_all_texts_but_the_empty_one_have_a_beginning(pattern: str) -> None:
    tree, texts = read_tree(pattern), texts_of(pattern)
    assert may_be_empty(tree) == ("" in texts)
    for letter in "ab<":
        begins = any(first.has(letter) for first, _ in beginnings(tree))
        assert begins == any(text.startswith(letter) for text in texts)


@pytest.mark.parametrize(
    ("piece", "has", "has_not"),
    [
        ("a", "a", "b"), (r"\n", "\n", "n"), (r"[^\n]", "a", "\n"), (r"[\x00-\x1F]", "\t", " "),
        (r"\p{P}", '"\\', "<a\n"),
        (r"\P{L}", '<"\n', "a"), (r"[\p{Cc}x]", "x\n", "a"), (r"\x{3C}", "<", "a"), (r"\W", "<", "a"),
        ("[a||b]", "|", "c"), ("]", "]", "["),
    ],
)  # fmt: skip
def test_a_piece_has_characters(piece: str, has: str, has_not: str) -> None:
    assert all(OneChar(piece).has(char) for char in has)
    assert not any(OneChar(piece).has(char) for char in has_not)


@pytest.mark.parametrize(
    "pattern", [r"a\bc", r"\p{Greek}", "(?x:a)", "a^b", "(?=a)b", "(?m)^a$", "(a", "a)", "+a", r"\Aa", "[b-a]"]
)
def test_what_is_no_plain_expression_is_refused(pattern: str) -> None:
    with pytest.raises(NotUnderstood):
        read_tree(pattern)
