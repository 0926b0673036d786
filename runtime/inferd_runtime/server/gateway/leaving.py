"""Clients that leave: what is done for their requests ends then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from starlette.types import Receive

from inferd.protocol import InferdError


async def until_left(receive: Receive, answer: Callable[[], Awaitable[None]]) -> None:
    """Answer, until that is done or the client has left. Raises the InferdError that ``answer`` raises."""
    errors: list[InferdError] = []  # kept: what leaves a task group comes out wrapped
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_when_left, receive, tasks.cancel_scope)
        try:
            await answer()
        except InferdError as error:
            errors.append(error)
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]


async def cancel_when_left(receive: Receive, scope: anyio.CancelScope) -> None:
    """Wait until the client has left, and cancel the scope."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
