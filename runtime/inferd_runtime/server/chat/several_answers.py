"""The answers to several prompts of one request, each written on its own, as the events of one answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from inferd.chat import ChatEvent
from inferd.protocol import InferdError
from inferd_runtime.server.chat.answer_source import AnswerSource
from inferd_runtime.server.dialects.openai.completions import PromptMerger
from inferd_runtime.server.processes.background import background_tasks

AT_ONCE = 8
"""Prompts of one request that are answered side by side: the others wait, and leave sessions to other requests."""
Events: TypeAlias = list[ChatEvent] | InferdError
Answer: TypeAlias = AbstractAsyncContextManager[AnswerSource]


class SeveralAnswers:
    """Made by :func:`several_answers`. No single run writes it."""

    run = ""

    def __init__(self, received: MemoryObjectReceiveStream[Events]) -> None:
        self._received = received

    async def next(self) -> list[ChatEvent]:
        """Wait for more events; see :class:`AnswerSource`. The first error ends all."""
        try:
            events = await self._received.receive()
        except anyio.EndOfStream:
            return []
        if isinstance(events, InferdError):
            raise events
        return events


@asynccontextmanager
async def several_answers(answers: Sequence[Answer], n: int) -> AsyncIterator[SeveralAnswers]:
    """Read the answers, of ``n`` choices each, while the block runs; those that are not complete end with it."""
    sent, received = anyio.create_memory_object_stream[Events]()
    merger, places = PromptMerger(len(answers), n), anyio.Semaphore(AT_ONCE)
    async with background_tasks() as tasks:
        for prompt, answer in enumerate(answers):
            tasks.start_soon(_read, prompt, answer, merger, places, sent.clone())
        sent.close()
        with received:
            yield SeveralAnswers(received)


async def _read(
    prompt: int, answer: Answer, merger: PromptMerger, places: anyio.Semaphore, sent: MemoryObjectSendStream[Events]
) -> None:
    """Send all events of one answer, or the error that it ended with."""
    with sent, suppress(anyio.BrokenResourceError):  # nobody reads any more
        async with places:
            try:
                async with answer as source:
                    while events := await source.next():
                        await sent.send([merger.event(prompt, event) for event in events])
            except InferdError as error:
                await sent.send(error)
