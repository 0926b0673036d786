"""A stream's chunks, put together, say what the whole answer says: for any order of events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings, strategies as st
from recorded_answers import data_lines

from inferd.chat import (
    ChatEvent,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolArguments,
    ToolCallStarted,
    UsageReport,
)
from inferd_runtime.server.dialects.exchange import ClientHeaders, Dialect
from inferd_runtime.server.dialects.openai.chat import read_chat
from inferd_runtime.server.dialects.openai.completions import read_completions

CHOICES = 2
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
deltas = st.builds(
    lambda kind, text, tokens, scored: kind(
        text, 0, tokens, [TokenScore(t, text, list(text.encode()), -0.5) for t in tokens] if scored else []
    ),
    st.sampled_from([TextDelta, ReasoningDelta]), texts, st.lists(st.integers(0, 99), max_size=2), st.booleans(),
)  # fmt: skip


@st.composite
def answers(draw: st.DrawFn, choice: int) -> list[ChatEvent]:
    """Return all events of one of the answers."""
    events: list[ChatEvent] = []
    for call in range(draw(st.integers(0, 2))):
        events += [
            ToolCallStarted(call, f"c{call}", "f", choice),
            *(ToolArguments(call, text, choice) for text in draw(st.lists(texts.filter(bool), min_size=1, max_size=3))),
        ]
    at = draw(st.integers(0, 1)) * len(events)
    written = [type(each)(each.text, choice, each.tokens, each.scores) for each in draw(st.lists(deltas, max_size=4))]
    reason = draw(st.sampled_from(["stop", "length", "tool_calls"]))
    return [*events[:at], *written, *events[at:], ChoiceFinished(reason, choice, draw(st.sampled_from(["", "END"])))]


@st.composite
def interleaved(draw: st.DrawFn) -> list[ChatEvent]:
    """Return the events of all answers, each in its order."""
    left = [draw(answers(choice)) for choice in range(CHOICES)]
    events: list[ChatEvent] = []
    while any(left):
        events.append(draw(st.sampled_from([each for each in left if each])).pop(0))
    return [*events, UsageReport(3, 9, 1, prompt_tokens=[1, 2])]


def both_ways(
    dialect: Dialect, fields: dict[str, Any], events: Sequence[ChatEvent]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the data of a stream, and the whole body, of the same events."""
    exchange = dialect(json.dumps({"model": "m", "n": CHOICES, **fields}).encode(), ClientHeaders("r"))
    answer = exchange.whole()
    for event in events:
        answer.add(event)
    stream = b"".join([exchange.opening(), *map(exchange.chunks, events), exchange.closing()])
    return data_lines(stream), json.loads(answer.body())


STREAMED = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}


@given(interleaved())
@settings(max_examples=100, deadline=None)
def test_chat_chunks_add_up_to_the_whole_answer(events: list[ChatEvent]) -> None:
    fields = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, **STREAMED}
    chunks, body = both_ways(read_chat, fields, events)
    assert chunks.pop() == "[DONE]"
    usage = chunks.pop()
    assert (usage["choices"], usage["usage"]) == ([], body["usage"])
    for index, whole in enumerate(body["choices"]):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        message, message_deltas = whole["message"], [each["delta"] for each in own]
        assert message_deltas[0]["role"] == "assistant"
        assert "".join(each.get("content", "") for each in message_deltas) == (message["content"] or "")
        assert "".join(each.get("reasoning", "") for each in message_deltas) == message.get("reasoning", "")
        assert [token for each in own for token in each.get("token_ids", [])] == whole["token_ids"]
        assert [s for each in own for s in (each["logprobs"] or {"content": []})["content"]] == whole["logprobs"][
            "content"
        ]
        assert calls_of(message_deltas) == message.get("tool_calls", [])
        assert [each["finish_reason"] for each in own][-1] == whole["finish_reason"]
        assert own[-1]["stop_reason"] == whole["stop_reason"]


def calls_of(message_deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls that a message's deltas add up to."""
    calls: list[dict[str, Any]] = []
    for delta in (call for each in message_deltas for call in each.get("tool_calls", [])):
        if delta["index"] == len(calls):
            calls.append({key: delta[key] for key in ("id", "type")} | {"function": dict(delta["function"])})
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    return calls


@given(interleaved())
@settings(max_examples=60, deadline=None)
def test_text_chunks_add_up_to_the_whole_answer(events: list[ChatEvent]) -> None:
    chunks, body = both_ways(read_completions, {"prompt": "x", **STREAMED}, events)
    assert chunks.pop() == "[DONE]"
    assert chunks.pop()["usage"] == body["usage"]
    for index, whole in enumerate(body["choices"]):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(each["text"] for each in own) == whole["text"]
        assert own[-1]["finish_reason"] == whole["finish_reason"]
