"""Whose bytes are parsed next: of an owner's connections one after the other, while it has not had more than its share.

Each alone parses for little time in a turn of the event loop; without a line, hundreds of one owner would in the same turn.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from inferd_runtime.server.connections.loop_shares import SHARE, LoopShares

FEED_SECONDS = 0.002
"""Processor time for which one owner's bytes are parsed in a row before others have their turn."""


class ParsedConnection(Protocol):
    """A connection with bytes to parse."""

    def parse(self) -> float:
        """Parse some of what has come; returns the processor time that it took, in seconds."""

    def parsed(self, wait: float) -> None:
        """Go on after :meth:`parse`; for ``wait`` seconds the owner is to send nothing more."""


@dataclass(frozen=True)
class ParseAccount:
    """Who is charged, for at most ``most`` seconds at a time, and which ``share`` of the thread's time it has."""

    name: str
    share: float = SHARE
    most: float = math.inf


class ParseLines:
    """A line of connections for each account. Belongs to one event loop."""

    def __init__(self) -> None:
        self._shares = LoopShares()
        self._lines: dict[str, deque[ParsedConnection]] = {}

    def join(self, connection: ParsedConnection, account: ParseAccount) -> None:
        """Have a connection parse when its turn comes, which may be at once."""
        line = self._lines.get(account.name)
        if line is not None:
            line.append(connection)
            return
        self._lines[account.name] = deque([connection])
        self._go_on(account)

    def forget_old(self, now: float) -> None:
        """Drop the accounts that are even."""
        self._shares.forget_old(now)

    def _go_on(self, account: ParseAccount) -> None:
        line = self._lines[account.name]
        try:
            self._parse_some(line, account)
        finally:
            if line:
                asyncio.get_running_loop().call_later(self._wait(account), self._go_on, account)
            else:
                del self._lines[account.name]

    def _parse_some(self, line: deque[ParsedConnection], account: ParseAccount) -> None:
        started = time.thread_time()
        while line and not self._wait(account) and time.thread_time() - started < FEED_SECONDS:
            connection = line.popleft()
            seconds = min(connection.parse(), account.most)
            connection.parsed(self._shares.charge(account.name, seconds, time.monotonic(), account.share))

    def _wait(self, account: ParseAccount) -> float:
        return self._shares.wait(account.name, time.monotonic())
