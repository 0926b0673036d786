"""JSON of a guest is checked as it is: what cannot be carried is refused, in time that its length bounds."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, strategies as st

from inferd.protocol import InvalidRequest
from inferd_runtime.carriable import read_json
from inferd_runtime.sandbox.host.carried import check_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
NUMBERS = st.integers(-(2**66), 2**66)


def is_refused(data: bytes) -> bool:
    try:
        check_json(data, "it")
    except InvalidRequest:
        return True
    return False


@given(VALUES | NUMBERS | st.lists(NUMBERS))
def test_it_says_the_same_as_the_check_that_decodes(value: object) -> None:
    data = json.dumps(value).encode()
    try:
        read_json(data, "it")
        expected = False
    except InvalidRequest:
        expected = True
    assert is_refused(data) is expected


@pytest.mark.parametrize(
    "text", ["", "nan", "NaN", "1e999", "-1e400", "[1,]", '"\\ud800"', "[" * 5000, "1" * 5000, "{1:2}"]
)
def test_what_no_wire_takes_is_refused(text: str) -> None:
    assert is_refused(text.encode())


@pytest.mark.parametrize(
    "text", ['"1e999"', '"99999999999999999999999"', "1e300", "18446744073709551615", '{"a\\"1e999":1}']
)
def test_what_looks_alike_is_not(text: str) -> None:
    assert not is_refused(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "1" * (1 << 20) + ".5",
        '"' + "\\\\" * (1 << 19),
        "[" + "1," * (1 << 19) + "1]",
        '["' + "1e" * (1 << 19) + '"]',
        "1e" * (1 << 19),
    ],
    ids=["digits", "backslashes", "numbers", "string", "nonsense"],
)
def test_a_long_text_takes_no_more_than_its_length(text: str) -> None:
    started = time.process_time()
    is_refused(text.encode())
    assert time.process_time() - started < 5


@pytest.mark.parametrize("levels", [500, 501, 5000])
def test_the_same_depth_is_refused_with_every_python(levels: int) -> None:
    """Python 3.11 gives up at a thousand frames, 3.14 where its stack ends."""
    texts = [b"[" * levels + b"]" * levels, b'{"[":' * levels + b"1" + b"}" * levels]
    assert [is_refused(text) for text in texts] == [levels > 500] * 2
    if levels < 600:
        assert not is_refused(b"[" + b",".join([b'"[["', b"[1]", b"{}"] * levels) + b"]")
    for text in texts:
        if levels == 500:
            read_json(text, "it")
        else:
            with pytest.raises(InvalidRequest, match="it: nested too deeply"):
                read_json(text, "it")
