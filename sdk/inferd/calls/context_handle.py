"""The SDK's handle of one context in the runtime: buffers parts, sends requests about it, ends the generation on it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any, cast

from inferd.calls.dialogue import Dialogue, shared_length
from inferd.calls.generation_stream import GenerationStream
from inferd.calls.outcomes import retrieve_error
from inferd.protocol import (
    AppendContext,
    ContextState,
    ContextTokens,
    CreateContext,
    ForkContext,
    ImportContext,
    InferdError,
    InvalidRequest,
    Opened,
    OpenSaved,
    Part,
    ReleaseContext,
    SaveContext,
    SavedContext,
    TakeSaved,
    TruncateContext,
    Unavailable,
    check_create,
)
from inferd.transport import Port, Transport, current_port

OPENING_ROLES = ("system", "user")  # a turn after which the assistant speaks


class ContextHandle:
    """Owns one context id, which the runtime gives out at the first call and takes back in :meth:`release`.

    A handle that is garbage-collected instead is released before the next context of its port is made.
    """

    def __init__(
        self,
        port: Port | None = None,
        model: str = "",
        state: ContextState | None = None,
        open_turn: bool = False,
        cache_salt: str = "",
    ) -> None:
        self._port = port
        self._id = None if state is None else state.context  # before what may fail: the finalizer looks at it
        self._asked = CreateContext(model, cache_salt)
        check_create(self._asked)
        self._length = 0 if state is None else state.length
        self._open_turn = open_turn
        self._open_at: list[int] = [self._length] if open_turn else []
        self._parts: list[Part] = []
        self.chat = bool(self._open_at)  # it holds a conversation, and not raw text alone
        self.dialogue = Dialogue()
        self._generation: GenerationStream | None = None
        self._sending: asyncio.Task[None] | None = None  # of what was buffered, until somebody has waited for its end
        self._released = False
        self.restored = 0
        self.recomputed = 0
        self._lock = asyncio.Lock()

    @classmethod
    async def opened(cls, request: OpenSaved | TakeSaved | ImportContext) -> ContextHandle:
        """Return the handle of a context that comes out of a snapshot."""
        port = current_port()
        await port.release_abandoned()
        reply: Opened = await port.transport.call(request)
        handle = cls(port, state=ContextState(reply.context, reply.length, reply.pending))
        handle.restored, handle.recomputed = reply.restored, reply.recomputed
        handle._open_at = list(reply.open_turns)
        handle.chat = bool(reply.open_turns)
        handle.dialogue.known = False
        handle.restore_turn()
        return handle

    @property
    def length(self) -> int:
        """Tokens that the context holds, as the last reply said and as steps were delivered since."""
        return self._length

    @property
    def model(self) -> str:
        """The name that the context was made with, "" for the default model."""
        return self._asked.model

    @property
    def released(self) -> bool:
        """True if :meth:`release` was called."""
        return self._released

    @property
    def port(self) -> Port:
        """The connection that carries the operations. Raises Unavailable if the program is not connected."""
        if self._port is None:
            self._port = current_port()
        return self._port

    @property
    def transport(self) -> Transport:
        """The port's transport."""
        return self.port.transport

    def check(self) -> None:
        """Raises InvalidRequest once the context is released."""
        if self._released:
            raise InvalidRequest("this context was released; make a new one")

    def add(self, part: Part) -> None:
        """Buffer a part. A generation that runs on the context delivers no more steps."""
        self.check()
        if self._generation is not None:
            self._generation.leave()
        self._parts.append(part)

    async def prepare(self, *, cue: bool = False) -> int:
        """End the generation that runs on the context, send what is buffered, and return the context's id.

        ``cue``: then start the assistant's turn, where a turn was left open.
        """
        async with self._lock:
            return await (self._prepare_cued() if cue else self._prepare())

    async def attach(self, generation: GenerationStream) -> int:
        """As :meth:`prepare` with a cue, then let ``generation`` own the context."""
        async with self._lock:
            ident = await self._prepare_cued()
            self._generation = generation
            return ident

    def detach(self, generation: GenerationStream, state: ContextState | None) -> None:
        """Let the context go on without ``generation``, which has ended and left ``state``."""
        if self._generation is generation:
            self._generation = None
        self._learn(state)

    async def call(self, request: Any, *, keeps_turn: bool = False) -> Any:
        """Send a request about this context. ``keeps_turn``: it does not change what the context ends with."""
        reply = await self.transport.call(request)
        if not keeps_turn:
            self._open_turn = self.dialogue.known = False
        self._learn(reply)
        return reply

    async def ask(self, asked: Any) -> Any:
        """Send a request about what the context holds with all that is buffered. Its ``context`` is filled in."""
        return await self.call(replace(asked, context=await self.prepare()), keeps_turn=True)

    async def extend(self, asked: Any, *, cue: bool = False) -> Any:
        """As :meth:`ask`, one that appends tokens, and whose reply has the length that the context has then."""
        reply = await self.call(replace(asked, context=await self.prepare(cue=cue)))
        self.learn_length(reply.length)
        return reply

    def learn_length(self, length: int) -> None:
        """Store the context's length where the reply was not a ContextState."""
        self._length = length

    async def fork(self) -> ContextHandle:
        """Return the handle of a copy of this context, which holds what was buffered too.

        A generation that runs goes on; the copy holds what it has delivered.
        """
        await self.port.release_abandoned()
        async with self._lock:
            self.check()
            generation = self._generation
            if generation is not None and generation.running and not self._parts:
                return self._adopt(await self.transport.call(ForkContext(await self._create(), generation.length)))
            context = await self._prepare()
        return self._adopt(await self.call(ForkContext(context), keeps_turn=True))

    async def save(self, request: SaveContext) -> SavedContext:
        """Keep a copy of this context, which holds what was buffered too. A generation that runs goes on."""
        async with self._lock:
            self.check()
            generation = self._generation
            if generation is not None and generation.running and not self._parts:
                asked = replace(request, context=await self._create(), length=generation.length)
                return cast("SavedContext", await self.transport.call(asked))
            context = await self._prepare()
        return cast("SavedContext", await self.call(replace(request, context=context), keeps_turn=True))

    async def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens; the last turn is as open as it was at that length."""
        context = await self.prepare()
        await self.call(TruncateContext(context, length))
        self.restore_turn()
        if length == 0:
            self.dialogue = Dialogue()

    async def rewrite(self, tokens: list[int], *, open_turn: bool) -> None:
        """Make the context hold ``tokens`` and nothing else; what it holds of their beginning stays computed.

        ``open_turn``: the assistant is to speak behind them, and has no turn yet.
        """
        async with self._lock:
            ident = await self._prepare()
            held: list[int] = (await self.transport.call(ContextTokens(ident))).tokens
            same = shared_length(held, tokens)
            if same < len(held):
                self._learn(await self.transport.call(TruncateContext(ident, same)))
            if same < len(tokens):
                self._learn(await self.transport.call(AppendContext(ident, [Part("tokens", tokens=tokens[same:])])))
            self.chat, self._open_turn = True, open_turn
            self._open_at = [length for length in self._open_at if length < self._length]
            self._open_at += [self._length] if open_turn else []

    def _adopt(self, state: ContextState) -> ContextHandle:
        """Return the handle of a copy of this context."""
        copy = ContextHandle(self.port, self._asked.model, state, self._open_turn, self._asked.cache_salt)
        copy._open_at = list(self._open_at)
        copy.chat, copy.dialogue = self.chat, self.dialogue.copy()
        return copy

    def restore_turn(self) -> None:
        """Set whether the last turn is open to what it was when the context had its present length."""
        self._open_at = [length for length in self._open_at if length <= self._length]
        self._open_turn = self._length in self._open_at

    def __del__(self) -> None:
        # A dropped context is released before the next one is made: a finalizer cannot wait for a request.
        if self._id is not None:
            ending = [] if self._generation is None else self._generation.ending
            self.port.abandon([*ending, ReleaseContext(self._id)])

    async def release(self) -> None:
        """Give the context back. Safe to call twice, before the runtime knows the context, and again after it failed."""
        if self._generation is not None:
            self._generation.give_up()
        self._released = True
        self._parts.clear()
        async with self._lock:
            await self._end_generation()
            with contextlib.suppress(InferdError):
                await self._sent()
            if self._id is not None:
                await self.transport.call(ReleaseContext(self._id))
                self._id = None

    def _turn_is_open(self) -> bool:
        if self._parts:
            return self._parts[-1].kind == "message" and self._parts[-1].role in OPENING_ROLES
        return self._open_turn

    async def _prepare_cued(self) -> int:
        self.check()
        await self._sent()
        if self._turn_is_open():
            await self._end_generation()
            self._parts.append(Part("cue"))
        ident = await self._prepare()
        self._open_turn = False
        return ident

    async def _prepare(self) -> int:
        self.check()
        await self._end_generation()
        await self._sent()
        if self._id is None or self._parts:
            # In a task of its own: a task that is cancelled while it waits loses neither the parts nor the open turn.
            self._sending = asyncio.create_task(self._send(), name="inferd context.append")
            self._sending.add_done_callback(retrieve_error)
            await self._sent()
        self.check()
        return await self._create()

    async def _send(self) -> None:
        ident = await self._create()
        if self._parts:
            await self._send_parts(ident)

    async def _sent(self) -> None:
        """Wait until what was buffered has been sent. Raises what the runtime answered, once."""
        sending = self._sending
        if sending is not None:
            try:
                await asyncio.shield(sending)
            finally:
                if sending.done():
                    self._sending = None

    async def _end_generation(self) -> None:
        if self._generation is not None:
            if not self._released:
                self._generation.leave()
            self.detach(self._generation, await self._generation.close())

    async def _create(self) -> int:
        if self._id is None:
            await self.port.release_abandoned()
            state = await self.transport.call(self._asked)
            self._id, self._length = state.context, state.length
        ident: int = self._id
        return ident

    async def _send_parts(self, ident: int) -> None:
        # Parts that the runtime refuses are dropped with the error: the context stays as it was, and can be used on.
        still_open, parts, self._parts = self._turn_is_open(), self._parts, []
        self._learn(await self.transport.call(AppendContext(ident, parts)))
        self.dialogue.add(parts)
        self.chat = self.chat or any(part.kind in ("message", "cue") for part in parts)
        self._open_turn = still_open
        # Parts without tokens close a turn at the length at which it was opened.
        self._open_at = [length for length in self._open_at if length != self._length]
        if still_open:
            self._open_at.append(self._length)

    def _learn(self, reply: object) -> None:
        if isinstance(reply, ContextState) and reply.context == self._id:
            self._length = reply.length


def port_in_force() -> Port | None:
    """Return the current port; None if the program is not connected yet."""
    try:
        return current_port()
    except Unavailable:
        return None
