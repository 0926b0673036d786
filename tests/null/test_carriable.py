"""Whatever a client, a guest or a failure holds: a typed error where it comes in, or a frame that every codec can carry."""

from __future__ import annotations

import contextlib
import json
import math
import time
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given, settings, strategies as st

from inferd import protocol as p
from inferd.protocol.carrying import MAX_ERROR_TEXT, MAX_ERROR_VALUES
from inferd_runtime.carriable import MAX_CONTAINERS, check_carriable, is_plain, members, read_json, read_msgpack
from inferd_runtime.json_cost import MAX_VALUES
from inferd_runtime.msgpack_cost import MAX_VARIED_BYTES, count_containers
from inferd_runtime.sandbox.host.guest_calls import GuestCalls
from inferd_runtime.sandbox.host.inbox import Inbox
from inferd_runtime.sandbox.host.kept_code import KeptCode
from inferd_runtime.sandbox.host.run import check_result, read_error
from inferd_runtime.sandbox.messages import (
    Bundle,
    Deliver,
    FromWorker,
    LaunchRun,
    Limits,
    RunFinished,
    RunUsage,
    Sent,
    ToWorker,
)
from inferd_runtime.sandbox.worker import packed
from inferd_runtime.server.gateway.requests import LaunchBody, MessageBody
from inferd_runtime.server.gateway.script_session import MAX_REASON, OutstandingCalls, close_reason, read_call
from inferd_runtime.server.supervisor.event_texts import json_text
from inferd_runtime.session.wire import EngineLink

TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8")), st.text(st.characters()), st.sampled_from(["\ud800", "a\udfffb"])
)
NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**400]),
    st.floats(),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)
DEPTHS = st.sampled_from([0, 0, 0, 100, 500, 790, 800, 980, 5_000])


def _text(value: Any) -> str:
    """Return JSON as anybody may write it: integers of any length, ``NaN`` and surrogates included."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def nested(data: bytes, depth: int) -> bytes:
    """JSON that many lists deeper."""
    return b"[" * depth + data + b"]" * depth


def arrives(packed: bytes, kind: Any) -> Any:
    """What the other side of a msgpack wire reads."""
    return msgspec.msgpack.decode(packed, type=kind)


@given(VALUES, DEPTHS)
def test_a_message_for_a_program_is_refused_or_carried_through_to_it(value: Any, depth: int) -> None:
    body = b'{"message":' + nested(_text(value).encode("utf-8", "surrogatepass"), depth) + b"}"
    try:
        message = read_json(body, "the body", MessageBody).message
    except p.InvalidRequest:
        return
    there = arrives(msgspec.msgpack.encode(Deliver("run-1", json_text(message))), ToWorker)
    assert isinstance(there, Deliver)
    assert json.loads(there.json) == message


@given(st.dictionaries(TEXTS, VALUES, max_size=3))
def test_arguments_are_refused_or_carried_through_to_the_worker(arguments: dict[str, Any]) -> None:
    try:
        text = b'{"program":"p","arguments":' + _text(arguments).encode("utf-8", "surrogatepass") + b"}"
        body = read_json(text, "the body", LaunchBody)
    except p.InvalidRequest:
        return
    told = msgspec.json.encode(body.arguments).decode()
    launch = LaunchRun("run-1", b"t", Bundle("p", {"main.py": ""}), told, Limits())
    assert arrives(msgspec.msgpack.encode(launch), ToWorker).arguments == told
    assert json.loads(told) == body.arguments


LAUNCH = LaunchRun("x", b"t", Bundle("p", {}), "{}", Limits(output_bytes=1 << 40, output_events=1 << 40))


class Host:
    """The host's answers to a guest without an engine: what it reports is read as the gateway reads it."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.link = EngineLink(self.context, "inproc://nowhere")
        self.inbox = Inbox()
        self.reported: list[FromWorker] = []
        self.calls = GuestCalls(LAUNCH, self.inbox, self.link, self._report, KeptCode())

    def _report(self, message: FromWorker) -> None:
        self.reported.append(message)
        self.inbox.note_taken(1)

    def close(self) -> None:
        self.inbox.close()
        self.link.socket.close(linger=0)
        self.context.term()


@pytest.fixture(scope="module")
def host() -> Any:
    host = Host()
    yield host
    host.close()


@given(VALUES, DEPTHS)
def test_what_a_program_sends_is_refused_or_reaches_the_gateway(host: Host, value: Any, depth: int) -> None:
    host.reported.clear()
    host.calls.submit(
        "session.send", b'{"message":' + nested(_text(value).encode("utf-8", "surrogatepass"), depth) + b"}"
    )
    answers = json.loads(host.calls.wait(0))
    assert len(answers) == 1
    assert not host.calls.ended
    for message in host.reported:
        there = arrives(packed(message), FromWorker)
        assert isinstance(there, Sent)
        json.loads(there.json)
    assert ("client.invalid" in json.dumps(answers)) is not bool(host.reported)


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.binary(max_size=40))
def test_an_operation_that_does_not_exist_is_refused_without_repeating_it(
    host: Host, op: str, arguments: bytes
) -> None:
    host.calls.submit(op * 2000, arguments)
    answer = host.calls.wait(0)
    assert b"there is no operation" in answer
    assert len(answer) < 2000


@pytest.mark.parametrize(
    ("op", "given"), [("session.send", {"message": 1, "to": "x"}), ("session.receive", {"after": 1})]
)
def test_a_field_that_the_worker_itself_does_not_know_is_refused_by_its_name(host: Host, op: str, given: Any) -> None:
    host.calls.submit(op, json.dumps(given).encode())
    assert json.dumps(list(given)[-1])[1:-1] in json.loads(host.calls.wait(0))[0][2]["message"]


@given(VALUES, DEPTHS)
def test_a_result_ends_its_run_in_a_typed_error_or_is_carried(host: Host, value: Any, depth: int) -> None:
    text = nested(_text(value).encode("utf-8", "surrogatepass"), depth).decode(errors="replace")
    error = check_result(text, host.calls)
    finished = RunFinished("x", RunUsage(), None if error else text, error)
    there = arrives(packed(finished), FromWorker)
    assert isinstance(there, RunFinished)
    if error is None:
        read = msgspec.json.decode(there.result or "")
        assert _same(read, json.loads(text))
    else:
        assert error.code == "program"


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or (isinstance(one, float) and math.isnan(one))


@given(TEXTS, st.dictionaries(TEXTS, VALUES, max_size=6), DEPTHS)
def test_an_error_of_a_guest_is_carried_whatever_is_in_it(message: str, detail: dict[str, Any], depth: int) -> None:
    inner = b"{" + b'"deep":' + nested(_text(detail).encode("utf-8", "surrogatepass"), depth) + b"}"
    told = b'{"code":"program","message":' + json.dumps(message).encode() + b',"detail":' + inner + b"}"
    info = read_error(told.decode(errors="replace"), Limits())
    _carried(info)


@given(st.text(), st.dictionaries(st.text(), VALUES | st.binary() | st.just(object()), max_size=6))
def test_an_error_is_made_carriable_where_it_is_raised(message: str, detail: dict[str, Any]) -> None:
    error = p.InternalError(message)
    error.detail = detail
    _carried(error.to_wire())


def _carried(info: p.ErrorInfo) -> None:
    there = arrives(packed(RunFinished("x", RunUsage(), error=info)), FromWorker)
    assert isinstance(there, RunFinished)
    assert there.error == info
    assert msgspec.json.decode(msgspec.json.encode(info), type=p.ErrorInfo) == info


def test_an_error_keeps_its_size_whatever_it_was_made_of() -> None:
    error = p.InvalidRequest("x" * 10_000_000, names=["y" * 100_000] * 1_000_000, deep=_list(100_000))
    info = error.to_wire()
    assert len(info.message) <= MAX_ERROR_TEXT
    assert len(msgspec.json.encode(info)) <= 2 * MAX_ERROR_TEXT + 40 * MAX_ERROR_VALUES
    assert info.message.startswith("xxx")


def _list(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_an_integer_of_more_digits_than_python_prints_is_refused_like_any_other() -> None:
    for read in (lambda: read_json(b"1" + b"0" * 5000, "it"), lambda: check_carriable([10**5000], "it")):
        with pytest.raises(p.InvalidRequest, match="it: "):
            read()
    assert "16610 bits" in p.InvalidRequest("", value=10**5000).to_wire().detail["value"]


def test_what_is_short_and_carriable_stays_as_it_is() -> None:
    detail = {"limit": "wall_s", "value": 2**64 - 1, "less": -(2**63), "at": [1.5, None, True, "ü"], "in": {"a": {}}}
    assert p.InvalidRequest("as it is", **detail).to_wire() == p.ErrorInfo("client.invalid", "as it is", detail)


@given(st.binary(max_size=64) | VALUES.map(lambda value: b"\x83" + _map(value)))
def test_a_scripts_message_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(p.InvalidRequest):
        OutstandingCalls().admit(read_call(data))


def _map(value: Any) -> bytes:
    """The three entries of a call, with anything as its operation and arguments."""
    try:
        packed = msgspec.msgpack.encode(value)
    except (OverflowError, ValueError):
        packed = b"\xc1"
    return b"\xa1t\x01" + b"\xa2op" + packed + b"\xa1a" + packed


@given(st.binary(max_size=64))
@settings(max_examples=200)
def test_strangers_bytes_are_a_value_or_a_typed_error(data: bytes) -> None:
    for read in (read_json, read_msgpack):
        with contextlib.suppress(p.InvalidRequest):
            msgspec.msgpack.encode([read(data, "it")])


NUMBERS = st.integers(-(10**40), 10**40) | st.integers(2**63 - 2, 2**64 + 2)
VALUES = st.recursive(NUMBERS | st.text(max_size=9), lambda part: st.lists(part) | st.dictionaries(st.text(), part))


@given(VALUES)
def test_what_looks_plain_can_be_carried(value: Any) -> None:
    text = json.dumps({"detail": value}).encode()
    if is_plain(text):
        check_carriable(json.loads(text), "it")


def test_what_could_not_be_carried_does_not_look_plain() -> None:
    deep = b"[" * 150 + b"]" * 150
    assert not any(map(is_plain, (deep, str(2**64).encode(), str(-(2**63) - 1).encode(), b"1" * 5000)))
    assert is_plain(b'{"generation": 1, "least": 32}')


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_a_body_of_empty_lists_does_not_hold_the_gateway_up(opened: str, closed: str) -> None:
    part = opened + ("" if closed == "]" else "1") + closed
    assert len(read_json(f"[{','.join([part] * 1000)}]", "the body")) == 1000
    with pytest.raises(p.InvalidRequest, match="100000 lists and objects"):
        read_json(f"[{','.join([part] * MAX_CONTAINERS)}]", "the body")


@pytest.mark.parametrize("text", ["[{" * MAX_CONTAINERS, '[\\"[' * MAX_CONTAINERS, '"[\\' * MAX_CONTAINERS])
def test_brackets_in_a_string_are_no_lists(text: str) -> None:
    assert read_json(json.dumps([text]), "the body") == [text]


@pytest.mark.parametrize(
    ("text", "told"),
    [(rb'["a\ud83d"]', "half a surrogate pair"), (rb'["a\ud83d and more"]', "surrogate pair"), (b'["a', "truncated")],
)
def test_a_text_that_ends_with_half_an_emoji_is_told_of_as_such(text: bytes, told: str) -> None:
    """Scripts that cut a text by JavaScript's length send it, and were told that their body was truncated."""
    with pytest.raises(p.InvalidRequest, match=told):
        read_json(text, "the body")


def test_a_string_that_never_ends_is_refused_in_one_pass() -> None:
    with pytest.raises(p.InvalidRequest):
        read_json("[" * MAX_CONTAINERS + '["' + '\\"' * 1_000_000, "the body")


def test_a_report_that_cannot_be_packed_ends_its_run_and_not_the_worker() -> None:
    there = arrives(packed(Sent("run-1", 2**70)), FromWorker)
    assert isinstance(there, RunFinished)
    assert there.error is not None
    assert (there.run, there.error.code) == ("run-1", "internal")


def test_the_reason_of_a_close_fits_its_frame_in_any_alphabet() -> None:
    assert len(close_reason("語" * 200).encode()) <= MAX_REASON
    assert close_reason("short") == "short"


@pytest.mark.parametrize(
    "value",
    [{"parts": [{"kind": "text", "text": "漢字かな" * 120_000}]}, {"data": bytes(range(0x80, 0xA0)) * 40_000}],
    ids=["a long text beyond ASCII", "bytes"],
)
def test_texts_and_bytes_are_not_taken_for_lists(value: Any) -> None:
    assert read_msgpack(msgspec.msgpack.encode({"t": 1, "a": value}), "x")["a"] == value


@pytest.mark.parametrize("depth", [0, 3, 8])
def test_lists_are_counted_wherever_they_lie(depth: int) -> None:
    value: Any = [[] for _ in range(700_000)]
    for _ in range(depth):
        value = {"a": [value, "漢字"]}
    with pytest.raises(p.InvalidRequest, match="lists and objects"):
        read_msgpack(msgspec.msgpack.encode(value), "x")


SCALARS = st.none() | st.booleans() | st.floats() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
SIZES = st.sampled_from([1, 2, 3, 4, 8, 15, 16, 17, 31, 32, 255, 256, 70_000])
TEXTS_OF_LISTS = SIZES.map("\u0090".__mul__)
"""Texts, and bytes, that hold what begins a list, so that a length which is read wrong is seen."""
BYTES_OF_LISTS = SIZES.map(b"\x90".__mul__)
EXTENSIONS = st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), BYTES_OF_LISTS)
LEAVES = SCALARS | EXTENSIONS | TEXTS_OF_LISTS | BYTES_OF_LISTS
PACKED = st.recursive(
    LEAVES,
    lambda part: st.lists(part) | st.lists(part, min_size=16, max_size=20) | st.dictionaries(st.text(), part),
    max_leaves=60,
)


@given(PACKED, st.integers(0, 3))
@settings(max_examples=200)
def test_lists_of_a_long_message_are_counted_without_reading_it(value: Any, cut_off: int) -> None:
    packed = msgspec.msgpack.encode([value, [], 5])
    assert count_containers(packed, "x") == 2 + _containers(value)
    assert count_containers(packed[: len(packed) - cut_off], "x") <= 2 + _containers(value)


def _containers(value: Any) -> int:
    return isinstance(value, (list, dict)) + sum(map(_containers, members(value)))


@pytest.mark.parametrize("levels", [0, 1, 600])
def test_a_list_of_millions_is_refused_unread(levels: int) -> None:
    """Seven million zeros as the tokens of one call held the step loop for 0.13 s, again and again."""
    packed = b"\x91" * levels + b"\xdd" + (7 << 20).to_bytes(4) + bytes(7 << 20)
    text = b"[" * levels + b"[" + b"0," * (3 << 20) + b"0]" + b"]" * levels
    for read, data in ((read_msgpack, b"\x81\xa1a" + packed), (read_json, b'{"a":' + text + b"}")):
        began = time.process_time()
        with pytest.raises(p.InvalidRequest, match="values at a time"):
            read(data, "x")
        assert time.process_time() - began < 0.05
    assert len(read_msgpack(b"\xdd" + (1 << 20).to_bytes(4) + bytes(1 << 20), "x")) == 1 << 20


@pytest.mark.parametrize(
    ("opened", "values"),
    [(b"\xdc\xea\x60", 60_000), (b"\xde\xea\x60", 120_000), (b"\xdf\x00\x04\x93\xe0", 600_000)],
    ids=["list 16", "map 16", "map 32"],
)
def test_values_of_lists_and_maps_count_together(opened: bytes, values: int) -> None:
    most = MAX_VALUES // values
    assert count_containers(opened * most, "x") == most
    with pytest.raises(p.InvalidRequest, match="values at a time"):
        count_containers(opened * (most + 1), "x")


def test_a_long_message_of_many_texts_is_refused_unread() -> None:
    texts = msgspec.msgpack.encode(["word"] * (MAX_VARIED_BYTES // 5 - 1))
    assert len(read_msgpack(texts, "x")) == MAX_VARIED_BYTES // 5 - 1
    with pytest.raises(p.InvalidRequest, match="more than 20000 texts"):
        read_msgpack(msgspec.msgpack.encode(["word"] * (MAX_VARIED_BYTES // 5)), "x")
