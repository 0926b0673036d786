"""When a program waits for its launcher, and when there is nothing more to wait for."""

from __future__ import annotations

import json

from inferd_runtime.sandbox.host.pending_calls import NO_MORE, PendingCalls


def test_that_a_program_waits_is_told_once_until_the_next_message() -> None:
    calls = PendingCalls()
    assert not calls.tell_waiting()
    first = calls.open_receive()
    assert calls.tell_waiting()
    calls.cancel(first)
    for _ in range(100):  # asyncio.wait_for(receive(), ...) in a loop
        calls.cancel(calls.open_receive())
        assert not calls.tell_waiting()
    calls.deliver(b"1")
    assert not calls.tell_waiting(), "a message is there"
    calls.open_receive()
    assert not calls.tell_waiting()
    calls.open_receive()
    assert calls.tell_waiting()


def test_behind_the_last_message_receiving_is_a_typed_error() -> None:
    calls = PendingCalls()
    waiting = [calls.open_receive(), calls.open_receive()]
    calls.deliver(b'"last"')
    calls.deliver(NO_MORE)
    later = calls.open_receive()
    answers = {ticket: (ok, value) for ticket, ok, value in json.loads(calls.take() or b"")}
    assert answers[waiting[0]] == (1, {"message": "last"})
    for ticket in (waiting[1], later):
        assert (answers[ticket][0], answers[ticket][1]["code"]) == (0, "client.end_of_messages")
    assert not calls.tell_waiting()
    assert calls.held_bytes == 0
    taken = calls.open_receive()
    assert calls.cancel(taken) is None
