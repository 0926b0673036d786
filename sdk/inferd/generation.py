"""``Generator``: what ``Context.generate`` returns, an asynchronous iterator over the steps of a generation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, TypeVar

from inferd.calls.context_handle import ContextHandle
from inferd.calls.generate_arguments import GenerateArguments
from inferd.calls.generation_stream import GenerationStream
from inferd.calls.streamed import Streamed
from inferd.calls.thought_filter import ThoughtFilter
from inferd.partial import Partial, PartialJson
from inferd.protocol import (
    MOST_JOINED,
    CheckedKeyword,
    ConstraintError,
    ContextTokens,
    InferdError,
    InvalidRequest,
    Part,
    Step,
    Truncated,
    Usage,
)
from inferd.schema import AnyJson, OutputConstraint, is_complete_json
from inferd.speculation_stats import SpeculationCycle, SpeculationStats

T = TypeVar("T")
ASK_AGAIN = "That answer is not valid: {problem}{place}. Give the whole answer again, corrected."
USED_ONCE = "a generator is used once: call generate() again"
GO_ON = "\n\nThat is not valid: {problem}{place}. The whole answer again, corrected:\n"


class Generator(Streamed, Generic[T]):
    """Steps of generated text: what ``Context.generate`` returns. Nothing is sent before the first step is asked for.

    Use it once, in one of three ways: iterate it with ``async for step in generator``, await one of
    :meth:`collect_text`, :meth:`collect_tokens` and :meth:`collect_json`, or iterate :meth:`stream_json`. A second use
    raises InvalidRequest.

    A :class:`~inferd.protocol.Step` holds ``tokens`` (end-of-text excluded), the ``text`` that they complete (a
    character that spans several tokens comes with its last one), and how many tokens were ``drafted`` and
    ``accepted`` by speculation. One step may carry several tokens, so count tokens, not steps.

    The loop may be left at any point, by ``break`` or by an exception: the context then holds exactly the tokens of
    the steps that were delivered. Another loop goes on behind them, until the generation is ended: the context does this
    itself before its next operation; ``await generator.aclose()`` or ``async with generator:`` does it at once. While a
    generation runs, it owns its context: any operation on the context but ``fork`` ends it, and iterating it further
    raises InvalidRequest.
    """

    instead = "await its collect_text(), collect_tokens() or collect_json(), or iterate it with `async for`"

    def __init__(self, handle: ContextHandle, arguments: GenerateArguments) -> None:
        self._handle = handle
        self._stream = GenerationStream(arguments)
        self._failed: GenerationStream | None = None  # the first of two attempts
        self._claimed = False

    @property
    def finish(self) -> str:
        """The reason of its end: ``stop`` (end-of-text, a stop string, or a complete constraint, to which ``on_length`` may have
        steered), ``length`` (``max_tokens`` or a full context), ``closed`` (left early, or refused); "" while it goes on.
        """
        return self._stream.finish

    @property
    def ready(self) -> int:
        """How many steps have come already: the next so many are delivered without waiting."""
        return self._stream.ready

    @property
    def stopped_by(self) -> str:
        """At its end the one of ``stop`` that ended it, "" for any other end. It is not part of the text."""
        return self._stream.stopped_by

    @property
    def stop_token(self) -> int | None:
        """The token that ended the text, end-of-text included; None for any other end, and while it goes on."""
        return self._stream.stop_token

    @property
    def usage(self) -> Usage:
        """Counters of what was delivered so far: ``tokens``, ``steps``, ``drafted``, ``accepted``; and
        ``prompt_tokens``, the context's length at the start (0 before the first step), with ``cached_tokens``, how many of these
        it did not compute itself: they were computed before, or found by prefix. A second attempt counts, too.
        """
        attempts = [self._stream] if self._failed is None else [self._failed, self._stream]
        tokens, done = sum(attempt.delivered for attempt in attempts), self.speculation
        return Usage(attempts[0].position, tokens, done.steps, done.drafted, done.accepted, attempts[0].cached)

    @property
    def session_usage(self) -> Usage | None:
        """At its end what the program, or script, has used in all until then; None before, and where it was left early."""
        return self._stream.session_usage

    @property
    def speculation(self) -> SpeculationStats:
        """Counters of drafts, over the steps that were delivered so far. A second attempt counts, too."""
        done = self._stream.stats
        return done if self._failed is None else self._failed.stats + done

    @property
    def checked(self) -> list[CheckedKeyword]:
        """At the end of a ``best_effort`` constraint: the keywords that no mask held, with their JSON pointers in the
        schema. The text was checked for them when it was finished. Empty before, and for every other constraint.
        """
        return self._stream.checked

    def __aiter__(self) -> Generator[T]:
        if self._claimed and self._stream.closed:
            raise InvalidRequest(USED_ONCE)
        self._claimed = True
        return self

    async def __anext__(self) -> Step:
        with self._stream.asking():
            step = await self._next()
        if step is None:
            await self.aclose()
            self._refuse_a_cut()
            raise StopAsyncIteration
        return step

    async def aclose(self) -> None:
        """End the generation now; the context keeps the tokens of the delivered steps. Safe to call twice.

        Raises InvalidRequest while another task waits for a step.
        """
        self._handle.detach(self._stream, await self._stream.close())

    async def __aenter__(self) -> Generator[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def collect_tokens(self) -> list[int]:
        """Return all tokens, to the end."""
        return [token for step in await self._collect() for token in step.tokens]

    async def collect_text(self) -> str:
        """Return all text, to the end. It may have ended early: :attr:`finish` tells."""
        return "".join([step.text for step in await self._collect()])

    async def collect_json(self) -> T:
        """Return all text, parsed as JSON into the type of ``constrain=JsonSchema(...)``; plain values without such a type.
        What the model thought first (``reasoning=``) is left out.

        With a constraint whose end is found, the JSON is complete within ``max_tokens`` (see ``on_length`` of
        :meth:`~inferd.Context.generate`): near them it is steered to the nearest end that the constraint allows. Raises
        Truncated, a LimitExceeded which names ``max_tokens``, at the start when the shortest JSON needs more, and otherwise
        when the generation ended before the JSON was complete; ConstraintError when the text is not JSON of that type or
        repeats a key (possible only without a constraint that demands it). Never returns part of an object.

        With ``mode="best_effort"`` a text that fails is tried again once: in a fork of the context the model is told the
        error and answers again, and that answer takes the place of the failed one, as if it had come first. If it
        fails, too, ConstraintViolated is raised, and the context holds neither answer.
        """
        self._expect_json()
        try:
            return await self._read_json()
        except ConstraintError as error:
            if not self._stream.arguments.best_effort or self._stream.position == 0:
                raise
            failed = error
        return await self._answer_again(failed)

    async def stream_json(self) -> AsyncIterator[Partial[T]]:
        """Yield the JSON while it is written: a :class:`~inferd.Partial` for each step that shows something new, and last the
        complete one, whose ``result`` is what :meth:`collect_json` returns.

        A part is checked against the type when it is finished, and not before: a string, number or word at its end, an object
        (its missing and unknown keys) at its bracket. Parts of unions are checked with the whole union, those of pydantic
        models with the whole model. Without a type, parts are checked to be JSON without repeated keys.

        Raises what :meth:`collect_json` raises, as soon as a part fails. There is no second attempt: parts of the first
        were handed out.
        """
        self._expect_json()
        self._claim()
        parser, text = self._json_parser(), list[str]()
        reader, answer = PartialJson(parser.expected), ThoughtFilter(self._stream.arguments.reasoning)
        async for step in self:
            text.append(answer.take(step.text))
            if reader.feed(text[-1]):
                yield reader.snapshot()
        value: T = self._parsed("".join(text), parser)
        reader.end()
        yield replace(reader.snapshot(), complete=True, result=value)

    def _claim(self) -> None:
        """Refuse to read all of what is read in part already."""
        if self._claimed:
            raise InvalidRequest(USED_ONCE)
        self._claimed = True

    def _expect_json(self) -> None:
        if not self._claimed:
            self._stream.arguments = self._stream.arguments.for_json()

    async def _collect(self) -> list[Step]:
        """Return all steps, to the end: many at a time where nobody looks at each of them."""
        self._claim()
        if self._stream.arguments.on_cycle is not None:
            return [step async for step in self]
        self._stream.least = MOST_JOINED
        steps: list[Step] = []
        while some := await self._several():
            steps += some
        await self.aclose()
        self._refuse_a_cut()
        return steps

    async def _several(self) -> list[Step]:
        with self._stream.asking():
            if self._stream.starts:
                await self._start()
            steps = await self._stream.steps()
            if steps:
                self._handle.learn_length(self._stream.length)
                self._handle.dialogue.hear("".join([step.text for step in steps]))
        return steps

    async def _read_json(self) -> T:
        answer = ThoughtFilter(self._stream.arguments.reasoning)
        value: T = self._parsed(answer.take(await self.collect_text()), self._json_parser())
        return value

    def _parsed(self, text: str, parser: OutputConstraint) -> Any:
        if self.finish == "length" and not is_complete_json(text):
            raise self._cut_short("the JSON")
        constraint = self._stream.arguments.constraint
        try:
            return parser.parse(text)
        except ConstraintError as error:
            if constraint is None or constraint.json_parser() is not None:
                raise
            kind = type(constraint).__name__
            message = f"{error.message}; {kind} allows texts that are no JSON: collect_text() returns what was written"
            raise ConstraintError(message) from error

    def _json_parser(self) -> OutputConstraint:
        constraint = self._stream.arguments.constraint
        return (None if constraint is None else constraint.json_parser()) or AnyJson()

    async def _answer_again(self, error: ConstraintError) -> T:
        """Make the second attempt in a fork, and leave the context as if it had been the first. Returns the value."""
        await self.aclose()
        start = self._stream.position
        try:
            value, answer = await self._in_fork(error)
        finally:
            await self._handle.truncate(start)
        self._handle.add(Part("tokens", tokens=answer))
        await self._handle.prepare()
        return value

    async def _in_fork(self, error: ConstraintError) -> tuple[T, list[int]]:
        """Return the second answer's value and its tokens, end-of-text included."""
        copy = await self._handle.fork()
        try:
            copy.add(_feedback(error, chat=copy.chat))
            again: Generator[T] = Generator(copy, self._stream.arguments)
            self._failed, self._stream = self._stream, again._stream
            value = await again._read_json()
            request = ContextTokens(await copy.prepare(), again._stream.position)
            return value, list((await copy.call(request, keeps_turn=True)).tokens)
        finally:
            await copy.release()

    async def _next(self) -> Step | None:
        if self._stream.starts:
            await self._start()
        step = await self._stream.step()
        if step is not None:
            self._handle.learn_length(self._stream.length)
            self._handle.dialogue.hear(step.text)
            if self._stream.arguments.on_cycle is not None:
                self._stream.arguments.on_cycle(SpeculationCycle.of(self._stream.stats.steps, step))
        return step

    async def _start(self) -> None:
        context = await self._handle.attach(self._stream)
        try:
            await self._stream.start(self._handle.transport, context)
        except InferdError:
            self._handle.detach(self._stream, None)
            raise

    def _refuse_a_cut(self) -> None:
        """Raise Truncated for a text that was cut, where the caller wants that to be an error."""
        if self.finish == "length" and self._stream.arguments.on_length == "error":
            raise self._cut_short("the JSON" if self._stream.arguments.reads_json else "the text")

    def _cut_short(self, what: str) -> Truncated:
        made, allowed = self._stream.delivered, self._stream.arguments.max_tokens
        if made < allowed:
            message = f"the context was full after {made} tokens, before {what} was complete"
            advice = "a model with a longer context, or a shorter prompt"
            return Truncated(message, limit="max_context", raise_with=advice)
        message = f"max_tokens={allowed} ended the generation before {what} was complete"
        return Truncated(message, limit="max_tokens", value=allowed, raise_with="max_tokens=...")


def _feedback(error: ConstraintError, *, chat: bool) -> Part:
    """Return what tells the model that its answer failed: a user message, or, behind raw text, more text."""
    pointer = error.detail.get("pointer")
    words = {"problem": error.detail.get("problem", error.message), "place": f" (at {pointer})" if pointer else ""}
    if chat:
        return Part("message", role="user", text=ASK_AGAIN.format(**words))
    return Part("text", text=GO_ON.format(**words))
