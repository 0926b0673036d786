"""Terminals as plain expressions: the texts that Python's `re` takes as one terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from inferd_grammar import GrammarError
from inferd_grammar.rewrites.terminals import is_lazy, terminal

SAME = [r'".*?"', r'"(.*?)(?<!\\)(\\\\)*?"', r"/\*(.|\n)*?\*/", r"(?!ab)[ab\"]{1,3}x", r"a(?=x)[ax]+?x", r"a{2,}?x"]
NARROWER = [r"/(?!/)(\\/|[^/])*?/[ax]*", r"a+?x*"]
"""What is greedy behind something lazy is left out."""


@pytest.mark.parametrize("pattern", SAME)
@given(text=st.text(r'"\/*abx' + "\n", max_size=8))
def test_a_terminal_is_what_is_matched_first(pattern: str, text: str) -> None:
    found = re.match(pattern, text)
    assert bool(re.fullmatch(terminal(pattern), text)) == bool(found and found.end() == len(text))


@pytest.mark.parametrize("pattern", NARROWER)
@given(text=st.text(r"\/ax", max_size=8))
def test_a_terminal_is_never_more_than_that(pattern: str, text: str) -> None:
    if re.fullmatch(terminal(pattern), text):
        found = re.match(pattern, text)
        assert found is not None
        assert found.end() == len(text)


@pytest.mark.parametrize(
    "pattern", [r"a(?=b)", r"(?<=b)a", r"a\b", r"^a", r"a(?!b).?", r"(?:ab?)(?!bb)x", r"a*?", r"a(?=.*b)b"]
)
def test_a_terminal_does_not_look_at_its_neighbours(pattern: str) -> None:
    with pytest.raises(GrammarError, match="not supported in a terminal"):
        terminal(pattern)


@pytest.mark.parametrize(
    ("pattern", "lazy"),
    [
        ("a*?", True),
        ("a??", True),
        ("a{2}?", True),
        (r"a\*?", False),
        ("[*?]", False),
        ("(?:a)", False),
        ("a*(?:b)", False),
    ],
)
def test_lazy_quantifiers_are_known(pattern: str, lazy: bool) -> None:
    assert is_lazy(pattern) == lazy
