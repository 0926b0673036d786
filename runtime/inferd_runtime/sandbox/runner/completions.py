"""Operations in flight, as futures: the guest's end of the completion queue."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

FOR_EVER = 0xFFFFFFFF
MAX_WAIT_MS = FOR_EVER - 1
Answer = tuple[bool, dict[str, Any]]
_SCAN: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # json.loads without its checks of type and surroundings


class Host(Protocol):
    """The imports of the WIT world; ``world.wit`` says what each does."""

    def submit(self, op: str, arguments: str) -> int:
        """Start an operation; returns its ticket."""

    def wait(self, timeout_ms: int) -> str:
        """Wait for finished operations."""

    def ask(self, op: str, arguments: str, timeout_ms: int) -> str:
        """Start an operation, and wait."""

    def cancel(self, ticket: int) -> None:
        """Drop an operation."""

    def log(self, target: str, text: str) -> None:
        """Hand out what the program wrote."""


class Completions:
    """Every blocking point of the guest: whatever waits, waits here, where the host can end it.

    ``before_wait`` is called before the guest may block; the streams are flushed there.
    """

    def __init__(self, host: Host, before_wait: Callable[[], None]) -> None:
        self._host = host
        self._before_wait = before_wait
        self._open: dict[int, asyncio.Future[Answer] | None] = {}
        self._early: dict[int, Answer] = {}

    @property
    def pending(self) -> bool:
        """True if an operation is in flight."""
        return bool(self._open)

    def submit(self, op: str, arguments: str, quiet: float | None = 0.0) -> int:
        """Start an operation; returns its ticket.

        ``quiet``: seconds in which the event loop has nothing else to do (``None``: for ever). Where that is not 0, this blocks
        right here: a future and a round of the event loop would cost a third more, and nobody else has a use for the time.
        """
        if quiet is None or quiet > 0:
            return self._ask(op, arguments, quiet)
        ticket = self._host.submit(op, arguments)
        self._open[ticket] = None
        return ticket

    async def answer(self, ticket: int) -> Answer:
        """Wait for an operation. Returns whether it went well, and its reply or error. Cancelling this drops the operation."""
        early = self._early.pop(ticket, None)
        if early is not None:
            return early
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[ticket] = future
        try:
            return await future
        except asyncio.CancelledError:
            self._open.pop(ticket, None)
            self._host.cancel(ticket)  # an answer that came at the same moment, too: nobody has got it
            raise

    def block(self, ticket: int) -> Answer:
        """Block until an operation is answered, whatever else could run meanwhile. Returns as :meth:`answer`."""
        while ticket not in self._early:
            self.wait(None)
        return self._early.pop(ticket)

    def wait(self, seconds: float | None) -> None:
        """Block until something has finished, or for ``seconds`` (``None``: for ever); sets the futures that it is due to."""
        self._before_wait()
        finished = self._host.wait(_milliseconds(seconds))
        if finished != "[]":
            self._settle_all(_SCAN(finished, 0)[0])

    def sleep(self, seconds: float) -> None:
        """Block for ``seconds``. Operations go on finishing meanwhile."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            self.wait(max(left, 0.0))
            if left <= 0:
                return

    def _ask(self, op: str, arguments: str, seconds: float | None) -> int:
        """Start an operation and :meth:`wait`; returns the ticket."""
        self._before_wait()
        (ticket, answers), _ = _SCAN(self._host.ask(op, arguments, _milliseconds(seconds)), 0)
        self._open[ticket] = None
        self._settle_all(answers)
        return int(ticket)

    def _settle_all(self, answers: Iterable[tuple[int, int, dict[str, Any]]]) -> None:
        for ticket, ok, answer in answers:
            self._settle(ticket, (bool(ok), answer))

    def _settle(self, ticket: int, answer: Answer) -> None:
        if ticket not in self._open:  # dropped meanwhile
            return
        future = self._open.pop(ticket)
        if future is None:
            self._early[ticket] = answer
        elif not future.done() and not future.get_loop().is_closed():
            future.set_result(answer)


def _milliseconds(seconds: float | None) -> int:
    if seconds is None:
        return FOR_EVER
    return min(max(math.ceil(seconds * 1e3), 0), MAX_WAIT_MS)
