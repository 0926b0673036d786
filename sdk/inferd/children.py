"""Programs that start programs.

child = await inferd.launch("summarize@1.0.0", {"text": "..."})
print(await child.result())
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

from inferd.calls.arguments import checked_mapping
from inferd.program.json_values import to_json_value
from inferd.protocol import Unavailable
from inferd.protocol.launches import AwaitChild, CancelChild, ReceiveFromChild, SendToChild, StartChild
from inferd.transport import current_port, current_transport
from inferd.transport.room import LaunchLine

__all__ = ["Child", "launch"]


WAIT_S = 30.0
MOST_LAUNCHES = 8
"""On their way at once, of the 64 operations that a program may have at the gateway."""


async def launch(
    program: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    limits: Mapping[str, float] | None = None,
    wait_s: float = WAIT_S,
) -> Child:
    """Start another program of the tenant, and return a handle of its run.

    ``program`` is a name, ``name@version``, or an id; ``arguments`` are those of its ``main``. Its run ends with this one, and
    what it uses counts to this one's limits; ``limits`` (``cpu_s``, ``memory_mb``, ...) give it less of them. Raises NotFound for
    a program that is not there, InvalidRequest for wrong arguments, and LimitExceeded where depth, number, room or what is left
    of the limits does not allow one more.

    Where other children have to end before, or the tenant has too many runs for now, it waits in turn, until for ``wait_s``
    seconds no launch of the program has found room (0: not at all).
    """
    given = to_json_value(checked_mapping("arguments", arguments), "arguments")
    request, port = StartChild(program, given, checked_mapping("limits", limits)), current_port()
    line: LaunchLine = port.shared.setdefault(LaunchLine, LaunchLine(MOST_LAUNCHES))
    started = await line.launch(lambda: port.transport.call(request), wait_s)
    return Child(started.child)


class Child:
    """A program that was started by :func:`launch`; iterating brings its messages until it is over."""

    def __init__(self, run: str) -> None:
        self.id = run
        self._transport = current_transport()
        self._messages: deque[Any] = deque()
        self._next = 0
        self._over = False
        self._turn = asyncio.Lock()

    async def result(self) -> Any:
        """Wait for its end, and return what its ``main`` returned. Raises the error that it ended with."""
        return (await self._transport.call(AwaitChild(self.id))).result

    async def send(self, value: Any) -> None:
        """Send a JSON value to its ``session.receive``. Raises InvalidRequest once it is over."""
        await self._transport.call(SendToChild(self.id, to_json_value(value, "message")))

    async def receive(self) -> Any:
        """Return the next value that it sends with ``session.send``; a cancelled call loses none. Raises Unavailable when it
        is over and all have been received.
        """
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise Unavailable(f"{self.id} is over: it sends no more messages", run=self.id) from None

    async def cancel(self) -> None:
        """Ask it to end. Nothing happens if it is over."""
        await self._transport.call(CancelChild(self.id))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        async with self._turn:
            while not self._messages:
                if self._over:
                    raise StopAsyncIteration
                reply = await self._transport.call(ReceiveFromChild(self.id, self._next))
                self._next, self._over = reply.next, reply.over
                self._messages.extend(reply.messages)
            return self._messages.popleft()
