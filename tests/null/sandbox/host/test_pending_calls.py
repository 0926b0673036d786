"""The ticket desk: every answer is fetched once, none reaches a closed ticket, messages come in order and are never lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from inferd_runtime.sandbox.host.pending_calls import MAX_OPEN, MOST_TAKEN, PendingCalls, Waits


def taken(desk: PendingCalls) -> list[Any]:
    answers = desk.take()
    return [] if answers is None else json.loads(answers)


def test_answers_are_fetched_together_and_once() -> None:
    desk = PendingCalls()
    first, second = desk.open_engine(), desk.open_engine()
    assert not desk.has_answers
    desk.settle(second, False, b'{"code":"limit"}')
    desk.settle(first, True, b"{}")
    assert desk.has_answers
    assert taken(desk) == [[second, 0, {"code": "limit"}], [first, 1, {}]]
    assert taken(desk) == []


def test_tickets_are_never_used_twice_and_never_zero() -> None:
    desk = PendingCalls()
    tickets = []
    for _ in range(10):
        ticket = desk.open_engine()
        desk.settle(ticket, True, b"{}")
        desk.take()
        tickets.append(ticket)
    assert len(set(tickets)) == 10
    assert 0 not in tickets


def test_an_answer_after_a_cancel_is_dropped() -> None:
    desk = PendingCalls()
    ticket = desk.open_engine()
    assert desk.cancel(ticket)
    desk.settle(ticket, True, b"{}")
    assert taken(desk) == []
    assert not desk.cancel(ticket)


def test_a_second_answer_is_dropped() -> None:
    desk = PendingCalls()
    ticket = desk.open_engine()
    desk.settle(ticket, True, b'{"a":1}')
    desk.settle(ticket, True, b'{"a":2}')
    assert taken(desk) == [[ticket, 1, {"a": 1}]]


def test_an_answered_ticket_needs_no_cancel_in_the_engine() -> None:
    desk = PendingCalls()
    ticket = desk.answered(False, b"{}")
    assert not desk.cancel(ticket)
    assert taken(desk) == []


def test_messages_go_to_readers_in_order() -> None:
    desk = PendingCalls()
    desk.deliver(b"1")
    first, second = desk.open_receive(), desk.open_receive()
    desk.deliver(b"2")
    desk.deliver(b"3")
    assert taken(desk) == [[first, 1, {"message": 1}], [second, 1, {"message": 2}]]
    assert desk.unread == 1


def test_a_message_for_a_cancelled_reader_goes_to_the_next() -> None:
    desk = PendingCalls()
    gone, answered = desk.open_receive(), desk.open_receive()
    assert not desk.cancel(gone)
    desk.deliver(b'"a"')
    assert not desk.cancel(answered)  # answered, but not fetched: the message must not be lost
    later = desk.open_receive()
    assert taken(desk) == [[later, 1, {"message": "a"}]]


def test_a_run_has_so_many_operations_open() -> None:
    desk = PendingCalls()
    tickets = [desk.open_engine() for _ in range(MAX_OPEN)]
    assert desk.full
    desk.settle(tickets[0], True, b"{}")
    assert not desk.full


@given(st.lists(st.sampled_from(["receive", "deliver", "cancel", "take"]), max_size=60))
def test_every_message_is_read_once_and_in_order_whatever_happens(actions: list[str]) -> None:
    desk = PendingCalls()
    readers: list[int] = []
    read: list[int] = []
    sent = 0
    for action in [*actions, *(["receive"] * len(actions)), "take"]:
        if action == "receive":
            readers.append(desk.open_receive())
        elif action == "deliver":
            desk.deliver(b"%d" % sent)
            sent += 1
        elif action == "cancel" and readers:
            desk.cancel(readers.pop())
        elif action == "take":
            answers = taken(desk)
            read.extend(sorted(answer["message"] for _, _, answer in answers))
            readers = [reader for reader in readers if reader not in {ticket for ticket, _, _ in answers}]
    assert read == list(range(sent))


def test_what_is_held_is_counted_and_given_back() -> None:
    desk = PendingCalls()
    asked, reader = desk.open_engine(1000), desk.open_receive()
    desk.deliver(b"1" * 500)
    desk.deliver(b"2" * 300)
    assert desk.held_bytes > 1800
    desk.settle(asked, True, b"3" * 10_000)
    assert desk.held_bytes > 10_800
    desk.take()
    assert 300 < desk.held_bytes < 1500
    assert not desk.cancel(reader)
    desk.open_receive()
    desk.take()
    assert desk.held_bytes == 0


def test_answers_come_in_portions() -> None:
    desk = PendingCalls()
    tickets = [desk.answered(True, b'"%b"' % (b"x" * (MOST_TAKEN // 3))) for _ in range(7)]
    portions = []
    while desk.has_answers:
        portions.append([entry[0] for entry in taken(desk)])
    assert [ticket for portion in portions for ticket in portion] == tickets
    assert [len(portion) for portion in portions] == [2, 2, 2, 1]
    assert desk.held_bytes == 0


@given(st.lists(st.sampled_from(["ask", "receive", "deliver", "settle", "cancel", "take"]), max_size=60))
def test_nothing_stays_counted_once_everything_is_read(actions: list[str]) -> None:
    desk = PendingCalls()
    tickets: list[int] = []
    for action in actions:
        if action == "ask":
            tickets.append(desk.open_engine(10))
        elif action == "receive":
            tickets.append(desk.open_receive())
        elif action == "deliver":
            desk.deliver(b"1")
        elif action == "settle" and tickets:
            desk.settle(tickets[0], True, b"{}")
        elif action == "cancel" and tickets:
            desk.cancel(tickets.pop())
        else:
            desk.take()
        assert desk.held_bytes >= 0
    for ticket in tickets:
        desk.cancel(ticket)
    while desk.unread:
        desk.open_receive()
        desk.take()
    desk.take()
    assert desk.held_bytes == 0


def test_the_gateway_hears_that_an_answer_arrived_once_the_guest_waits_anew() -> None:
    desk = PendingCalls()
    wanted, plain = desk.open_gateway(5), desk.open_gateway()
    desk.settle(wanted, True, b"{}", receipt=True)
    desk.settle(plain, True, b"{}")
    assert desk.received() == []  # the guest has not got it
    assert len(taken(desk)) == 2
    assert desk.received() == [wanted]
    assert desk.received() == []
    assert desk.cancel(wanted) is None
    assert desk.held_bytes == 0


@pytest.mark.parametrize("fetched", [False, True])
def test_the_gateway_hears_of_an_answer_that_nobody_wanted_any_more(fetched: bool) -> None:
    desk = PendingCalls()
    ticket = desk.open_gateway()
    desk.settle(ticket, True, b"{}", receipt=True)
    if fetched:
        desk.take()
    assert desk.cancel(ticket) is Waits.GATEWAY
    assert desk.cancel(ticket) is None
    assert desk.received() == []
    assert taken(desk) == []


def test_a_withdrawn_operation_of_the_gateway_is_told_and_its_answer_dropped() -> None:
    desk = PendingCalls()
    ticket = desk.open_gateway(100)
    assert desk.cancel(ticket) is Waits.GATEWAY
    desk.settle(ticket, True, b"{}", receipt=True)
    assert taken(desk) == []
    assert desk.received() == []
    assert desk.held_bytes == 0
