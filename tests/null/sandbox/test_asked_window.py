"""What a program may have asked the gateway for: bounded in number and bytes, and withdrawing is no way around it."""

from __future__ import annotations

import pytest

from inferd.protocol import LimitExceeded
from inferd_runtime.sandbox.asked_window import AskedWindow
from inferd_runtime.sandbox.messages import MAX_ASKED, MAX_ASKED_BYTES, MAX_REQUEST_BYTES


def test_an_operation_counts_until_the_gateway_has_answered_it() -> None:
    window = AskedWindow()
    for ticket in range(MAX_ASKED):
        window.check("topic.publish", 10)
        window.asked(ticket, 10)
    with pytest.raises(LimitExceeded) as error:
        window.check("topic.publish", 10)
    assert error.value.detail["limit"] == "gateway_operations"
    window.answered(3)
    window.answered(3)
    window.check("topic.publish", 10)


def test_requests_are_bounded_in_bytes_each_and_together() -> None:
    window = AskedWindow()
    with pytest.raises(LimitExceeded, match=r"topic\.publish"):
        window.check("topic.publish", MAX_REQUEST_BYTES + 1)
    for ticket in range(MAX_ASKED_BYTES // MAX_REQUEST_BYTES):
        window.check("topic.publish", MAX_REQUEST_BYTES)
        window.asked(ticket, MAX_REQUEST_BYTES)
    with pytest.raises(LimitExceeded) as error:
        window.check("topic.publish", 1)
    assert error.value.detail["limit"] == "gateway_bytes"
    window.answered(0)
    window.check("topic.publish", MAX_REQUEST_BYTES)


def test_a_program_that_gives_up_faster_than_the_gateway_answers_waits_and_is_not_refused() -> None:
    window = AskedWindow()
    for ticket in range(MAX_ASKED):
        window.asked(ticket, 10)
    assert not window.frees_itself(10)  # all of them are waited for: nobody knows how long
    window.withdrawn(3)
    window.withdrawn(MAX_ASKED)  # one that was answered before
    assert window.frees_itself(10)
    window.answered(3)
    assert not window.frees_itself(10)
    window.check("topic.publish", 10)
    window.asked(3, 10)
    assert not window.frees_itself(10)


def test_bytes_of_withdrawn_requests_come_back_by_themselves_too() -> None:
    window = AskedWindow()
    window.asked(1, MAX_ASKED_BYTES)
    assert not window.frees_itself(1)
    window.withdrawn(1)
    assert window.frees_itself(1)
    window.answered(1)
    assert not window.frees_itself(1)
