"""``/v1/chat/completions`` as OpenAI's own client reads it: answers, streams, tools, parsed models, errors."""

from __future__ import annotations

from functools import partial

import openai
import pytest
from pydantic import BaseModel
from recorded_answers import USAGE, RecordedServer, call_events, openai_client, scored, text_events, thought

from inferd.chat import ChatEvent, ChoiceFinished
from inferd.protocol import LimitExceeded, Unavailable
from inferd_runtime.server.dialects.openai.chat import read_chat

USER = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class City(BaseModel):
    name: str
    people: int


def serve(events: list[ChatEvent], error: Exception | None = None) -> tuple[RecordedServer, openai.OpenAI]:
    server = RecordedServer(partial(read_chat, clock=lambda: 1_700_000_000.5), events, error)
    return server, openai_client(server)


def test_a_whole_answer_has_text_usage_and_its_ending() -> None:
    _, client = serve(text_events("Hello", " there", reason="length"))
    answer = client.chat.completions.create(model="m", messages=USER, max_completion_tokens=2)
    assert (answer.id, answer.model, answer.created) == ("chatcmpl-req-1", "m", 1_700_000_000)
    assert answer.choices[0].message.content == "Hello there"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (11, 7, 18)
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    details = answer.usage.completion_tokens_details
    assert (details.reasoning_tokens, details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (
        2,
        3,
        1,
    )


def test_a_stream_is_put_together_by_the_clients_own_helper() -> None:
    _, client = serve(text_events("Hel", "lo"))
    with client.chat.completions.stream(model="m", messages=USER, stream_options={"include_usage": True}) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        answer = stream.get_final_completion()
    assert deltas == ["", "Hel", "lo"]  # the role comes first
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == 18


def test_only_the_last_chunk_has_the_usage_and_it_has_no_choices() -> None:
    _, client = serve(text_events("a", "b"))
    chunks = list(
        client.chat.completions.create(model="m", messages=USER, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.usage is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].choices == []


def test_a_stream_without_options_has_no_usage() -> None:
    _, client = serve(text_events("a"))
    chunks = list(client.chat.completions.create(model="m", messages=USER, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_continuous_usage_grows_with_each_chunk() -> None:
    server, client = serve(text_events("a", "b", "c"))
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(client.chat.completions.create(model="m", messages=USER, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[1:4] == [1, 2, 3]
    assert server.asked[0].request.return_tokens
    assert not any("token_ids" in choice.model_extra for chunk in chunks for choice in chunk.choices)


def test_several_answers_keep_apart() -> None:
    _, client = serve([*text_events("one"), *text_events("two", choice=1)])
    answer = client.chat.completions.create(model="m", messages=USER, n=2)
    assert [choice.message.content for choice in answer.choices] == ["one", "two"]
    with client.chat.completions.stream(model="m", messages=USER, n=2) as stream:
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["one", "two"]


def test_calls_of_tools_come_whole_and_in_pieces() -> None:
    events = [*call_events("weather", '{"city":', '"Rome"}'), *call_events("weather", "{}", call=1)]
    _, client = serve([*events, ChoiceFinished("tool_calls")])
    answer = client.chat.completions.create(model="m", messages=USER, tools=[WEATHER])
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.content is None
    assert [(c.id, c.type, c.function.name, c.function.arguments) for c in message.tool_calls] == [
        ("call_0", "function", "weather", '{"city":"Rome"}'),
        ("call_1", "function", "weather", "{}"),
    ]
    with client.chat.completions.stream(model="m", messages=USER, tools=[WEATHER]) as stream:
        final = stream.get_final_completion()
    assert [call.function.arguments for call in final.choices[0].message.tool_calls] == ['{"city":"Rome"}', "{}"]
    assert final.choices[0].message.tool_calls[1].id == "call_1"


def test_a_function_is_called_as_it_was_before_there_were_tools() -> None:
    server, client = serve([*call_events("weather", '{"city":', '"Rome"}'), ChoiceFinished("tool_calls")])
    asked = {"model": "m", "messages": USER, "functions": [WEATHER["function"]]}
    choice = client.chat.completions.create(**asked).choices[0]
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("function_call", None, None)
    assert (choice.message.function_call.name, choice.message.function_call.arguments) == ("weather", '{"city":"Rome"}')
    deltas = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    called = [delta.delta.function_call for delta in deltas if delta.delta.function_call]
    assert called[0].name == "weather"
    assert "".join(each.arguments for each in called) == '{"city":"Rome"}'
    assert deltas[-1].finish_reason == "function_call"
    result = {"role": "function", "name": "weather", "content": "sunny"}
    client.chat.completions.create(**{**asked, "messages": [*USER, choice.message.model_dump(), result]})
    assert [message.role for message in server.asked[-1].request.messages] == ["user", "assistant", "tool"]


def test_an_answer_goes_back_into_the_conversation_as_it_came() -> None:
    events = [thought("hm"), *call_events("weather", "{}"), ChoiceFinished("tool_calls")]
    server, client = serve(events)
    first = client.chat.completions.create(model="m", messages=USER, tools=[WEATHER])
    result = {"role": "tool", "tool_call_id": "call_0", "content": "sunny"}
    client.chat.completions.create(
        model="m", messages=[*USER, first.choices[0].message.model_dump(), result], tools=[WEATHER]
    )
    client.chat.completions.create(model="m", messages=[*USER, first.choices[0].message, result], tools=[WEATHER])
    for exchange in server.asked[1:]:
        assistant, tool = exchange.request.messages[1:]
        assert (assistant.tool_calls[0].id, assistant.reasoning) == ("call_0", "hm")
        assert (tool.tool_call_id, tool.content) == ("call_0", "sunny")


def test_an_answer_is_parsed_into_a_pydantic_model() -> None:
    server, client = serve(text_events('{"name":"Rome",', '"people":3}'))
    answer = client.chat.completions.parse(model="m", messages=USER, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Rome", people=3)
    assert server.asked[0].request.output.kind == "json_schema"
    with client.chat.completions.stream(model="m", messages=USER, response_format=City) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == City(name="Rome", people=3)


def test_a_tool_made_from_pydantic_is_parsed_too() -> None:
    server, client = serve([*call_events("City", '{"name":"Rome","people":3}'), ChoiceFinished("tool_calls")])
    tool = openai.pydantic_function_tool(City)
    answer = client.chat.completions.parse(model="m", messages=USER, tools=[tool])
    assert answer.choices[0].message.tool_calls[0].function.parsed_arguments == City(name="Rome", people=3)
    assert server.asked[0].request.tools[0].parameters["required"] == ["name", "people"]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")  # the client's own
def test_a_parsed_answer_goes_back_into_the_conversation() -> None:
    server, client = serve([*call_events("City", '{"name":"Rome","people":3}'), ChoiceFinished("tool_calls")])
    called = client.chat.completions.parse(model="m", messages=USER, tools=[openai.pydantic_function_tool(City)])
    result = {"role": "tool", "tool_call_id": "call_0", "content": "sunny"}
    client.chat.completions.create(model="m", messages=[*USER, called.choices[0].message, result])
    assert server.asked[1].request.messages[1].tool_calls[0].arguments == '{"name":"Rome","people":3}'
    server, client = serve(text_events('{"name":"Rome","people":3}'))
    with client.chat.completions.stream(model="m", messages=USER, response_format=City) as stream:
        written = stream.get_final_completion().choices[0].message
    client.chat.completions.create(model="m", messages=[*USER, written])
    assert server.asked[1].request.messages[1].content == '{"name":"Rome","people":3}'


@pytest.mark.parametrize("functions", [{}, {"functions": [WEATHER["function"]]}], ids=["tools", "functions"])
def test_what_else_an_answer_had_may_stand_in_its_text(functions: dict[str, object]) -> None:
    """So do OpenAI's agents for JavaScript send an answer back: from their second turn on none of their requests was read."""
    events = [thought("hm"), *text_events("I look.")[:1], *call_events("weather", "{}"), ChoiceFinished("tool_calls")]
    server, client = serve(events)
    message = (
        client.chat.completions.create(model="m", messages=USER, **functions).choices[0].message.to_dict(mode="json")
    )
    part = {"type": "text", "text": message.pop("content"), **message}
    assert {"role", "refusal", "annotations", "reasoning", "reasoning_content"} < part.keys()
    client.chat.completions.create(model="m", messages=[*USER, {"role": "assistant", "content": [part]}])
    assert [(said.role, said.content) for said in server.asked[-1].request.messages[1:]] == [("assistant", "I look.")]


def test_log_probabilities_come_whole_and_in_a_stream() -> None:
    _, client = serve([scored("é"), scored("b", -1.5), ChoiceFinished("stop")])
    answer = client.chat.completions.create(model="m", messages=USER, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert [(each.token, each.logprob, each.bytes) for each in content] == [("é", -0.25, [195, 169]), ("b", -1.5, [98])]
    assert [top.token for top in content[0].top_logprobs] == ["é", "other"]
    with client.chat.completions.stream(model="m", messages=USER, logprobs=True, top_logprobs=2) as stream:
        assert stream.get_final_completion().choices[0].logprobs.content == content


def test_reasoning_is_told_apart_under_both_of_its_names() -> None:
    _, client = serve([thought("let me "), thought("see"), *text_events("42")])
    message = client.chat.completions.create(model="m", messages=USER).choices[0].message
    assert message.content == "42"
    assert message.reasoning == message.reasoning_content == "let me see"
    chunks = list(client.chat.completions.create(model="m", messages=USER, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning", "") for delta in deltas) == "let me see"
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "let me see"


def test_token_ids_are_told_where_they_are_asked_for() -> None:
    server, client = serve(text_events("a", "b"))
    extra = {"return_token_ids": True}
    answer = client.chat.completions.create(model="m", messages=USER, extra_body=extra)
    assert answer.prompt_token_ids == [5, 6]
    assert answer.choices[0].token_ids == [100, 101]
    chunks = list(client.chat.completions.create(model="m", messages=USER, stream=True, extra_body=extra))
    shown = [token for chunk in chunks for token in getattr(chunk.choices[0], "token_ids", [])]
    assert shown == [100, 101]
    assert server.asked[0].request.return_tokens


def test_the_prompt_is_told_in_one_chunk_once_it_is_known() -> None:
    _, client = serve([USAGE, *text_events("a", "b")])
    extra = {"return_token_ids": True}
    chunks = list(client.chat.completions.create(model="m", messages=USER, stream=True, extra_body=extra))
    assert [chunk.prompt_token_ids for chunk in chunks if "prompt_token_ids" in chunk.model_extra] == [[5, 6]]


def test_the_stop_string_is_named() -> None:
    _, client = serve([*text_events("a")[:1], ChoiceFinished("stop", stopped_by="END")])
    answer = client.chat.completions.create(model="m", messages=USER, stop=["END"])
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", "END")


@pytest.mark.parametrize(("token", "reason"), [(7, 7), (8, None), (None, None)])
def test_the_stop_token_is_named_where_it_was_asked_for(token: int | None, reason: int | None) -> None:
    _, client = serve([ChoiceFinished("stop", stop_token=token)])
    answer = client.chat.completions.create(model="m", messages=USER, extra_body={"stop_token_ids": [7]})
    assert answer.choices[0].stop_reason == reason


def test_an_error_in_a_stream_is_raised_by_the_client() -> None:
    _, client = serve(text_events("a")[:1], Unavailable("the engine has gone"))
    stream = client.chat.completions.create(model="m", messages=USER, stream=True)
    with pytest.raises(openai.APIError, match="the engine has gone"):
        list(stream)


def test_a_refused_field_is_a_bad_request_that_names_it() -> None:
    _, client = serve([])
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="m", messages=USER, temperature=3)
    assert raised.value.param == "temperature"
    assert raised.value.type == "invalid_request_error"


def test_a_prompt_that_is_too_long_breaks_off_with_openais_code() -> None:
    error = LimitExceeded("9 of 8 tokens", limit="context_tokens", value=8)
    _, client = serve([], error)
    with pytest.raises(openai.APIError) as raised:
        list(client.chat.completions.create(model="m", messages=USER, stream=True))
    assert raised.value.code == "context_length_exceeded"
