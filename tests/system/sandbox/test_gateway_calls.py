"""Operations that the gateway answers, from a real sandbox: tickets, withdrawals, receipts, and how many may be open."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from inferd.protocol import LimitExceeded
from inferd_runtime.sandbox.messages import MAX_ASKED, Answered, Asked, Received, RunFinished, Withdrawn

from .conftest import DEADLINE, Gateway


def said(gateway: Gateway, run: str, kind: type[Any], count: int = 1) -> Sequence[Any]:
    """The first ``count`` messages of that kind about a run, once they have come."""
    end = time.monotonic() + DEADLINE
    while len(found := [message for message in gateway.messages[run] if isinstance(message, kind)]) < count:
        assert time.monotonic() < end, gateway.messages[run]
        assert kind is RunFinished or not gateway.ended(run), gateway.messages[run]
        gateway.receive_now(0.01)
    return found


def answer(
    gateway: Gateway, run: str, asked: Asked | Withdrawn, value: Any, *, ok: bool = True, receipt: bool = False
) -> None:
    gateway.send(Answered(run, asked.ticket, ok, json.dumps(value), receipt))


def result(gateway: Gateway, run: str) -> Any:
    finished = gateway.wait(run)
    assert finished.error is None, finished.error
    return json.loads(finished.result or "")


def test_a_program_asks_and_gets_replies_and_errors(gateway: Gateway) -> None:
    run = gateway.launch(
        """
        from inferd import LimitExceeded, queue, topic

        async def main():
            count = await topic.publish("news", {"a": [1, "é"]})
            try:
                await queue.push("jobs", 1)
            except LimitExceeded as error:
                return [count, error.message]
        """
    )
    first = said(gateway, run, Asked)[0]
    assert first.op == "topic.publish"
    assert json.loads(first.json) == {"topic": "news", "values": [{"a": [1, "é"]}], "wait": True}
    answer(gateway, run, first, {"subscribers": 7})
    refused = LimitExceeded("too much", limit="x", value=1)
    info = refused.to_wire()
    second = said(gateway, run, Asked, 2)[1]
    answer(gateway, run, second, {"code": info.code, "message": info.message, "detail": info.detail}, ok=False)
    assert result(gateway, run) == [7, "too much"]


def test_a_cancelled_call_is_withdrawn_and_its_late_answer_dropped(gateway: Gateway) -> None:
    run = gateway.launch(
        """
        import asyncio
        from inferd import queue

        async def main():
            try:
                async with asyncio.timeout(0.05):
                    await queue.pull("jobs")
            except TimeoutError:
                print("gave up", flush=True)
            return await queue.pull("jobs")
        """
    )
    gateway.wait_text(run, "gave up")
    first, second = said(gateway, run, Asked, 2)
    assert said(gateway, run, Withdrawn)[0].ticket == first.ticket
    answer(gateway, run, first, {"values": ["late"]}, receipt=True)
    answer(gateway, run, second, {"values": ["in time"]}, receipt=True)
    assert result(gateway, run) == "in time"
    assert [message.ticket for message in gateway.messages[run] if isinstance(message, Received)] == [second.ticket]


def test_an_answer_that_comes_when_nobody_looks_any_more_is_withdrawn(gateway: Gateway) -> None:
    run = gateway.launch(
        """
        import asyncio, time
        from inferd import queue, session

        async def main():
            task = asyncio.create_task(queue.pull("jobs"))
            await asyncio.sleep(0.01)
            print("asked", flush=True)
            await session.receive()  # by now the answer is there as well
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return task.cancelled()
        """
    )
    gateway.wait_text(run, "asked")
    asked = said(gateway, run, Asked)[0]
    answer(gateway, run, asked, {"values": ["precious"]}, receipt=True)
    gateway.deliver(run, None)
    told = result(gateway, run)
    kinds = [type(message) for message in gateway.messages[run] if isinstance(message, (Withdrawn, Received))]
    assert kinds == ([Withdrawn] if told else [Received])


def test_a_program_has_so_many_open_and_withdrawing_makes_no_room(gateway: Gateway) -> None:
    run = gateway.launch(
        f"""
        import asyncio
        from inferd import LimitExceeded, queue

        async def main():
            tasks = [asyncio.create_task(queue.pull("jobs")) for _ in range({MAX_ASKED})]
            await asyncio.sleep(0.01)
            try:
                await queue.pull("jobs")
            except LimitExceeded as error:
                print(error.detail["limit"], flush=True)
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
            return await queue.pull("jobs")
        """
    )
    gateway.wait_text(run, "gateway_operations")
    withdrawn = said(gateway, run, Withdrawn, MAX_ASKED)
    assert len(said(gateway, run, Asked)) == MAX_ASKED
    answer(gateway, run, withdrawn[0], {"code": "cancelled", "message": "withdrawn", "detail": {}}, ok=False)
    answer(gateway, run, said(gateway, run, Asked, MAX_ASKED + 1)[MAX_ASKED], {"values": [7]}, receipt=True)
    assert result(gateway, run) == 7


def test_what_cannot_be_carried_or_is_too_long_does_not_leave_the_sandbox(gateway: Gateway) -> None:
    program = """
        import json
        from inferd import InferdError
        from inferd.protocol.topics import PushValues
        from inferd.transport import current_transport

        async def main():
            codes = []
            for value in (1 << 70, "x" * (2 << 20), "\\ud800"):
                try:
                    await current_transport().call(PushValues("jobs", [value]))
                except InferdError as error:
                    codes.append(error.code)
            return codes
        """
    assert gateway.value(program.replace("\\\\", "\\")) == ["client.invalid", "limit", "client.invalid"]
