"""Replies from plain values: the same objects as their classes would make."""

from __future__ import annotations

import dataclasses

import pytest

from inferd.protocol import ContextState, LimitExceeded, SourceCount, Step, Steps, reply_from_plain, to_plain


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
