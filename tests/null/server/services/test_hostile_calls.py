"""What one tenant asks of the gateway costs others neither time nor room: large requests and replies, and those nobody takes."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

import anyio
import msgspec
import pytest
from waiting import until

from inferd.protocol import InvalidRequest
from inferd.protocol.topics import Pulled, PullValues
from inferd_runtime.sandbox.messages import MAX_ASKED, MAX_REQUEST_BYTES
from inferd_runtime.server.services import reply_room
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import Answer, Handed, Handler, ServiceTable
from inferd_runtime.server.services.topics.buffers import MessageRoom
from inferd_runtime.server.services.topics.queues import Queues
from inferd_runtime.server.services.wires import MSGPACK_WIRE, JsonText
from inferd_runtime.testing.services import service_table

LARGE = b"[" + b"[1,2]," * 80_000 + b"0]"
MILLION = MAX_REQUEST_BYTES - 64
SECONDS = 0.6
"""Of processor time, for a message of a MiB: a million lists took 1.4."""


class LargeReplies:
    """``queue.pull`` answers with half a MiB at once."""

    def __init__(self) -> None:
        self.undone = 0

    def operations(self) -> Mapping[str, Handler]:
        return {"queue.pull": self.pull}

    def closed(self, caller: Caller) -> None:
        pass

    async def pull(self, caller: Caller, request: PullValues) -> Handed:
        def undo() -> None:
            self.undone += 1

        return Handed(Pulled(JsonText(LARGE if request.most > 1 else b"[1]")), undo)  # type: ignore[arg-type]


class Script:
    """A script that takes its answers when it is told to."""

    def __init__(self, table: ServiceTable, tenant: str, name: str = "ws/1") -> None:
        self.answers: list[Answer] = []
        self.desk = table.open_desk(Caller(tenant, name), MSGPACK_WIRE, self.answers.append)

    def pull(self, ticket: int, most: int = 2) -> None:
        self.desk.ask(ticket, "queue.pull", msgspec.msgpack.encode({"queue": "x", "most": most}))

    def take(self) -> None:
        for answer in self.answers:
            self.desk.sent(answer.ticket)


def pushed(element: bytes, size: int, behind: bytes = b"") -> bytes:
    """A push of one value, a list of so many bytes that holds one element over and over."""
    count = size // len(element)
    entries = b"\x83" if behind else b"\x82"
    return entries + b"\xa5queue\xa1q\xa6values\x91\xdd" + count.to_bytes(4, "big") + element * count + behind


@pytest.mark.parametrize(
    ("element", "behind"),
    [
        (b"\x00", b""),
        (b"\xc0", b"\xa1x\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00"),
        (b"\x90", b""),
        (b"\x80", b""),
        (b"\x91\x00", b""),
        (b"\x81\xa1a\x00", b""),
        (b"\x90", b"\xa6values\x90"),
        (b"\x90", b"\xa1x\x81\x80\x01"),
        (b"\xa2ab", b""),
    ],
    ids=[
        "zeros", "nils beside an infinity", "lists", "maps", "lists of one", "maps of one", "twice", "bad key", "texts",
    ],
)  # fmt: skip
def test_a_message_of_a_million_values_does_not_hold_the_gateway_up(element: bytes, behind: bytes) -> None:
    payload = pushed(element, MILLION - len(behind), behind)
    started = time.thread_time()
    try:
        values = MSGPACK_WIRE.request("queue.push", payload)[0].values
    except InvalidRequest as refused:
        assert re.search("lists and objects|unknown field `x`", refused.message)  # noqa: PT017 - both are right
    else:
        assert len(values[0]) * len(element) <= MILLION
    assert time.thread_time() - started < SECONDS


def test_a_long_text_of_any_alphabet_is_no_list() -> None:
    values = ["語言模型" * 20_000] * 2
    request, size = MSGPACK_WIRE.request("queue.push", msgspec.msgpack.encode({"queue": "q", "values": values}))
    assert request.values == values
    assert size >= len(msgspec.json.encode(values))


@pytest.mark.parametrize(
    "value",
    [b"\x81\xc0\x01", b"\x81\x91\x01\x02", b"\xc7\x01\x05a", b"\x91\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"],
    ids=["nil as key", "list as key", "extension", "NaN"],
)
def test_what_json_does_not_have_is_refused_and_no_bug(value: bytes) -> None:
    with pytest.raises(InvalidRequest):
        MSGPACK_WIRE.request("queue.push", b"\x82\xa5queue\xa1q\xa6values\x91" + value)


async def test_large_replies_to_one_tenant_do_not_come_all_at_once() -> None:
    async with service_table(LargeReplies()) as table:
        mallory, bob = Script(table, "mallory"), Script(table, "bob")
        for ticket in range(MAX_ASKED):
            mallory.pull(ticket)
        bob.pull(1, most=1)
        await until(lambda: bob.answers)
        assert len(mallory.answers) <= MAX_ASKED // 4
        mallory.desk.close()


async def test_replies_that_nobody_takes_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_room, "MAX_UNSENT", 3 * len(LARGE))
    family = LargeReplies()
    async with service_table(family) as table:
        unread, reading, bob = (
            Script(table, *who) for who in (("mallory", "ws/1"), ("mallory", "ws/2"), ("bob", "ws/3"))
        )
        for ticket in range(10):
            unread.pull(ticket)
        await until(
            lambda: len(unread.answers) == 4
        )  # half as large once they are packed: four, with one more, are too much
        reading.pull(1)
        bob.pull(1)
        await until(lambda: bob.answers)
        assert (len(unread.answers), len(reading.answers)) == (4, 0)
        unread.desk.close()
        await until(lambda: reading.answers)
        await until(lambda: family.undone == 10)  # nothing of what was handed out is lost


async def test_what_waits_for_its_turn_to_be_sent_can_be_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_room, "MAX_UNSENT", 1)
    family = LargeReplies()
    async with service_table(family) as table:
        script = Script(table, "mallory")
        for ticket in (1, 2):
            script.pull(ticket)
        await until(lambda: script.answers)
        script.desk.withdraw(2)
        await until(lambda: len(script.answers) == 2)
        assert [answer.ok for answer in script.answers] == [True, False]
        assert family.undone == 1
        script.take()
        script.pull(3)
        await until(lambda: len(script.answers) == 3)


async def test_requests_that_wait_count_as_the_json_that_they_wait_as(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of control characters that is six times as much: 64 MiB that were allowed took 445."""
    monkeypatch.setattr("inferd_runtime.server.services.table.MAX_TENANT_BYTES", 1 << 20)
    value = "\x01" * 40_000
    full = msgspec.msgpack.encode({"queue": "q", "values": ["x" * 250_000] * 4})
    async with service_table(Queues(MessageRoom())) as table:
        script = Script(table, "mallory")
        script.desk.ask(1, "queue.push", full)
        await until(lambda: script.answers)
        for ticket in (2, 3):
            script.desk.ask(ticket, "queue.push", msgspec.msgpack.encode({"queue": "q", "values": [value] * 3}))
        await until(lambda: len(script.answers) == 2)
        assert [answer.ok for answer in script.answers] == [True, False]
        assert b"tenant_gateway_bytes" in script.answers[1].payload
        assert table.open_bytes("mallory") >= 3 * len(msgspec.json.encode(value))


async def test_requests_that_are_too_much_are_refused_no_faster_than_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inferd_runtime.server.services.table.MAX_TENANT_BYTES", 0)
    async with service_table(LargeReplies()) as table:
        table.pace.used("mallory", 10.0, anyio.current_time())
        mallory, bob = Script(table, "mallory"), Script(table, "bob")
        mallory.pull(1)
        bob.pull(1)
        await until(lambda: bob.answers)
        assert not mallory.answers
