"""JSON whose reading would hold up everybody else is refused by a look at its bytes; what is long for honest reasons is not."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from inferd.protocol import InvalidRequest
from inferd_runtime.carriable import decode_bounded, read_json
from inferd_runtime.json_cost import JSON_STRING, MAX_STRINGS, read_checked_json, slow_seconds, without_strings

SLOW = ["1e308", "9e307", "1E+300", "1e-308", "4.9e-324", "1.7976931348623157e308", "1.2345678901234567890123456789e-300",
        "1.2345000000000000882e200", "1.2345000000000000341e99", "1.2345000000000000377e250"]  # fmt: skip
HONEST = {
    "whole numbers": json.dumps(list(range(400_000))),
    "small numbers": json.dumps([0.1 * at for at in range(150_000)]),
    "tiny numbers": json.dumps([1.5e-07 / (1 + at) for at in range(120_000)]),
    "probabilities": json.dumps([1e-120 * at for at in range(3000)]),
    "hexadecimal digits": json.dumps("1e3084e9991" * 300_000),
    "quoted code": json.dumps('{"a": ["b", "c"]},\n' * 150_000),
}


@pytest.mark.parametrize("number", SLOW)
def test_numbers_that_are_worked_out_digit_by_digit_are_refused_unread(number: str) -> None:
    """A megabyte of the slowest held the thread, and with it everybody, for nearly three seconds."""
    text = f"[{','.join([number] * (1_000_000 // len(number)))}]".encode()
    began = time.process_time()
    with pytest.raises(InvalidRequest, match="too many numbers"):
        read_json(text, "the body")
    with pytest.raises(InvalidRequest, match="too many numbers"):
        decode_bounded(msgspec.json.decode, text, "the operation", json=True)
    assert time.process_time() - began < 0.5
    assert len(read_json(f"[{number}, {number}]", "the body")) == 2


@pytest.mark.parametrize("name", HONEST)
def test_long_texts_without_slow_numbers_are_read(name: str) -> None:
    assert read_json(HONEST[name], "the body") == json.loads(HONEST[name])


def test_more_names_than_anybody_has_are_refused_unread() -> None:
    names = b"{" + b",".join(b'"%d":0' % at for at in range(2 * MAX_STRINGS)) + b"}"
    texts = b"[" + b'"",' * (4 * MAX_STRINGS) + b'"\\\\"]'
    for text in (names, texts, b'["\\\\"' + b',"\\\\"' * (4 * MAX_STRINGS) + b"]"):
        with pytest.raises(InvalidRequest, match="strings and names"):
            read_json(text, "the body")


def test_slow_numbers_that_are_held_already_are_read_fast() -> None:
    text = json.dumps([1e308] * 50_000 + ["x", None, 5])
    began = time.process_time()
    assert read_checked_json(text) == json.loads(text)
    assert time.process_time() - began < 0.4


@given(st.recursive(st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists))
def test_without_its_strings_nothing_else_is_gone(value: Any) -> None:
    text = msgspec.json.encode(value)
    bare = without_strings(text)
    assert b'"' not in bare
    assert len(bare) == len(text) - sum(map(len, JSON_STRING.findall(text)))
    assert slow_seconds(text) == 0.0
