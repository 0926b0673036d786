"""A run's inbox: its messages, and the reason to end it."""

from __future__ import annotations

import select

from inferd.protocol import Cancelled, InternalError
from inferd_runtime.sandbox.host.inbox import MAX_MESSAGES, Inbox


def readable(inbox: Inbox) -> bool:
    return bool(select.select([inbox.fileno()], [], [], 0)[0])


def test_the_first_reason_to_end_counts() -> None:
    inbox = Inbox()
    inbox.end(Cancelled("first").to_wire())
    inbox.end(InternalError("second").to_wire())
    assert inbox.error == Cancelled("first").to_wire()
    assert readable(inbox)


def test_messages_are_taken_once_and_in_order() -> None:
    inbox = Inbox()
    for message in (b"1", b"2"):
        inbox.deliver(message)
    assert readable(inbox)
    assert inbox.take() == [b"1", b"2"]
    assert inbox.take() == []
    assert not readable(inbox)


def test_a_run_that_takes_no_messages_ends() -> None:
    inbox = Inbox()
    for _ in range(MAX_MESSAGES):
        inbox.deliver(b"1")
    assert inbox.error is None
    inbox.deliver(b"1")
    assert inbox.error is not None
    assert inbox.error.detail["limit"] == "messages"
    assert len(inbox.take()) == MAX_MESSAGES


def test_what_comes_after_the_end_is_dropped() -> None:
    inbox = Inbox()
    inbox.close()
    inbox.deliver(b"1")
    inbox.end(Cancelled("late").to_wire())
