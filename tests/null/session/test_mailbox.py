"""Requests in the mailbox: every one is answered once, in its session's order, bounded by tenant, the furthest behind first."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings, strategies as st

from inferd import protocol as p
from inferd_runtime.engine.scheduling.fairness import FairClock
from inferd_runtime.session import mailbox as module
from inferd_runtime.session.mailbox import Mailbox
from inferd_runtime.session.wire import CANCEL, CLOSE, MSGPACK, TICKET, request_frames

SESSIONS = {b"a1": "a", b"a2": "a", b"b1": "b"}


class Handler:
    """Takes ``cost`` seconds for each request and writes down what became of it."""

    def __init__(self, cost: dict[str, float] | None = None) -> None:
        self.now = 0.0
        self.cost = cost or {}
        self.handled: list[tuple[bytes, int]] = []
        self.cancelled: list[tuple[bytes, int]] = []
        self.refused: list[tuple[bytes, int, str]] = []
        self.busy: set[bytes] = set()
        self.spent: Counter[str] = Counter()
        self.open = dict(SESSIONS)

    def receive(self, identity: bytes, frames: list[bytes]) -> None:
        if frames[1] == CLOSE.encode():
            del self.open[identity]
        tenant = self.open.get(identity, "")
        if frames[1] == CANCEL.encode():
            self.cancelled.append((identity, TICKET.unpack(frames[0])[0]))
            return
        self.now += self.cost.get(tenant, 1e-4)
        self.spent[tenant] += self.cost.get(tenant, 1e-4)
        self.handled.append((identity, TICKET.unpack(frames[0])[0]))

    def refuse(self, identity: bytes, frames: list[bytes], error: p.InferdError) -> None:
        self.refused.append((identity, TICKET.unpack(frames[0])[0], error.code))

    def tenant_of(self, identity: bytes) -> str | None:
        return self.open.get(identity)

    def held(self, identity: bytes) -> bool:
        return identity in self.busy


def mailbox_of(handler: Handler, clock: FairClock[str] | None = None) -> Mailbox:
    clock = clock or FairClock(lambda tenant: 1.0, 1e-3, linger=16)
    return Mailbox(handler, clock, lambda: handler.now)  # type: ignore[arg-type]


def ask(mailbox: Mailbox, identity: bytes, ticket: int, op: str = "model.list", payload: bytes = b"\x80") -> None:
    mailbox.put(identity, request_frames(ticket, op, MSGPACK, payload))


def test_requests_of_one_session_keep_their_order_and_a_held_session_holds_up_no_other() -> None:
    handler = Handler()
    mailbox = mailbox_of(handler)
    for ticket in range(1, 4):
        ask(mailbox, b"a1", ticket)
        ask(mailbox, b"a2", ticket)
    handler.busy.add(b"a1")
    mailbox.work(1.0)
    assert handler.handled == [(b"a2", 1), (b"a2", 2), (b"a2", 3)]
    assert not mailbox.ready
    handler.busy.clear()
    mailbox.work(1.0)
    assert handler.handled[3:] == [(b"a1", 1), (b"a1", 2), (b"a1", 3)]
    assert not len(mailbox)


def test_what_waits_of_a_session_that_closes_is_dropped() -> None:
    handler = Handler()
    mailbox = mailbox_of(handler)
    for ticket in range(1, 100):
        ask(mailbox, b"a1", ticket)
    ask(mailbox, b"a2", 1)
    ask(mailbox, b"a1", 0, CLOSE)
    assert handler.handled == [(b"a1", 0)], "at once"
    mailbox.work(1.0)
    assert handler.handled == [(b"a1", 0), (b"a2", 1)]


def test_a_request_that_is_cancelled_before_its_turn_is_answered_and_never_carried_out() -> None:
    handler = Handler()
    mailbox = mailbox_of(handler)
    ask(mailbox, b"a1", 1)
    ask(mailbox, b"a1", 2)
    ask(mailbox, b"a1", 1, CANCEL)
    mailbox.work(1.0)
    assert handler.refused == [(b"a1", 1, "cancelled")]
    assert handler.handled == [(b"a1", 2)]
    ask(mailbox, b"a1", 2, CANCEL)
    assert handler.cancelled == [(b"a1", 2)], "one that is under way is cancelled there"


def test_a_tenant_may_not_have_requests_waiting_without_end() -> None:
    handler = Handler()
    mailbox = mailbox_of(handler)
    for ticket in range(1, module.MAX_WAITING + 3):
        ask(mailbox, b"a1", ticket)
    assert handler.refused == [(b"a1", module.MAX_WAITING + extra, "limit") for extra in (1, 2)]
    ask(mailbox, b"b1", 1)
    assert len(mailbox) == module.MAX_WAITING + 1, "nobody else is refused"


def test_a_tenant_may_not_have_bytes_waiting_without_end() -> None:
    handler = Handler()
    mailbox = mailbox_of(handler)
    half = bytes(module.MAX_WAITING_BYTES // 2)
    for ticket in range(1, 4):
        ask(mailbox, b"a1", ticket, payload=half)
    assert [ticket for _, ticket, _ in handler.refused] == [2, 3]
    mailbox.work(1.0)
    ask(mailbox, b"a1", 4, payload=half + half)
    assert len(handler.refused) == 2, "one alone may be as large as it likes"


def test_a_flood_of_slow_requests_leaves_others_their_share_of_the_time() -> None:
    """By time, not by count: a's requests take fifty times as long as b's, and there are a thousand of each."""
    handler = Handler({"a": 5e-3, "b": 1e-4})
    mailbox = mailbox_of(handler)
    for ticket in range(1, 1001):
        ask(mailbox, b"a1", ticket)
        ask(mailbox, b"b1", ticket)
    while handler.spent["b"] < 0.0999:
        mailbox.work(4e-3)
    assert handler.spent["a"] <= 0.1 + 3 * 5e-3


def test_a_tenant_that_is_far_ahead_waits_with_its_requests_while_another_generates() -> None:
    handler = Handler({"a": 10e-3})
    clock: FairClock[str] = FairClock(lambda tenant: 1.0, 1e-3, linger=16)
    mailbox = mailbox_of(handler, clock)
    for ticket in range(1, 101):
        ask(mailbox, b"a1", ticket)
    steps = 0
    for _ in range(200):
        mailbox.work(4e-3)
        if clock.next_round(["b"], "engine"):
            clock.charge("b", 2e-3)
            steps += 1
    assert steps * 2e-3 >= 0.9 * handler.spent["a"]


def test_behind_the_last_request_of_a_tenant_its_next_one_can_be_waited_for() -> None:
    """Another's long requests came between all of a client's short ones, which it sends one after the other's answer."""
    handler = Handler({"a": 0.04})
    mailbox = mailbox_of(handler)
    for ticket in (1, 2, 3):
        ask(mailbox, b"a1", ticket)
    ask(mailbox, b"b1", 1)
    mailbox.work(1.0)
    assert handler.handled == [(b"a1", 1), (b"b1", 1)]
    ask(mailbox, b"b1", 2)
    mailbox.work(1.0)
    assert handler.handled == [(b"a1", 1), (b"b1", 1), (b"b1", 2)]
    assert mailbox.ready


def test_closing_a_session_that_holds_much_is_paid_by_its_tenant() -> None:
    handler = Handler({"": 0.5})
    clock: FairClock[str] = FairClock(lambda tenant: 1.0, 1e-3, linger=16)
    mailbox = mailbox_of(handler, clock)
    assert clock.next_round(["a", "b"], "engine") == ["a", "b"]
    assert mailbox.accept(b"a1", request_frames(0, CLOSE, MSGPACK, b"\x80"), 0.0) == 0.5
    assert clock.next_round(["a", "b"], "engine") == ["b"]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([*SESSIONS]), st.integers(0, 6), st.sampled_from(["model.list", CANCEL])), max_size=40
    ),
    st.sets(st.sampled_from([*SESSIONS])),
)
def test_every_request_is_carried_out_or_refused_exactly_once(
    asked: list[tuple[bytes, int, str]], busy: set[bytes]
) -> None:
    handler = Handler()
    handler.busy = busy
    mailbox = mailbox_of(handler)
    for identity, ticket, op in asked:
        ask(mailbox, identity, ticket, op)
        mailbox.work(1e-4)
    handler.busy = set()
    while len(mailbox):
        mailbox.work(1.0)
    requests = Counter((identity, ticket) for identity, ticket, op in asked if op != CANCEL)
    answered = Counter(handler.handled) + Counter((identity, ticket) for identity, ticket, _ in handler.refused)
    assert answered == requests


def test_frames_of_another_shape_go_straight_to_the_hub_which_drops_them() -> None:
    handler = Handler()
    seen: list[list[bytes]] = []
    handler.receive = lambda identity, frames: seen.append(frames)  # type: ignore[method-assign]
    mailbox = mailbox_of(handler)
    for frames in ([b"x"], [b"", b"model.list", b"j", b"{}"], []):
        mailbox.put(b"a1", frames)
    assert len(seen) == 3
    assert not len(mailbox)
