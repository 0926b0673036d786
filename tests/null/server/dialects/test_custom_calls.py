"""Texts of custom tools, read out of the arguments of the functions that the model calls."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from inferd.chat import Tool, ToolArguments, ToolCallStarted, custom_arguments, custom_tool
from inferd_runtime.server.dialects.custom_calls import CustomCalls, InputReader, input_of


def read(pieces: list[str]) -> str:
    reader = InputReader()
    return "".join(map(reader.feed, pieces))


@given(st.text(), st.booleans(), st.lists(st.integers(0, 200), max_size=6), st.sampled_from(["", " ", "\n "]))
def test_a_text_comes_out_whole_however_it_is_cut(text: str, plain: bool, cuts: list[int], blank: str) -> None:
    written = f'{blank}{{{blank}"input"{blank}:{blank}{json.dumps(text, ensure_ascii=plain)}{blank}}}'
    places = sorted({min(cut, len(written)) for cut in (0, *cuts, len(written))})
    assert read([written[a:b] for a, b in pairwise(places)]) == text
    assert read(list(written)) == text
    assert input_of(custom_arguments(text)) == text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('{"input": "a\\/b\\b\\f\\u0041', "a/b\b\fA"),
        ('{"input": "a\\', "a"),
        ('{"input": "a\\u00', "a"),
        ('{"input": "a", "more": 1}', "a"),
        ('{"input": "\\ud83d\\ude42\\ud83d!\\ude42\\ud83d"}', "🙂\ufffd!\ufffd"),
        ('{"input": "\\ud83d', ""),
        ('{"input": "a\\uzz", 1}', "a\\uzz"),
        ('{"input": "\\ud83d\\ud83\\n"}', "\ufffd\\ud83\n"),
        ('{"inp', ""),
        ("", ""),
        ('{"other": 1}', '{"other": 1}'),
        ('{"input": 1}', '{"input": 1}'),
        ("plain", "plain"),
        (" " * 300, " " * 300),
    ],
)
def test_what_is_cut_or_no_such_object_comes_out_as_far_as_it_goes(written: str, text: str) -> None:
    assert read([written]) == read(list(written)) == text


def test_what_is_no_escape_does_not_hold_the_rest_of_the_text() -> None:
    """All that came behind it was held, and copied with each piece: 64 MB of a program's answer took a minute of the gateway."""
    reader = InputReader()
    assert reader.feed('{"input":"\\uzz') == "\\uzz"
    for _ in range(3):
        assert reader.feed("x" * 1000) == "x" * 1000
    assert not reader._rest


def test_answers_have_texts_of_their_own_and_functions_none() -> None:
    calls = CustomCalls([custom_tool("run"), Tool("add")])
    assert calls.begin(ToolCallStarted(0, "a", "run", 0))
    assert calls.begin(ToolCallStarted(0, "b", "run", 1))
    assert calls.read(ToolArguments(0, '{"input": "x', 0)) == "x"
    assert calls.read(ToolArguments(0, '{"input": "y', 1)) == "y"
    assert not calls.begin(ToolCallStarted(1, "c", "add", 0))
    assert calls.read(ToolArguments(1, "{}", 0)) is None
    assert calls.read(ToolArguments(0, 'z"}', 1)) == "z"
