"""Whose bytes are parsed when, and whose answers are written: many of one owner's in one turn of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import cast

import anyio
import anyio.lowlevel
import pytest
from waiting import until

from inferd_runtime.server.connections.connection_table import ConnectionTable
from inferd_runtime.server.connections.guarded_connection import (
    LEAST_PIECE_BYTES,
    PIECE_BYTES,
    SERVER,
    GuardedConnection,
)
from inferd_runtime.server.connections.loop_shares import PARTS_AT_ONCE, TURN_SECONDS, LoopTurns
from inferd_runtime.server.connections.parse_lines import FEED_SECONDS, ParseAccount, ParseLines
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.server.tenancy.tenant_use import TenantUse

MANY = 12


class Transport:
    """Reads, or does not."""

    def __init__(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int) -> None:
        return None

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Parser(asyncio.Protocol):
    """Stands for the HTTP server: each piece takes so much processor time."""

    def __init__(self, name: int, parsed: list[tuple[int, int]], seconds: Callable[[int], float]) -> None:
        self._name = name
        self._parsed = parsed
        self._seconds = seconds

    def data_received(self, data: bytes) -> None:
        started = time.thread_time()
        while time.thread_time() - started < self._seconds(len(data)):
            pass
        self._parsed.append((self._name, len(data)))


class Connections:
    """Connections of one address in a table, and what of them was parsed."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.parsed: list[tuple[int, int]] = []
        self.transports: list[Transport] = []
        self._table = ConnectionTable(TenantUse(same_for_all(Quotas())))
        self._seconds = seconds

    def opened(self, name: int, tenant: str | None = "ann", *, is_new: bool = False) -> GuardedConnection:
        made = self._table.arrived(("127.0.0.1", name + 1), lambda: Parser(name, self.parsed, self._seconds))
        self.transports.append(Transport())
        made.connection_made(cast(asyncio.Transport, self.transports[-1]))
        made.is_new = is_new
        if tenant is not None:
            self._table.belongs_to(made, tenant)
        return made

    @property
    def names(self) -> list[int]:
        return [name for name, _ in self.parsed]


async def test_connections_of_one_owner_are_parsed_one_after_the_other_and_nobody_else_waits() -> None:
    """240 connections with chunks of a byte, sent at the same moment, kept the event loop for 1.6 s."""
    many = Connections(lambda size: 3 * FEED_SECONDS)
    hostile = [many.opened(name) for name in range(MANY)]
    for connection in hostile:
        connection.data_received(b"x")
    assert many.names == [0], "one of them has taken its owner's time of this turn"
    assert [one.reads for one in many.transports] == [False] * MANY
    many.opened(MANY, "bob").data_received(b"x")
    many.opened(MANY + 1, None, is_new=True).data_received(b"x")
    assert many.names == [0, MANY, MANY + 1]
    await until(lambda: len(many.parsed) == MANY + 2)
    assert [name for name in many.names if name < MANY] == list(range(MANY))


async def test_a_connection_that_is_not_read_for_another_reason_waits_for_its_owners_turn_all_the_same() -> None:
    """Each message of a WebSocket stops reading for a moment, and the wait was forgotten behind it."""
    slow = Connections(lambda size: 20 * FEED_SECONDS)
    connection = slow.opened(0)
    connection.data_received(b"x")
    connection.pause(SERVER)
    connection.data_received(b"x")
    connection.resume(SERVER)
    await anyio.lowlevel.checkpoint()
    assert slow.names == [0]
    await until(lambda: slow.names == [0, 0] and slow.transports[0].reads)


async def test_pieces_are_small_while_they_take_long_and_grow_while_they_do_not() -> None:
    quick, slow = Connections(lambda size: 0.0), Connections(lambda size: size * FEED_SECONDS / LEAST_PIECE_BYTES)
    for connections in (quick, slow):
        connections.opened(0).data_received(bytes(4 * PIECE_BYTES))
    await until(lambda: sum(size for _, size in quick.parsed) == 4 * PIECE_BYTES)
    await until(lambda: len(slow.parsed) > 2)
    assert quick.parsed[-2][1] == PIECE_BYTES
    assert {size for _, size in slow.parsed} == {LEAST_PIECE_BYTES}


async def test_a_new_connections_first_piece_is_its_head() -> None:
    """What comes behind it is its sender's, who is known then."""
    one = Connections(lambda size: 0.0)
    head = b"POST / HTTP/1.1\r\nHost: x\r\n\r\n"
    one.opened(0, None, is_new=True).data_received(head + bytes(100))
    await until(lambda: len(one.parsed) == 2)
    assert one.parsed == [(0, len(head)), (0, 100)]


async def test_a_connection_whose_parser_fails_leaves_the_line_to_those_behind_it() -> None:
    lines, account, parsed = ParseLines(), ParseAccount("ann"), list[str]()

    class Behind:
        def parse(self) -> float:
            parsed.append("behind")
            return 0.0

        def parsed(self, wait: float) -> None:
            return None

    class Fails(Behind):
        def parse(self) -> float:
            lines.join(Behind(), account)
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        lines.join(Fails(), account)
    await until(lambda: parsed == ["behind"])
    lines.join(Behind(), account)
    assert parsed == ["behind", "behind"]


async def test_parts_of_one_owners_answers_are_written_a_few_in_a_turn_in_their_order() -> None:
    """120 streams of one run's events, at a cluster's front, each wrote a part in the same turn of its loop: 0.13 s."""
    turns, seen, at = LoopTurns(), list[tuple[int, int]](), [0]

    async def part(number: int) -> None:
        await turns.turn("ann")
        turns.used("ann", TURN_SECONDS * 2)
        seen.append((number, at[0]))

    async with anyio.create_task_group() as tasks:
        scopes = [tasks.start_soon(part, number) for number in range(5 * PARTS_AT_ONCE)]
        left = asyncio.create_task(turns.turn("ann"))
        while len(seen) < len(scopes):
            at[0] += 1
            left.cancel()
            await turns.turn("bob")
            await anyio.lowlevel.checkpoint()
    assert [number for number, _ in seen] == list(range(len(seen)))
    assert max(Counter(turn for _, turn in seen).values()) <= PARTS_AT_ONCE
