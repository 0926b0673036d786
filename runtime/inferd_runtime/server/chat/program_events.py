"""The messages of a program as events of an answer: whoever wrote the program, what comes out keeps to the form."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

import msgspec

from inferd.chat.events import (
    EVENT_TYPES,
    KIND,
    ChatEvent,
    ChoiceFinished,
    PromptScores,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallStarted,
    UsageReport,
)
from inferd.chat.reply import MESSAGE_KEY
from inferd.protocol import ProgramError

T = TypeVar("T")
MAX_EVENTS = 4096
"""Events in one message of a program: reading so many takes the gateway about 30 ms."""
MAX_PARTS = 4096
"""Calls, and texts and reasoning in turns, of all answers to a request: clients get an object for each, all at the end."""
MOST_TOKENS = (1 << 53) - 1
MAX_RETURNED = 256 << 10
"""Characters of a text that a program returns instead of writing it."""


class EventReader:
    """Checks the messages of one run that answers a request for ``choices`` answers. One without events is not about them."""

    def __init__(self, choices: int) -> None:
        self._open = set(range(choices))
        self._calls: Counter[int] = Counter()
        self._calling: set[int] = set()
        """Answers whose last event was of a call: only behind it may its arguments go on."""
        self._written = False
        self._parts = 0
        self._last: dict[int, type[ChatEvent]] = {}
        """By answer, what its last event was."""
        self._reported = False
        self._refusal: ProgramError | None = None

    def read(self, message: Any) -> list[ChatEvent]:
        """Return the events of a message. Raises ProgramError for one that breaks the form, and from then on for any."""
        try:
            if self._refusal is None:
                return self._events(message)
        except ProgramError as error:
            self._refusal = error
        assert self._refusal is not None
        raise self._refusal

    def _events(self, message: Any) -> list[ChatEvent]:
        if not isinstance(message, dict) or MESSAGE_KEY not in message:
            return []
        values = message[MESSAGE_KEY]
        if not isinstance(values, list):
            raise ProgramError("the program sent a list of events that is none")
        if len(values) > MAX_EVENTS:
            raise ProgramError(f"the program sent {len(values)} events in one message; {MAX_EVENTS} are allowed")
        return [self._checked(_event(value)) for value in values]

    def finish(self, result: Any, usage: UsageReport) -> list[ChatEvent]:
        """Return what completes an answer whose program has returned: a text that it returned counts where it wrote nothing.

        Raises ProgramError for a long one: each of the answers would be a copy of it. So it does for what is no text.
        """
        events: list[ChatEvent] = []
        if not self._written and result is not None:
            if not isinstance(result, str):
                raise ProgramError(
                    "the program wrote no answer, and returned one that is no text: write it with a Reply"
                )
            if len(result) > MAX_RETURNED:
                raise ProgramError(
                    f"the program returned {len(result)} characters; {MAX_RETURNED} are allowed: write them"
                )
            events += [TextDelta(result, choice) for choice in sorted(self._open)]
        events += [
            ChoiceFinished("tool_calls" if self._calls[choice] else "stop", choice) for choice in sorted(self._open)
        ]
        return events if self._reported else [*events, usage]

    def _checked(self, event: ChatEvent) -> ChatEvent:
        _check_numbers(event)
        if isinstance(event, UsageReport):
            self._reported = not self._open
            return event
        self._written = True
        if event.choice not in self._open:
            raise ProgramError(f"the program wrote to answer {event.choice}, which does not exist or is finished")
        self._count_part(type(event), event.choice)
        if isinstance(event, ToolCallStarted | ToolArguments):
            self._check_call(event)
        else:
            self._calling.discard(event.choice)
        if isinstance(event, ChoiceFinished):
            self._open.discard(event.choice)
        return event

    def _count_part(self, kind: type[ChatEvent], choice: int) -> None:
        """Raise ProgramError for too many parts: to write so many, or to read them again, would hold up others."""
        begins = kind in (TextDelta, ReasoningDelta) and self._last.get(choice) is not kind
        self._parts += begins or kind is ToolCallStarted
        self._last[choice] = kind
        if self._parts > MAX_PARTS:
            raise ProgramError(f"the program wrote more than {MAX_PARTS} calls, and texts and reasoning in turns")

    def _check_call(self, event: ToolCallStarted | ToolArguments) -> None:
        """Calls come one after the other, and nothing between the arguments of one."""
        if isinstance(event, ToolCallStarted):
            self._calls[event.choice] += 1
            self._calling.add(event.choice)
        if event.call != self._calls[event.choice] - 1 or event.choice not in self._calling:
            raise ProgramError(
                f"the program wrote to tool call {event.call}, and is at {self._calls[event.choice] - 1} or behind it"
            )


def _event(value: Any) -> ChatEvent:
    kind = value.get(KIND) if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in EVENT_TYPES:
        raise ProgramError("the program sent an event of an unknown kind")
    fields = {key: part for key, part in value.items() if key != KIND}
    try:
        event: ChatEvent = msgspec.convert(fields, EVENT_TYPES[kind])
    except msgspec.ValidationError as error:
        raise ProgramError(f"the program sent an event {kind!r} that cannot be read: {error}") from None
    return event


def _check_numbers(event: ChatEvent) -> None:
    """Raise ProgramError for bytes that are none, and for numbers of tokens whose sums no store could hold."""
    if isinstance(event, UsageReport):
        counts = [value for value in vars(event).values() if isinstance(value, int)]
        if not 0 <= min(counts) <= max(counts) <= MOST_TOKENS:
            raise ProgramError(f"the program reported a number of tokens that is not in 0..{MOST_TOKENS}")
    elif isinstance(event, TextDelta | ReasoningDelta | PromptScores):
        scores = list(event.scores)
        for score in scores:  # which grows
            scores += score.top
            if score.data and not 0 <= min(score.data) <= max(score.data) < 256:
                raise ProgramError("the program sent a token with a byte that is not in 0..255")
