"""Every field that the vendors' packages document, wherever in a request: it works, or is refused as what it is."""

from __future__ import annotations

import collections.abc
import importlib
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
import typing_extensions
from openai.types.responses import (
    FunctionTool,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)
from openai.types.responses.response_reasoning_item import Content as ReasoningContent

from inferd.protocol import InvalidRequest
from inferd_runtime.server.dialects.anthropic.dialect import read_messages
from inferd_runtime.server.dialects.exchange import ClientHeaders, Dialect
from inferd_runtime.server.dialects.openai.chat import read_chat
from inferd_runtime.server.dialects.openai.completions import read_completions
from inferd_runtime.server.dialects.responses.answer import read_responses

DEPTH = 6
MARKS = (typing.Required, typing.NotRequired, typing.Annotated)
UNIONS = (typing.Union, types.UnionType)
LISTS = (list, collections.abc.Iterable, collections.abc.Sequence)
IN_HEADERS = {"betas"}
MESSAGES = [{"role": "user", "content": "a"}]
ROUTES = [
    (
        read_chat, {"model": "t", "messages": MESSAGES}, 300,
        "openai.types.chat.completion_create_params.CompletionCreateParamsNonStreaming",
    ),
    (
        read_completions, {"model": "t", "prompt": "a"}, 20,
        "openai.types.completion_create_params.CompletionCreateParamsNonStreaming",
    ),
    (
        read_responses, {"model": "t", "input": "a"}, 1000,
        "openai.types.responses.response_create_params.ResponseCreateParamsNonStreaming",
    ),
    (
        read_messages, {"model": "t", "max_tokens": 1, "messages": MESSAGES}, 700,
        "anthropic.types.message_create_params.MessageCreateParamsNonStreaming",
    ),
    (
        read_messages, {"model": "t", "max_tokens": 1, "messages": MESSAGES}, 1000,
        "anthropic.types.beta.message_create_params.MessageCreateParamsNonStreaming",
    ),
]  # fmt: skip


def bare(kind: Any) -> Any:
    while typing.get_origin(kind) in MARKS:
        kind = typing.get_args(kind)[0]
    return kind


def fields(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def required(kind: Any) -> list[str]:
    """Names of the fields that have to be there: under ``from __future__ import annotations`` the class itself does not know."""
    left_out = typing.NotRequired if kind.__total__ else None
    marked = {name: typing.get_origin(hint) for name, hint in fields(kind).items()}
    return [
        name for name, mark in marked.items() if (mark is not left_out if kind.__total__ else mark is typing.Required)
    ]


def options(kind: Any) -> list[Any]:
    return [one for one in typing.get_args(kind) if one is not type(None)]


def smallest(kind: Any) -> Any:
    """A value of a type with the fields that it must have."""
    kind = bare(kind)
    origin = typing.get_origin(kind)
    if typing_extensions.is_typeddict(kind):
        return {name: smallest(fields(kind)[name]) for name in required(kind)}
    if origin is typing.Literal:
        return typing.get_args(kind)[0]
    if origin in UNIONS:
        return smallest(options(kind)[0])
    if origin in LISTS:
        return [smallest(typing.get_args(kind)[0])]
    return {bool: True, int: 1, float: 0.5}.get(kind, {} if origin in (dict, collections.abc.Mapping) else "x")


def variants(kind: Any, above: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Values of a type, each with one field more than it needs, or another one of its options."""
    kind = bare(kind)
    origin = typing.get_origin(kind)
    if kind in above or len(above) > DEPTH:
        return
    if typing_extensions.is_typeddict(kind):
        base = smallest(kind)
        for name, hint in fields(kind).items():
            yield {**base, name: smallest(hint)}
            yield from ({**base, name: value} for value in variants(hint, (*above, kind)))
    elif origin is typing.Literal:
        yield from typing.get_args(kind)[1:]
    elif origin in UNIONS:
        for one in options(kind):
            yield smallest(one)
            yield from variants(one, above)
    elif origin in LISTS:
        yield from ([value] for value in variants(typing.get_args(kind)[0], above))


@pytest.mark.parametrize(("dialect", "good", "least", "name"), ROUTES)
def test_every_documented_field_is_known(dialect: Dialect, good: dict[str, Any], least: int, name: str) -> None:
    module, _, parameters = name.rpartition(".")
    documented = fields(getattr(importlib.import_module(module), parameters))
    tried = 0
    refused: list[InvalidRequest] = []
    for field in documented.keys() - IN_HEADERS:
        for value in variants(documented[field]):
            tried += 1
            try:
                dialect(json.dumps({**good, field: value}).encode(), ClientHeaders())
            except InvalidRequest as error:
                refused.append(error)
    assert not [error.message for error in refused if error.detail.get("code") == "unknown_parameter"]
    assert all(error.detail["param"] for error in refused)
    assert tried >= least


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"image_url": {"url": "x"}, "type": "image_url"}, "images are not supported"),
        ({"type": "image_url", "image_url": {"url": "x"}}, "images are not supported"),
        ({"input_audio": {}, "type": "input_audio"}, "audio is not supported"),
    ],
)
def test_a_part_is_refused_by_its_type_wherever_that_stands(content: dict[str, Any], message: str) -> None:
    body = {"model": "t", "messages": [{"role": "user", "content": [content]}]}
    with pytest.raises(InvalidRequest, match=message):
        read_chat(json.dumps(body).encode(), ClientHeaders())


def test_a_field_with_the_name_of_a_word_of_pythons_is_refused_by_that_name() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "async": True}
    tool = {"type": "function", "name": "f", "async": True}
    for body, param in (({"input": [call]}, "input[0].async"), ({"input": "a", "tools": [tool]}, "tools[0].async")):
        with pytest.raises(InvalidRequest) as refused:
            read_responses(json.dumps({"model": "t", **body}).encode(), ClientHeaders())
        assert refused.value.detail["param"] == param


def test_what_openais_client_has_read_can_be_sent_back_as_it_dumps_it() -> None:
    """With all fields that its types have, by the names that they have in Python."""
    text = ResponseOutputText(type="output_text", text="a", annotations=[])
    thought = ReasoningContent(type="reasoning_text", text="b")
    items = [
        ResponseReasoningItem(id="rs_1", type="reasoning", summary=[], content=[thought]),
        ResponseOutputMessage(id="msg_1", type="message", role="assistant", status="completed", content=[text]),
        ResponseFunctionToolCall(type="function_call", id="fc_1", call_id="c", name="f", arguments="{}"),
    ]
    tool = FunctionTool(type="function", name="f", parameters={}, strict=True)
    answer = {"type": "function_call_output", "call_id": "c", "output": "d"}
    body = {"model": "t", "input": [*(item.model_dump() for item in items), answer], "tools": [tool.model_dump()]}
    read = read_responses(json.dumps(body).encode(), ClientHeaders())
    said = read.request.messages[0]
    assert (said.reasoning, said.content, [call.name for call in said.tool_calls]) == ("b", "a", ["f"])
