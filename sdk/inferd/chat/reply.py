"""What a program writes to the client of a chat request."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from inferd import session
from inferd.chat.answer_parser import (
    AnswerParser,
    AnswerPart,
    AnswerShape,
    ArgumentsPart,
    CallPart,
    ReasoningPart,
    TextPart,
)
from inferd.chat.events import (
    ChatEvent,
    ChoiceFinished,
    FinishReason,
    PromptScores,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolArguments,
    ToolCallStarted,
    UsageReport,
    to_message,
)
from inferd.chat.harmony import HarmonyParser, parser_of
from inferd.chat.reasoning_count import ReasoningCount
from inferd.chat.request import ChatRequest
from inferd.chat.token_scores import TokenPlaces, TokenScores
from inferd.generation import Generator
from inferd.protocol import GetUsage, ProgramError, SendMessage, Step, TokenLogprob, Usage
from inferd.transport import current_transport

MESSAGE_KEY = "chat"
"""Of the messages that carry events, so that a program may send messages of its own beside them."""
SCORED_AT_ONCE = 128
"""Log-probabilities in one message, alternatives included: until they are written, collections of garbage look at each."""
MOST_SCORED = 64
"""Tokens of one event that have some: a step brings no more."""


def new_call_id() -> str:
    """Return an id for a tool call."""
    return f"call_{secrets.token_hex(12)}"


def was_cut(parser: AnswerParser | HarmonyParser, generator: Generator[Any]) -> bool:
    """Return True if an answer that was read to its end could have gone on: its tokens were used up.

    A constraint on calls alone calls the end of free text one that it allows.
    """
    if parser.over or generator.finish == "length":
        return not parser.over
    ended = bool(generator.stopped_by) or generator.stop_token is not None
    return generator.finish == "stop" and not ended and parser.is_in_free_text


class Reply:
    """The answers to a request: ``request.n`` of them, counted from 0. Any of them may be written until it is finished.

    The client sees what is written in the order of calls. When the last answer is finished, what the session used is reported.
    ``prompt_length``: the prompt's tokens, where they are known; else the runtime is asked for them. They are reported with the
    first of the text.
    """

    def __init__(self, request: ChatRequest, shape: AnswerShape | None = None, prompt_length: int = 0) -> None:
        self._request = request
        self._shape = shape or AnswerShape()
        self._scores = TokenScores(request.model)
        self._open = set(range(request.n))
        self._calls: dict[int, int] = {}
        self._reasoning = 0
        self._predicted = (0, 0)
        self._prompt: list[int] = []
        self._untold: int | None = prompt_length
        self._used: Usage | None = None

    async def prompt(self, tokens: Sequence[int]) -> None:
        """Tell what the prompt's tokens are, before anything else: for a client that wants token ids."""
        self._prompt, self._untold = list(tokens), None
        told = UsageReport(len(self._prompt), 0, prompt_tokens=self._prompt)
        await session.send({MESSAGE_KEY: [to_message(told)]})

    async def text(self, text: str, *, choice: int = 0) -> None:
        """Write more text of an answer."""
        await self._send([TextDelta(_text("text", text), choice)])

    async def scored_text(
        self, text: str, entries: Sequence[TokenLogprob], *, choice: int = 0, top: int | None = None
    ) -> None:
        """Write a text whose tokens are known with their log-probabilities, in pieces that a message has room for.

        ``top``: tell at most so many alternatives of each.
        """
        at, places = 0, TokenPlaces(text)
        for part in _parts(entries):
            scores = await self._scores.of(part, top=top)
            for score in scores:
                places.of(score)
            end = len(text) if part[-1] is entries[-1] else places.end
            await self._send([TextDelta(_text("text", text[at:end]), choice, scores=scores)])
            at = end

    async def prompt_scores(self, entries: Sequence[TokenLogprob], *, choice: int = 0, top: int | None = None) -> None:
        """Tell how likely the prompt's tokens are, before an answer's text: for a client that asks for ``prompt_logprobs``."""
        for part in _parts(entries):
            await self._send([PromptScores(await self._scores.of(part, top=top), choice)])

    async def reasoning(self, text: str, *, choice: int = 0) -> None:
        """Write more of what was thought before the answer."""
        await self._send([ReasoningDelta(_text("text", text), choice)])

    async def tool_call(self, name: str, arguments: dict[str, Any], *, choice: int = 0) -> None:
        """Ask the client to call a tool."""
        started = self.started(_text("name", name), choice)
        await self._send([started, ToolArguments(started.call, json.dumps(arguments, ensure_ascii=False), choice)])

    async def write(self, generator: Generator[Any], *, choice: int = 0) -> str:
        """Write a generation as an answer while it comes, tool calls and reasoning told apart, finish it, and return its text."""
        answer = _AnswerStream(self, self._shape, choice)
        pieces: list[str] = []
        events: list[ChatEvent] = []
        async for step in generator:
            pieces.append(step.text)
            scores = await self._step_scores(step)
            events += answer.events(step.text, step.tokens if self._request.return_tokens else [], scores)
            answer.count_thought(step.tokens)
            if not generator.ready or answer.over:  # steps that have come together are sent together
                await self._send(events)
                events = []
            if answer.over:  # behind the only call that there may be
                await generator.aclose()
                break
        is_cut = answer.was_cut(generator)
        await self._send(answer.last_events(cut=is_cut))
        self._reasoning += answer.thought
        self._count(generator)
        self._used = _later(self._used, generator.session_usage)
        reason: FinishReason | None = "length" if is_cut else None
        await self._finish(reason, choice, generator.stopped_by, generator.stop_token, self._used)
        return "".join(pieces)

    async def write_text(self, text: str, reason: FinishReason | None = None, *, choice: int = 0) -> None:
        """Write a text that was generated before as a whole answer, as :meth:`write` would have. ``reason``: as in
        :meth:`finish`.
        """
        answer = _AnswerStream(self, self._shape, choice)
        await self._send([*answer.events(text, (), ()), *answer.last_events(cut=reason == "length")])
        await self.finish(reason, choice=choice)

    async def finish(self, reason: FinishReason | None = None, *, choice: int = 0, stopped_by: str = "") -> None:
        """Finish an answer. ``reason`` None: that it calls tools if it does, else that it came to its end.

        Raises ProgramError for one that is finished already.
        """
        await self._finish(reason, choice, stopped_by, None)

    async def _finish(
        self,
        reason: FinishReason | None,
        choice: int,
        stopped_by: str,
        stop_token: int | None,
        used: Usage | None = None,
    ) -> None:
        """Finish an answer. ``used``: what the session has used so far; None: the runtime is asked."""
        self._check(choice)
        reason = reason or ("tool_calls" if self._calls.get(choice) else "stop")
        events = [*await self._early_report(), ChoiceFinished(reason, choice, stopped_by, stop_token)]
        self._open.discard(choice)
        if not self._open:
            events.append(self._report(used or await current_transport().call(GetUsage())))
        await session.send({MESSAGE_KEY: [to_message(event) for event in events]})

    def started(self, name: str, choice: int) -> ToolCallStarted:
        """Return the beginning of an answer's next tool call."""
        call = self._calls.get(choice, 0)
        self._calls[choice] = call + 1
        return ToolCallStarted(call, new_call_id(), name, choice)

    async def _early_report(self) -> list[ChatEvent]:
        """Return the report of the prompt's length, once. It goes with the first text, or the end of an answer that
        has none: what fails before is still refused.
        """
        untold, self._untold = self._untold, None
        if untold is None:
            return []
        if not untold:
            used: Usage = await current_transport().call(GetUsage())
            untold = used.prompt_tokens
        return [UsageReport(untold, 0)] if untold else []

    async def _send(self, events: Sequence[ChatEvent]) -> None:
        for event in events:
            self._check(getattr(event, "choice", 0))
        if events:  # as they are: session.send would look at every value again
            told = [*await self._early_report(), *events]
            await current_transport().call(SendMessage({MESSAGE_KEY: [to_message(event) for event in told]}))

    def _check(self, choice: int) -> None:
        if choice not in self._open:
            raise ProgramError(f"there is no answer {choice} that is not finished; the request wants {self._request.n}")

    async def _step_scores(self, step: Step) -> list[TokenScore]:
        if self._request.logprobs is None:
            return []
        return await self._scores.of(step.logprobs, ranked=not self._request.logprob_tokens)

    def _count(self, generator: Generator[Any]) -> None:
        predicted = generator.speculation.by_source.get("predicted")
        if predicted is not None:
            accepted, rejected = self._predicted
            self._predicted = (accepted + predicted.accepted, rejected + predicted.drafted - predicted.accepted)

    def _report(self, used: Usage) -> UsageReport:
        return UsageReport(
            used.prompt_tokens,
            used.tokens,
            used.cached_tokens,
            self._reasoning,
            used.drafted,
            used.accepted,
            *self._predicted,
            prompt_tokens=self._prompt,
        )


def _text(name: str, value: str) -> str:
    if not isinstance(value, str):  # the program's fault, and not its client's
        raise ProgramError(f"{name} must be a string, not {type(value).__name__}")
    return value


def _parts(entries: Sequence[TokenLogprob]) -> Iterator[Sequence[TokenLogprob]]:
    """Yield the entries of as many tokens as one message has room for."""
    size = max(1, SCORED_AT_ONCE // (1 + max((len(each.top_tokens) for each in entries), default=0)))
    return (entries[start : start + size] for start in range(0, len(entries), size))


def _later(known: Usage | None, told: Usage | None) -> Usage | None:
    """Return what a session had used at the later end of two of its generations; None where the second did not tell."""
    if known is None or told is None:
        return told
    return max(known, told, key=lambda used: (used.tokens, used.prompt_tokens))


class _AnswerStream:
    """Turns one generation's steps into events."""

    def __init__(self, reply: Reply, shape: AnswerShape, choice: int) -> None:
        self._reply = reply
        self._parser = parser_of(shape)
        self._thought = ReasoningCount(*shape.mark_tokens, opened=self._parser.is_thinking)
        self._choice = choice
        self._call = 0
        self._tokens: list[int] = []
        self._scores: list[TokenScore] = []

    def events(self, text: str, tokens: Sequence[int], scores: Sequence[TokenScore]) -> list[ChatEvent]:
        """Return what a step adds. Its tokens go with its first text; where it shows none, with the next."""
        self._tokens += tokens
        self._scores += scores
        return [event for part in self._parser.feed(text) for event in self._events(part)]

    def count_thought(self, tokens: Sequence[int]) -> None:
        """Count the tokens of a step whose events have been taken, as far as they are reasoning."""
        self._thought.take(tokens, is_thinking=self._parser.is_thinking)

    @property
    def thought(self) -> int:
        """How many tokens were reasoning."""
        return self._thought.tokens

    @property
    def over(self) -> bool:
        """True once nothing more can come."""
        return self._parser.over

    def was_cut(self, generator: Generator[Any]) -> bool:
        """Return True if the text could have gone on."""
        return was_cut(self._parser, generator)

    def last_events(self, *, cut: bool) -> list[ChatEvent]:
        """Return what was held back. ``cut``: the text could have gone on."""
        events = [event for part in self._parser.finish(cut=cut) for event in self._events(part)]
        return [*events, *self._events(TextPart(""))] if self._tokens or self._scores else events

    def _events(self, part: AnswerPart) -> list[ChatEvent]:
        """Return a part's events: more than one where many scores have waited for a text, as behind a long call."""
        match part:
            case CallPart(name):
                started = self._reply.started(name, self._choice)
                self._call = started.call
                return [started]
            case ArgumentsPart(text):
                return [ToolArguments(self._call, text, self._choice)]
            case _:
                tokens, scores, self._tokens, self._scores = self._tokens, self._scores, [], []
                delta = ReasoningDelta if isinstance(part, ReasoningPart) else TextDelta
                more = [scores[at : at + MOST_SCORED] for at in range(MOST_SCORED, len(scores), MOST_SCORED)]
                first = delta(part.text, self._choice, tokens, scores[:MOST_SCORED])
                return [first, *(delta("", self._choice, [], each) for each in more)]
