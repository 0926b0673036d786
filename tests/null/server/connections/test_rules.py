"""The rules for connections, without sockets: time-outs, who makes room, whose bytes wait."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, strategies as st

from inferd_runtime.server.connections.deadlines import HALF_CLOSED_SECONDS, Deadlines, Patience
from inferd_runtime.server.connections.loop_shares import ALLOWED_DEBT, SHARE, AnswerShares, LoopShares
from inferd_runtime.server.connections.unauthenticated import REGULARS_PER_ADDRESS, UnauthenticatedConnections

PATIENCE = Patience(head=10, body=60, idle=15, unread=30)


def test_a_connection_that_never_sends_a_request_is_due() -> None:
    deadlines = Deadlines(PATIENCE, 100)
    assert deadlines.due == 110
    deadlines.received(105)
    assert deadlines.due == 110, "a byte now and then buys no time"
    assert "head" in deadlines.reason


def test_a_body_has_its_own_time_and_an_answer_has_none() -> None:
    deadlines = Deadlines(PATIENCE, 0)
    deadlines.head_came(5, has_body=True)
    deadlines.received(50)
    assert deadlines.due == 65
    assert "body" in deadlines.reason
    deadlines.body_came()
    assert deadlines.due == math.inf
    deadlines.head_came(70, has_body=False)
    assert deadlines.due == math.inf


def test_a_second_request_that_is_half_sent_is_due_as_the_first_one_is() -> None:
    deadlines = Deadlines(PATIENCE, 0)
    deadlines.head_came(1, has_body=False)
    deadlines.answered(2)
    assert deadlines.due == 17
    deadlines.received(16)
    assert deadlines.due == 26


def test_what_comes_of_a_body_that_nobody_read_buys_no_time() -> None:
    deadlines = Deadlines(PATIENCE, 0)
    deadlines.head_came(1, has_body=True)
    deadlines.answered(2)
    for second in range(3, 40):
        deadlines.received(second)
    assert deadlines.due == 13


def test_a_client_that_does_not_read_is_due_whatever_it_sends() -> None:
    deadlines = Deadlines(PATIENCE, 0)
    deadlines.head_came(1, has_body=False)
    deadlines.stalled(2)
    deadlines.stalled(20)
    deadlines.received(21)
    assert deadlines.due == 32
    assert "read" in deadlines.reason
    deadlines.flows()
    assert deadlines.due == math.inf


def test_a_client_that_may_be_gone_keeps_its_place_only_while_its_answer_comes_on() -> None:
    deadlines = Deadlines(PATIENCE, 0)
    deadlines.head_came(1, has_body=False)
    deadlines.wrote(2)
    assert deadlines.due == math.inf, "one that may still send waits as long as it likes"
    deadlines.half_closed(3)
    deadlines.wrote(4)
    assert deadlines.due == 4 + HALF_CLOSED_SECONDS
    assert "closed its sending side" in deadlines.reason


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=100))
def test_unauthenticated_connections_make_room_only_for_their_own_kind(
    events: list[tuple[str, bool]],
) -> None:
    unauthenticated = UnauthenticatedConnections(6, 3)
    alive: list[tuple[str, int]] = []
    for number, (address, arrives) in enumerate(events):
        if arrives or not alive:
            before = {name: unauthenticated.of(name) for name in "abc"}
            for gone in unauthenticated.arrive(address, (address, number)):
                assert isinstance(gone, tuple)
                assert gone == next(one for one in alive if one[0] == gone[0]), "the oldest of its address"
                assert gone[0] == address or before[gone[0]] == max(before.values())
                alive.remove(gone)
            alive.append((address, number))
        else:
            who = alive.pop(number % len(alive))
            unauthenticated.leave(*who[:1], who)
            unauthenticated.leave(*who[:1], who)
        assert len(unauthenticated) == len(alive) <= 6
        assert all(unauthenticated.of(name) == sum(one[0] == name for one in alive) <= 3 for name in "abc")


@given(st.integers(1, 200))
def test_a_flood_from_one_address_makes_only_that_address_wait(flood: int) -> None:
    unauthenticated = UnauthenticatedConnections(8, 8)
    unauthenticated.arrive("ann", "honest")
    gone = [old for number in range(flood) for old in unauthenticated.arrive("eve", number)]
    assert "honest" not in gone
    assert unauthenticated.of("ann") == 1


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=50))
def test_an_owner_gets_no_more_of_the_thread_than_its_share(costs: list[float]) -> None:
    shares, now, spent = LoopShares(), 100.0, 0.0
    for cost in costs:
        now += shares.wait("eve", now)
        now += cost
        spent += cost
        shares.charge("eve", cost, now)
        assert shares.wait("ann", now) == 0
    now += shares.wait("eve", now)
    assert spent <= SHARE * (now - 100.0 + ALLOWED_DEBT) + 1e-6 + max(costs)


def test_what_an_ordinary_request_takes_costs_no_wait_and_even_accounts_are_dropped() -> None:
    shares = LoopShares()
    assert shares.charge("ann", 0.004, 10.0) == 0
    assert shares.charge("eve", 0.1, 10.0) > 0.3
    shares.forget_old(10.1)
    assert shares.wait("eve", 10.1) > 0
    shares.forget_old(20.0)
    assert not shares._paid_at


@given(st.lists(st.floats(1e-4, 0.1), min_size=5, max_size=50), st.integers(1, 40))
def test_answers_to_one_owner_leave_the_thread_to_others_that_are_there(costs: list[float], at_once: int) -> None:
    answers, now, spent, begun = AnswerShares(), 100.0, 0.0, 100.0
    for cost in costs:
        answers.used("ann", 1e-4, now)
        begun = max([begun, *(now + answers.begin("eve", now) for _ in range(at_once))])
        now = begun + cost
        answers.used("eve", cost, now)
        spent += cost
    assert spent <= (now - 100.0 + ALLOWED_DEBT) / 3 + max(costs) + 1e-6
    assert answers.begin("ann", now) == 0


def test_long_messages_of_one_owner_come_one_after_the_other_over_however_many_connections() -> None:
    answers, seconds = AnswerShares(), 0.06
    assert [answers.begin("eve", 10.0, seconds) for _ in range(2)] == [0, 0], "nobody else is there"
    answers.used("ann", 1e-4, 10.0)
    waits = [answers.begin("eve", 10.0, seconds) for _ in range(64)]
    assert all(later - sooner >= 2 * seconds for sooner, later in itertools.pairwise(waits[1:]))
    assert answers.begin("ann", 10.0) == 0


def test_an_owner_that_is_alone_waits_for_no_answer_and_those_that_left_do_not_count() -> None:
    answers = AnswerShares()
    answers.used("ann", 0.1, 10.0)
    answers.forget_old(12.0)
    for number in range(100):
        now = 12.0 + number
        assert answers.begin("eve", now) == 0
        answers.used("eve", 0.5, now + 0.5)
        answers.forget_old(now + 0.5)


@given(st.integers(1, 300))
def test_what_asks_without_a_token_stays_while_others_say_nothing(flood: int) -> None:
    """As what watches ``/livez`` does, on a connection that it keeps."""
    unauthenticated = UnauthenticatedConnections(8, 8)
    unauthenticated.arrive("one", "watcher")
    unauthenticated.heard("one", "watcher")
    assert not [gone for number in range(flood) if "watcher" in (gone := unauthenticated.arrive("one", number))]
    for number in range(flood, flood + 8):
        unauthenticated.arrive("one", number)
        unauthenticated.heard("one", number)
    assert len(unauthenticated) == unauthenticated.of("one") == 8


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=120))
def test_what_goes_on_asking_without_a_token_is_never_replaced_and_there_are_few_of_it(
    flood: list[tuple[str, int]],
) -> None:
    unauthenticated = UnauthenticatedConnections(40, 20)
    unauthenticated.arrive("a", "watcher")
    for _ in range(2):
        unauthenticated.heard("a", "watcher")
    for number, (address, requests) in enumerate(flood):
        assert "watcher" not in unauthenticated.arrive(address, number)
        for _ in range(requests):
            unauthenticated.heard(address, number)
    for address in "ab":
        regular = [name for name in ["watcher", *range(len(flood))] if unauthenticated.is_regular(address, name)]
        assert len(regular) <= REGULARS_PER_ADDRESS
    assert unauthenticated.is_regular("a", "watcher")
    while len(unauthenticated) > 2 * REGULARS_PER_ADDRESS:
        assert unauthenticated.dismiss_one() != "watcher"
    unauthenticated.leave("a", "watcher")
    assert not unauthenticated.is_regular("a", "watcher")
