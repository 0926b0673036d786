"""Whatever arrives on the engine's socket: every request of the wire's shape is answered once, and nothing is raised."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings, strategies as st
from sessions import new_grants, opening
from tiers import examples

from inferd import protocol as p
from inferd_runtime.session import wire as link
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.testing.served import null_model

NUMBERS = st.one_of(st.integers(-2, 5), st.sampled_from([2**31, 2**63, 2**64, 2**70, -(2**70), 10**400]), st.floats())
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(["message", "user", "\ud800"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
PRIVATE = [link.CANCEL, link.GetEngineStats.op, link.GetCycles.op, "no.such.operation"]


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes, bytes]:
    """An operation, a format and a payload: often with the operation's own fields, seldom with what belongs into them."""
    op = draw(st.sampled_from([*p.OPERATIONS, *PRIVATE]))
    form = draw(st.sampled_from([link.JSON, link.MSGPACK, b"x"]))
    if draw(st.integers(0, 9)) == 0:
        return op, form, draw(st.binary(max_size=20))
    kind = p.OPERATIONS.get(op)
    fields = [] if kind is None else [each.name for each in dataclasses.fields(kind)]
    value = draw(st.fixed_dictionaries({}, optional=dict.fromkeys(fields, VALUES)))
    return op, form, _encoded(value, form)


def _encoded(value: Any, form: bytes) -> bytes:
    try:
        return msgspec.msgpack.encode(value) if form == link.MSGPACK else json.dumps(value).encode()
    except (OverflowError, ValueError):
        return b"\xc1"


@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(requests(), max_size=12), st.lists(st.lists(st.binary(max_size=5), max_size=6), max_size=3))
def test_every_request_is_answered_once_and_nothing_is_raised(
    asked: list[tuple[str, bytes, bytes]], junk: list[list[bytes]]
) -> None:
    model, replies = null_model(), Counter[int]()

    def send(identity: bytes, frames: list[bytes]) -> None:
        replies[link.parse_reply(frames).ticket] += 1

    hub = SessionHub({"null": model}, send, new_grants())
    hub.receive(b"a", opening("tenant"))
    hub.receive(b"a", link.request_frames(1, "context.create", link.MSGPACK, b"\x80"))
    for ticket, (op, form, payload) in enumerate(asked, start=2):
        hub.receive(b"a", link.request_frames(ticket, op, form, payload))
    for frames in junk:
        hub.receive(b"a", frames)
    for _ in range(30):
        model.engine.step()
    hub.close_all()
    cancels = {ticket for ticket, (op, _, _) in enumerate(asked, start=2) if op == link.CANCEL}
    expected = {ticket: 1 for ticket in range(2 + len(asked)) if ticket not in cancels}
    assert {ticket: count for ticket, count in replies.items() if ticket in expected} == expected
    model.engine.pool.check_integrity([])


def test_a_reply_that_cannot_be_encoded_is_an_error_of_its_request_alone() -> None:
    replies: list[link.LinkReply] = []
    hub = SessionHub({"null": null_model()}, lambda _, frames: replies.append(link.parse_reply(frames)), new_grants())
    for form, decode in ((link.JSON, msgspec.json.decode), (link.MSGPACK, msgspec.msgpack.decode)):
        hub._responder(b"a", 7, form)(p.Tokens([object()]))  # type: ignore[list-item]
        told = decode(replies[-1].payload, type=p.ErrorInfo)
        assert (replies[-1].ok, told.code, replies[-1].ticket) == (False, "internal", 7)


def test_an_error_that_repeats_much_of_a_request_is_short() -> None:
    replies: list[link.LinkReply] = []
    hub = SessionHub({"null": null_model()}, lambda _, frames: replies.append(link.parse_reply(frames)), new_grants())
    hub.receive(b"a", opening("tenant"))
    hub.receive(b"a", link.request_frames(1, "x" * 4_000_000, link.JSON, b"{}"))
    hub.receive(b"a", link.request_frames(2, "context.open", link.JSON, json.dumps({"name": "y" * 4_000_000}).encode()))
    assert [reply.ok for reply in replies[1:]] == [False, False]
    assert all(len(reply.payload) < 200_000 for reply in replies)
