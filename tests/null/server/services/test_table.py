"""The table of the gateway's operations: one answer each, cancelled with ticket and caller, and nobody floods it for others."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from waiting import until

from inferd.protocol import ErrorInfo, InvalidRequest, LimitExceeded
from inferd.protocol.topics import Published, PublishValues, Pulled, PullValues
from inferd_runtime.sandbox.messages import MAX_ASKED, MAX_REQUEST_BYTES
from inferd_runtime.server.services import table as services
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.pace import ServicePace
from inferd_runtime.server.services.table import MAX_UNCONFIRMED, Answer, Handed, Handler, ServiceDesk, ServiceTable
from inferd_runtime.server.services.wires import JSON_WIRE, MSGPACK_WIRE, JsonText, ServiceWire
from inferd_runtime.testing.services import service_table


class Family:
    """``topic.publish`` answers with the number of values; of 2 it waits for ever, of 3 it breaks; ``queue.pull`` hands out."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.gone: list[str] = []
        self.undone = 0
        self.done = 0
        self.handed: Callable[[], Any] = lambda: None

    def operations(self) -> Mapping[str, Handler]:
        return {"topic.publish": self.publish, "queue.pull": self.pull}

    def closed(self, caller: Caller) -> None:
        self.gone.append(caller.id)

    async def publish(self, caller: Caller, request: PublishValues) -> Published:
        self.begun.append(caller.tenant)
        try:
            if len(request.values) == 2:
                await anyio.sleep_forever()
        finally:
            self.ended.append(caller.tenant)
        if len(request.values) == 3:
            raise ZeroDivisionError("a bug")
        return Published(len(request.values))

    async def pull(self, caller: Caller, request: PullValues) -> Handed:
        def undo() -> None:
            self.undone += 1

        def done() -> None:
            self.done += 1

        reply = Pulled([object()] if request.most == 2 else [1])
        self.handed = weakref.ref(reply)
        return Handed(reply, undo, done)


class Desk:
    """A caller that keeps its answers."""

    def __init__(self, table: ServiceTable, tenant: str = "ann", name: str = "run-1") -> None:
        self.answers: dict[int, Answer] = {}
        self.desk: ServiceDesk = table.open_desk(Caller(tenant, name), JSON_WIRE, self.take)

    def take(self, answer: Answer) -> None:
        assert answer.ticket not in self.answers, "answered twice"
        self.answers[answer.ticket] = answer

    def ask(self, ticket: int, values: int = 1, op: str = "topic.publish") -> None:
        self.desk.ask(ticket, op, msgspec.json.encode({"topic": "x", "values": [0] * values}))

    def error(self, ticket: int) -> ErrorInfo:
        assert not self.answers[ticket].ok
        return msgspec.json.decode(self.answers[ticket].payload, type=ErrorInfo)


async def test_a_call_is_answered_once_with_its_reply_or_its_error() -> None:
    async with service_table(Family()) as table:
        ann = Desk(table)
        ann.ask(1)
        ann.ask(2, 3)
        ann.desk.ask(3, "topic.publish", b'{"topic":1}')
        ann.desk.ask(4, "topic.publish", b"[[[[")
        ann.desk.ask(5, "topic.subscribe", b'{"topic":"x"}')
        await until(lambda: len(ann.answers) == 5)
        assert ann.answers[1] == Answer(1, True, b'{"subscribers":1}')
        assert ann.error(2) == ErrorInfo("internal", "a bug in the runtime: ZeroDivisionError")
        assert [ann.error(ticket).code for ticket in (3, 4, 5)] == ["client.invalid"] * 3


async def test_a_withdrawn_call_ends_its_task_and_is_answered_all_the_same() -> None:
    family = Family()
    async with service_table(family) as table:
        ann = Desk(table)
        ann.ask(1, 2)
        await until(lambda: family.begun)
        ann.desk.withdraw(1)
        await until(lambda: ann.answers)
        assert ann.error(1).code == "cancelled"
        assert family.ended == ["ann"]
        ann.ask(2, 2)
        ann.desk.withdraw(2)  # before it began: it never does
        await until(lambda: 2 in ann.answers)
        assert family.begun == ["ann"]


async def test_a_caller_that_ends_leaves_no_task_and_its_families_hear_of_it() -> None:
    family = Family()
    async with service_table(family) as table:
        ann, bob = Desk(table), Desk(table, "bob", "run-2")
        for desk in (ann, bob):
            desk.ask(1, 2)
        await until(lambda: len(family.begun) == 2)
        ann.ask(2, 1)
        ann.desk.close()
        ann.desk.close()
        await until(lambda: family.ended == ["ann"])
        assert set(family.gone) == {"run-1"}
        assert not ann.answers
        with pytest.raises(InvalidRequest):
            ann.ask(3)
        assert len(family.begun) == 2


async def test_what_was_handed_out_is_done_when_received_and_undone_when_not() -> None:
    family = Family()
    async with service_table(family) as table:
        ann = Desk(table)
        for ticket in range(1, 5):
            ann.desk.ask(ticket, "queue.pull", b'{"queue":"x"}')
        await until(lambda: len(ann.answers) == 4)
        assert all(answer.receipt for answer in ann.answers.values())
        ann.desk.received(1)
        ann.desk.received(1)
        ann.desk.withdraw(2)
        ann.desk.received(2)
        assert (family.done, family.undone) == (1, 1)
        ann.desk.close()
        assert (family.done, family.undone) == (1, 3)


async def test_a_reply_that_cannot_be_packed_is_an_error_of_its_call_alone() -> None:
    family = Family()
    async with service_table(family) as table:
        ann = Desk(table)
        ann.desk.ask(1, "queue.pull", b'{"queue":"x","most":2}')
        ann.ask(2)
        await until(lambda: len(ann.answers) == 2)
        assert ann.error(1).code == "internal"
        assert ann.answers[2].ok
        assert family.done == 1


async def test_what_no_honest_end_of_the_wire_sends_is_refused() -> None:
    async with service_table(Family()) as table:
        ann = Desk(table)
        for ticket in range(MAX_ASKED):
            ann.ask(ticket, 2)
        for ticket, op, payload in (
            (MAX_ASKED, "topic.publish", b"{}"),
            (0, "topic.publish", b"{}"),
            (99, "model.list", b"{}"),
            (99, "topic.publish", b"x" * (MAX_REQUEST_BYTES + 1)),
        ):
            with pytest.raises(InvalidRequest):
                ann.desk.ask(ticket, op, payload)
        assert not ann.answers


async def test_receipts_that_never_come_are_not_waited_for_without_end() -> None:
    family = Family()
    async with service_table(family) as table:
        ann = Desk(table)
        for ticket in range(2 * MAX_UNCONFIRMED):
            ann.desk.ask(ticket, "queue.pull", b'{"queue":"x"}')
            await until(lambda ticket=ticket: ticket in ann.answers)  # type: ignore[misc]
        assert family.done == MAX_UNCONFIRMED


async def test_a_reply_whose_receipt_has_yet_to_come_is_not_held_once_it_is_packed() -> None:
    family = Family()
    async with service_table(family) as table:
        ann = Desk(table)
        ann.desk.ask(1, "queue.pull", b'{"queue":"x"}')
        await until(lambda: 1 in ann.answers)
        assert family.handed() is None
        ann.desk.received(1)
        assert family.done == 1


async def test_an_error_does_not_hold_its_request_until_a_garbage_collection() -> None:
    held: list[weakref.ref[Any]] = []

    class Refusing(Family):
        async def publish(self, caller: Caller, request: PublishValues) -> Published:
            held.append(weakref.ref(request))
            error = InvalidRequest("no")
            raise error

    gc.disable()
    try:
        async with service_table(Refusing()) as table:
            ann = Desk(table)
            ann.ask(1)
            await until(lambda: 1 in ann.answers)
            await anyio.sleep(0.01)  # until the task is over
            assert held[0]() is None
    finally:
        gc.enable()


async def test_the_bytes_of_a_tenants_requests_are_bounded_over_all_of_its_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = 6 * MAX_REQUEST_BYTES
    monkeypatch.setattr(services, "MAX_TENANT_BYTES", most)
    async with service_table(Family()) as table:
        payload = msgspec.json.encode({"topic": "x", "values": ["x" * (MAX_REQUEST_BYTES - 40), 0]})
        runs = [Desk(table, name=f"run-{number}") for number in range(3)]
        for ticket in range(most // len(payload)):
            runs[ticket % 3].desk.ask(ticket, "topic.publish", payload)
        runs[0].desk.ask(1000, "topic.publish", payload)
        await until(lambda: 1000 in runs[0].answers)
        error = runs[0].error(1000).to_exception()
        assert isinstance(error, LimitExceeded)
        assert error.detail["limit"] == "tenant_gateway_bytes"
        bob = Desk(table, "bob")
        bob.desk.ask(1, "topic.publish", payload)
        assert 1 not in bob.answers
        for run in runs:
            run.desk.close()
        ann = Desk(table)
        await until(lambda: not table.open_bytes("ann"))
        ann.ask(1)
        await until(lambda: ann.answers)


async def test_a_tenant_that_takes_too_much_time_waits_and_another_does_not() -> None:
    family = Family()
    async with service_table(family) as table:
        for _ in range(100):
            table.pace.used("ann", 0.01, anyio.current_time())
        ann, bob = Desk(table), Desk(table, "bob")
        for ticket in range(3):
            ann.ask(ticket)
        bob.ask(1)
        await until(lambda: bob.answers)
        assert not ann.answers
        assert family.begun == ["bob"]


def test_tenants_share_half_of_the_loops_time_evenly() -> None:
    pace = ServicePace()
    pace.used("ann", 1.0, 100.0)
    assert pace.wait("ann", 100.0) == pytest.approx(2.0, abs=0.03)
    pace.used("bob", 0.1, 100.0)
    assert pace.wait("bob", 100.0) == pytest.approx(0.4, abs=0.03)
    assert pace.wait("carol", 100.0) == 0.0
    pace.used("bob", 0.1, 200.0)  # the others are gone
    assert pace.wait("bob", 200.0) == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scripts_cannot_bring_in_what_json_does_not_have(value: float) -> None:
    payload = msgspec.msgpack.encode({"topic": "x", "values": [{"a": [value]}]})
    with pytest.raises(InvalidRequest, match="JSON"):
        MSGPACK_WIRE.request("topic.publish", payload)


async def test_of_a_burst_of_large_requests_not_all_begin_at_once() -> None:
    family = Family()
    async with service_table(family) as table:
        ann = Desk(table)
        payload = msgspec.json.encode({"topic": "x", "values": ["x" * (MAX_REQUEST_BYTES - 40)]})
        for ticket in range(20):
            ann.desk.ask(ticket, "topic.publish", payload)
        bob = Desk(table, "bob")
        bob.ask(1)
        await until(lambda: bob.answers)
        assert len(ann.answers) <= 3
        await until(lambda: len(ann.answers) == 20)


@pytest.mark.parametrize(("wire", "read"), [(JSON_WIRE, msgspec.json.decode), (MSGPACK_WIRE, msgspec.msgpack.decode)])
def test_values_that_are_json_already_reach_every_wire(wire: ServiceWire, read: Callable[[bytes], Any]) -> None:
    assert read(wire.write(Pulled(JsonText(b'[1,{"a":"\xc3\xa9"}]')))) == {"values": [1, {"a": "é"}]}  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        wire.write(Pulled([object()]))


class LateFamily:
    """``topic.publish`` waits, then notes its caller until that is gone, as subscriptions and parents of runs are noted."""

    def __init__(self) -> None:
        self.there = anyio.Event()
        self.callers: set[Caller] = set()

    def operations(self) -> Mapping[str, Handler]:
        return {"topic.publish": self.publish}

    def closed(self, caller: Caller) -> None:
        self.callers.discard(caller)

    async def publish(self, caller: Caller, request: PublishValues) -> Published:
        await self.there.wait()
        self.callers.add(caller)
        return Published(0)


async def test_an_operation_that_went_on_as_its_caller_left_leaves_nothing_of_it() -> None:
    """What it waited for came in the turn in which its run ended: the run was held, with its program, for ever."""
    family = LateFamily()
    async with service_table(family) as table:
        one = Desk(table)
        one.desk.ask(1, "topic.publish", msgspec.json.encode(PublishValues("t", [1])))
        await anyio.wait_all_tasks_blocked()
        family.there.set()
        one.desk.close()
        await anyio.wait_all_tasks_blocked()
        assert family.callers == set()
        assert one.answers == {}


async def test_callers_that_end_together_hold_nobody_up() -> None:
    """64 sessions of a tenant that waited for 64 values each ended in one turn of the loop, which took a quarter of a second."""
    family, at_once = Family(), [0]
    async with service_table(family) as table:
        table.pace.wait = lambda tenant, now: 0.0  # type: ignore[method-assign]
        desks = [Desk(table, "ann", f"run-{number}") for number in range(8)]
        for desk in desks:
            for ticket in range(MAX_ASKED):
                desk.ask(ticket, 2)
        await until(lambda: len(family.begun) == 8 * MAX_ASKED)
        for desk in desks:
            desk.desk.close()
        while (ended := len(family.ended)) < 8 * MAX_ASKED:
            await anyio.lowlevel.checkpoint()
            at_once.append(len(family.ended) - ended)
        assert max(at_once) <= services.CANCELLED_AT_ONCE
        await until(lambda: not table._gone and len(family.gone) == 2 * len(desks))


async def test_what_is_handed_out_to_a_caller_that_has_just_ended_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    family, there = Family(), anyio.Event()
    pull = family.pull

    async def late(caller: Caller, request: PullValues) -> Handed:
        await there.wait()
        return await pull(caller, request)

    monkeypatch.setattr(family, "pull", late)
    async with service_table(family) as table:
        monkeypatch.setattr(table, "cancel", lambda calls: None)  # its turn has not come
        ann = Desk(table)
        ann.desk.ask(1, "queue.pull", b'{"queue":"q"}')
        await anyio.wait_all_tasks_blocked()
        ann.desk.close()
        there.set()
        await anyio.wait_all_tasks_blocked()
        assert (family.undone, family.done, ann.answers) == (1, 0, {})


async def test_of_replies_that_wait_for_room_one_is_woken_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that left woke all of the others: of 4,000, one after the other, that held the loop for two minutes."""
    looked = Counter[str]()
    async with service_table(Family()) as table:
        table.pace.wait = lambda tenant, now: 0.0  # type: ignore[method-assign]
        monkeypatch.setattr(services, "_reply_size", lambda outcome: 5000)
        monkeypatch.setattr(table.replies, "may_pack", lambda tenant, size: looked.update([tenant]) or False)
        ann = Desk(table)
        for ticket in range(MAX_ASKED):
            ann.ask(ticket)
        await anyio.wait_all_tasks_blocked()
        looked.clear()
        table.replies.changed.wake()
        await anyio.wait_all_tasks_blocked()
        assert looked == {"ann": 1}


async def test_operations_that_had_to_wait_do_not_all_begin_in_one_turn_where_the_machine_is_slow() -> None:
    """What starting them took made up for what they were charged: 3,840 of 60 sessions held a front's loop for 0.2 s."""
    family, waits, at_once = Family(), [0.001], [0]
    async with service_table(family) as table:
        table.pace.wait = lambda tenant, now: waits.pop() if waits else 0.0  # type: ignore[method-assign]
        for number in range(4):
            one = Desk(table, "ann", f"run-{number}")
            for ticket in range(MAX_ASKED):
                one.ask(ticket, 2)
        while (begun := len(family.begun)) < 4 * MAX_ASKED:
            await anyio.lowlevel.checkpoint()
            at_once.append(len(family.begun) - begun)
        assert max(at_once) <= services.STARTED_AT_ONCE
