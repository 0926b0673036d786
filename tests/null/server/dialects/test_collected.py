"""Answers put together: what an event costs does not grow with what came before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from inferd.chat import ChatEvent, ReasoningDelta, TextDelta, ToolArguments, ToolCall, ToolCallStarted
from inferd_runtime.server.dialects.collected import CollectedAnswer
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.responses.answer import OpenAiResponses

LONG = "y" * (8 << 20)
MANY = 4000
CALL = ToolCallStarted(0, "c", "f")


def collect() -> Callable[[ChatEvent], Any]:
    return CollectedAnswer.of(1).add


def stream() -> Callable[[ChatEvent], Any]:
    return OpenAiResponses().read(b'{"model":"m","input":"x","stream":true}', ClientHeaders()).chunks


def cpu_of(add: Callable[[ChatEvent], Any], event: ChatEvent) -> float:
    """Return the CPU seconds of so many events."""
    before = time.process_time()
    for _ in range(MANY):
        add(event)
    return time.process_time() - before


@pytest.mark.parametrize("opened", [collect, stream])
@pytest.mark.parametrize(
    ("begin", "event"),
    [
        ([TextDelta(LONG)], TextDelta("x")),
        ([ReasoningDelta(LONG)], ReasoningDelta("x")),
        ([CALL, ToolArguments(0, LONG)], ToolArguments(0, "x")),
    ],
)
def test_one_letter_events_behind_a_long_text_do_not_copy_it(
    opened: Callable[[], Callable[[ChatEvent], Any]], begin: Sequence[ChatEvent], event: ChatEvent
) -> None:
    add = opened()
    for one in begin:
        add(one)
    assert cpu_of(add, event) < 2  # copying: more than 4 s


def test_the_pieces_are_the_answer() -> None:
    answer = CollectedAnswer.of(1)
    for event in (
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        TextDelta("c"),
        TextDelta("d"),
        CALL,
        ToolArguments(0, "{"),
    ):
        answer.add(event)
    answer.add(ToolArguments(0, "}"))
    (choice,) = answer.choices
    assert (choice.reasoning, choice.text, choice.calls) == ("ab", "cd", [ToolCall("c", "f", "{}")])
