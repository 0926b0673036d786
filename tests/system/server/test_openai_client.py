"""OpenAI's own package over a socket: chat and text completions that a real engine writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from live_server import LiveServer, live_server
from pydantic import BaseModel

pytestmark = pytest.mark.system
HELLO: Any = [{"role": "user", "content": "Hello there"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
ASKED: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0}


class City(BaseModel):
    """What an answer is held to."""

    name: Literal["Bern", "Rome"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    server: LiveServer
    with live_server(tmp_path_factory.mktemp("server")) as server:
        yield server.openai()


def test_an_answer_and_its_stream_say_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED)
    chunks = list(client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens > 0


def test_seeds_penalties_and_several_answers(client: openai.OpenAI) -> None:
    drawn = {
        **ASKED,
        "temperature": 1,
        "seed": -7,
        "n": 3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "top_p": 0.9,
    }
    extra = {"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1}
    texts = [
        [choice.message.content for choice in client.chat.completions.create(**drawn, extra_body=extra).choices]
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1


def test_a_text_ends_at_what_was_asked_for(client: openai.OpenAI) -> None:
    text = client.chat.completions.create(**ASKED).choices[0].message.content
    stopped = client.chat.completions.create(**ASKED, stop=[text[3:6]]).choices[0]
    assert (stopped.message.content, stopped.finish_reason, stopped.stop_reason) == (text[:3], "stop", text[3:6])
    tokens = client.chat.completions.create(**ASKED, extra_body={"return_token_ids": True}).choices[0].token_ids
    extra = {"stop_token_ids": [tokens[5]], "return_token_ids": True}
    ended = client.chat.completions.create(**ASKED, extra_body=extra).choices[0]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", tokens[5])
    assert ended.token_ids == tokens[: tokens.index(tokens[5])]
    longer = client.chat.completions.create(**{**ASKED, "max_tokens": 80}, extra_body={"ignore_eos": True})
    assert (longer.usage.completion_tokens, longer.choices[0].finish_reason) == (80, "length")


def test_token_ids_and_usage_while_it_streams(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.chat.completions.create(
            **ASKED, stream=True, stream_options=options, extra_body={"return_token_ids": True}
        )
    )
    whole = client.chat.completions.create(**ASKED, extra_body={"return_token_ids": True})
    told = [chunk.prompt_token_ids for chunk in chunks if "prompt_token_ids" in chunk.model_extra]
    assert told == [whole.prompt_token_ids]
    assert len(whole.prompt_token_ids) == whole.usage.prompt_tokens
    shown = [token for chunk in chunks for choice in chunk.choices for token in choice.model_extra.get("token_ids", [])]
    assert shown == whole.choices[0].token_ids
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 12


def test_log_probabilities_and_a_bias(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(told) == 12
    assert all(entry.token == entry.top_logprobs[0].token for entry in told)
    first = client.chat.completions.create(**ASKED, extra_body={"return_token_ids": True}).choices[0].token_ids[0]
    biased = client.chat.completions.create(
        **ASKED, logit_bias={str(first): -100}, extra_body={"return_token_ids": True}
    )
    assert first not in biased.choices[0].token_ids


def test_formats_hold(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(**{**ASKED, "max_tokens": 60}, response_format=City)
    assert isinstance(parsed.choices[0].message.parsed, City)
    for structured, allowed in (
        ({"choice": ["yes", "no"]}, {"yes", "no"}),
        ({"regex": "(ab|cd)e"}, {"abe", "cde"}),
        ({"grammar": 'start: "left" | "right"'}, {"left", "right"}),
        ({"grammar": 'root ::= "left" | "right"'}, {"left", "right"}),
        ({"json": {"const": 7}}, {"7"}),
    ):
        answer = client.chat.completions.create(**ASKED, extra_body={"structured_outputs": structured})
        assert answer.choices[0].message.content in allowed


def test_a_tool_is_called_answered_and_the_conversation_goes_on(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": 100, "tools": [WEATHER], "parallel_tool_calls": False}
    with client.chat.completions.stream(**asked, tool_choice="required") as stream:
        choice = stream.get_final_completion().choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "weather")
    assert call.function.arguments in ('{"city":"Bern"}', '{"city":"Rome"}')
    said = [*HELLO, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert client.chat.completions.create(**{**asked, "messages": said}).usage.completion_tokens > 0


def test_a_prediction_changes_nothing_but_the_time(client: openai.OpenAI) -> None:
    text = client.chat.completions.create(**ASKED).choices[0].message.content
    predicted = client.chat.completions.create(**ASKED, prediction={"type": "content", "content": text})
    assert predicted.choices[0].message.content == text
    assert predicted.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_the_last_message_is_gone_on_with(client: openai.OpenAI) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "I am"}]
    extra = {"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True}
    went_on = client.chat.completions.create(**{**ASKED, "messages": messages}, extra_body=extra)
    answered = client.chat.completions.create(**{**ASKED, "messages": messages}, extra_body={"return_token_ids": True})
    assert len(went_on.prompt_token_ids) < len(answered.prompt_token_ids)


def test_text_completions_of_several_prompts(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "max_tokens": 6, "temperature": 0}
    alone = [client.completions.create(prompt=prompt, **asked).choices[0].text for prompt in ("Hello", "The city")]
    both = client.completions.create(prompt=["Hello", "The city"], n=2, **asked)
    assert [choice.text for choice in both.choices] == [alone[0], alone[0], alone[1], alone[1]]
    texts = ["", ""]
    for chunk in client.completions.create(prompt=["Hello", "The city"], stream=True, **asked):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == alone
    echoed = client.completions.create(prompt="Hello", echo=True, **asked).choices[0].text
    assert echoed == "Hello" + alone[0]
    logprobs = client.completions.create(prompt="Hello", logprobs=2, **asked).choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.text_offset) == 6


def test_openais_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**{**ASKED, "model": "nothing"})
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(**{**ASKED, "messages": [{"role": "user", "content": "x y z " * 5000}]})
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as outside:
        client.chat.completions.create(**ASKED, logit_bias={"99999999": 1})
    assert outside.value.param == "logit_bias"
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt=[[1], [99_999_999]])
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="nobody").chat.completions.create(**ASKED)
