"""Small parts of the server: statuses, back-off, what a script's session admits, how exits read."""

from __future__ import annotations

import contextlib
import itertools

import msgspec
import pytest

from inferd.protocol import ERRORS, MAX_EXPORT_BYTES, Done, InvalidRequest, LimitExceeded, NotFound, Unavailable
from inferd_runtime.sandbox.messages import MAX_ASKED
from inferd_runtime.server.gateway.replies import error_reply, own_status
from inferd_runtime.server.gateway.script_session import (
    MAX_OUTSTANDING_BYTES,
    OutstandingCalls,
    ScriptCall,
    encode_error,
    encode_reply,
)
from inferd_runtime.server.processes.backoff import Backoff
from inferd_runtime.server.processes.child_process import describe_exit
from inferd_runtime.server.tenancy.shares import SharedPlaces
from inferd_runtime.server.tenancy.tenant_use import OUTSTANDING_RULE


def test_every_error_has_a_status_of_its_kind() -> None:
    statuses = {code: own_status(error("x")) for code, error in ERRORS.items()}
    assert statuses["client.not_found"] == 404
    assert statuses["client.constraint"] == 400
    assert statuses["client.unauthorized"] == 401
    assert statuses["program.syntax"] == 422
    assert statuses["unavailable"] == 503
    assert statuses["internal"] == 500
    assert statuses["limit"] == 400
    assert own_status(LimitExceeded("x", limit="body_bytes")) == 413


@pytest.mark.parametrize(
    ("limit", "status"),
    [("memory_mb", 400), ("wall_s", 400), ("message_bytes", 400), ("waiting", 429), ("launches_per_minute", 429),
     ("followers", 429), ("waiting_uploads", 429), ("stored_bytes", 507), ("source_bytes", 413), ("head_bytes", 431)],
)  # fmt: skip
def test_only_a_limit_that_passes_is_told_to_be_asked_for_again(limit: str, status: int) -> None:
    """Clients and libraries repeat what gets 429 by themselves, however often that takes."""
    answer = error_reply(LimitExceeded("no", limit=limit))
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) == (status == 429)


def test_back_off_doubles_up_to_a_bound_and_starts_again_after_a_good_life() -> None:
    backoff = Backoff(first=1, most=4, healthy=30)
    assert [backoff.next(lived) for lived in (0, 0, 0, 0, 60, 0)] == [1, 2, 4, 4, 1, 2]


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exited with code 0"), (-9, "was killed by SIGKILL"), (-250, "was killed by signal 250")]
)
def test_exits_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_a_session_admits_each_ticket_once_until_it_is_answered() -> None:
    state = OutstandingCalls(most=2)
    state.admit(ScriptCall(1, "model.list"))
    with pytest.raises(InvalidRequest, match="ticket 1"):
        state.admit(ScriptCall(1, "model.list"))
    state.admit(ScriptCall(2, "forward"))
    with pytest.raises(LimitExceeded, match="2 calls are outstanding"):
        state.admit(ScriptCall(3, "forward"))
    assert state.answered(1)
    assert not state.answered(1)
    assert not state.answered(9)
    state.admit(ScriptCall(1, "model.list"))


def test_a_script_that_gives_up_faster_than_the_gateway_answers_waits_and_is_not_refused() -> None:
    state = OutstandingCalls()
    for ticket in range(1, MAX_ASKED + 1):
        state.admit(ScriptCall(ticket, "queue.pull"))
    another = ScriptCall(MAX_ASKED + 1, "queue.pull")
    assert not state.frees_itself(another)
    with pytest.raises(LimitExceeded, match="in flight already"):
        state.admit(another)
    state.window.withdrawn(7)
    state.window.withdrawn(MAX_ASKED + 1)
    assert state.frees_itself(another)
    assert not state.frees_itself(ScriptCall(MAX_ASKED + 2, "model.list"))  # the engine's
    assert state.answered(7)
    assert not state.frees_itself(another)
    state.admit(another)


@pytest.mark.parametrize("op", ["session.open", "session.close", "cancel", "session.send", "session.receive"])
def test_a_session_refuses_what_is_not_for_scripts(op: str) -> None:
    state = OutstandingCalls()
    with pytest.raises(InvalidRequest, match=op):
        state.admit(ScriptCall(1, op))
    assert state.outstanding == set()


def test_replies_are_maps_around_payloads_that_are_not_decoded() -> None:
    payload = msgspec.msgpack.encode({"tokens": [1, 2]})
    assert msgspec.msgpack.decode(encode_reply(7, payload, ok=True)) == {"t": 7, "ok": {"tokens": [1, 2]}}
    assert msgspec.msgpack.decode(encode_reply(7, msgspec.msgpack.encode(Done()), ok=True)) == {"t": 7, "ok": {}}
    error = msgspec.msgpack.decode(encode_error(7, NotFound("x", run="r")))
    assert error == {"t": 7, "err": {"code": "client.not_found", "message": "x", "detail": {"run": "r"}}}
    assert ERRORS[error["err"]["code"]] is NotFound
    assert Unavailable.code == "unavailable"


@pytest.mark.parametrize("ticket", [0, -1, 1 << 32, "1"])
def test_tickets_are_positive_and_of_32_bits(ticket: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"t": ticket, "op": "x"}), type=ScriptCall)


def test_a_script_may_not_have_bytes_outstanding_without_end() -> None:
    state = OutstandingCalls()
    half = msgspec.Raw(bytes(MAX_OUTSTANDING_BYTES // 2))
    state.admit(ScriptCall(1, "context.import", half))
    state.admit(ScriptCall(2, "model.list"))
    state.admit(ScriptCall(3, "context.export"))
    with pytest.raises(LimitExceeded) as refused:
        state.admit(ScriptCall(4, "context.import", half))
    assert refused.value.detail["limit"] == "outstanding_bytes"
    assert state.answered(1)
    state.admit(ScriptCall(4, "context.import", half))


def test_large_calls_of_one_tenant_leave_room_for_anothers_over_all_connections() -> None:
    places = SharedPlaces(OUTSTANDING_RULE, "outstanding_bytes", "")
    connections = [OutstandingCalls(places=places, tenant="mallory") for _ in range(64)]
    admitted = 0
    for ticket, state in itertools.product(range(1, 17), connections):
        with contextlib.suppress(LimitExceeded):
            state.admit(ScriptCall(ticket, "context.export"))
            admitted += MAX_EXPORT_BYTES
    assert admitted <= OUTSTANDING_RULE.capacity - OUTSTANDING_RULE.guarded * OUTSTANDING_RULE.share
    OutstandingCalls(places=places, tenant="bob").admit(ScriptCall(1, "context.export"))
    assert all(state.answered(1) for state in connections[:2])
    connections[0].admit(ScriptCall(99, "context.export"))
    for state in connections:
        state.close()
    assert places.held("mallory") == 0
