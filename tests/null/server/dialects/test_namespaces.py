"""Tools in namespaces, as Codex sends them: the model sees one name for each, the client both of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferd.chat import ChoiceFinished, ToolArguments, ToolCallStarted, UsageReport
from inferd.protocol import InvalidRequest
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.responses.answer import ResponsesExchange, read_responses

SPAWN: dict[str, Any] = {
    "type": "function",
    "name": "spawn",
    "description": "Start one.",
    "parameters": {"type": "object"},
}
GROUP: dict[str, Any] = {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [SPAWN]}
ALONE: dict[str, Any] = {**SPAWN, "description": "Another."}


def exchange(**fields: Any) -> ResponsesExchange:
    asked = {"model": "m", "input": "x", "tools": [GROUP, ALONE], **fields}
    return read_responses(json.dumps(asked).encode(), ClientHeaders())


def test_the_model_sees_one_name_and_what_the_namespace_is() -> None:
    tools = exchange().request.tools
    assert [(tool.name, tool.description) for tool in tools] == [
        ("agents__spawn", "Helpers.\nStart one."),
        ("spawn", "Another."),
    ]


@pytest.mark.parametrize(("called", "shown"), [("agents__spawn", ("agents", "spawn")), ("spawn", (None, "spawn"))])
def test_a_call_has_both_names_and_can_be_sent_back(called: str, shown: tuple[str | None, str]) -> None:
    first = exchange()
    answer = first.whole()
    for event in (
        ToolCallStarted(0, "call_1", called),
        ToolArguments(0, "{}"),
        ChoiceFinished("tool_calls"),
        UsageReport(1, 1),
    ):
        answer.add(event)
    response = json.loads(answer.body())
    (call,) = response["output"]
    assert (call.get("namespace"), call["name"]) == shown
    assert response["tools"][0] == GROUP
    output = {"type": "function_call_output", "call_id": "call_1", "output": "done", "namespace": call.get("namespace")}
    messages = exchange(input=[call, output]).request.messages
    assert messages[0].tool_calls[0].name == called
    assert messages[1].name == called


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{**GROUP, "tools": []}], "tools[0].tools"),
        ([{**GROUP, "name": "a b"}], "tools[0].name"),
        ([{**GROUP, "surprise": 1}], "tools[0].surprise"),
        ([{**GROUP, "tools": [{"type": "web_search", "name": "x"}]}], "tools[0].tools[0].type"),
        ([{**GROUP, "tools": [{"type": "custom", "name": "a b"}]}], "tools[0].tools[0].name"),
        ([{**GROUP, "tools": [GROUP]}], "tools[0].tools[0].type"),
        ([GROUP, {**SPAWN, "name": "agents__spawn"}], "tools[1].name"),
        (
            [{**GROUP, "name": f"g{at}", "tools": [{**SPAWN, "name": f"f{n}"} for n in range(300)]} for at in (1, 2)],
            "tools",
        ),
    ],
)
def test_what_is_no_namespace_of_functions_is_refused_by_its_place(tools: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        exchange(tools=tools)
    assert raised.value.detail["param"] == param
