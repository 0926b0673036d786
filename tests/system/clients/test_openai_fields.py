"""OpenAI's own package over a socket: the fields of chat and text completions, each with what it changes."""

from __future__ import annotations

from typing import Any

import openai
import pytest

HELLO: Any = [{"role": "user", "content": "Hello there"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
ASKED: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0}


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


def test_a_biased_token_is_not_drawn(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(**ASKED, extra_body={"return_token_ids": True}).choices[0].token_ids[0]
    biased = client.chat.completions.create(
        **ASKED, logit_bias={str(first): -100}, extra_body={"return_token_ids": True}
    )
    assert first not in biased.choices[0].token_ids


def test_formats_hold(client: openai.OpenAI) -> None:
    for structured, allowed in (
        ({"choice": ["yes", "no"]}, {"yes", "no"}),
        ({"regex": "(ab|cd)e"}, {"abe", "cde"}),
        ({"grammar": 'start: "left" | "right"'}, {"left", "right"}),
        ({"grammar": 'root ::= "left" | "right"'}, {"left", "right"}),
        ({"json": {"const": 7}}, {"7"}),
    ):
        answer = client.chat.completions.create(**ASKED, extra_body={"structured_outputs": structured})
        assert answer.choices[0].message.content in allowed
    answer = client.chat.completions.create(**ASKED, extra_body={"ebnf": 'root ::= "left" | "right"'})
    assert answer.choices[0].message.content in {"left", "right"}


def test_a_tool_is_called_answered_and_the_conversation_goes_on(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": 100, "tools": [WEATHER], "parallel_tool_calls": False}
    with client.chat.completions.stream(**asked, tool_choice="required") as stream:
        choice = stream.get_final_completion().choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "weather")
    assert call.function.arguments in ('{"city":"Bern"}', '{"city":"Rome"}')
    said = [*HELLO, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert client.chat.completions.create(**{**asked, "messages": said}).usage.completion_tokens > 0


def test_a_function_is_called_in_the_older_form(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": 100, "functions": [WEATHER["function"]]}
    choice = client.chat.completions.create(**asked, function_call={"name": "weather"}).choices[0]
    assert (choice.finish_reason, choice.message.function_call.name) == ("function_call", "weather")
    result = {"role": "function", "name": "weather", "content": "sunny"}
    said = [*HELLO, choice.message, result]
    assert client.chat.completions.create(**{**asked, "messages": said}).usage.completion_tokens > 0


def test_a_prompt_that_is_too_long_may_be_cut(client: openai.OpenAI) -> None:
    long: Any = [{"role": "user", "content": "x y z " * 5000}]
    cut = client.chat.completions.create(**{**ASKED, "messages": long}, extra_body={"truncate_prompt_tokens": 9})
    assert cut.usage.prompt_tokens == 9
    asked: Any = {"model": "tiny", "max_tokens": 6, "extra_body": {"truncate_prompt_tokens": 8}}
    assert client.completions.create(prompt="x y z " * 5000, **asked).usage.prompt_tokens == 8
    embedded = client.embeddings.create(model="tiny", input="x y z " * 5000, extra_body={"truncate_prompt_tokens": 7})
    assert embedded.usage.prompt_tokens == 7


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


def test_an_echoed_prompt_is_scored_as_it_was_generated(client: openai.OpenAI) -> None:
    """What evaluation harnesses ask for: the log-probabilities of a text that somebody else chose."""
    asked: Any = {"model": "tiny", "logprobs": 2, "temperature": 0}
    first = client.completions.create(prompt="Hello", max_tokens=8, extra_body={"return_token_ids": True}, **asked)
    tokens = [*first.choices[0].prompt_token_ids, *first.choices[0].token_ids]
    generated = first.choices[0].logprobs.token_logprobs
    for more in (0, 1):
        scored = client.completions.create(prompt=[tokens, tokens[:3]], max_tokens=more, echo=True, **asked)
        told = scored.choices[0].logprobs
        assert len(told.tokens) == len(told.top_logprobs) == len(tokens) + more
        assert told.token_logprobs[0] is None
        assert told.token_logprobs[len(tokens) - 8 : len(tokens)] == pytest.approx(generated, abs=1e-3)
        assert first.choices[0].text in scored.choices[0].text
        assert len(scored.choices[1].logprobs.tokens) == 3 + more
        assert scored.usage.prompt_tokens == len(tokens) + 3
    whole = client.completions.create(prompt="Hello there", max_tokens=3, echo=True, **asked)
    stream = list(client.completions.create(prompt="Hello there", max_tokens=3, echo=True, stream=True, **asked))
    pieces = [chunk.choices[0] for chunk in stream]
    assert "".join(piece.text for piece in pieces) == whole.choices[0].text
    offsets = [at for piece in pieces if piece.logprobs for at in piece.logprobs.text_offset]
    assert offsets == whole.choices[0].logprobs.text_offset


def test_errors_have_openais_codes(client: openai.OpenAI) -> None:
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
