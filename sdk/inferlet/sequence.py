"""The runtime's end of a context: the tokens whose keys and values are computed, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferd.protocol import (
    AppendContext,
    CreateContext,
    FlushContext,
    ForkContext,
    InvalidRequest,
    Part,
    ReleaseContext,
    TruncateContext,
)
from inferlet.blocking import call, open_handle
from inferlet.model import Model


class HeldSequence:
    """A context's number in the runtime, and its length. One that is garbage-collected is released with the next that is made."""

    def __init__(self, model: Model, number: int, length: int) -> None:
        self.model = model
        self.length = length
        self._number: int | None = number

    @classmethod
    def opened(cls, model: Model, request: Any) -> HeldSequence:
        """Send a request that makes a context."""
        reply = open_handle(model.port, request)
        return cls(model, reply.context, reply.length)

    @classmethod
    def empty(cls, model: Model) -> HeldSequence:
        """Make one without tokens."""
        return cls.opened(model, CreateContext(model.name))

    @property
    def number(self) -> int:
        """Its number. Raises InvalidRequest once it was released."""
        if self._number is None:
            raise InvalidRequest("this context was released; make a new one")
        return self._number

    def fork(self) -> HeldSequence:
        """Return a copy that shares what is computed."""
        return self.opened(self.model, ForkContext(self.number))

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        if length != self.length:
            self.length = call(self.model.port, TruncateContext(self.number, length)).length

    def block(self, request: Any) -> Any:
        """Send a request, and block until it is answered."""
        return call(self.model.port, request)

    async def ask(self, request: Any) -> Any:
        """Send a request; other tasks go on meanwhile."""
        return await self.model.port.transport.call(request)

    async def append(self, tokens: Sequence[int]) -> None:
        """Add tokens without computing them."""
        if tokens:
            part = Part("tokens", tokens=list(tokens))
            self.length = (await self.ask(AppendContext(self.number, [part]))).length

    async def compute(self, adapter: str = "") -> None:
        """Compute what was added."""
        await self.ask(FlushContext(self.number, adapter))

    async def shorten(self, length: int) -> None:
        """As :meth:`truncate`; other tasks go on meanwhile."""
        if length != self.length:
            self.length = (await self.ask(TruncateContext(self.number, length))).length

    def release(self) -> None:
        """Give it back. Safe to call twice."""
        if self._number is not None:
            number, self._number = self._number, None
            call(self.model.port, ReleaseContext(number))

    def __del__(self) -> None:
        if getattr(self, "_number", None) is not None:
            self.model.port.abandon([ReleaseContext(self.number)])
