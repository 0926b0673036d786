"""Responses that are answered while nobody waits for them."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio.abc import TaskGroup, TaskStatus

from inferd.protocol import InferdError, InternalError
from inferd_runtime.server.chat.answer_pace import AnswerPace, Turn, in_turns
from inferd_runtime.server.chat.answer_source import AnswerSource
from inferd_runtime.server.dialects.responses.answer import ResponsesExchange
from inferd_runtime.server.dialects.responses.stored import StoredResponse

Answer = AbstractAsyncContextManager[AnswerSource]
log = logging.getLogger("inferd.responses")


@dataclass(frozen=True)
class _OpenResponse:
    exchange: ResponsesExchange
    scope: anyio.CancelScope
    over: anyio.Event = field(default_factory=anyio.Event)


class BackgroundResponses:
    """Those that are in progress, by tenant and id. They live as long as the server: what it is at when it ends is lost."""

    def __init__(self, tasks: TaskGroup, pace: AnswerPace) -> None:
        self._tasks = tasks
        self._pace = pace
        self._open: dict[tuple[str, str], _OpenResponse] = {}

    async def start(self, exchange: ResponsesExchange, answer: Answer, tenant: str) -> StoredResponse:
        """Begin to answer, and return the response as it is now. Raises what beginning the answer raises."""
        await self._tasks.start(self._answer, exchange, answer, tenant)
        return exchange.begun

    def find(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return a response that is in progress, None if there is none of that id."""
        found = self._open.get((tenant, response_id))
        return None if found is None else found.exchange.begun

    async def cancel(self, tenant: str, response_id: str) -> None:
        """End a response if it is in progress; how it ended is kept when this returns."""
        found = self._open.get((tenant, response_id))
        if found is not None:
            found.scope.cancel()
            await found.over.wait()

    async def _answer(
        self, exchange: ResponsesExchange, answer: Answer, tenant: str, *, task_status: TaskStatus[None]
    ) -> None:
        key = (tenant, exchange.id)
        with anyio.CancelScope() as scope:
            one = _OpenResponse(exchange, scope)
            try:
                async with answer as source:
                    self._open[key] = one
                    task_status.started()
                    await _read(exchange, source, partial(self._pace.turn, tenant))
            except InferdError as error:
                if key not in self._open:  # it did not begin: the request gets the error
                    raise
                exchange.failure(error)
            except Exception as error:  # the boundary of a task that nobody waits for
                log.exception("a response in the background failed")
                exchange.failure(InternalError(f"a bug in the runtime: {type(error).__name__}"))
            finally:
                self._open.pop(key, None)
        if scope.cancelled_caught:
            exchange.cancel()
        one.over.set()


async def _read(exchange: ResponsesExchange, source: AnswerSource, turn: Turn) -> None:
    """Read an answer to its end."""
    while events := await source.next():
        async for part in in_turns(events, turn):
            for event in part:
                exchange.chunks(event)
    exchange.closing()
