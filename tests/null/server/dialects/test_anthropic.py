"""Anthropic's dialect, as Anthropic's own package speaks and reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anthropic
import httpx2
import pytest
from pydantic import BaseModel

from inferd.chat import (
    ChatEvent,
    ChatMessage,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCall,
    ToolCallStarted,
    ToolChoice,
    UsageReport,
)
from inferd.protocol import InferdError, InvalidRequest, LimitExceeded, NotFound, ProgramError, Unavailable
from inferd_runtime.server.dialects.anthropic.answer import AnthropicExchange
from inferd_runtime.server.dialects.anthropic.dialect import read_count_tokens, read_messages
from inferd_runtime.server.dialects.anthropic.errors import error_reply_anthropic
from inferd_runtime.server.dialects.exchange import ClientHeaders

HELLO: list[ChatEvent] = [
    TextDelta("Hel"),
    TextDelta("lo"),
    ChoiceFinished("stop"),
    UsageReport(prompt=12, completion=2, cached=8),
]
TOOL = {
    "name": "weather",
    "description": "Weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALLS: list[ChatEvent] = [
    ReasoningDelta("I should "),
    ReasoningDelta("look."),
    TextDelta("One moment."),
    ToolCallStarted(0, "call_a", "weather"),
    ToolArguments(0, '{"city": '),
    ToolArguments(0, '"Bern"}'),
    ToolCallStarted(1, "call_b", "weather"),
    ToolArguments(1, "{}"),
    ChoiceFinished("tool_calls"),
    UsageReport(30, 20, reasoning=5),
]
MESSAGES = [{"role": "user", "content": "hi"}]


class Recorded:
    """Answers every request with the same events, or breaks off with ``failure`` behind them."""

    def __init__(self, events: Sequence[ChatEvent], failure: InferdError | None = None) -> None:
        self._events = events
        self._failure = failure
        self.exchange: AnthropicExchange | None = None

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        headers = ClientHeaders("req-1")
        try:
            if request.url.path.endswith("count_tokens"):
                return httpx2.Response(200, json=read_count_tokens(request.content, headers).body(7))
            self.exchange = read_messages(request.content, headers)
        except InvalidRequest as error:
            reply = error_reply_anthropic(error, "req-1")
            return httpx2.Response(reply.status, json=reply.body, headers=reply.headers)
        if self.exchange.streams:
            return httpx2.Response(
                200, content=self._stream(self.exchange), headers={"content-type": "text/event-stream"}
            )
        answer = self.exchange.whole()
        for event in self._events:
            answer.add(event)
        return httpx2.Response(200, content=answer.body(), headers={"content-type": "application/json"})

    def _stream(self, exchange: AnthropicExchange) -> bytes:
        data = exchange.opening() + b"".join(map(exchange.chunks, self._events))
        return data + (exchange.closing() if self._failure is None else exchange.failure(self._failure))

    @property
    def client(self) -> anthropic.Anthropic:
        http = httpx2.Client(transport=httpx2.MockTransport(self))
        return anthropic.Anthropic(api_key="k", base_url="http://test", http_client=http, max_retries=0)


def request_of(body: dict[str, Any]) -> Any:
    full = {"model": "tiny", "max_tokens": 100, "messages": MESSAGES, **body}
    return read_messages(json.dumps(full).encode(), ClientHeaders()).request


def refused(body: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        request_of(body)
    return str(caught.value.detail["param"])


def test_a_message_through_the_vendors_client() -> None:
    message = Recorded(HELLO).client.messages.create(
        model="tiny", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
    )
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].text == "Hello"
    assert (message.model, message.role, message.type) == ("tiny", "assistant", "message")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (4, 8, 2)
    assert message.usage.cache_creation_input_tokens == 0


def test_a_streamed_message_is_put_together_by_the_vendors_client() -> None:
    with Recorded(HELLO).client.messages.stream(
        model="tiny", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
    ) as stream:
        assert list(stream.text_stream) == ["Hel", "lo"]
        message = stream.get_final_message()
    assert message.content[0].text == "Hello"
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (4, 8, 2)


@pytest.mark.parametrize("streams", [False, True])
def test_calls_and_thinking_have_blocks_of_their_own(streams: bool) -> None:
    client = Recorded(CALLS).client
    asked: dict[str, Any] = {
        "model": "tiny", "max_tokens": 2000, "messages": MESSAGES, "tools": [TOOL],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }  # fmt: skip
    if streams:
        with client.messages.stream(**asked) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**asked)
    thinking, text, first, second = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", "I should look.")
    assert thinking.signature
    assert text.text == "One moment."
    assert (first.type, first.id, first.name, first.input) == ("tool_use", "call_a", "weather", {"city": "Bern"})
    assert (second.id, second.input) == ("call_b", {})
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens_details.thinking_tokens == 5


def test_the_events_of_a_stream_come_in_the_documented_order() -> None:
    recorded = Recorded(CALLS)
    events = list(recorded.client.messages.create(model="tiny", max_tokens=9, messages=MESSAGES, stream=True))
    assert [(event.type, getattr(event, "index", None)) for event in events] == [
        ("message_start", None),
        ("content_block_start", 0), ("content_block_delta", 0), ("content_block_delta", 0), ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1), ("content_block_delta", 1), ("content_block_stop", 1),
        ("content_block_start", 2), ("content_block_delta", 2), ("content_block_delta", 2),
        ("content_block_stop", 2),
        ("content_block_start", 3), ("content_block_delta", 3), ("content_block_stop", 3),
        ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    deltas = [event.delta.type for event in events if event.type == "content_block_delta"]
    assert deltas[:3] == ["thinking_delta", "thinking_delta", "signature_delta"]


def test_thinking_that_is_to_be_left_out_keeps_its_block() -> None:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 9, "messages": MESSAGES}
    asked["thinking"] = {"type": "adaptive", "display": "omitted"}
    whole = Recorded(CALLS).client.messages.create(**asked)
    with Recorded(CALLS).client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert (message.content[0].type, message.content[0].thinking) == ("thinking", "")
        assert message.content[0].signature


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (ChoiceFinished("length"), "max_tokens", None),
        (ChoiceFinished("stop", stopped_by="END"), "stop_sequence", "END"),
        (ChoiceFinished("stop"), "end_turn", None),
    ],
)
def test_why_a_message_ended(end: ChoiceFinished, reason: str, sequence: str | None) -> None:
    events: list[ChatEvent] = [TextDelta("a"), end, UsageReport(1, 1)]
    with Recorded(events).client.messages.stream(model="t", max_tokens=1, messages=MESSAGES) as stream:
        message = stream.get_final_message()
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


def test_a_stream_that_breaks_off_raises_in_the_vendors_client() -> None:
    recorded = Recorded([TextDelta("a")], Unavailable("the engine is gone"))
    with (
        recorded.client.messages.stream(model="t", max_tokens=1, messages=MESSAGES) as stream,
        pytest.raises(anthropic.APIStatusError, match="the engine is gone"),
    ):
        stream.get_final_message()


def test_arguments_that_are_cut_off_make_no_broken_body() -> None:
    events: list[ChatEvent] = [ToolCallStarted(0, "c", "weather"), ToolArguments(0, '{"ci'), ChoiceFinished("length")]
    message = Recorded(events).client.messages.create(model="t", max_tokens=1, messages=MESSAGES)
    assert (message.content[0].input, message.stop_reason) == ({}, "max_tokens")


@pytest.mark.parametrize("cut", ["", '{"days": 3, "city": "Ro', '{"days": 3,'])
def test_a_call_that_was_cut_has_what_the_vendors_client_makes_of_its_stream(cut: str) -> None:
    events: list[ChatEvent] = [ToolCallStarted(0, "c", "weather"), ToolArguments(0, cut), ChoiceFinished("length")]
    whole = Recorded(events).client.messages.create(model="t", max_tokens=1, messages=MESSAGES)
    with Recorded(events).client.messages.stream(model="t", max_tokens=1, messages=MESSAGES) as stream:
        streamed = stream.get_final_message()
    assert whole.content[0].input == streamed.content[0].input


def test_parse_with_pydantic() -> None:
    class Person(BaseModel):
        name: str

    recorded = Recorded([TextDelta('{"name": "Ann"}'), ChoiceFinished("stop"), UsageReport(1, 1)])
    message = recorded.client.messages.parse(model="t", max_tokens=9, messages=MESSAGES, output_format=Person)
    assert message.parsed_output == Person(name="Ann")
    assert recorded.exchange is not None
    output = recorded.exchange.request.output
    assert output is not None
    assert output.kind == "json_schema"
    assert json.loads(output.value)["required"] == ["name"]


def test_count_tokens() -> None:
    count = Recorded([]).client.messages.count_tokens(model="t", messages=MESSAGES, system="s", tools=[TOOL])
    assert count.input_tokens == 7


def test_a_bad_request_raises_in_the_vendors_client() -> None:
    with pytest.raises(anthropic.BadRequestError, match="container") as caught:
        Recorded(HELLO).client.messages.create(model="t", max_tokens=1, messages=MESSAGES, container="c")
    assert caught.value.body == {
        "type": "error", "request_id": "req-1",
        "error": {
            "type": "invalid_request_error", "param": "container",
            "message": "container: not supported: there are none",
        },
    }  # fmt: skip


def test_a_tool_runner_goes_on_without_the_thread_that_it_asks_for() -> None:
    """It asks for one unless it is told not to, and sends its messages again by the code of the refusal alone."""

    @anthropic.beta_tool
    def weather(city: str) -> str:
        return f"sunny in {city}"

    recorded = Recorded(
        [ToolCallStarted(0, "a", "weather"), ToolArguments(0, '{"city": "Bern"}'), ChoiceFinished("tool_calls")]
    )
    runner = recorded.client.beta.messages.tool_runner(
        model="t", max_tokens=9, messages=MESSAGES, tools=[weather], max_iterations=2
    )
    runner.until_done()
    assert recorded.exchange is not None
    assert [message.role for message in recorded.exchange.request.messages] == ["user", "assistant", "tool"]


def test_a_thread_that_a_client_insists_on_is_refused_by_its_name() -> None:
    thread = Recorded(HELLO).client.beta.messages.thread(model="t", max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="thread: not supported") as caught:
        thread.send({"role": "user", "content": "hi"})
    assert isinstance(caught.value, anthropic.types.ThreadUnsupportedRequestError)


def test_a_conversation_with_tools_is_read() -> None:
    request = request_of(
        {
            "system": [
                {"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "kind"},
            ],
            "tools": [TOOL],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "text", "text": "wait"},
                        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bern"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "content": [{"type": "text", "text": "no"}],
                            "is_error": True,
                        },
                        {"type": "text", "text": "and"},
                    ],
                },
                {"role": "user", "content": "now?"},
            ],
        }
    )
    assert request.messages == [
        ChatMessage("system", "Be\nkind"),
        ChatMessage("user", "a\nb"),
        ChatMessage("assistant", "wait", "hm", [ToolCall("t1", "weather", '{"city": "Bern"}')]),
        ChatMessage("tool", "Error: no", tool_call_id="t1", name="weather"),
        ChatMessage("user", "and\nnow?"),
    ]
    assert request.tools[0].parameters == TOOL["input_schema"]


def test_what_works_reaches_the_neutral_request() -> None:
    request = request_of(
        {
            "temperature": 0.5, "top_p": 0.9, "top_k": 7, "stop_sequences": ["a"], "metadata": {"user_id": "u"}, "stream": True,
            "service_tier": "standard_only", "thinking": {"type": "disabled"}, "speculation": False, "prediction": "p", "seed": 3,
            "output_config": {"effort": "low"}, "cache_salt": "x",
        }
    )  # fmt: skip
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 7, 3)
    assert (request.max_tokens, request.stop, request.user, request.stream) == (100, ["a"], "u", True)
    assert (request.speculation, request.prediction, request.cache_salt) == (False, "p", "x")
    assert request.template_arguments == {"enable_thinking": False, "reasoning_effort": "low"}


def test_no_share_is_the_likeliest_token_and_not_refused() -> None:
    sampling = request_of({"temperature": 0.7, "top_p": 0}).sampling
    assert (sampling.temperature, sampling.top_p) == (0, 1)


def test_shares_and_counts_that_a_client_has_not_chosen_are_none() -> None:
    """LangChain for JavaScript sent them so, and no request of it was answered."""
    assert request_of({"top_k": -1, "top_p": -1}) == request_of({})


def test_null_in_a_tool_and_its_result_is_not_refused() -> None:
    answered = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": None}]}
    request = request_of({"tools": [{**TOOL, "description": None}], "messages": [*MESSAGES, CALLED, answered]})
    assert (request.tools[0].description, request.messages[-1].content) == ("", "")


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("required", parallel=False)),
        ({"type": "tool", "name": "weather"}, ToolChoice("required", ["weather"])),
        ({"type": "none"}, ToolChoice("none")),
    ],
)
def test_tool_choices(choice: dict[str, Any], wanted: ToolChoice) -> None:
    assert request_of({"tools": [TOOL], "tool_choice": choice}).tool_choice == wanted


def test_the_last_message_of_the_assistant_is_gone_on_with() -> None:
    assert request_of({"messages": [*MESSAGES, {"role": "assistant", "content": "The "}]}).continue_final
    assert not request_of({}).continue_final


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}
RESULT = {"type": "tool_result", "tool_use_id": "x"}
CALLED = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [RESULT]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [*MESSAGES, CALLED]}, "messages[1]"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": ""}]}, "messages[1]"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a\n", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a", "input_schema": {"type": "string"}}]}, "tools[0].input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL] * 513}, "tools"),
        ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools[0].input_examples"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"speed": "fast"}, "speed"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"nonsense": 1}, "nonsense"),
        ({"logit_bias": {}}, "logit_bias"),
        ({"seed": -1}, "seed"),
    ],
)  # fmt: skip
def test_what_is_unknown_or_not_supported_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    assert refused(body) == param


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a": 1e999}', b"\xff", b'{"model": "\\ud800"}', b"[" * 5000])
def test_a_body_that_is_no_object_is_an_invalid_request(body: bytes) -> None:
    for dialect in (read_messages, read_count_tokens):
        with pytest.raises(InvalidRequest) as caught:
            dialect(body, ClientHeaders())
        assert "param" in caught.value.detail


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("x", param="a"), 400, "invalid_request_error"),
        (NotFound("x"), 404, "not_found_error"),
        (LimitExceeded("x", limit="context_tokens"), 400, "invalid_request_error"),
        (LimitExceeded("x", limit="body_bytes"), 413, "request_too_large"),
        (LimitExceeded("x", limit="chat_tools"), 400, "invalid_request_error"),
        (LimitExceeded("x", limit="wall_s"), 504, "timeout_error"),
        (LimitExceeded("x", limit="waiting"), 429, "rate_limit_error"),
        (Unavailable("x"), 503, "overloaded_error"),
        (ProgramError("x"), 500, "api_error"),
    ],
)
def test_errors_have_the_vendors_types(error: InferdError, status: int, kind: str) -> None:
    reply = error_reply_anthropic(error)
    assert (reply.status, reply.body["type"], reply.body["error"]["type"]) == (status, "error", kind)
    assert ("Retry-After" in reply.headers) == (status in (429, 503))


def test_a_text_has_no_citations_that_are_null() -> None:
    """Vercel's client takes a list of them or none: it refuses the whole message otherwise."""
    exchange = read_messages(
        b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}', ClientHeaders()
    )
    answer = exchange.whole()
    answer.add(TextDelta("a"))
    assert json.loads(answer.body())["content"] == [{"type": "text", "text": "a"}]


def test_a_prompt_that_is_too_long_is_told_in_anthropics_words() -> None:
    """Clients that make a conversation shorter and ask again look for them."""
    reply = error_reply_anthropic(LimitExceeded("9 tokens, 8 fit", limit="context_tokens"))
    assert reply.body["error"]["message"] == "prompt is too long: 9 tokens, 8 fit"
