"""What the gateway answers itself, asked by somebody who wants it to stand still, to keep too much, or to serve nobody else."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import msgspec

from .arena import Arena, Hostile, Wire, bounded_gateway, checked, open_socket
from .attack import OK, Attack, Calls, Conduct, answered, attacks, withstood
from .clients import others_are_served

FLOOD_SECONDS = 1.0
WINDOW = 64
"""Operations that a script has open: as many as it may."""
BUSY = "ok limit client.invalid"
MEGABYTE = 1 << 20
MOST_GROWN_MB = 110.0
"""Of the gateway, whose replies to a tenant that reads none may take 32 MiB: all that are asked for would take 190."""
Arguments = Mapping[str, Any]


def send_raw(wire: Wire, op: str, arguments: bytes) -> None:
    """Send a call whose arguments are msgpack already."""
    wire.ticket += 1
    head = b"\x83\xa1t\xce" + wire.ticket.to_bytes(4, "big") + b"\xa2op" + msgspec.msgpack.encode(op)
    wire.socket.send(head + b"\xa1a" + arguments)


def array(element: bytes, size: int) -> bytes:
    """A list of one element over and over, of about so many bytes."""
    count = size // len(element)
    return b"\xdd" + count.to_bytes(4, "big") + element * count


def pushes(element: bytes) -> Callable[[Wire], Arguments]:
    """Four pushes of a megabyte that is one value."""

    def calls(wire: Wire) -> Arguments:
        for _ in range(4):
            send_raw(wire, "queue.push", b"\x82\xa5queue\xa1q\xa6values\x91" + array(element, MEGABYTE - 100))
        return [wire.receive() for _ in range(4)][-1]

    return calls


def rendered(element: bytes, size: int) -> Callable[[Wire], Arguments]:
    """A conversation with a template argument of so many bytes."""

    def calls(wire: Wire) -> Arguments:
        messages = b"\xa8messages\x91\x82\xa4role\xa4user\xa7content\xa1x"
        send_raw(wire, "chat.render", b"\x82" + messages + b"\xb2template_arguments\x81\xa1x" + array(element, size))
        return wire.receive()

    return calls


def numbers(op: str, name: str) -> Callable[[Wire], Arguments]:
    """Seven megabytes of numbers as one argument."""

    def calls(wire: Wire) -> Arguments:
        send_raw(wire, op, b"\x81" + msgspec.msgpack.encode(name) + array(b"\x00", 7 * MEGABYTE))
        return wire.receive()

    return calls


def side_by_side(calls: Callable[[Wire], Arguments], sessions: int = 4) -> Callable[[Arena], str]:
    """Make calls again and again for ``FLOOD_SECONDS``, over several sessions at once."""

    def attack(arena: Arena) -> str:
        end = time.monotonic() + FLOOD_SECONDS

        def over_one(_: int) -> str:
            with arena.mallory.session() as wire:
                reply: Arguments = {}
                while time.monotonic() < end:
                    reply = calls(wire)
                return answered(reply)

        with ThreadPoolExecutor(sessions) as threads:
            return " ".join({*threads.map(over_one, range(sessions))})

    return attack


def flood(op: str, prepare: Callable[[Wire], Arguments]) -> Callable[[Wire], Arguments]:
    """As many of an operation as fit into ``FLOOD_SECONDS``, ``WINDOW`` of them open; the last reply."""

    def calls(wire: Wire) -> Arguments:
        arguments = msgspec.msgpack.encode(prepare(wire))
        end, reply = time.monotonic() + FLOOD_SECONDS, {}
        for _ in range(WINDOW):
            send_raw(wire, op, arguments)
        while time.monotonic() < end:
            reply = wire.receive()
            send_raw(wire, op, arguments)
        return reply

    return calls


def subscribed(wire: Wire) -> Arguments:
    """A subscription that has a quarter of a megabyte of small values to read, and is never a value further."""
    subscription = wire.call("topic.subscribe", topic="large")["subscription"]
    assert wire.call("topic.publish", topic="large", values=[[[1]] * 60_000])["subscribers"]
    return {"subscription": subscription, "after": 0}


def listeners(wire: Wire) -> Arguments:
    """A publish of many values to many subscriptions that nobody reads."""
    for _ in range(WINDOW):
        wire.call("topic.subscribe", topic="wide")
    return {"topic": "wide", "values": [0] * 256, "wait": False}


@contextlib.contextmanager
def rude_session(hostile: Hostile) -> Iterator[Wire]:
    """A session of a script that reads nothing and leaves without a word."""
    with open_socket(hostile.url, hostile.headers) as connection:
        connection.close_timeout = 0.1
        yield Wire(connection)
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)


def replies_that_nobody_reads(arena: Arena) -> str:
    """Ask for a result of a megabyte again and again, over three sessions, and read none of it."""
    program = checked(arena.mallory.upload("async def main(): return 'x' * 1_000_000"))["id"]
    with ExitStack() as held:
        wires = [held.enter_context(rude_session(arena.mallory)) for _ in range(3)]
        children = [wire.call("launch.start", program=program)["child"] for wire in wires]
        for wire, child in zip(wires, children, strict=True):
            assert "result" in wire.call("launch.result", child=child)
        held.enter_context(bounded_gateway(arena, MOST_GROWN_MB))
        for wire, child in zip(wires, children, strict=True):
            for _ in range(WINDOW):
                wire.send("launch.result", child=child)
        return others_are_served(arena, OK)


def durable_flood(arena: Arena) -> str:
    """Push to durable queues over eight sessions, as fast as is taken, beside somebody who keeps one value after another."""
    arguments = msgspec.msgpack.encode({"queue": "q", "values": [0], "durable": True, "wait": False})
    with ExitStack() as held:
        for _ in range(8):
            wire = held.enter_context(rude_session(arena.mallory))
            for _ in range(WINDOW):
                send_raw(wire, "queue.push", arguments)
        with arena.hostile["trudy"].session() as other:
            for number in range(10):
                reply = other.call("queue.push", queue="q", values=[number], durable=True)
                if "err" in reply:
                    return f"others: {answered(reply)}"
    return OK


def tools_flood(arena: Arena) -> str:
    """Offer a server of tools, and call one of it without end."""
    with arena.mallory.session() as wire:
        wire.call("mcp.offer", server="mine")
        ends = Counter[str]()
        end = time.monotonic() + FLOOD_SECONDS
        while time.monotonic() < end:
            wire.send("mcp.call_tool", server="mine", tool="\x1b[2J\n" * 40, timeout_s=0.001)
            ends[answered(wire.receive())] += 1
        wire.call("mcp.withdraw", server="mine")
    lines = arena.log.read_text(errors="replace").count("mcp.call_tool")
    assert lines <= 700, f"{lines} lines in the log"
    assert "\x1b" not in arena.log.read_text(errors="replace")
    return ends.most_common(1)[0][0]


def result_again(wire: Wire) -> Arguments:
    """A child whose result is many small lists, and is over."""
    child = wire.call("launch.start", program="large-result")["child"]
    assert len(wire.call("launch.result", child=child)["result"]) == 80_000
    return {"child": child}


def large_result(arena: Arena) -> str:
    """Ask for a child's result again and again."""
    checked(arena.mallory.upload("async def main(): return [[1]] * 80_000", "large-result"))
    return Calls("", flood("launch.result", result_again), BUSY).carry_out(arena)


SERVICES: list[Attack] = [
    Calls("pushes of a million lists", pushes(b"\x90"), "client.invalid"),
    Calls("pushes of a million zeros", pushes(b"\x00"), "limit:value_bytes"),
    Calls("a conversation of a million lists", rendered(b"\x90", 8 * MEGABYTE), "client.invalid"),
    Calls("a conversation of a million zeros", rendered(b"\x00", MEGABYTE), "limit:chat_values"),
    Conduct(
        "conversations of seven million zeros, side by side",
        side_by_side(rendered(b"\x00", 7 * MEGABYTE)),
        "client.invalid",
    ),
    Conduct(
        "seven million tokens, side by side", side_by_side(numbers("model.detokenize", "tokens")), "client.invalid"
    ),
    Calls("publishing to nobody", flood("topic.publish", lambda wire: {"topic": "x", "values": [1]}), BUSY),
    Calls("publishing to those that do not read", flood("topic.publish", listeners), BUSY),
    Calls("reading the same value again", flood("topic.next", subscribed), BUSY),
    Conduct("reading the same result again", large_result, BUSY),
    Conduct("replies that nobody reads", replies_that_nobody_reads, BUSY),
    Conduct("a flood of durable values", durable_flood, BUSY),
    Conduct("a flood of calls of a tool", tools_flood, BUSY),
]


@attacks(*SERVICES)
def test_what_the_gateway_answers_costs_its_own_tenant(arena: Arena, attack: Attack) -> None:
    withstood(arena, attack)
