"""Requests in the form in which tools were seen to send them, tools that are no part of the tests: none is refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
    "$schema": "http://json-schema.org/draft-07/schema#",
}
FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": WEATHER},
}
TEXT_PART = [{"type": "text", "text": "Hello"}]
CODEX: dict[str, Any] = {
    "stream": True, "store": False, "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"summary": "auto"},
    "include": ["reasoning.encrypted_content"], "prompt_cache_key": "01a20627-0894",
    "client_metadata": {"thread_id": "01a20627", "x-codex-window-id": "01a20627:0"},
    "input": [
        {"type": "message", "id": "msg_1", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "id": "msg_2", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
    ],
    "tools": [
        {"type": "function", "name": "exec_command", "description": "Runs it.", "strict": False, "parameters": WEATHER},
        {
            "type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents.",
            "tools": [
                {"type": "function", "name": "close_agent", "description": "Ends it.", "strict": False, "parameters": WEATHER}
            ],
        },
    ],
}  # fmt: skip
CLAUDE_CODE: dict[str, Any] = {
    "stream": True, "max_tokens": 32, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": json.dumps({"device_id": "c", "session_id": "5"})},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint=sdk-cli;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>\n"},
                {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}},
            ],
        }
    ],
    "tools": [{"name": "Read", "description": "Reads a file.", "input_schema": WEATHER}],
}  # fmt: skip
AGENTS_SDK: dict[str, Any] = {
    "input": [{"role": "user", "content": "Hello"}], "include": [], "tools": [], "max_output_tokens": 12, "store": False,
    "metadata": {"a": "b"}, "reasoning": {"effort": "low"}, "truncation": "auto", "text": {"verbosity": "medium"},
}  # fmt: skip
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Codex": ("/v1/responses", {**CODEX, "max_output_tokens": 12}),
    "Claude Code": ("/v1/messages?beta=true", CLAUDE_CODE),
    "Agents SDK": ("/v1/responses", AGENTS_SDK),
    "AI SDK": (
        "/v1/messages",
        {"max_tokens": 12, "cache_control": {"type": "ephemeral"}, "messages": [{"role": "user", "content": TEXT_PART}]},
    ),
    "smolagents": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": TEXT_PART}], "tools": [FUNCTION], "tool_choice": "required"},
    ),
    "LiteLLM, with tools that are to be cached": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": [{**TEXT_PART[0], "cache_control": {"type": "ephemeral"}}]}],
            "max_tokens": 9,
            "tools": [{**FUNCTION, "cache_control": {"type": "ephemeral"}}],
        },
    ),
    "Mistral's clients": (
        "/v1/chat/completions",
        {
            "max_tokens": 60, "safe_prompt": False, "tools": [FUNCTION], "tool_choice": "any",
            "messages": [
                {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi", "prefix": False},
                {"role": "user", "content": "Weather?"},
            ],
        },
    ),
    "OpenAI's agents for JavaScript, in the second turn": (
        "/v1/chat/completions",
        {
            "max_tokens": 9, "stream": False,
            "messages": [
                {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": [{**TEXT_PART[0], "role": "assistant", "refusal": None, "annotations": []}]},
                {"role": "user", "content": "And now?"},
            ],
        },
    ),
    "Guidance": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hello"}], "tools": None, "top_p": None, "logprobs": True, "top_logprobs": 5},
    ),
    "LangChain's text models": (
        "/v1/completions",
        {
            "prompt": ["Hello", "There"], "n": 2, "best_of": 2, "frequency_penalty": 0, "presence_penalty": 0, "logprobs": None,
            "max_tokens": 9, "seed": None, "temperature": 0.7, "top_p": 1,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_tool_sends_is_answered(http: httpx.Client, name: str) -> None:
    path, asked = OTHERS[name]
    response = http.post(path, json={"model": "tiny", "temperature": 0, **asked})
    assert response.status_code == 200, response.text
    assert '"error":{' not in response.text


def test_a_client_that_offers_http_2_is_answered_in_http_1(http: httpx.Client) -> None:
    """Java's own client does so with each request, whose body some servers then never read."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAAAAAMAAAAA"}
    asked = {"model": "tiny", "temperature": 0, "max_tokens": 3, "messages": [{"role": "user", "content": "Hello"}]}
    plain, *offering = (http.post("/v1/chat/completions", json=asked, headers=each) for each in ({}, offer, offer))
    assert [each.status_code for each in offering] == [200, 200], offering[0].text
    assert [each.json()["choices"] for each in offering] == [plain.json()["choices"]] * 2


def test_codex_finds_the_namespace_of_a_call_and_sends_it_back(http: httpx.Client) -> None:
    required = {**CODEX, "model": "tiny", "stream": False, "tools": [CODEX["tools"][1]], "tool_choice": "required"}
    (call,) = http.post("/v1/responses", json={**required, "parallel_tool_calls": False}).json()["output"]
    assert (call["namespace"], call["name"]) == ("multi_agent_v1", "close_agent")
    assert json.loads(call["arguments"])["city"] in ("Bern", "Rome")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "closed"}
    went_on = {**CODEX, "model": "tiny", "input": [*CODEX["input"], call, output], "max_output_tokens": 9}
    response = http.post("/v1/responses", json=went_on)
    assert (response.status_code, "response.failed" in response.text) == (200, False)


def test_a_tool_that_the_runtime_would_have_to_run_is_refused_by_its_place(http: httpx.Client) -> None:
    """Codex without web_search = "disabled": left out silently, the model would be told nothing of it, and nobody would know."""
    asked = {**CODEX, "model": "tiny", "tools": [*CODEX["tools"], {"type": "web_search", "external_web_access": False}]}
    response = http.post("/v1/responses", json=asked)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools[2].type")
