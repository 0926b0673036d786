"""Answers put together: what an event costs does not grow with what came before it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from inferd.chat import (
    ChatEvent,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolArguments,
    ToolCall,
    ToolCallStarted,
)
from inferd_runtime.server.dialects.collected import CollectedAnswer
from inferd_runtime.server.dialects.exchange import ClientHeaders, Dialect
from inferd_runtime.server.dialects.openai.chat import read_chat
from inferd_runtime.server.dialects.openai.completions import read_completions
from inferd_runtime.server.dialects.responses.answer import read_responses

LONG = "y" * (8 << 20)
MANY = 4000
CALL = ToolCallStarted(0, "c", "f")


def collect() -> Callable[[ChatEvent], Any]:
    return CollectedAnswer(1, vars).add


def stream() -> Callable[[ChatEvent], Any]:
    return read_responses(b'{"model":"m","input":"x","stream":true}', ClientHeaders()).chunks


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


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (read_chat, {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 20}),
        (read_completions, {"prompt": "x", "logprobs": 5}),
        (read_responses, {"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 20}),
    ],
)
def test_the_logprobs_of_a_whole_answer_are_written_before_its_end(dialect: Dialect, fields: dict[str, Any]) -> None:
    """Written at its end, they hold up everybody: 80,000 of them for half a second."""
    answer = dialect(json.dumps({"model": "m", **fields}).encode(), ClientHeaders()).whole()
    score = TokenScore(1, "a", [97], -1.0, [TokenScore(2, "b", [98], -1.5)] * 20)
    for _ in range(MANY):
        answer.add(TextDelta("a", scores=[score]))
    answer.add(ChoiceFinished("stop"))
    before = time.process_time()
    body = answer.body()
    assert time.process_time() - before < 0.1
    assert body.count(b'"b"') >= MANY


def test_the_pieces_are_the_answer() -> None:
    answer = CollectedAnswer(1, vars)
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
