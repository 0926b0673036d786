"""One generation: sends its requests, buffers the steps that arrive, and ends it.

Nothing here refers to the context's handle, which refers to the stream: a context that a program drops is freed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from inferd.calls.constraint_runner import ConstraintRunner
from inferd.calls.generate_arguments import GenerateArguments
from inferd.calls.generation_state import GenerationEvent, GenerationState, Lifecycle
from inferd.calls.outcomes import retrieve_error
from inferd.calls.sampler_runner import SamplerRunner
from inferd.calls.speculator_runner import NO_DRAFT, CheckedDraft, SpeculatorRunner
from inferd.protocol import (
    CheckedKeyword,
    CloseGenerate,
    ContextState,
    GenerationStarted,
    InferdError,
    InternalError,
    InvalidRequest,
    NextSteps,
    NotFound,
    Step,
    Steps,
    TruncateContext,
    Usage,
    check_next_steps,
)
from inferd.speculation_stats import SpeculationStats
from inferd.transport import Transport


class StepBuffer:
    """Steps that arrived and were not delivered yet, and counts of those that were.

    ``delivered``: tokens of the delivered steps. ``keep``: what the context keeps of the generation, as in CloseGenerate.
    """

    def __init__(self) -> None:
        self._waiting: deque[Step] = deque()
        self._ended = ""
        self.delivered = 0
        self.keep = 0
        self.stats = SpeculationStats()
        self.checked: list[CheckedKeyword] = []
        self.stopped_by = ""
        self.stop_token: int | None = None
        self.session_usage: Usage | None = None
        self.cached = 0

    def receive(self, reply: Steps) -> None:
        """Add the steps of a reply. Raises InternalError if it brings neither a step nor an end: asking again would never
        end.
        """
        if not reply.steps and not reply.finish:
            raise InternalError("generate.next brought neither a step nor an end")
        self._waiting.extend(reply.steps)
        self._ended = reply.finish
        self.checked = list(reply.checked)
        self.stopped_by = reply.stopped_by
        self.stop_token = reply.stop_token
        self.session_usage = next(iter(reply.usage), None)
        self.cached = max(self.cached, reply.cached)

    def deliver(self) -> Step | None:
        """Remove and return the next step; None if there is none. Reading past the end keeps end-of-text in the context, too."""
        if not self._waiting:
            self.keep = -1 if self._ended else self.delivered
            return None
        step = self._waiting.popleft()
        self.delivered = self.keep = self.delivered + len(step.tokens)
        self.stats = self.stats.plus(step)
        return step

    def deliver_all(self) -> list[Step]:
        """Remove and return all steps; an empty list if there is none, which counts as reading past the end."""
        steps = list(self._waiting)
        if not steps:
            self.deliver()
            return steps
        self._waiting.clear()
        self.delivered = self.keep = self.delivered + sum(len(step.tokens) for step in steps)
        self.stats = self.stats.plus_all(steps)
        return steps

    @property
    def ready(self) -> int:
        """Steps that have come and were not delivered."""
        return len(self._waiting)

    @property
    def is_empty(self) -> bool:
        """True while there is neither a step nor the end."""
        return not self._waiting and not self._ended

    @property
    def finish(self) -> str:
        """The reason of the generation's end, once every step is delivered; "" before."""
        return "" if self._waiting else self._ended


class RunningGeneration:
    """The requests of a generation that the runtime has started."""

    def __init__(
        self, transport: Transport, context: int, arguments: GenerateArguments, start: GenerationStarted
    ) -> None:
        self.position = start.position
        self._transport = transport
        self._context = context
        self._generation = start.generation
        self._heals = arguments.heal
        self._asked_to_close = False
        self._max_tokens = arguments.max_tokens
        self._speculator = None if arguments.speculator is None else SpeculatorRunner(arguments.speculator, start)
        own = arguments.own_constraint
        self._constraint = None if own is None else ConstraintRunner(own)
        self._chooser = None if arguments.chooser is None else SamplerRunner(arguments.chooser, start)
        self._answered = True  # otherwise the runtime may have closed the generation by itself
        self._closed: ContextState | None = None
        """The state of the context, where the generation's end has closed it."""

    def ending(self, keep: int) -> CloseGenerate:
        """Return the request that ends it and keeps ``keep`` tokens."""
        return CloseGenerate(self._generation, keep)

    async def fetch(self, delivered: int, least: int = 1) -> Steps:
        """Ask for more steps behind ``delivered`` tokens, ``least`` at a time where none of them waits for the program.

        With more than one at a time nobody looks at them before the end, and the generation is closed with its last step. Raises
        what the runtime answers, or the program's constraint or sampler raises.
        """
        if self._constraint is not None:
            return await self._fetch_masked(self._constraint)
        if self._chooser is not None:
            return await self._fetch_chosen(self._chooser)
        if self._speculator is not None:
            # The model always adds one token of its own, so a longer draft could not be delivered.
            return await self._fetch_drafted(self._speculator, max(self._max_tokens - delivered - 1, 0), least)
        return await self._fetch(least=least)

    async def close(self, keep: int) -> ContextState | None:
        """End it, and keep ``keep`` tokens. Returns None if a request had failed and the runtime had closed it then."""
        if self._closed is not None:
            return self._closed
        maybe_closed = not self._answered
        try:
            state: ContextState = await self._call(self.ending(keep))
        except NotFound:
            if not maybe_closed:
                raise
            return await self._as_delivered(keep)
        return state

    async def _as_delivered(self, keep: int) -> ContextState | None:
        """Cut the context to what was delivered, if the lost answer was the end, which closed the generation."""
        if not self._asked_to_close or keep < 0 or self._heals:  # a healed prompt may end otherwise now
            return None
        state: ContextState = await self._call(TruncateContext(self._context, self.position + keep))
        return state

    async def _fetch(self, draft: CheckedDraft = NO_DRAFT, least: int = 1) -> Steps:
        drafted = list(draft.tokens), list(draft.positions), list(draft.parents)
        sent = NextSteps(self._generation, *drafted, least=least, joined=least > 1, closes=least > 1)
        self._asked_to_close = sent.closes
        check_next_steps(sent)
        reply: Steps = await self._call(sent)
        self._closed = next(iter(reply.context), None)
        return reply

    async def _fetch_drafted(self, speculator: SpeculatorRunner, room: int, least: int) -> Steps:
        draft = await speculator.propose(room)
        try:
            reply = await self._fetch(draft, least)
        except InvalidRequest as error:
            if not draft.tokens:
                raise
            speculator.turn_off(error.message)  # the runtime refused the draft, and did nothing
            reply = await self._fetch(least=least)
        tokens = [token for step in reply.steps for token in step.tokens]
        await speculator.record(sum(step.accepted for step in reply.steps), tokens)
        return reply

    async def _fetch_masked(self, constraint: ConstraintRunner) -> Steps:
        mask = await constraint.next_mask()
        tokens, bits = (None, "") if mask is None else mask.to_wire()
        sent = NextSteps(self._generation, mask=tokens, mask_bits=bits)
        check_next_steps(sent)
        reply: Steps = await self._call(sent)
        constraint.record([token for step in reply.steps for token in step.tokens])
        return reply

    async def _fetch_chosen(self, chooser: SamplerRunner) -> Steps:
        """Send the token that the program chooses. The first answer brings no step, but the first row to choose from."""
        while True:
            sent = NextSteps(self._generation, token=await chooser.next_token())
            check_next_steps(sent)
            reply: Steps = await self._call(sent)
            chooser.record([token for step in reply.steps for token in step.tokens], reply.candidates)
            if reply.steps or not reply.candidates:
                return reply

    async def _call(self, request: Any) -> Any:
        self._answered = False
        reply = await self._transport.call(request)
        self._answered = True
        return reply


class GenerationStream:
    """One generation on a context: started at most once, stepped, and closed.

    Raises InvalidRequest from whatever its state does not allow (:class:`~inferd.calls.generation_state.Lifecycle`).
    """

    def __init__(self, arguments: GenerateArguments) -> None:
        self.arguments = arguments
        self.least = 1
        """How many steps to ask for at a time: more than one if they are only read at the end."""
        self._lifecycle = Lifecycle()
        self._closing = asyncio.Lock()  # of its reader at the end, and of who releases the context at that moment
        self._buffer = StepBuffer()
        self._starting: asyncio.Task[RunningGeneration] | None = None
        self._running: RunningGeneration | None = None

    @property
    def starts(self) -> bool:
        """True while the first step is asked for and the start is not sent yet."""
        return self._lifecycle.state is GenerationState.PREPARING

    @property
    def running(self) -> bool:
        """True if the runtime generates and no task waits for a step."""
        return self._lifecycle.state is GenerationState.RUNNING

    @property
    def delivered(self) -> int:
        """Tokens of the steps that were delivered."""
        return self._buffer.delivered

    @property
    def ready(self) -> int:
        """As ``Generator.ready``."""
        return self._buffer.ready

    @property
    def position(self) -> int:
        """Tokens that the context held when the generation started; 0 before."""
        return 0 if self._running is None else self._running.position

    @property
    def length(self) -> int:
        """Tokens that the context holds, those that were delivered included; 0 before the start."""
        return 0 if self._running is None else self.position + self.delivered

    @property
    def checked(self) -> list[CheckedKeyword]:
        """As ``Generator.checked``."""
        return list(self._buffer.checked)

    @property
    def finish(self) -> str:
        """As ``Generator.finish``."""
        over = self._lifecycle.state in (GenerationState.LEFT, GenerationState.CLOSED)
        return self._buffer.finish or ("closed" if over else "")

    @property
    def closed(self) -> bool:
        """True once it was read to its end, or ended by the generator."""
        return self._lifecycle.state is GenerationState.CLOSED

    @property
    def stopped_by(self) -> str:
        """As ``Generator.stopped_by``."""
        return self._buffer.stopped_by if self.finish else ""

    @property
    def stop_token(self) -> int | None:
        """As ``Generator.stop_token``."""
        return self._buffer.stop_token if self.finish else None

    @property
    def session_usage(self) -> Usage | None:
        """What the session had used when it ended; None before, and where it was left early."""
        return self._buffer.session_usage if self.finish else None

    @property
    def cached(self) -> int:
        """How many tokens of the prompt it did not compute itself; 0 before the first step."""
        return self._buffer.cached

    @property
    def stats(self) -> SpeculationStats:
        """As ``Generator.speculation``, for this attempt."""
        return self._buffer.stats

    @property
    def ending(self) -> list[Any]:
        """The requests that end it, for a context that the program dropped."""
        over = self._lifecycle.state in (GenerationState.LEFT, GenerationState.CLOSED)
        return [] if over or self._running is None else [self._running.ending(self._buffer.keep)]

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """While the block runs, this task alone may use the generation and its context."""
        self._lifecycle.on(GenerationEvent.ASK)
        try:
            yield
        finally:
            self._lifecycle.on(GenerationEvent.FINISH if self._buffer.finish else GenerationEvent.RETURN)

    async def start(self, transport: Transport, context: int) -> None:
        """Start it. Raises what the runtime answers; then it is closed."""
        self._lifecycle.on(GenerationEvent.SEND)
        # In a task of its own: if the waiting task is cancelled now, the start still tells which generation to close.
        self._starting = asyncio.create_task(self._start(transport, context), name="inferd generate.start")
        self._starting.add_done_callback(retrieve_error)
        try:
            self._running = await asyncio.shield(self._starting)
        except InferdError:
            self._lifecycle.on(GenerationEvent.REFUSE)
            raise
        if not self._lifecycle.overtaken:  # else the next request is refused
            self._lifecycle.on(GenerationEvent.ANSWER)

    async def step(self) -> Step | None:
        """Return the next step; None at the end. Call it while :meth:`asking`."""
        return self._buffer.deliver() if await self._filled() else None

    async def steps(self) -> list[Step]:
        """Return the next steps, as many as there are; none at the end. Call it while :meth:`asking`."""
        return self._buffer.deliver_all() if await self._filled() else []

    async def _filled(self) -> bool:
        """Ask for steps until there is one, or the end. False if the generation was closed, or never started."""
        running = self._running
        if running is None or self._lifecycle.state is GenerationState.CLOSED:
            return False
        while self._buffer.is_empty:
            self._lifecycle.on(GenerationEvent.SEND)
            try:
                reply = await running.fetch(self._buffer.delivered, self.least)
            except InferdError:
                if self._lifecycle.overtaken:  # by its end: the error is of that
                    self._lifecycle.on(GenerationEvent.ANSWER)
                raise
            self._lifecycle.on(GenerationEvent.ANSWER)
            self._buffer.receive(reply)
        return True

    def leave(self) -> None:
        """Deliver no more steps, because the context is about to change."""
        self._lifecycle.on(GenerationEvent.LEAVE)

    def give_up(self) -> None:
        """Deliver no more steps, because the context is released. A task that waits for one gets InvalidRequest."""
        self._lifecycle.on(GenerationEvent.RELEASE)

    async def close(self) -> ContextState | None:
        """End it in the runtime if it runs there. Safe to call twice, and again after it failed."""
        async with self._closing:
            return await self._close()

    async def _close(self) -> ContextState | None:
        self._lifecycle.on(GenerationEvent.CLOSE)
        if self._lifecycle.state in (GenerationState.LEFT, GenerationState.CLOSED):
            return None
        running = await self._started()
        state = None if running is None else await running.close(self._buffer.keep)
        self._lifecycle.on(GenerationEvent.RELEASED)
        return state

    async def _start(self, transport: Transport, context: int) -> RunningGeneration:
        start: GenerationStarted = await transport.call(self.arguments.request(context))
        return RunningGeneration(transport, context, self.arguments, start)

    async def _started(self) -> RunningGeneration | None:
        """Return what the runtime started, which a cancelled task may not have waited for; None if it started nothing."""
        if self._running is None and self._starting is not None:
            with contextlib.suppress(InferdError):  # raised to the task that started it, unless that was cancelled
                self._running = await asyncio.shield(self._starting)
        return self._running
