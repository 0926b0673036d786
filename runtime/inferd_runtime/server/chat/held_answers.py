"""Answers that the gateway holds until they are complete: what they take is counted for their tenants, and bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from inferd.chat import ChatEvent, PromptScores, ReasoningDelta, TextDelta, ToolArguments, UsageReport
from inferd.protocol import LimitExceeded
from inferd_runtime.server.chat.answer_pace import numbers_of
from inferd_runtime.server.chat.answer_source import AnswerSource
from inferd_runtime.server.tenancy.shares import SharedPlaces

MAX_ANSWER_BYTES = 128 << 20
"""Of one request's answers together. Those of 6,000 tokens with 20 alternatives each take half as much."""
STEP_BYTES = 64 << 10
"""Bytes that are taken at a time from what the tenants share."""
EVENT_BYTES, TOKEN_BYTES, SCORE_BYTES = 64, 36, 450
"""What an event, a token's number, and a log-probability with its token's text take when the answer is written."""
SENT_TIMES = 5
"""How much more an event takes that is kept as it was sent, too: its text, and the names and numbers around it."""


class AnswerRoom:
    """What one request's answers take of what the tenants share; give it back with :meth:`close`.

    ``prompts``: how often the answer repeats what it tells of a prompt. ``keeps_events``: see :data:`SENT_TIMES`.
    """

    def __init__(self, places: SharedPlaces, tenant: str, prompts: int = 1, *, keeps_events: bool = False) -> None:
        self._prompts = prompts
        self.size = 0
        self._times = SENT_TIMES if keeps_events else 1
        self._places = places
        self._tenant = tenant
        self._taken = 0

    def take(self, events: Sequence[ChatEvent]) -> None:
        """Count events. Raises LimitExceeded where the answers become too large, or the tenant's together do."""
        self.add(sum(map(self._size_of, events)))

    def add(self, size: int) -> None:
        """Count bytes. Raises as :meth:`take` does."""
        self.size += self._times * size
        if self.size > MAX_ANSWER_BYTES:
            text = f"the answers take more than {MAX_ANSWER_BYTES} bytes until they are complete"
            raise LimitExceeded(
                text,
                limit="answer_bytes",
                value=MAX_ANSWER_BYTES,
                raise_with="stream: true, or fewer logprobs or answers",
            )
        steps = -(-(self.size - self._taken) // STEP_BYTES)
        if steps > 0:
            self._places.take(self._tenant, steps * STEP_BYTES)
            self._taken += steps * STEP_BYTES

    def _size_of(self, event: ChatEvent) -> int:
        return size_of(event) * (self._prompts if isinstance(event, PromptScores | UsageReport) else 1)

    def close(self) -> None:
        """Give everything back."""
        self._places.give_back(self._tenant, self._taken)
        self._taken = 0


def size_of(event: ChatEvent) -> int:
    """Return about how many bytes an event takes."""
    match event:
        case TextDelta() | ReasoningDelta():
            return (
                EVENT_BYTES + len(event.text) + TOKEN_BYTES * len(event.tokens) + SCORE_BYTES * numbers_of(event.scores)
            )
        case PromptScores():
            return EVENT_BYTES + SCORE_BYTES * numbers_of(event.scores)
        case ToolArguments():
            return EVENT_BYTES + len(event.text)
        case UsageReport():
            return EVENT_BYTES + TOKEN_BYTES * len(event.prompt_tokens)
        case _:
            return EVENT_BYTES


class _HeldSource:
    """An answer whose events are counted as they come."""

    def __init__(self, source: AnswerSource, room: AnswerRoom) -> None:
        self.run = source.run
        self._source = source
        self._room = room

    async def next(self) -> list[ChatEvent]:
        """Wait for more events; see :class:`AnswerSource`. Raises LimitExceeded, too."""
        events = await self._source.next()
        self._room.take(events)
        return events


@asynccontextmanager
async def held_answer(
    answer: AbstractAsyncContextManager[AnswerSource],
    places: SharedPlaces,
    tenant: str,
    prompts: int = 1,
    *,
    keeps_events: bool = False,
    request: int = 0,
) -> AsyncIterator[AnswerSource]:
    """Read an answer that is held until it is complete. ``prompts``, ``keeps_events``: see :class:`AnswerRoom`. ``request``: the
    bytes of one that is held with it, and that events repeat.
    """
    room = AnswerRoom(places, tenant, prompts, keeps_events=keeps_events)
    try:
        room.add(request)
        async with answer as source:
            yield _HeldSource(source, room)
    finally:
        room.close()
