"""A running generation, as a program sees it."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

from inferd.delivery import Delivery, Plan
from inferd.handle import Handle
from inferd.protocol import InferdError, InvalidRequest, LimitExceeded, Step, Usage
from inferd.schema import AnyJson, JsonSchema, OutputConstraint, is_complete_json

T = TypeVar("T")


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
    any operation on the context but ``fork`` ends the generation, and iterating it further raises InvalidRequest.
    """

    def __init__(self, handle: Handle, plan: Plan) -> None:
        self._handle = handle
        self._delivery = Delivery(plan)
        self._claimed = False

    @property
    def finish(self) -> str:
        """Why it ended: ``stop`` (end-of-text, a stop string, or a complete constraint), ``length`` (``max_tokens`` or a
        full context), ``closed`` (left early, or refused); "" while it goes on.
        """
        return self._delivery.finish

    @property
    def usage(self) -> Usage:
        """Counters of what was delivered so far: ``tokens``, ``steps``, ``drafted``, ``accepted``; and
        ``prompt_tokens``, the context's length at the start (0 before the first step).
        """
        return self._delivery.usage

    def __aiter__(self) -> Generator[T]:
        if self._claimed:
            raise InvalidRequest("a generator is used once: call generate() again")
        self._claimed = True
        return self

    async def __anext__(self) -> Step:
        if self._delivery.busy:
            raise InvalidRequest("two tasks iterate one generator: give each task a generator of its own")
        self._delivery.check()
        self._delivery.busy = True
        try:
            step = await self._next()
        finally:
            self._delivery.busy = False
        if step is None:
            await self.aclose()
            raise StopAsyncIteration
        return step

    async def aclose(self) -> None:
        """End the generation now; the context keeps the tokens of the delivered steps. Safe to call twice.

        Raises InvalidRequest while another task waits for a step.
        """
        if self._delivery.busy:
            raise InvalidRequest("the generator is waiting for a step in another task: cancel that task first")
        self._handle.take_back(self._delivery, await self._delivery.close())

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
        constrain = self._delivery.plan.constrain
        parser: OutputConstraint = constrain if isinstance(constrain, (JsonSchema, AnyJson)) else AnyJson()
        value: T = parser.parse(text)
        return value

    async def _collect(self) -> list[Step]:
        return [step async for step in self]

    async def _next(self) -> Step | None:
        if not self._delivery.started:
            await self._start()
        step = await self._delivery.step()
        if step is not None:
            self._handle.learn_length(self._delivery.length)
        return step

    async def _start(self) -> None:
        context = await self._handle.hand_to(self._delivery)
        try:
            await self._delivery.start(self._handle.transport, context)
        except InferdError:
            self._handle.take_back(self._delivery, None)
            raise

    def _cut_short(self) -> LimitExceeded:
        made, allowed = self._delivery.delivered, self._delivery.plan.max_tokens
        if made < allowed:
            message = f"the context was full after {made} tokens, before the JSON was complete"
            advice = "a model with a longer context, or a shorter prompt"
            return LimitExceeded(message, limit="max_context", raise_with=advice)
        message = f"max_tokens={allowed} ended the generation before the JSON was complete"
        return LimitExceeded(message, limit="max_tokens", value=allowed, raise_with="generate(max_tokens=...)")
