"""OpenAI's own package for responses: a real engine answers, a real store keeps."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel

from .conftest import BOB, TOKEN, LiveServer

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
CUSTOM: Any = {
    "type": "custom", "name": "run", "format": {"type": "grammar", "syntax": "regex", "definition": r'[ab"\n]{3,6}'},
}  # fmt: skip
LONG: Any = {
    "type": "json_schema", "name": "long",
    "schema": {"type": "object", "properties": {"a": {"type": "string", "minLength": 5000}}, "required": ["a"]},
}  # fmt: skip
"""An answer that takes its time."""


class City(BaseModel):
    """What an answer is held to."""

    name: Literal["Bern", "Rome"]


@pytest.fixture(scope="module")
def other(server: LiveServer) -> Iterator[openai.OpenAI]:
    """Of another tenant."""
    with server.openai(api_key=BOB) as client:
        yield client


def test_a_response_and_its_stream_say_the_same(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="tiny", input="Hello there", max_output_tokens=12, temperature=0)
    events = list(
        client.responses.create(model="tiny", input="Hello there", max_output_tokens=12, temperature=0, stream=True)
    )
    assert whole.output_text
    assert events[-1].type == f"response.{whole.status}"
    assert events[-1].response.output_text == whole.output_text
    assert client.responses.retrieve(events[-1].response.id).output_text == whole.output_text


def test_a_custom_tool_is_called_with_a_text_of_its_grammar_and_answered(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "input": "Run it.", "tools": [CUSTOM], "tool_choice": "required", "seed": 5}
    asked |= {"extra_body": {"seed": asked.pop("seed")}, "max_output_tokens": 100, "parallel_tool_calls": False}
    whole = client.responses.create(**asked)
    (call,) = whole.output
    assert (call.type, call.name, whole.status) == ("custom_tool_call", "run", "completed")
    assert re.fullmatch(r'[ab"\n]{3,6}', call.input)
    events = list(client.responses.create(stream=True, **asked))
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == call.input
    output: Any = [{"type": "custom_tool_call_output", "call_id": call.call_id, "output": "ran"}]
    after = client.responses.create(
        model="tiny", input=output, previous_response_id=whole.id, tools=[CUSTOM], max_output_tokens=4
    )
    assert after.status in ("completed", "incomplete")
    assert [item.type for item in client.responses.input_items.list(after.id, order="asc")] == [
        "message", "custom_tool_call", "custom_tool_call_output",
    ]  # fmt: skip


def test_a_response_that_follows_another_finds_its_keys_and_values(client: openai.OpenAI) -> None:
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


def test_a_function_is_called_and_answered(client: openai.OpenAI) -> None:
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


def test_a_response_is_held_to_a_model_and_tells_log_probabilities(client: openai.OpenAI) -> None:
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


def test_a_response_belongs_to_its_tenant(client: openai.OpenAI, other: openai.OpenAI) -> None:
    response = client.responses.create(model="tiny", input="Hi", max_output_tokens=2)
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
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def until_over(client: openai.OpenAI, response_id: str) -> Any:
    """Ask for a response until it is over."""
    for _ in range(600):
        response = client.responses.retrieve(response_id)
        if response.status != "in_progress":
            return response
    raise AssertionError("it is never over")


def test_a_response_in_the_background_is_asked_for_until_it_is_over(client: openai.OpenAI) -> None:
    begun = client.responses.create(model="tiny", input="Hi", background=True, max_output_tokens=5, temperature=0)
    assert (begun.status, begun.background) == ("in_progress", True)
    ended = until_over(client, begun.id)
    waited = client.responses.create(model="tiny", input="Hi", max_output_tokens=5, temperature=0)
    assert (ended.status, ended.output_text) == (waited.status, waited.output_text)
    assert client.responses.cancel(begun.id).status == ended.status


def test_an_admin_ends_a_tenants_responses_in_the_background(
    client: openai.OpenAI, other: openai.OpenAI, http: httpx.Client
) -> None:
    """They have no connection that would be closed with the tenant's token."""
    own, theirs = (
        one.responses.create(model="tiny", input="Hi", background=True, text={"format": LONG}, max_output_tokens=3000)
        for one in (client, other)
    )
    stopped = http.post("/v1/tenants/bob/stop")
    assert (stopped.status_code, stopped.json()) == (202, {"tenant": "bob", "runs": 0, "responses": 1})
    deadline = time.monotonic() + 20
    while (state := other.responses.retrieve(theirs.id).status) != "cancelled":
        assert time.monotonic() < deadline, state
    assert client.responses.retrieve(own.id).status == "in_progress"
    assert client.responses.cancel(own.id).status == "cancelled"


def test_a_response_in_the_background_is_cancelled(client: openai.OpenAI, other: openai.OpenAI) -> None:
    begun = client.responses.create(
        model="tiny", input="Hi", background=True, text={"format": LONG}, max_output_tokens=3000
    )
    with pytest.raises(openai.NotFoundError):
        other.responses.cancel(begun.id)
    assert client.responses.cancel(begun.id).status == "cancelled"
    assert client.responses.retrieve(begun.id).status == "cancelled"
    with pytest.raises(openai.NotFoundError, match="nothing"):
        client.responses.create(model="nothing", input="Hi", background=True)
    waited = client.responses.create(model="tiny", input="Hi", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(waited.id)


def test_a_stream_that_was_lost_goes_on_where_it_ended(client: openai.OpenAI, other: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "input": "Hi", "text": {"format": LONG}, "max_output_tokens": 60}
    with client.responses.create(**asked, background=True, stream=True) as stream:
        seen: list[Any] = [next(stream) for _ in range(6)]
    response_id = seen[0].response.id
    seen += client.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    said = [event.delta for event in seen if event.type == "response.output_text.delta"]
    assert len(said) > 6
    assert "".join(said) == seen[-1].response.output_text == until_over(client, response_id).output_text
    assert list(client.responses.retrieve(response_id, stream=True)) == seen
    with pytest.raises(openai.NotFoundError):
        other.responses.retrieve(response_id, stream=True)
    waited = client.responses.create(model="tiny", input="Hi", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="are not kept"):
        client.responses.retrieve(waited.id, stream=True)


def test_the_tokens_of_a_response_are_counted_as_they_are_used(client: openai.OpenAI) -> None:
    first = client.responses.create(model="tiny", input="Hi", max_output_tokens=3)
    asked: Any = {"input": "How many tokens are these?", "instructions": "Be kind.", "tools": [FUNCTION]}
    for more in ({}, {"previous_response_id": first.id}):
        count = client.responses.input_tokens.count(model="tiny", **asked, **more)
        used = client.responses.create(model="tiny", max_output_tokens=1, **asked, **more).usage
        assert used is not None
        assert (count.object, count.input_tokens) == ("response.input_tokens", used.input_tokens)
    assert client.responses.input_tokens.count(input="Hi").input_tokens == first.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="personality: not supported"):
        client.responses.input_tokens.count(model="tiny", input="Hi", personality="friendly")


def test_compaction_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="/v1/responses/compact is not supported"):
        client.responses.compact(model="tiny", input="Hi")


def test_openais_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nothing") as unknown:
        client.responses.create(model="nothing", input="Hi")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="tiny", input="Hi", service_tier="flex")
    assert refused.value.param == "service_tier"
    with pytest.raises(openai.BadRequestError, match="limit"):
        client.responses.input_items.list("anything", limit=1000)


@contextmanager
def served_apart(folder: Path) -> Iterator[tuple[subprocess.Popen[str], openai.OpenAI]]:
    """A server in a process of its own, which keeps its data in ``folder``."""
    folders = ["--state-dir", str(folder / "state"), "--data-dir", str(folder / "data")]
    command = [sys.executable, "-m", "inferd_runtime.cli", "serve", "--port", "0", "--token", TOKEN, "--json", *folders]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            with openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0) as client:
                yield process, client
        finally:
            process.kill()


@pytest.mark.long
def test_a_response_in_the_background_has_failed_after_its_server_was_killed(tmp_path: Path) -> None:
    with served_apart(tmp_path) as (process, client):
        begun = client.responses.create(model="tiny", input="Hi", background=True, text={"format": LONG})
        assert client.responses.retrieve(begun.id).status == "in_progress"
        process.kill()
        process.wait()
    with served_apart(tmp_path) as (_, client):
        found = client.responses.retrieve(begun.id)
        assert (found.status, found.error.code) == ("failed", "server_error")
        with pytest.raises(openai.BadRequestError, match="not over, or failed"):
            client.responses.create(model="tiny", input="And?", previous_response_id=begun.id)
        client.responses.delete(begun.id)
