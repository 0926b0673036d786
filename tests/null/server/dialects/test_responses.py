"""OpenAI's Responses dialect, as OpenAI's own package speaks and reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from pydantic import BaseModel

from inferd.chat import (
    ChatEvent,
    ChatMessage,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolArguments,
    ToolCall,
    ToolCallStarted,
    ToolChoice,
    UsageReport,
)
from inferd.protocol import InferdError, InvalidRequest, NotFound, Unavailable
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.responses.answer import MAX_ITEMS, ResponsesExchange, read_responses
from inferd_runtime.server.dialects.responses.stored import (
    StoredResponse,
    deleted_json,
    item_page,
    not_cancellable,
    unknown_response,
)
from inferd_runtime.server.dialects.statuses import status_of

HELLO: list[ChatEvent] = [TextDelta("Hel"), TextDelta("lo"), ChoiceFinished("stop"), UsageReport(12, 2, cached=8)]
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": True}
CALLS: list[ChatEvent] = [
    ReasoningDelta("Look."),
    TextDelta("One moment."),
    ToolCallStarted(0, "call_a", "weather"),
    ToolArguments(0, '{"city": '),
    ToolArguments(0, '"Bern"}'),
    ToolCallStarted(1, "call_b", "weather"),
    ChoiceFinished("tool_calls"),
    UsageReport(30, 20, reasoning=5),
]


class Served:
    """Answers every request with the same events, and keeps responses in a dict."""

    def __init__(self, events: Sequence[ChatEvent] = HELLO, failure: InferdError | None = None) -> None:
        self.events = events
        self.kept: dict[str, StoredResponse] = {}
        self.exchange: ResponsesExchange | None = None
        self._failure = failure

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        try:
            if request.method == "POST" and request.url.path.endswith("/responses"):
                return self._answer(request.content)
            return self._kept(request)
        except InferdError as error:
            body = {
                "error": {"message": error.message, "type": "invalid_request_error", "param": error.detail.get("param")}
            }
            return httpx2.Response(status_of(error), json=body)

    def _answer(self, content: bytes) -> httpx2.Response:
        self.exchange = exchange = read_responses(content, ClientHeaders())
        if exchange.previous or exchange.references:
            items = {item["id"]: item for one in self.kept.values() for item in one.conversation}
            exchange.follow(self.kept.get(exchange.previous), items)
        exchange.when_complete = lambda stored: self.kept.update({stored.id: stored})
        if not exchange.streams:
            answer = exchange.whole()
            for event in self.events:
                answer.add(event)
            response = replied(answer.body())
        else:
            data = exchange.opening() + b"".join(map(exchange.chunks, self.events))
            data += exchange.closing() if self._failure is None else exchange.failure(self._failure)
            response = httpx2.Response(200, content=data, headers={"content-type": "text/event-stream"})
        return response

    def _kept(self, request: httpx2.Request) -> httpx2.Response:
        response_id, *rest = request.url.path.split("/responses/")[1].split("/")
        if response_id not in self.kept:
            raise unknown_response(response_id)
        if rest == ["input_items"]:
            query = request.url.params
            page = item_page(
                self.kept[response_id].input,
                int(query.get("limit", 20)),
                query.get("order", "desc"),
                query.get("after", ""),
            )
            return replied(msgspec.json.encode(page))
        if rest == ["cancel"]:
            raise not_cancellable(response_id)
        if request.method == "DELETE":
            del self.kept[response_id]
            return httpx2.Response(200, json=deleted_json(response_id))
        return replied(msgspec.json.encode(self.kept[response_id].response))

    @property
    def client(self) -> openai.OpenAI:
        http = httpx2.Client(transport=httpx2.MockTransport(self))
        return openai.OpenAI(api_key="k", base_url="http://test/v1", http_client=http, max_retries=0)


def replied(content: bytes) -> httpx2.Response:
    return httpx2.Response(200, content=content, headers={"content-type": "application/json"})


def read(body: dict[str, Any]) -> Any:
    return read_responses(json.dumps({"model": "tiny", "input": "hi", **body}).encode(), ClientHeaders()).request


def test_a_response_through_the_vendors_client() -> None:
    response = Served().client.responses.create(model="tiny", input="hi", instructions="Be kind.")
    assert response.output_text == "Hello"
    assert (response.status, response.model, response.object, response.error) == ("completed", "tiny", "response", None)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (12, 2, 14)
    assert response.usage.input_tokens_details.cached_tokens == 8
    assert response.instructions == "Be kind."
    assert response.id.startswith("resp_")


def test_the_events_of_a_stream_come_in_order_and_numbered() -> None:
    events = list(Served(CALLS).client.responses.create(model="tiny", input="hi", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
        "output_item.added", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip


@pytest.mark.parametrize("streams", [False, True])
def test_calls_and_reasoning_are_items_of_their_own(streams: bool) -> None:
    client = Served(CALLS).client
    if streams:
        with client.responses.stream(model="tiny", input="hi", tools=[TOOL]) as stream:
            response = stream.get_final_response()
    else:
        response = client.responses.create(model="tiny", input="hi", tools=[TOOL])
    reasoning, message, first, second = response.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "Look.")
    assert message.content[0].text == "One moment."
    assert (first.type, first.call_id, first.name, first.arguments) == (
        "function_call",
        "call_a",
        "weather",
        '{"city": "Bern"}',
    )
    assert (second.call_id, second.arguments) == ("call_b", "{}")
    assert response.usage.output_tokens_details.reasoning_tokens == 5


@pytest.mark.parametrize("arguments", ["", '{"city": "Ro'])
@pytest.mark.parametrize("streams", [False, True])
def test_a_call_that_was_cut_is_incomplete_and_can_be_sent_back(arguments: str, streams: bool) -> None:
    events = [ToolCallStarted(0, "call_a", "weather"), ToolArguments(0, arguments), ChoiceFinished("length")]
    served = Served(events)
    if streams:
        with served.client.responses.stream(model="tiny", input="hi", tools=[TOOL]) as stream:
            response = list(stream)[-1].response
    else:
        response = served.client.responses.create(model="tiny", input="hi", tools=[TOOL])
    (call,) = response.output
    assert (response.status, call.status, call.arguments) == ("incomplete", "incomplete", arguments)
    (message,) = read({"input": [call.model_dump(exclude_none=True)]}).template_messages()
    assert message["tool_calls"][0]["function"]["arguments"] == (arguments or {})


def test_the_stream_helper_puts_the_text_together() -> None:
    with Served().client.responses.stream(model="tiny", input="hi") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        assert snapshots == ["Hel", "Hello"]
        assert stream.get_final_response().output_text == "Hello"


def test_parse_with_pydantic() -> None:
    class Person(BaseModel):
        name: str

    served = Served([TextDelta('{"name": "Ann"}'), ChoiceFinished("stop"), UsageReport(1, 1)])
    response = served.client.responses.parse(model="tiny", input="hi", text_format=Person)
    assert response.output_parsed == Person(name="Ann")
    assert served.exchange is not None
    output = served.exchange.request.output
    assert output is not None
    assert (output.kind, json.loads(output.value)["required"]) == ("json_schema", ["name"])


def test_calls_that_a_client_has_parsed_go_back_into_the_conversation() -> None:
    """As OpenAI's clients dump them, JavaScript's without being asked to."""
    response = Served(CALLS).client.responses.parse(model="tiny", input="hi", tools=[TOOL])
    sent = [item.model_dump() for item in response.output if item.type == "function_call"]
    assert sent[0]["parsed_arguments"] == {"city": "Bern"}
    (message,) = read({"input": sent}).template_messages()
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [{"city": "Bern"}, {}]


def test_an_answer_that_ran_out_of_tokens_is_incomplete() -> None:
    events: list[ChatEvent] = [TextDelta("a"), ChoiceFinished("length"), UsageReport(1, 1)]
    response = Served(events).client.responses.create(model="tiny", input="hi", max_output_tokens=1)
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    streamed = list(Served(events).client.responses.create(model="tiny", input="hi", stream=True))
    assert streamed[-1].type == "response.incomplete"


def test_a_stream_that_breaks_off_ends_with_a_failed_response() -> None:
    served = Served([TextDelta("a")], Unavailable("the engine is gone"))
    last = list(served.client.responses.create(model="tiny", input="hi", stream=True))[-1]
    assert last.type == "response.failed"
    assert (last.response.status, last.response.error.code) == ("failed", "server_error")
    assert last.response.output[0].status == "incomplete"
    assert not served.kept


def test_a_conversation_of_more_items_than_the_gateway_reads_at_a_time_is_refused() -> None:
    def read(items: int, **fields: Any) -> ResponsesExchange:
        body = {"model": "m", "input": [{"role": "user", "content": "x"}] * items, **fields}
        return read_responses(json.dumps(body).encode(), ClientHeaders())

    exchange = read(MAX_ITEMS)
    with pytest.raises(InvalidRequest) as caught:
        read(MAX_ITEMS + 1)
    assert caught.value.detail["param"] == "input"
    previous = exchange.begun
    with pytest.raises(InvalidRequest) as caught:
        read(1, previous_response_id="resp_a").follow(previous, {})
    assert caught.value.detail["param"] == "previous_response_id"


def test_one_item_is_not_named_twice() -> None:
    item = {"type": "item_reference", "id": "msg_a"}
    with pytest.raises(InvalidRequest, match="one item") as caught:
        read_responses(json.dumps({"model": "m", "input": [item, item]}).encode(), ClientHeaders())
    assert caught.value.detail["param"] == "input"


def test_log_probabilities() -> None:
    score = TokenScore(5, "a", [97], -0.5, [TokenScore(5, "a", [97], -0.5), TokenScore(6, "b", [98], -1.0)])
    served = Served([ReasoningDelta("x", scores=[score]), TextDelta("a", scores=[score]), ChoiceFinished("stop")])
    asked: dict[str, Any] = {
        "model": "tiny",
        "input": "hi",
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
    }
    whole = served.client.responses.create(**asked)
    with served.client.responses.stream(**asked) as stream:
        streamed = stream.get_final_response()
    for response in (whole, streamed):
        (logprob,) = response.output[1].content[0].logprobs
        assert (logprob.token, logprob.bytes, [one.token for one in logprob.top_logprobs]) == ("a", [97], ["a", "b"])
    assert served.exchange is not None
    assert served.exchange.request.logprobs == 2


def test_a_response_follows_another_without_its_instructions() -> None:
    served = Served()
    first = served.client.responses.create(model="tiny", input="one", instructions="Be kind.")
    second = served.client.responses.create(model="tiny", input="two", previous_response_id=first.id)
    served.client.responses.create(model="tiny", input="three", previous_response_id=second.id)
    assert served.exchange is not None
    assert [(message.role, message.content) for message in served.exchange.request.messages] == [
        ("user", "one"), ("assistant", "Hello"), ("user", "two"), ("assistant", "Hello"), ("user", "three"),
    ]  # fmt: skip


def test_an_answer_sent_back_by_the_client_is_the_same_conversation() -> None:
    served = Served(CALLS)
    first = served.client.responses.create(model="tiny", input="one", tools=[TOOL], store=False)
    assert not served.kept
    output = {"type": "function_call_output", "call_id": "call_a", "output": "sunny"}
    back: list[Any] = [{"role": "user", "content": "one"}, *[item.to_dict() for item in first.output], output]
    served.client.responses.create(model="tiny", input=back, tools=[TOOL])
    assert served.exchange is not None
    assert served.exchange.request.messages == [
        ChatMessage("user", "one"),
        ChatMessage(
            "assistant", "One moment.", "Look.",
            [ToolCall("call_a", "weather", '{"city": "Bern"}'), ToolCall("call_b", "weather", "{}")],
        ),
        ChatMessage("tool", "sunny", tool_call_id="call_a", name="weather"),
    ]  # fmt: skip


def test_the_output_of_a_call_follows_a_kept_response() -> None:
    served = Served(CALLS)
    first = served.client.responses.create(model="tiny", input="one", tools=[TOOL])
    output: Any = [
        {"type": "function_call_output", "call_id": "call_b", "output": [{"type": "input_text", "text": "rain"}]}
    ]
    served.client.responses.create(model="tiny", input=output, previous_response_id=first.id)
    assert served.exchange is not None
    assert served.exchange.request.messages[-1] == ChatMessage("tool", "rain", tool_call_id="call_b", name="weather")


def test_items_may_be_named() -> None:
    served = Served()
    first = served.client.responses.create(model="tiny", input="one")
    referred: Any = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "two"}]
    served.client.responses.create(model="tiny", input=referred)
    assert served.exchange is not None
    assert [message.content for message in served.exchange.request.messages] == ["Hello", "two"]
    with pytest.raises(openai.NotFoundError, match="nothing"):
        served.client.responses.create(model="tiny", input=[{"type": "item_reference", "id": "nothing"}])


def test_retrieve_delete_and_cancel() -> None:
    served = Served()
    response = served.client.responses.create(model="tiny", input="one")
    assert served.client.responses.retrieve(response.id).output_text == "Hello"
    with pytest.raises(openai.BadRequestError, match="background"):
        served.client.responses.cancel(response.id)
    served.client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        served.client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError, match="Previous response"):
        served.client.responses.create(model="tiny", input="two", previous_response_id=response.id)


def test_input_items_are_listed_page_by_page() -> None:
    served = Served()
    messages: Any = [{"role": "user", "content": f"{number}"} for number in range(5)]
    response = served.client.responses.create(model="tiny", input=messages)
    first = served.client.responses.input_items.list(response.id, limit=2)
    assert first.has_more
    assert [item.content[0].text for item in first.data] == ["4", "3"]
    everything = served.client.responses.input_items.list(response.id, limit=2, order="asc")
    assert [item.content[0].text for item in everything] == ["0", "1", "2", "3", "4"]
    with pytest.raises(openai.BadRequestError):
        served.client.responses.input_items.list(response.id, after="nothing")


def test_what_works_reaches_the_neutral_request() -> None:
    request = read(
        {
            "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 7, "metadata": {"a": "b"}, "safety_identifier": "u",
            "reasoning": {"effort": "low", "summary": "auto"}, "speculation": True, "prediction": "p", "seed": 3, "top_k": 4,
            "text": {"format": {"type": "json_object"}}, "stream": True, "truncation": "disabled", "service_tier": "auto",
            "parallel_tool_calls": False, "include": ["reasoning.encrypted_content"], "background": False, "stop": "x",
            "include_stop_str_in_output": True, "priority": 2, "logit_bias": {"5": 1}, "repetition_penalty": 1.5,
            "presence_penalty": 1, "frequency_penalty": -1, "chat_template_kwargs": {"style": "dry"},
        }
    )  # fmt: skip
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 4, 3)
    assert (request.max_tokens, request.metadata, request.user, request.stream) == (7, {"a": "b"}, "u", True)
    assert (request.speculation, request.prediction, request.output.kind) == (True, "p", "json_object")
    assert request.template_arguments == {"reasoning_effort": "low", "enable_thinking": True, "style": "dry"}
    assert (request.stop, request.include_stop, request.priority, request.truncate) == (["x"], True, -2, None)
    assert (sampling.logit_bias, sampling.repetition_penalty) == ({"5": 1}, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
    assert not request.tool_choice.parallel


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "weather"}, ToolChoice("required", ["weather"], parallel=False)),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
            ToolChoice("auto", ["weather"]),
        ),
    ],
)
def test_tool_choices(choice: Any, wanted: ToolChoice) -> None:
    assert read({"tools": [TOOL], "tool_choice": choice}).tool_choice == wanted


def test_a_part_that_is_refused_is_told_which_ones_are_taken() -> None:
    with pytest.raises(InvalidRequest, match=r"parts of type 'input_image' are not supported here, only input_text$"):
        read({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [1]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "output_text", "text": ""}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "tool", "content": ""}]}, "input[0].role"),
        ({"input": [{"type": "computer_call_output"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "input[0].call_id"),
        (
            {"input": [{"type": "function_call", "call_id": "x", "name": "a", "arguments": "{" * 200_000}]},
            "input[0].arguments",
        ),
        (
            {"input": [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}]},
            "input[0].encrypted_content",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL] * 513}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a" * 257, "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"background": True, "store": False}, "store"),
        ({"background": 0}, "background"),
        ({"stream_options": {}}, "stream_options"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"truncation": "left"}, "truncation"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"reasoning": {"summary": "concise"}}, "reasoning.summary"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_is_unknown_or_not_supported_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    assert caught.value.detail["param"] == param


def test_a_call_that_was_cut_off_can_be_followed() -> None:
    events: list[ChatEvent] = [ToolCallStarted(0, "c", "weather"), ToolArguments(0, '{"ci'), ChoiceFinished("length")]
    served = Served(events)
    first = served.client.responses.create(model="tiny", input="one", tools=[TOOL])
    assert first.output[0].status == "incomplete"
    served.client.responses.create(model="tiny", input="two", previous_response_id=first.id)
    assert served.exchange is not None
    (_, called, _) = served.exchange.request.template_messages()
    assert called["tool_calls"][0]["function"]["arguments"] == '{"ci'


def test_an_unknown_response_is_not_found() -> None:
    assert isinstance(unknown_response("x" * 1000), NotFound)
    assert len(unknown_response("x" * 1000).message) < 200
