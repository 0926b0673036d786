"""A generation apart from the objects that a program holds: what came from the runtime, and what was handed out.

It does not refer to its context's handle, which refers to it: a context that a program drops is freed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inferd.calls.constraint_runner import ConstraintRunner
from inferd.calls.speculator_runner import NO_DRAFT, CheckedDraft, SpeculatorRunner
from inferd.constraints import StepConstraint
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
    Sampling,
    StartGenerate,
    Step,
    Steps,
    Usage,
)
from inferd.schema import OutputConstraint
from inferd.spec_config import RuntimeDrafts
from inferd.speculation import Speculator
from inferd.speculation_stats import SpeculationCycle, SpeculationStats, SpeculationTally
from inferd.transport import Transport


@dataclass(frozen=True)
class GenerateArguments:
    """A generation before it starts: the checked arguments of ``Context.generate``."""

    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...]
    constrain: OutputConstraint | StepConstraint | None
    speculator: Speculator | None
    drafts: RuntimeDrafts
    adapter: str = ""
    priority: int = 0
    heal: bool = False
    on_cycle: Callable[[SpeculationCycle], object] | None = None
    logprobs: int | None = None

    @property
    def constraint(self) -> OutputConstraint | None:
        """The constraint, where the runtime knows its kind."""
        return self.constrain if isinstance(self.constrain, OutputConstraint) else None

    @property
    def own_constraint(self) -> StepConstraint | None:
        """The constraint, where it is the program's own."""
        return None if isinstance(self.constrain, OutputConstraint) else self.constrain

    @property
    def best_effort(self) -> bool:
        """Whether the finished text is checked, and may fail."""
        return self.constraint is not None and self.constraint.constraint.best_effort

    def request(self, context: int) -> StartGenerate:
        """The operation that starts it."""
        return StartGenerate(
            context=context,
            sampling=self.sampling,
            max_tokens=self.max_tokens,
            stop=list(self.stop),
            constraint=None if self.constraint is None else self.constraint.constraint,
            system_speculation=self.drafts.on,
            program_speculation=self.speculator is not None,
            adapter=self.adapter,
            priority=self.priority,
            program_constraint=self.own_constraint is not None,
            speculation=self.drafts.settings,
            predicted=list(self.drafts.predicted),
            predicted_text=self.drafts.predicted_text,
            heal=self.heal,
            logprobs=self.logprobs,
        )


class StepBuffer:
    """Which steps came and which were delivered. ``delivered`` tokens are the ones that the context has to keep."""

    def __init__(self) -> None:
        self._waiting: deque[Step] = deque()
        self._ended = ""
        self.exhausted = False  # somebody asked for another step, and there was none
        self.delivered = 0
        self.tally = SpeculationTally()
        self.checked: list[CheckedKeyword] = []

    def receive(self, reply: Steps) -> None:
        """Take in a reply. Raises InternalError for one that brings nothing, which would be asked for again for
        ever.
        """
        if not reply.steps and not reply.finish:
            raise InternalError("generate.next brought neither a step nor an end")
        self._waiting.extend(reply.steps)
        self._ended = reply.finish
        self.checked = list(reply.checked)

    def deliver(self) -> Step | None:
        """The next step for the program, if one is here."""
        if not self._waiting:
            self.exhausted = bool(self._ended)
            return None
        step = self._waiting.popleft()
        self.delivered += len(step.tokens)
        self.tally.add(step)
        return step

    @property
    def finish(self) -> str:
        """Why it ended, once every step is delivered; "" before."""
        return "" if self._waiting else self._ended


class RunningGeneration:
    """A generation that the runtime knows, and has to be told the end of."""

    def __init__(
        self, transport: Transport, plan: GenerateArguments, start: GenerationStarted, ledger: StepBuffer
    ) -> None:
        self.position = start.position
        self.shaken = False  # an operation failed: steps may be lost, and the runtime may have closed it already
        self._transport = transport
        self._generation = start.generation
        self._max_tokens = plan.max_tokens
        self._ledger = ledger
        self._drafting = None if plan.speculator is None else SpeculatorRunner(plan.speculator, start)
        self._masking = None if plan.own_constraint is None else ConstraintRunner(plan.own_constraint)

    @property
    def ending(self) -> CloseGenerate:
        """The request that ends it; the context keeps what was delivered, and at the very end what ended it, too."""
        return CloseGenerate(self._generation, -1 if self._ledger.exhausted else self._ledger.delivered)

    async def fetch(self) -> None:
        """Ask for more steps."""
        if self._masking is not None:
            reply = await self._next_masked(self._masking)
        elif self._drafting is not None:
            reply = await self._next_drafted(self._drafting)
        else:
            reply = await self._next()
        self._ledger.receive(reply)

    async def close(self) -> ContextState | None:
        """End it. None where the runtime had closed it by itself."""
        maybe_closed = self.shaken
        try:
            state: ContextState = await self._call(self.ending)
        except NotFound:
            if maybe_closed:
                return None
            raise
        return state

    async def _next(self, draft: CheckedDraft = NO_DRAFT) -> Steps:
        sent = NextSteps(self._generation, list(draft.tokens), list(draft.positions), list(draft.parents))
        reply: Steps = await self._call(sent)
        return reply

    async def _next_drafted(self, drafting: SpeculatorRunner) -> Steps:
        # Cancelled in a speculator's own waiting, the step or what was drafted for it is lost.
        before, self.shaken = self.shaken, True
        # The model always adds one token of its own, so a longer draft could not be delivered.
        draft = await drafting.propose(max(self._max_tokens - self._ledger.delivered - 1, 0))
        try:
            reply = await self._next(draft)
        except InvalidRequest as error:
            if not draft.tokens:
                raise
            drafting.give_up(error.message)  # the runtime refused the draft, and did nothing
            reply = await self._next()
        tokens = [token for step in reply.steps for token in step.tokens]
        await drafting.settle(sum(step.accepted for step in reply.steps), tokens)
        self.shaken = before
        return reply

    async def _next_masked(self, masking: ConstraintRunner) -> Steps:
        # Whatever the program's constraint raises ends the generation: the next mask would not know this step.
        before, self.shaken = self.shaken, True
        mask = await masking.next_mask()
        self.shaken = before
        tokens, bits = (None, "") if mask is None else mask.to_wire()
        reply: Steps = await self._call(NextSteps(self._generation, mask=tokens, mask_bits=bits))
        masking.settle([token for step in reply.steps for token in step.tokens])
        return reply

    async def _call(self, request: Any) -> Any:
        before, self.shaken = self.shaken, True
        reply = await self._transport.call(request)
        self.shaken = before
        return reply


class GenerationStream:
    """One use of a context by a generation: started at most once, then stepped, then closed."""

    def __init__(self, plan: GenerateArguments) -> None:
        self.plan = plan
        self.busy = False  # a task waits for the next step right now
        self._ledger = StepBuffer()
        self._starting: asyncio.Task[RunningGeneration] | None = None
        self._running: RunningGeneration | None = None
        self._left = False
        self._over = False
        self._closed_early = False

    @property
    def started(self) -> bool:
        """Whether the runtime was asked for it, or never will be."""
        return self._starting is not None or self._over

    @property
    def delivered(self) -> int:
        """How many tokens were handed out."""
        return self._ledger.delivered

    @property
    def position(self) -> int:
        """Tokens that the context held when it started; 0 before."""
        return 0 if self._running is None else self._running.position

    @property
    def checked(self) -> list[CheckedKeyword]:
        """As ``Generator.checked``."""
        return list(self._ledger.checked)

    @property
    def running(self) -> bool:
        """Whether it goes on: the runtime knows it, and more may be delivered."""
        return self._running is not None and not (self._over or self._left or self._running.shaken or self.finish)

    @property
    def length(self) -> int:
        """Tokens that the context holds, those that were handed out included."""
        return 0 if self._running is None else self.position + self._ledger.delivered

    @property
    def finish(self) -> str:
        """As ``Generator.finish``."""
        return "closed" if self._closed_early else self._ledger.finish

    @property
    def usage(self) -> Usage:
        """As ``Generator.usage``."""
        done = self._ledger.tally
        return Usage(self.position, self.delivered, done.steps, done.drafted, done.accepted)

    @property
    def steps(self) -> int:
        """How many steps were handed out."""
        return self._ledger.tally.steps

    @property
    def speculation(self) -> SpeculationStats:
        """As ``Generator.speculation``."""
        return self._ledger.tally.stats()

    @property
    def ending(self) -> list[Any]:
        """The requests that end it, for a context that nobody holds any more."""
        return [] if self._over or self._running is None else [self._running.ending]

    def leave(self) -> None:
        """Never deliver again: the context is about to change. Raises InvalidRequest while a task waits for a step."""
        if self.busy:
            raise InvalidRequest("another task waits for a step of the generation on this context: wait, or cancel it")
        self._left = True

    def check(self) -> None:
        """Raises InvalidRequest where going on would leave a gap in the text."""
        if self._left and not self._ledger.finish:
            raise InvalidRequest("the context was used while it was generated on, which ended the generation")
        interrupted = self._starting is not None if self._running is None else self._running.shaken
        if interrupted and not self._over:
            raise InvalidRequest("waiting for a step failed or was cancelled, which ended the generation")

    async def start(self, transport: Transport, context: int) -> None:
        """Start it. Raises what the runtime answers; then it is over."""
        # In a task of its own: if the waiting task is cancelled now, the start still tells which generation to close.
        self._starting = asyncio.create_task(self._start(transport, context), name="inferd generate.start")
        try:
            self._running = await asyncio.shield(self._starting)
        except InferdError:
            self._over = self._closed_early = True
            raise

    async def step(self) -> Step | None:
        """The next step; None at the end."""
        running = self._running
        if self._over or running is None:
            return None
        while True:
            step = self._ledger.deliver()
            if step is not None or self._ledger.finish:
                return step
            await running.fetch()

    async def close(self) -> ContextState | None:
        """End it in the runtime, where it runs there. Safe to call twice, and again after it failed."""
        if self._over:
            return None
        running = await self._started()
        state = None if running is None else await running.close()
        self._over = True
        self._closed_early = not self._ledger.finish
        return state

    async def _start(self, transport: Transport, context: int) -> RunningGeneration:
        start: GenerationStarted = await transport.call(self.plan.request(context))
        return RunningGeneration(transport, self.plan, start, self._ledger)

    async def _started(self) -> RunningGeneration | None:
        """The generation in the runtime, after a start that a cancelled task left behind; None where there is none."""
        if self._running is None and self._starting is not None:
            with contextlib.suppress(InferdError):  # it was told, or it was cancelled and nobody waits for the reason
                self._running = await self._starting
        return self._running
