"""Replies from plain values: the same objects as their classes would make."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from inferd.protocol import (
    ConstraintSpec,
    ContextState,
    LimitExceeded,
    NextSteps,
    Sampling,
    SourceCount,
    StartGenerate,
    Step,
    Steps,
    reply_from_plain,
    set_fields,
    to_plain,
)


def test_a_reply_is_what_its_class_makes_of_the_same_values() -> None:
    whole = Steps([Step([1, 2], "ab", 3, 2, sources=[SourceCount("ngram", 3, 2)]), Step([3])], "stop")
    assert reply_from_plain(Steps, to_plain(whole)) == whole
    short = reply_from_plain(Steps, {"steps": [{"tokens": [3], "newer": 1}]})
    assert short == Steps([Step([3])])
    assert vars(short.steps[0]) == vars(Step([3]))
    assert repr(short) == repr(Steps([Step([3])]))


def test_what_is_empty_is_not_shared_between_replies() -> None:
    one, other = (reply_from_plain(Step, {"tokens": []}) for _ in range(2))
    one.sources.append(SourceCount("ngram"))
    assert other.sources == []
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.text = "b"


def test_a_reply_without_a_field_that_it_needs_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="pending"):
        reply_from_plain(ContextState, {"context": 1, "length": 2})


def test_what_raises_a_limit_is_not_lost_where_an_error_is_printed() -> None:
    error = LimitExceeded("2 calls are outstanding", limit="calls", value=2, raise_with="waiting for some of them")
    told = str(error.to_wire().to_exception())
    assert told == str(error) == "2 calls are outstanding (what helps: waiting for some of them)"
    assert error.to_wire().message == "2 calls are outstanding"
    assert str(LimitExceeded("full")) == "full"


@pytest.mark.parametrize(
    ("request_", "sent"),
    [
        (NextSteps(3), {"generation": 3}),
        (StartGenerate(0, Sampling()), {"context": 0, "sampling": {}}),
        (
            StartGenerate(1, Sampling(seed=0), stop=["."], constraint=ConstraintSpec("choice", options=["a"])),
            {"context": 1, "sampling": {"seed": 0}, "stop": ["."], "constraint": {"kind": "choice", "options": ["a"]}},
        ),
    ],
)
def test_a_field_with_its_default_is_not_sent_so_that_an_older_runtime_does_not_refuse_it(
    request_: Any, sent: Any
) -> None:
    assert set_fields(request_) == sent
    assert msgspec.convert(sent, type(request_)) == request_


def test_what_only_equals_a_default_is_sent_so_that_the_runtime_sees_its_type() -> None:
    wrong: Any = StartGenerate(1, Sampling(top_k=False))
    assert set_fields(wrong)["sampling"] == {"top_k": False}
