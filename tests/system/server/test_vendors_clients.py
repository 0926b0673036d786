"""Anthropic's own package, and OpenAI's for responses, over a socket: a real engine answers, a real store keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from live_server import BOB, LiveServer, live_server
from pydantic import BaseModel

pytestmark = pytest.mark.system
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"name": "weather", "description": "The weather of a city.", "input_schema": SCHEMA}
FUNCTION: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
LONG: Any = {
    "type": "json_schema", "name": "long",
    "schema": {"type": "object", "properties": {"a": {"type": "string", "minLength": 5000}}, "required": ["a"]},
}  # fmt: skip
"""An answer that takes its time."""
HELLO: Any = [{"role": "user", "content": "Hello there"}]
ARGMAX: Any = {"temperature": 0}


class City(BaseModel):
    """What an answer is held to."""

    name: Literal["Bern", "Rome"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def test_a_message_and_its_stream_say_the_same(server: LiveServer) -> None:
    client = server.anthropic()
    whole = client.messages.create(model="tiny", max_tokens=12, messages=HELLO, extra_body=ARGMAX)
    with client.messages.stream(model="tiny", max_tokens=12, messages=HELLO, extra_body=ARGMAX) as stream:
        streamed = stream.get_final_message()
    assert whole.content[0].text
    assert streamed.content[0].text == whole.content[0].text
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert whole._request_id


def test_the_beginning_of_a_stream_does_not_say_that_the_prompt_is_empty(server: LiveServer) -> None:
    client = server.anthropic()
    count = client.messages.count_tokens(model="tiny", messages=HELLO)
    with client.messages.create(model="tiny", max_tokens=3, messages=HELLO, stream=True) as stream:
        begun = next(iter(stream))
    assert begun.message.usage.input_tokens == count.input_tokens > 0


def test_the_beta_of_messages_speaks_the_same(server: LiveServer) -> None:
    keep: Any = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    message = server.anthropic().beta.messages.create(
        model="tiny", max_tokens=3, messages=HELLO, betas=["context-management-2025-06-27"], context_management=keep,
        extra_body=ARGMAX,
    )  # fmt: skip
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)


def test_a_message_ends_at_a_stop_sequence(server: LiveServer) -> None:
    client = server.anthropic()
    text = client.messages.create(model="tiny", max_tokens=12, messages=HELLO, extra_body=ARGMAX).content[0].text
    stopped = client.messages.create(
        model="tiny", max_tokens=12, messages=HELLO, stop_sequences=[text[3:6]], extra_body=ARGMAX
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[3:6])
    assert stopped.content[0].text == text[:3]


def test_a_tool_is_called_answered_and_the_conversation_goes_on(server: LiveServer) -> None:
    client = server.anthropic()
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 100, "tools": [TOOL]}
    choice: Any = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    with client.messages.stream(messages=HELLO, tool_choice=choice, **asked) as stream:
        message = stream.get_final_message()
    (call,) = message.content
    assert (message.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "weather")
    assert call.input["city"] in ("Bern", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    said = [*HELLO, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=said, **asked).usage.output_tokens > 0


def test_a_message_is_held_to_a_schema(server: LiveServer) -> None:
    message = server.anthropic().messages.parse(model="tiny", max_tokens=60, messages=HELLO, output_format=City)
    assert isinstance(message.parsed_output, City)


def test_the_tokens_of_a_message_are_counted_as_they_are_used(server: LiveServer) -> None:
    client = server.anthropic()
    messages: Any = [{"role": "user", "content": "How many tokens are these?"}]
    count = client.messages.count_tokens(model="tiny", messages=messages, system="Be kind.", tools=[TOOL])
    used = client.messages.create(model="tiny", max_tokens=1, messages=messages, system="Be kind.", tools=[TOOL]).usage
    assert count.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)


def test_anthropics_errors(server: LiveServer) -> None:
    client = server.anthropic()
    with pytest.raises(anthropic.NotFoundError, match="nothing"):
        client.messages.create(model="nothing", max_tokens=1, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError, match="container") as caught:
        client.messages.create(model="tiny", max_tokens=1, messages=HELLO, container="c")
    body: Any = caught.value.body
    assert body["request_id"] == caught.value.request_id
    with pytest.raises(anthropic.AuthenticationError):
        server.anthropic("nobody").messages.create(model="tiny", max_tokens=1, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(model="tiny", max_tokens=1, messages=[{"role": "user", "content": "x " * 50_000}])


def test_a_response_and_its_stream_say_the_same(server: LiveServer) -> None:
    client = server.openai()
    whole = client.responses.create(model="tiny", input="Hello there", max_output_tokens=12, temperature=0)
    events = list(
        client.responses.create(model="tiny", input="Hello there", max_output_tokens=12, temperature=0, stream=True)
    )
    assert whole.output_text
    assert events[-1].type == f"response.{whole.status}"
    assert events[-1].response.output_text == whole.output_text
    assert client.responses.retrieve(events[-1].response.id).output_text == whole.output_text


def test_a_response_that_follows_another_finds_its_keys_and_values(server: LiveServer) -> None:
    client = server.openai()
    first = client.responses.create(
        model="tiny", input="Tell me about " + "trees and " * 30, max_output_tokens=20, temperature=0
    )
    second = client.responses.create(
        model="tiny", input="And now?", previous_response_id=first.id, max_output_tokens=5, temperature=0
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens - 32
    listed = client.responses.input_items.list(second.id, order="asc")
    assert [item.role for item in listed] == ["user", "assistant", "user"]


def test_a_function_is_called_and_answered(server: LiveServer) -> None:
    client = server.openai()
    first = client.responses.create(
        model="tiny",
        input="Weather?",
        tools=[FUNCTION],
        tool_choice={"type": "function", "name": "weather"},
        max_output_tokens=100,
    )
    (call,) = first.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in ("Bern", "Rome")
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    second = client.responses.create(model="tiny", input=output, previous_response_id=first.id, max_output_tokens=5)
    assert second.usage is not None
    assert second.usage.output_tokens > 0


def test_a_response_is_held_to_a_model_and_tells_log_probabilities(server: LiveServer) -> None:
    client = server.openai()
    parsed = client.responses.parse(model="tiny", input="A city?", text_format=City, max_output_tokens=60)
    assert isinstance(parsed.output_parsed, City)
    scored = client.responses.create(
        model="tiny",
        input="Hello there",
        temperature=0,
        max_output_tokens=3,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    logprobs = scored.output[0].content[0].logprobs
    assert [len(one.top_logprobs) for one in logprobs] == [2] * len(logprobs)
    assert len(logprobs) == 3


def test_a_response_belongs_to_its_tenant(server: LiveServer) -> None:
    response = server.openai().responses.create(model="tiny", input="Hi", max_output_tokens=2)
    other = server.openai(BOB)
    for call in (
        other.responses.retrieve,
        other.responses.delete,
        other.responses.cancel,
        other.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError):
            call(response.id)
    with pytest.raises(openai.BadRequestError, match="Previous response"):
        other.responses.create(model="tiny", input="Hi", previous_response_id=response.id)
    server.openai().responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        server.openai().responses.retrieve(response.id)


def until_over(client: openai.OpenAI, response_id: str) -> Any:
    """Ask for a response until it is over."""
    for _ in range(600):
        response = client.responses.retrieve(response_id)
        if response.status != "in_progress":
            return response
    raise AssertionError("it is never over")


def test_a_response_in_the_background_is_asked_for_until_it_is_over(server: LiveServer) -> None:
    client = server.openai()
    begun = client.responses.create(model="tiny", input="Hi", background=True, max_output_tokens=5, temperature=0)
    assert (begun.status, begun.background) == ("in_progress", True)
    ended = until_over(client, begun.id)
    waited = client.responses.create(model="tiny", input="Hi", max_output_tokens=5, temperature=0)
    assert (ended.status, ended.output_text) == (waited.status, waited.output_text)
    assert client.responses.cancel(begun.id).status == ended.status


def test_a_response_in_the_background_is_cancelled(server: LiveServer) -> None:
    client = server.openai()
    begun = client.responses.create(
        model="tiny", input="Hi", background=True, text={"format": LONG}, max_output_tokens=3000
    )
    with pytest.raises(openai.NotFoundError):
        server.openai(BOB).responses.cancel(begun.id)
    assert client.responses.cancel(begun.id).status == "cancelled"
    assert client.responses.retrieve(begun.id).status == "cancelled"
    with pytest.raises(openai.NotFoundError, match="nothing"):
        client.responses.create(model="nothing", input="Hi", background=True)
    waited = client.responses.create(model="tiny", input="Hi", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(waited.id)


def test_openais_errors(server: LiveServer) -> None:
    client = server.openai()
    with pytest.raises(openai.NotFoundError, match="nothing") as unknown:
        client.responses.create(model="nothing", input="Hi")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="tiny", input="Hi", truncation="auto")
    assert refused.value.param == "truncation"
    with pytest.raises(openai.BadRequestError, match="limit"):
        client.responses.input_items.list("anything", limit=1000)
