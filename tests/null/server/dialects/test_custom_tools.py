"""Custom tools in both dialects, as OpenAI's own client asks for them and reads their calls."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from inferd.chat import (
    ChatEvent,
    ChatMessage,
    ChoiceFinished,
    CustomInput,
    OutputFormat,
    TextDelta,
    ToolArguments,
    ToolCall,
    ToolCallStarted,
    ToolChoice,
    UsageReport,
    custom_arguments,
)
from inferd.protocol import InvalidRequest
from tests.null.server.dialects.openai.test_chat_client import serve
from tests.null.server.dialects.test_responses import Served, read

USER: Any = [{"role": "user", "content": "hello"}]
TEXT = 'say "é"\n\\'
RUN: Any = {
    "type": "custom",
    "name": "run",
    "description": "Runs it.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"},
}
NOTE: Any = {"type": "custom", "name": "note"}
CHAT_TOOLS: Any = [
    {"type": "custom", "custom": {"name": "run", "format": {"type": "text"}}},
    {"type": "function", "function": {"name": "add"}},
]
ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}}
ARGUMENTS = custom_arguments(TEXT)
CALLS: list[ChatEvent] = [
    TextDelta("Well."),
    ToolCallStarted(0, "call_a", "run"),
    *(ToolArguments(0, character) for character in ARGUMENTS),
    ToolCallStarted(1, "call_b", "add"),
    ToolArguments(1, '{"input": "x"}'),
    ToolCallStarted(2, "call_c", "run"),
    ChoiceFinished("tool_calls"),
    UsageReport(30, 20),
]
CUT: list[ChatEvent] = [
    ToolCallStarted(0, "call_a", "run"),
    ToolArguments(0, ARGUMENTS[:16]),
    ChoiceFinished("length"),
    UsageReport(1, 2),
]


def deltas_of(client: openai.OpenAI) -> list[dict[str, Any]]:
    chunks = client.chat.completions.create(model="m", messages=USER, tools=CHAT_TOOLS, stream=True)
    return [call.model_dump(exclude_none=True) for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]


def test_a_chat_answer_calls_custom_tools_and_functions() -> None:
    _, client = serve(CALLS)
    choice = client.chat.completions.create(model="m", messages=USER, tools=CHAT_TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    first, second, third = choice.message.tool_calls or []
    assert first.type == third.type == "custom"
    assert (first.id, first.custom.name, first.custom.input, third.custom.input) == ("call_a", "run", TEXT, "")
    assert second.type == "function"
    assert second.function.arguments == '{"input": "x"}'


def test_a_chat_stream_has_the_text_of_a_custom_tool_piece_by_piece() -> None:
    _, client = serve(CALLS)
    deltas = deltas_of(client)
    assert deltas[0] == {"index": 0, "id": "call_a", "type": "custom", "custom": {"name": "run", "input": ""}}
    texts = [each["custom"]["input"] for each in deltas[1:] if each["index"] == 0]
    assert texts == list(TEXT)
    assert [each["function"]["arguments"] for each in deltas if each["index"] == 1] == ["", '{"input": "x"}']
    assert [each["custom"] for each in deltas if each["index"] == 2] == [{"name": "run", "input": ""}]


def test_a_chat_answer_that_was_cut_has_what_was_written_of_the_text() -> None:
    _, client = serve(CUT)
    (call,) = (
        client.chat.completions.create(model="m", messages=USER, tools=CHAT_TOOLS).choices[0].message.tool_calls or []
    )
    assert call.type == "custom"
    assert call.custom.input == "say "
    assert "".join(each["custom"]["input"] for each in deltas_of(client)) == "say "


def test_a_chat_answer_goes_back_into_the_conversation() -> None:
    server, client = serve(CALLS)
    message = client.chat.completions.create(model="m", messages=USER, tools=CHAT_TOOLS).choices[0].message
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in message.tool_calls or []]
    client.chat.completions.create(model="m", messages=[*USER, message, *results], tools=CHAT_TOOLS)
    called, *answered = server.asked[-1].request.messages[1:]
    assert [call.arguments for call in called.tool_calls] == [ARGUMENTS, '{"input": "x"}', custom_arguments("")]
    assert [each.tool_call_id for each in answered] == ["call_a", "call_b", "call_c"]


def test_a_response_calls_custom_tools_and_functions() -> None:
    client = Served(CALLS).client
    response = client.responses.create(model="m", input="hi", tools=[RUN, ADD])
    _, first, second, third = response.output
    assert first.type == third.type == "custom_tool_call"
    assert (first.call_id, first.name, first.input, third.input) == ("call_a", "run", TEXT, "")
    assert first.id is not None
    assert first.id.startswith("ctc_")
    assert second.type == "function_call"
    assert response.tools[0].model_dump(exclude_none=True) == RUN


def test_the_events_of_a_custom_tool() -> None:
    events = list(Served(CALLS).client.responses.create(model="m", input="hi", tools=[RUN, ADD], stream=True))
    added = next(event for event in events if event.type == "response.output_item.added" and event.output_index == 1)
    item = added.item.model_dump(exclude_none=True)
    assert (item["type"], item["input"], item["status"]) == ("custom_tool_call", "", "in_progress")
    deltas = [event for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert [event.delta for event in deltas] == list(TEXT)
    assert {(event.item_id, event.output_index) for event in deltas} == {(item["id"], 1)}
    first, last = (event for event in events if event.type == "response.custom_tool_call_input.done")
    assert (first.input, first.item_id, last.input) == (TEXT, item["id"], "")
    done = next(event for event in events if event.type == "response.output_item.done" and event.output_index == 1)
    assert done.item.model_dump(exclude_none=True) == {**item, "input": TEXT, "status": "completed"}
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_stream_helper_puts_the_calls_together() -> None:
    with Served(CALLS).client.responses.stream(model="m", input="hi", tools=[RUN, ADD]) as stream:
        response = stream.get_final_response()
    assert [item.input for item in response.output if item.type == "custom_tool_call"] == [TEXT, ""]


def test_a_response_that_was_cut_has_what_was_written_of_the_text() -> None:
    response = Served(CUT).client.responses.create(model="m", input="hi", tools=[RUN])
    (call,) = response.model_dump()["output"]
    assert (response.status, call["status"], call["input"]) == ("incomplete", "incomplete", "say ")


@pytest.mark.parametrize("kept", [True, False])
def test_the_output_of_a_custom_tool_follows_its_call(kept: bool) -> None:
    served = Served(CALLS)
    first = served.client.responses.create(model="m", input="hi", tools=[RUN, ADD])
    output: Any = [
        {"type": "custom_tool_call_output", "call_id": "call_a", "output": [{"type": "input_text", "text": "ok"}]}
    ]
    if kept:
        served.client.responses.create(model="m", input=output, previous_response_id=first.id)
    else:
        items: Any = [each.model_dump() for each in first.output]
        served.client.responses.create(model="m", input=[*USER, *items, *output])
    assert served.exchange is not None
    _, called, answered = served.exchange.request.messages
    assert called.tool_calls[0] == ToolCall("call_a", "run", ARGUMENTS)
    assert answered == ChatMessage("tool", "ok", tool_call_id="call_a", name="run")


def test_items_of_custom_tools_are_listed_as_they_are_kept() -> None:
    served = Served(CALLS)
    first = served.client.responses.create(model="m", input="hi", tools=[RUN, ADD])
    output: Any = [{"type": "custom_tool_call_output", "call_id": "call_a", "output": "ok"}]
    second = served.client.responses.create(model="m", input=output, previous_response_id=first.id)
    newest, *_ = served.client.responses.input_items.list(second.id).data
    told = newest.model_dump(exclude_none=True)
    assert told.pop("id").startswith("ctco_")
    assert told == {"type": "custom_tool_call_output", "call_id": "call_a", "output": "ok", "status": "completed"}


def test_a_custom_tool_of_a_namespace_has_both_names() -> None:
    group = {"type": "namespace", "name": "shell", "description": "Shell.", "tools": [RUN]}
    assert [(tool.name, tool.custom) for tool in read({"tools": [group]}).tools] == [
        ("shell__run", CustomInput(OutputFormat("lark", "start: /a+/")))
    ]
    called: list[ChatEvent] = [ToolCallStarted(0, "c", "shell__run"), ToolArguments(0, ARGUMENTS), *CALLS[-2:]]
    (call,) = Served(called).client.responses.create(model="m", input="hi", tools=[group]).output
    assert call.type == "custom_tool_call"
    assert (call.namespace, call.name, call.input) == ("shell", "run", TEXT)


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "custom", "name": "run"}, ToolChoice("required", ["run"], parallel=False)),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "run"}]},
            ToolChoice("required", ["run"]),
        ),
    ],
)
def test_choices_of_custom_tools(choice: Any, wanted: ToolChoice) -> None:
    assert read({"tools": [RUN, ADD], "tool_choice": choice}).tool_choice == wanted


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{**NOTE, "format": {"type": "json"}}]}, "tools[0].format.type"),
        ({"tools": [{**NOTE, "format": {"type": "grammar", "syntax": "lark"}}]}, "tools[0].format.definition"),
        ({"tools": [{**NOTE, "format": {**RUN["format"], "syntax": "gbnf"}}]}, "tools[0].format.syntax"),
        ({"tools": [{**NOTE, "parameters": {}}]}, "tools[0].parameters"),
        ({"tools": [{**NOTE, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{**NOTE, "async": True}]}, "tools[0].async"),
        ({"tools": [NOTE, NOTE]}, "tools[1].name"),
        ({"tools": [NOTE], "tool_choice": {"type": "function", "name": "note"}}, "tool_choice.type"),
        ({"tools": [ADD], "tool_choice": {"type": "custom", "name": "add"}}, "tool_choice.type"),
        ({"tools": [ADD], "tool_choice": {"type": "custom", "name": "x"}}, "tool_choice"),
        (
            {
                "tools": [ADD],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "add"}]},
            },
            "tool_choice.tools[0].type",
        ),
        ({"input": [{"type": "custom_tool_call_output", "call_id": "x", "output": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "custom_tool_call", "call_id": "x", "name": "a"}]}, "input[0].input"),
    ],
)
def test_what_does_not_work_is_refused_by_its_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    assert caught.value.detail["param"] == param


def test_any_text_is_a_text_of_a_custom_tool() -> None:
    assert read({"tools": [NOTE]}).tools[0].custom == CustomInput()
    items: Any = [{"type": "custom_tool_call", "call_id": "c", "name": "note", "input": "{" * 100_000}]
    (message,) = read({"input": items}).messages
    assert json.loads(message.tool_calls[0].arguments) == {"input": "{" * 100_000}
