"""Anthropic's own package over a socket: a real engine answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from pydantic import BaseModel

from .conftest import LiveServer

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"name": "weather", "description": "The weather of a city.", "input_schema": SCHEMA}
HELLO: Any = [{"role": "user", "content": "Hello there"}]
ARGMAX: Any = {"temperature": 0}


class City(BaseModel):
    """What an answer is held to."""

    name: Literal["Bern", "Rome"]


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[anthropic.Anthropic]:
    with server.anthropic() as client:
        yield client


def test_a_message_and_its_stream_say_the_same(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="tiny", max_tokens=12, messages=HELLO, extra_body=ARGMAX)
    with client.messages.stream(model="tiny", max_tokens=12, messages=HELLO, extra_body=ARGMAX) as stream:
        streamed = stream.get_final_message()
    assert whole.content[0].text
    assert streamed.content[0].text == whole.content[0].text
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert whole._request_id


@pytest.mark.parametrize(
    "asked", [{}, {"tools": [TOOL], "tool_choice": {"type": "any"}}], ids=["text", "a call cut off"]
)
def test_the_beginning_of_a_stream_does_not_say_that_the_prompt_is_empty(
    client: anthropic.Anthropic, asked: dict[str, Any]
) -> None:
    count = client.messages.count_tokens(model="tiny", messages=HELLO, **asked)
    with client.messages.create(model="tiny", max_tokens=1, messages=HELLO, stream=True, **asked) as stream:
        begun = next(iter(stream))
    assert begun.message.usage.input_tokens == count.input_tokens > 0


def test_the_beta_of_messages_speaks_the_same(client: anthropic.Anthropic) -> None:
    keep: Any = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    message = client.beta.messages.create(
        model="tiny", max_tokens=3, messages=HELLO, betas=["context-management-2025-06-27"], context_management=keep,
        extra_body=ARGMAX,
    )  # fmt: skip
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)


def test_a_message_ends_at_a_stop_sequence(client: anthropic.Anthropic) -> None:
    text = client.messages.create(model="tiny", max_tokens=12, messages=HELLO, extra_body=ARGMAX).content[0].text
    stopped = client.messages.create(
        model="tiny", max_tokens=12, messages=HELLO, stop_sequences=[text[3:6]], extra_body=ARGMAX
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[3:6])
    assert stopped.content[0].text == text[:3]


def test_a_tool_is_called_answered_and_the_conversation_goes_on(client: anthropic.Anthropic) -> None:
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


def test_a_message_is_held_to_a_schema(client: anthropic.Anthropic) -> None:
    message = client.messages.parse(model="tiny", max_tokens=60, messages=HELLO, output_format=City)
    assert isinstance(message.parsed_output, City)


def test_the_tokens_of_a_message_are_counted_as_they_are_used(client: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "How many tokens are these?"}]
    count = client.messages.count_tokens(model="tiny", messages=messages, system="Be kind.", tools=[TOOL])
    used = client.messages.create(model="tiny", max_tokens=1, messages=messages, system="Be kind.", tools=[TOOL]).usage
    assert count.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)


def test_a_prompt_can_be_computed_ahead(client: anthropic.Anthropic) -> None:
    """Anthropic's pre-warming: ``max_tokens`` 0 fills the cache and answers nothing."""
    messages: Any = [{"role": "user", "content": "A prompt that is known before anybody asks. " * 9}]
    warmed = client.messages.create(model="tiny", max_tokens=0, messages=messages)
    assert (warmed.content, warmed.stop_reason, warmed.usage.output_tokens) == ([], "max_tokens", 0)
    assert warmed.usage.input_tokens > 0
    used = client.messages.create(model="tiny", max_tokens=1, messages=messages).usage
    assert used.cache_read_input_tokens > warmed.usage.input_tokens // 2
    with client.messages.stream(model="tiny", max_tokens=0, messages=messages) as stream:
        assert stream.get_final_message().content == []


def test_models_are_listed_page_by_page_and_found_by_name(client: anthropic.Anthropic) -> None:
    names = [model.id for model in client.models.list(limit=2)]
    assert {"tiny", "chat", "best-of-n"} <= set(names)
    assert len(names) == len(set(names)) == len(client.models.list().data)
    found = client.models.retrieve("tiny")
    assert (found.type, found.display_name, found.lifecycle) == ("model", "tiny", "active")
    assert (found.max_tokens or 0) > 0
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.models.retrieve("none")
    body: Any = unknown.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    with pytest.raises(anthropic.BadRequestError, match="limit"):
        client.models.list(limit=0)
    with pytest.raises(anthropic.AuthenticationError) as stranger:
        client.with_options(api_key="nobody").models.list()
    body = stranger.value.body
    assert body["error"]["type"] == "authentication_error"


def test_anthropics_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="nothing"):
        client.messages.create(model="nothing", max_tokens=1, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError, match="container") as caught:
        client.messages.create(model="tiny", max_tokens=1, messages=HELLO, container="c")
    body: Any = caught.value.body
    assert body["request_id"] == caught.value.request_id
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="nobody").messages.create(model="tiny", max_tokens=1, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(model="tiny", max_tokens=1, messages=[{"role": "user", "content": "x " * 50_000}])
