"""Calls as Python writes them: what comes out is the JSON of the same values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from inferd.chat.python_call import PythonCallScanner

PRINTED = st.characters(exclude_categories=["Cs"]).filter(str.isprintable)
TEXTS = st.text(PRINTED | st.sampled_from("\n\t\x7f'\"\\,()[]{}=:"), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), VALUES, max_size=4), st.integers(1, 9))
def test_the_arguments_are_the_values_that_python_reads(arguments: dict[str, Any], piece: int) -> None:
    text = f"f({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    scanner, found = PythonCallScanner(), ""
    for at in range(0, len(text), piece):
        assert not scanner.feed(text[at : at + piece])
        found += scanner.new_arguments()
    assert (scanner.done, scanner.failed, scanner.name, scanner.text) == (True, False, "f", text)
    assert json.loads(found) == arguments
    assert scanner.feed("rest") == "rest"


@pytest.mark.parametrize(
    "text", ["(", "f[", "f(=1)", "f(a=[1)", "f(a=])", "f(a b)", 'f("a")', "f" * 300, "f(a=" + "1" * 300]
)
def test_what_is_no_call_fails(text: str) -> None:
    scanner = PythonCallScanner()
    scanner.feed(text)
    assert scanner.failed
