"""What the direct path keeps of a program's words: their order, how they end, and what it asks the engine for."""

from __future__ import annotations

import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from inferd.chat import ChatEvent, ChatRequest, TextDelta, TokenScore
from inferd.chat.answer import all_of
from inferd.chat.events import to_message
from inferd.protocol import ChatFormat, GetChatFormat, ProgramError, SendMessage
from inferd_runtime.interpreter import no_collections
from inferd_runtime.server.chat.answer_pace import AnswerPace
from inferd_runtime.server.chat.direct import ChatFormats, DirectAnswer, DirectChat, Item, ProgramTransport, Written
from inferd_runtime.server.chat.program_events import EventReader


def answer_of(*items: Item) -> DirectAnswer:
    written = Written()
    for item in items:
        written.put_nowait(item)
    return DirectAnswer(written)


def texts(*words: str) -> list[ChatEvent]:
    return [TextDelta(word) for word in words]


async def test_events_that_wait_come_together_and_then_the_end() -> None:
    answer = answer_of(texts("a"), texts("b", "c"), [], None)
    assert await answer.next() == texts("a", "b", "c")
    assert await answer.next() == []
    assert answer.complete


async def test_an_error_comes_behind_what_was_written_before_it() -> None:
    answer = answer_of(texts("a"), ProgramError("no"), None)
    assert await answer.next() == texts("a")
    for _ in range(2):
        with pytest.raises(ProgramError):
            await answer.next()
    assert not answer.complete


async def test_a_part_of_an_answer_does_not_make_it_complete() -> None:
    answer = answer_of(texts("a"))
    assert await answer.next() == texts("a")
    assert not answer.complete


class _Session:
    asked = 0

    async def call(self, request: GetChatFormat, reply: Any) -> ChatFormat:
        self.asked += 1
        return ChatFormat(True, "json", request.model, "", True)


async def test_each_engine_is_asked_once_for_a_models_format() -> None:
    formats, session = ChatFormats(), _Session()
    engines = [cast(Any, object()), cast(Any, object())]
    for engine in (engines[0], engines[0], engines[1]):
        for model in ("a", "b"):
            found = await formats.get(GetChatFormat(model), engine, cast(Any, session))
            assert found.reasoning_begin == model
    assert session.asked == 4


async def test_log_probabilities_wait_for_their_reader() -> None:
    """Those of many answers that nobody reads would be hundreds of thousands of objects in every collection of garbage."""
    written = Written()
    transport = ProgramTransport(
        cast(Any, None), EventReader(1), written, cast(Any, None), partial(AnswerPace().turn, "mallory")
    )
    event = TextDelta("a", scores=[TokenScore(1, "a", [97], -1.0)])
    sent: list[int] = []

    async def program() -> None:
        for number in range(3):
            await transport.call(SendMessage({"chat": [to_message(event)]}))
            sent.append(number)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(program)
        await anyio.wait_all_tasks_blocked()
        assert sent == []
        assert await DirectAnswer(written).next() == [event]
        await anyio.wait_all_tasks_blocked()
        assert sent == [0]
        tasks.cancel_scope.cancel()


class _Scores:
    """What an answer holds while it is written."""


async def test_an_answer_that_fails_leaves_nothing_to_the_garbage_collector() -> None:
    """128 answers that became too large left 171,000 objects in frames of their errors: a collection of 0.2 s, for all."""
    held: list[weakref.ref[_Scores]] = []

    async def write(number: int) -> None:
        scores = _Scores()
        held.append(weakref.ref(scores))
        if number:
            raise ProgramError("no")
        await anyio.sleep_forever()

    async def main(request: ChatRequest) -> None:
        await all_of([write(number) for number in range(3)])

    runtime = SimpleNamespace(settings=SimpleNamespace(limits=SimpleNamespace(wall_s=60.0)))
    none = cast(Any, None)
    chat = DirectChat(cast(Any, runtime), none, main, none, none)
    with no_collections():
        error = await chat._ending(none, EventReader(3))
        await anyio.wait_all_tasks_blocked()
        assert isinstance(error, ProgramError)
        assert len(held) == 3
        assert [one() for one in held] == [None] * 3
