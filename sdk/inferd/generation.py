"""A running generation, as a program sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from inferd.handle import Handle
from inferd.protocol import (
    CloseGenerate,
    ContextState,
    Generation,
    InferdError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NextSteps,
    NotFound,
    Sampling,
    StartGenerate,
    Step,
    Steps,
    Usage,
)
from inferd.schema import AnyJson, JsonSchema, OutputConstraint, is_complete_json
from inferd.speculation import Drafting, Speculator

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """A generation before it starts: the checked arguments of ``Context.generate``."""

    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...]
    constrain: OutputConstraint | None
    speculator: Speculator | None
    system_speculation: bool

    def request(self, context: int) -> StartGenerate:
        """The operation that starts it."""
        return StartGenerate(
            context=context,
            sampling=self.sampling,
            max_tokens=self.max_tokens,
            stop=list(self.stop),
            constraint=None if self.constrain is None else self.constrain.constraint,
            system_speculation=self.system_speculation,
            program_speculation=self.speculator is not None,
        )


class Ledger:
    """Which steps came and which were delivered. ``delivered`` tokens are the ones that the context has to keep."""

    def __init__(self) -> None:
        self._waiting: deque[Step] = deque()
        self._ended = ""
        self.delivered = 0
        self.steps = 0
        self.drafted = 0
        self.accepted = 0

    def receive(self, reply: Steps) -> None:
        """Take in a reply. Raises InternalError for one that brings nothing, which would be asked for again for
        ever.
        """
        if not reply.steps and not reply.finish:
            raise InternalError("generate.next brought neither a step nor an end")
        self._waiting.extend(reply.steps)
        self._ended = reply.finish

    def deliver(self) -> Step | None:
        """The next step for the program, if one is here."""
        if not self._waiting:
            return None
        step = self._waiting.popleft()
        self.delivered += len(step.tokens)
        self.steps += 1
        self.drafted += step.drafted
        self.accepted += step.accepted
        return step

    @property
    def finish(self) -> str:
        """Why it ended, once every step is delivered; "" before."""
        return "" if self._waiting else self._ended


@dataclass
class Running:
    """A generation that the runtime knows."""

    handle: Handle
    start: Generation
    ledger: Ledger
    drafting: Drafting | None
    max_tokens: int
    shaken: bool = False  # an operation failed: steps may be lost, and the runtime may have closed it already

    async def fetch(self) -> None:
        """Ask for more steps."""
        reply = await self._next() if self.drafting is None else await self._next_drafted(self.drafting)
        self.ledger.receive(reply)

    async def _next(self, draft: list[int] | None = None, positions: list[int] | None = None) -> Steps:
        reply: Steps = await self._call(NextSteps(self.start.generation, draft or [], positions or []))
        return reply

    async def _next_drafted(self, drafting: Drafting) -> Steps:
        # The model always adds one token of its own, so a longer draft could not be delivered.
        draft, positions = drafting.propose(max(self.max_tokens - self.ledger.delivered - 1, 0))
        try:
            reply = await self._next(draft, positions)
        except InvalidRequest as error:
            if not draft:
                raise
            self.shaken = False  # the runtime refused the draft, and did nothing
            drafting.give_up(error.message)
            return await self._next()
        tokens = [token for step in reply.steps for token in step.tokens]
        drafting.settle(sum(step.accepted for step in reply.steps), tokens)
        return reply

    async def close(self) -> ContextState | None:
        """End it; the context keeps what was delivered. None where the runtime had closed it by itself."""
        maybe_closed = self.shaken
        try:
            state: ContextState = await self._call(CloseGenerate(self.start.generation, self.ledger.delivered))
        except NotFound:
            if maybe_closed:
                return None
            raise
        return state

    async def _call(self, request: Any) -> Any:
        before, self.shaken = self.shaken, True
        reply = await self.handle.transport.call(request)
        self.shaken = before
        return reply


class Generator(Generic[T]):
    """Steps of generated text: what ``Context.generate`` returns. Nothing is sent before the first step is asked for.

    Use it once, in one of two ways: iterate it with ``async for step in generator``, or await one of
    :meth:`collect_text`, :meth:`collect_tokens` and :meth:`collect_json`. A second use raises InvalidRequest.

    A :class:`~inferd.protocol.Step` holds ``tokens`` (end-of-text excluded), the ``text`` that they complete (a
    character that spans several tokens comes with its last one), and how many tokens were ``drafted`` and
    ``accepted`` by speculation. One step may carry several tokens, so count tokens, not steps.

    The loop may be left at any point, by ``break`` or by an exception: the context then holds exactly the tokens of
    the steps that were delivered. The context does this itself before its next operation; ``await
    generator.aclose()`` or ``async with generator:`` does it at once. While a generation runs, it owns its context:
    any operation on the context ends the generation, and iterating it further raises InvalidRequest.
    """

    def __init__(self, handle: Handle, plan: Plan) -> None:
        self._handle = handle
        self._plan = plan
        self._ledger = Ledger()
        self._starting: asyncio.Task[Running] | None = None
        self._running: Running | None = None
        self._claimed = False
        self._left = False
        self._over = False
        self._busy = False
        self._closed_early = False

    @property
    def finish(self) -> str:
        """Why it ended: ``stop`` (end-of-text, a stop string, or a complete constraint), ``length`` (``max_tokens``
        or a full context), ``closed`` (left early); "" while it goes on.
        """
        return "closed" if self._closed_early else self._ledger.finish

    @property
    def usage(self) -> Usage:
        """Counters of what was delivered so far: ``tokens``, ``steps``, ``drafted``, ``accepted``; and
        ``prompt_tokens``, the context's length at the start (0 before the first step).
        """
        ledger, running = self._ledger, self._running
        prompt = 0 if running is None else running.start.position
        return Usage(prompt, ledger.delivered, ledger.steps, ledger.drafted, ledger.accepted)

    @property
    def busy(self) -> bool:
        """Whether a task is waiting for the next step right now."""
        return self._busy

    def leave(self) -> None:
        """Never be iterated again. Called by the context before it changes."""
        self._left = True

    def ending(self) -> list[Any]:
        """The requests that end it in the runtime, for a context that nobody holds any more."""
        return [] if self._running is None else [CloseGenerate(self._running.start.generation, self._ledger.delivered)]

    def __aiter__(self) -> Generator[T]:
        self._claim()
        return self

    async def __anext__(self) -> Step:
        if self._busy:
            raise InvalidRequest("two tasks iterate one generator: give each task a generator of its own")
        self._busy = True
        try:
            step = await self._next()
        finally:
            self._busy = False
        if step is None:
            await self.aclose()
            raise StopAsyncIteration
        return step

    async def aclose(self) -> None:
        """End the generation now; the context keeps the tokens of the delivered steps. Safe to call twice.

        Raises InvalidRequest while another task waits for a step.
        """
        if self._busy:
            raise InvalidRequest("the generator is waiting for a step in another task: cancel that task first")
        if self._over:
            return
        running = await self._started()
        state = None if running is None else await running.close()
        self._over = True
        self._closed_early = not self._ledger.finish
        self._handle.take_back(self, state)

    async def __aenter__(self) -> Generator[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def collect_tokens(self) -> list[int]:
        """All tokens, to the end."""
        return [token for step in await self._collect() for token in step.tokens]

    async def collect_text(self) -> str:
        """All text, to the end. It may have ended early: :attr:`finish` tells."""
        return "".join([step.text for step in await self._collect()])

    async def collect_json(self) -> T:
        """All text, parsed as JSON into the type of ``constrain=JsonSchema(...)``; plain values without such a type.

        Raises LimitExceeded, which names ``max_tokens``, when the generation ended before the JSON was complete, and
        ConstraintError when the text is not JSON of that type or repeats a key (possible only without a constraint that
        demands it). Never returns part of an object.
        """
        text = await self.collect_text()
        if self.finish == "length" and not is_complete_json(text):
            raise self._cut_short()
        constrain = self._plan.constrain
        parser: OutputConstraint = constrain if isinstance(constrain, (JsonSchema, AnyJson)) else AnyJson()
        value: T = parser.parse(text)
        return value

    def _claim(self) -> None:
        if self._claimed:
            raise InvalidRequest("a generator is used once: call generate() again")
        self._claimed = True

    async def _collect(self) -> list[Step]:
        return [step async for step in self]

    async def _next(self) -> Step | None:
        if self._left and not self._ledger.finish:
            raise InvalidRequest("the context was used while it was generated on, which ended the generation")
        if self._over:
            return None
        if self._running is None:
            self._running = await self._begin()
        while True:
            step = self._ledger.deliver()
            if step is not None:
                self._handle.learn_length(self._running.start.position + self._ledger.delivered)
                return step
            if self._ledger.finish:
                return None
            if self._running.shaken:
                raise InvalidRequest("waiting for a step failed or was cancelled, which ended the generation")
            await self._running.fetch()

    async def _begin(self) -> Running:
        context = await self._handle.hand_to(self)
        # In a task of its own: if the waiting task is cancelled now, the start still tells which generation to close.
        self._starting = asyncio.create_task(self._start(context), name="inferd generate.start")
        try:
            return await asyncio.shield(self._starting)
        except InferdError:
            self._over = self._closed_early = True
            self._handle.take_back(self, None)
            raise

    async def _start(self, context: int) -> Running:
        start: Generation = await self._handle.transport.call(self._plan.request(context))
        speculator = self._plan.speculator
        drafting = None if speculator is None else Drafting(speculator, start)
        return Running(self._handle, start, self._ledger, drafting, self._plan.max_tokens)

    async def _started(self) -> Running | None:
        """The generation in the runtime, after a start that a cancelled task left behind; None where there is none."""
        if self._running is None and self._starting is not None:
            with contextlib.suppress(InferdError):  # it was told, or it was cancelled and nobody waits for the reason
                self._running = await self._starting
        return self._running

    def _cut_short(self) -> LimitExceeded:
        made, allowed = self._ledger.delivered, self._plan.max_tokens
        if made < allowed:
            message = f"the context was full after {made} tokens, before the JSON was complete"
            return LimitExceeded(
                message, limit="max_context", raise_with="a model with a longer context, or a shorter prompt"
            )
        message = f"max_tokens={allowed} ended the generation before the JSON was complete"
        return LimitExceeded(message, limit="max_tokens", value=allowed, raise_with="generate(max_tokens=...)")
