"""Programs against a real session in this process, with a driver that does no maths."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from inferd.protocol import OPERATIONS, reply_from_plain
from inferd.transport import transport_in_force
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.served import null_model


class DirectTransport:
    """A transport to a session in this process; requests and replies cross it as JSON, as they do from the sandbox."""

    def __init__(self, model: ServedModel | None = None) -> None:
        self.direct = DirectSession(model or null_model())
        self.requests: list[Any] = []

    async def call(self, request: Any) -> Any:
        """Let other tasks run, step the engine until the request is answered, and return the reply."""
        await asyncio.sleep(0)
        return self.call_blocking(request)

    def call_blocking(self, request: Any) -> Any:
        """Step the engine until the request is answered, and return the reply."""
        assert OPERATIONS[request.op] is type(request)
        self.requests.append(request)
        reply = self.direct.call(msgspec.json.decode(msgspec.json.encode(request), type=type(request)))
        return reply_from_plain(request.reply, msgspec.json.decode(msgspec.json.encode(reply)))


def run_program(program: Callable[[], Coroutine[Any, Any, Any]], model: ServedModel | None = None) -> Any:
    """Run a program on a fresh runtime, and check that nothing is left in it but what the program still held."""
    runtime = DirectTransport(model)
    try:
        with transport_in_force(runtime):
            return asyncio.run(program())
    finally:
        runtime.direct.close()
