"""Responses that are answered while nobody waits for them."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio.abc import TaskGroup, TaskStatus

from inferd.protocol import InferdError, InternalError
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.server.chat.answer_pace import AnswerPace, Turn, in_turns
from inferd_runtime.server.chat.answer_source import AnswerSource
from inferd_runtime.server.dialects.responses.answer import ResponsesExchange
from inferd_runtime.server.dialects.responses.stored import KeptEvents, later_events

Answer = AbstractAsyncContextManager[AnswerSource]
Beside = Callable[[Callable[[], bytes | None]], Awaitable[bytes | None]]
"""Does work in the thread in which tenants take turns."""
EVENTS_AT_ONCE = 1024
"""Events that are sent together to a client that joins late."""
log = logging.getLogger("inferd.responses")


@dataclass
class OpenResponse:
    """A response that is being answered."""

    exchange: ResponsesExchange
    scope: anyio.CancelScope
    beside: Beside
    over: anyio.Event = field(default_factory=anyio.Event)
    changed: ChangeSignal = field(default_factory=ChangeSignal)

    def end(self) -> None:
        """Let everybody know that it is over."""
        self.over.set()
        self.changed.wake()

    async def follow(self, kept: KeptEvents, after: int) -> AsyncGenerator[bytes]:
        """Yield those of its events that have higher numbers, until it is over."""
        at = after + 1
        while kept.packed is None:
            if more := kept.sent[at : at + EVENTS_AT_ONCE]:
                at += len(more)
                yield b"".join(more)
            elif self.over.is_set():
                return
            else:
                await self.changed.wait()
        async for piece in replayed(kept.packed, at - 1, self.beside):
            yield piece


class BackgroundResponses:
    """Those that are in progress, by tenant and id. They live as long as the server: what it is at when it ends is lost."""

    def __init__(self, tasks: TaskGroup, pace: AnswerPace) -> None:
        self._tasks = tasks
        self._pace = pace
        self._open: dict[tuple[str, str], OpenResponse] = {}

    async def start(self, exchange: ResponsesExchange, answer: Answer, tenant: str) -> OpenResponse:
        """Begin to answer. Raises what beginning the answer raises."""
        begun: OpenResponse = await self._tasks.start(self._answer, exchange, answer, tenant)
        return begun

    def find(self, tenant: str, response_id: str) -> OpenResponse | None:
        """Return a response that is in progress, None if there is none of that id."""
        return self._open.get((tenant, response_id))

    async def cancel(self, tenant: str, response_id: str) -> None:
        """End a response if it is in progress; how it ended is kept when this returns."""
        found = self._open.get((tenant, response_id))
        if found is not None:
            found.scope.cancel()
            await found.over.wait()

    def cancel_all(self, tenant: str) -> int:
        """End all of a tenant's responses that are in progress. Returns how many there are."""
        own = [one for (owner, _), one in self._open.items() if owner == tenant]
        for one in own:
            one.scope.cancel()
        return len(own)

    async def _answer(
        self, exchange: ResponsesExchange, answer: Answer, tenant: str, *, task_status: TaskStatus[OpenResponse]
    ) -> None:
        scope = anyio.CancelScope()
        one = OpenResponse(exchange, scope, partial(self._pace.beside, tenant))
        try:
            with scope:
                await self._answered(one, answer, tenant, task_status)
            if scope.cancelled_caught:
                exchange.cancel()
        finally:
            one.end()

    async def _answered(
        self, one: OpenResponse, answer: Answer, tenant: str, task_status: TaskStatus[OpenResponse]
    ) -> None:
        exchange, key = one.exchange, (tenant, one.exchange.id)
        try:
            async with answer as source:
                self._open[key] = one
                if exchange.streams:
                    exchange.opening()
                task_status.started(one)
                await _read(one, source, partial(self._pace.turn, tenant))
        except InferdError as error:
            if key not in self._open:  # it did not begin: the request gets the error
                raise
            exchange.failure(error)
        except Exception as error:  # the boundary of a task that nobody waits for
            log.exception("a response in the background failed")
            exchange.failure(InternalError(f"a bug in the runtime: {type(error).__name__}"))
        finally:
            self._open.pop(key, None)


async def _read(one: OpenResponse, source: AnswerSource, turn: Turn) -> None:
    """Read an answer to its end."""
    while events := await source.next():
        async for part in in_turns(events, turn):
            for event in part:
                one.exchange.chunks(event)
            one.changed.wake()
    one.exchange.closing()


async def replayed(packed: bytes, after: int, beside: Beside) -> AsyncGenerator[bytes]:
    """Yield those of the packed events that have higher numbers."""
    pieces = later_events(packed, after)
    while (piece := await beside(partial(next, pieces, None))) is not None:
        if piece:
            yield piece
