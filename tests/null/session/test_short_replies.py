"""Replies that leave out what stands at its default say the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from inferd import protocol as p
from inferd_runtime.session.short_replies import ShortStep, ShortSteps, shortened

STEPS = st.builds(
    p.Step,
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from(["", "ab"]),
    *(st.integers(0, 2) for _ in range(5)),
    st.lists(st.builds(p.SourceCount, st.just("ngram")), max_size=2),
    st.lists(st.builds(p.TokenLogprob, st.just(1), st.just(-0.5)), max_size=2),
    st.lists(st.builds(p.TokenProbes, st.lists(st.builds(p.ProbeResult, st.just("AAAA")), max_size=2)), max_size=2),
    st.integers(1, 3),
)
ROWS = st.lists(
    st.builds(p.CandidateRow, st.just(3), st.just(""), st.just(""), st.just(0.5), st.just(0.25)), max_size=1
)
CODECS = [(msgspec.json.encode, msgspec.json.decode), (msgspec.msgpack.encode, msgspec.msgpack.decode)]


@pytest.mark.parametrize(("encode", "decode"), CODECS)
@given(st.builds(p.Steps, st.lists(STEPS, max_size=3), st.sampled_from(["", "stop"]), candidates=ROWS))
def test_a_short_reply_is_read_as_the_whole_one(
    encode: Callable[[Any], bytes], decode: Callable[..., Any], reply: p.Steps
) -> None:
    packed = encode(shortened(reply))
    assert decode(packed, type=p.Steps) == reply
    assert p.reply_from_plain(p.Steps, decode(packed)) == reply


def test_a_plain_step_is_its_tokens_and_its_text_and_other_replies_stay_as_they_are() -> None:
    assert msgspec.json.encode(shortened(p.Steps([p.Step([1], "a")]))) == b'{"steps":[{"tokens":[1],"text":"a"}]}'
    state = p.ContextState(1, 2, 3)
    assert shortened(state) is state


def test_short_steps_have_the_fields_of_steps() -> None:
    assert list(ShortStep.__struct_fields__) == list(p.Step.__dataclass_fields__)
    assert list(ShortSteps.__struct_fields__) == list(p.Steps.__dataclass_fields__)
