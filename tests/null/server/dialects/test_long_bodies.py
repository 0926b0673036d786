"""A body of the largest size costs the gateway time in proportion to it: nothing in a request makes reading it quadratic."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest

from inferd.protocol import InvalidRequest
from inferd_runtime.server.dialects.anthropic.dialect import read_messages
from inferd_runtime.server.dialects.exchange import ClientHeaders, Dialect
from inferd_runtime.server.dialects.openai.chat import read_chat
from inferd_runtime.server.dialects.openai.completions import read_completions
from inferd_runtime.server.dialects.responses.answer import read_responses

LONG = "x " * 500
CALL = {"type": "function", "function": {"name": "w", "arguments": "{}"}}
SCHEMA = {"type": "object", "properties": {f"p{i}": {"description": "d" * 100} for i in range(8000)}}


def calls(count: int) -> list[dict[str, Any]]:
    return [{"id": f"c{i}", **CALL} for i in range(count)]


def said(content: Any, count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}] * count


ITEMS = [{"type": "function_call", "call_id": f"c{i}", "name": "w", "arguments": "{}"} for i in range(15_000)]
CASES: dict[str, tuple[Dialect, dict[str, Any]]] = {
    "messages": (read_chat, {"messages": said(LONG, 4000)}),
    "calls": (read_chat, {"messages": [{"role": "assistant", "tool_calls": calls(8000)}]}),
    "turns of one role": (read_messages, {"max_tokens": 1, "messages": said(LONG, 4000)}),
    "blocks": (read_messages, {"max_tokens": 1, "messages": said([{"type": "text", "text": LONG}] * 4000, 1)}),
    "items": (read_responses, {"input": said(LONG, 4000)}),
    "calls in a row": (read_responses, {"input": ITEMS}),
    "prompts": (read_completions, {"prompt": ["x"] * 500_000}),
    "a tool": (read_chat, {"tools": [{"type": "function", "function": {"name": "w", "parameters": SCHEMA}}]}),
    "a format": (read_chat, {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}),
    "lists": (read_chat, {"messages": said([[]] * 100_000, 1)}),
    "fields": (read_chat, {f"k{i}": 1 for i in range(300_000)}),
}
LISTS = "[" + "[]," * 1_300_000 + "[]]"


def called(*arguments: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "tool_calls": calls_of(arguments)}]


def calls_of(arguments: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"id": f"c{i}", "type": "function", "function": {"name": "w", "arguments": each}}
        for i, each in enumerate(arguments)
    ]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


TOOL_USE = {"type": "tool_use", "id": "a", "name": "w", "input": {"a": [0] * 70_000}}
DEEP_TOOL = {"type": "function", "function": {"name": "w", "parameters": {"properties": {"a": nested(300)}}}}
REFUSED: dict[str, tuple[Dialect, dict[str, Any], str]] = {
    "a million lists in arguments": (read_chat, {"messages": called(LISTS)}, "values"),
    "many lists in the arguments of several calls": (
        read_chat,
        {"messages": called(*["[" + "[]," * 30_000 + "[]]"] * 13)},
        "values",
    ),
    "slow numbers in arguments": (read_chat, {"messages": called(f"[{'1e308,' * 60_000}1]")}, "numbers"),
    "arguments of a response": (
        read_responses,
        {"input": [{"type": "function_call", "call_id": "c", "name": "w", "arguments": LISTS}]},
        "values",
    ),
    "the input of a tool": (
        read_messages,
        {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [TOOL_USE]}]},
        "values",
    ),
    "a deep tool": (read_chat, {"messages": said("x", 1), "tools": [DEEP_TOOL]}, "levels"),
    "a deep format": (
        read_chat,
        {"messages": said("x", 1), "response_format": {"type": "json_schema", "json_schema": nested(300)}},
        "levels",
    ),
    "a million token ids": (read_completions, {"prompt": [0] * 1_100_000}, "values"),
    "a million whole numbers with a fraction": (read_completions, {"prompt": [0.0] * 900_000}, "float"),
    "a fraction beside a million numbers": (
        read_chat,
        {"messages": said("x", 1), "max_tokens": 1.0, "chat_template_kwargs": {"a": [0] * 900_000}},
        "float",
    ),
    "names": (read_chat, {"logit_bias": {str(i): 0 for i in range(110_000)}}, "strings and names"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_hold_up_the_gateway_is_refused(name: str) -> None:
    """JSON in a text of the body was read by Python's own reader, all of it at a time: that held up everybody for 0.8 s."""
    dialect, fields, why = REFUSED[name]
    body = json.dumps({"model": "m", **fields}).encode()
    began = time.process_time()
    with pytest.raises(InvalidRequest, match=why):
        dialect(body, ClientHeaders())
    assert time.process_time() - began < 0.6


def test_long_honest_arguments_are_read() -> None:
    source = json.dumps({"path": "a.py", "text": "def f(a, b, c): return [a, {}, []]\n" * 2000})
    read = read_chat(json.dumps({"model": "m", "messages": called(*[source] * 20)}).encode(), ClientHeaders())
    assert [call.arguments for call in read.request.messages[0].tool_calls] == [source] * 20


def test_whole_numbers_with_a_fraction_of_zero_are_read_beside_a_long_text() -> None:
    fields = {"messages": said("a, b, [c] " * 50_000, 1), "max_tokens": 7.0}
    read = read_chat(json.dumps({"model": "m", **fields}).encode(), ClientHeaders())
    assert read.request.max_tokens == 7


@pytest.mark.parametrize("name", CASES)
def test_the_largest_bodies_are_read_in_time(name: str) -> None:
    """Of 4 MB at most. The slowest takes half a second of processor time on an idle machine; what was quadratic took many."""
    dialect, fields = CASES[name]
    body = json.dumps({"model": "m", **fields}).encode()
    assert len(body) < 5 << 20
    began = time.process_time()
    with contextlib.suppress(InvalidRequest):
        dialect(body, ClientHeaders())
    assert time.process_time() - began < 3.0
