"""What the direct path keeps of a program's words: their order, how they end, and what it asks the engine for."""

from __future__ import annotations

from typing import Any, cast

import pytest

from inferd.chat import ChatEvent, TextDelta
from inferd.protocol import ChatFormat, GetChatFormat, ProgramError
from inferd_runtime.server.chat.direct import ChatFormats, DirectAnswer, Item, Written


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def answer_of(*items: Item) -> DirectAnswer:
    written = Written()
    for item in items:
        written.put_nowait(item)
    return DirectAnswer(written)


def texts(*words: str) -> list[ChatEvent]:
    return [TextDelta(word) for word in words]


@pytest.mark.anyio
async def test_events_that_wait_come_together_and_then_the_end() -> None:
    answer = answer_of(texts("a"), texts("b", "c"), [], None)
    assert await answer.next() == texts("a", "b", "c")
    assert await answer.next() == []
    assert answer.complete


@pytest.mark.anyio
async def test_an_error_comes_behind_what_was_written_before_it() -> None:
    answer = answer_of(texts("a"), ProgramError("no"), None)
    assert await answer.next() == texts("a")
    for _ in range(2):
        with pytest.raises(ProgramError):
            await answer.next()
    assert not answer.complete


@pytest.mark.anyio
async def test_a_part_of_an_answer_does_not_make_it_complete() -> None:
    answer = answer_of(texts("a"))
    assert await answer.next() == texts("a")
    assert not answer.complete


class _Session:
    asked = 0

    async def call(self, request: GetChatFormat, reply: Any) -> ChatFormat:
        self.asked += 1
        return ChatFormat(True, "json", request.model, "", True)


@pytest.mark.anyio
async def test_each_engine_is_asked_once_for_a_models_format() -> None:
    formats, session = ChatFormats(), _Session()
    engines = [cast(Any, object()), cast(Any, object())]
    for engine in (engines[0], engines[0], engines[1]):
        for model in ("a", "b"):
            found = await formats.get(GetChatFormat(model), engine, cast(Any, session))
            assert found.reasoning_begin == model
    assert session.asked == 4
