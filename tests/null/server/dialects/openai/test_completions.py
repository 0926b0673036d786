"""``/v1/completions``: prompts of each form, and answers as OpenAI's own client reads them."""

from __future__ import annotations

import json
import math
from typing import Any

import openai
import pytest
from recorded_answers import USAGE, RecordedServer, call_events, openai_client, scored, text_events, thought

from inferd.chat import ChatEvent, ChatRequest, ChoiceFinished, TextDelta, TokenScore, UsageReport
from inferd.protocol import InvalidRequest
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.openai.completions import CompletionExchange, PromptMerger, read_completions


def exchange(**fields: Any) -> CompletionExchange:
    return read_completions(json.dumps({"model": "m", "prompt": "hi", **fields}).encode(), ClientHeaders())


def serve(events: list[ChatEvent]) -> openai.OpenAI:
    return openai_client(RecordedServer(read_completions, events))


def test_what_is_left_out_is_openais_default() -> None:
    assert exchange().requests == [ChatRequest(model="m", prompt="hi", max_tokens=16)]


@pytest.mark.parametrize(
    ("prompt", "prompts"), [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1, 2], [3]], [[1, 2], [3]])]
)
def test_a_prompt_is_text_or_tokens_one_or_several(prompt: Any, prompts: list[Any]) -> None:
    read = exchange(prompt=prompt, n=2)
    assert [request.prompt for request in read.requests] == prompts
    assert read.choices == 2 * len(prompts)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt[0]"),
    ({"prompt": [[1], "a"]}, "prompt[1]"),
    ({"prompt": ["a", [1]]}, "prompt[1]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [[1, 2**31]]}, "prompt[0][1]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"n": 2, "best_of": 1}, "best_of"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"prompt": ["a", "b"], "return_token_ids": True}, "return_token_ids"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[f"{at}-{param}" for at, (_, param) in enumerate(REFUSED)])
def test_what_does_not_work_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        exchange(**fields)
    assert raised.value.detail["param"] == param


def test_meaningless_values_are_accepted() -> None:
    assert exchange(suffix="", best_of=1, echo=False, add_special_tokens=True).requests == exchange().requests


def test_a_whole_answer_and_a_stream_have_the_same_text() -> None:
    client = serve(text_events("Hel", "lo", reason="length"))
    answer = client.completions.create(model="m", prompt="x")
    assert (answer.object, answer.id, answer.choices[0].text) == ("text_completion", "cmpl-req-1", "Hello")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 18
    chunks = list(client.completions.create(model="m", prompt="x", stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "Hello"
    assert chunks[-1].usage.total_tokens == 18
    assert chunks[-2].choices[0].finish_reason == "length"


def test_log_probabilities_are_lists_side_by_side() -> None:
    events = [scored("ab"), scored("c", -1.0), ChoiceFinished("stop")]
    client = serve(events)
    logprobs = client.completions.create(model="m", prompt="x", logprobs=2).choices[0].logprobs
    assert logprobs.tokens == ["ab", "c"]
    assert logprobs.token_logprobs == [-0.25, -1.0]
    assert logprobs.text_offset == [0, 2]
    assert logprobs.top_logprobs[0] == {"ab": -0.25, "other": -2.0}
    chunks = list(client.completions.create(model="m", prompt="x", logprobs=2, stream=True))
    offsets = [at for chunk in chunks if chunk.choices[0].logprobs for at in chunk.choices[0].logprobs.text_offset]
    assert offsets == [0, 2]


def test_offsets_are_places_in_the_text_where_tokens_share_a_character_or_do_not_show() -> None:
    pieces = (b"\xc3", b"\xa9a", b"<|end|>", b"b")
    scores = [TokenScore(7, data.decode(errors="replace"), list(data), -0.5) for data in pieces]
    client = serve([TextDelta("éa", scores=scores[:2]), TextDelta("b", scores=scores[2:]), ChoiceFinished("stop")])
    assert client.completions.create(model="m", prompt="x", logprobs=0).choices[0].logprobs.text_offset == [0, 0, 2, 2]
    chunks = list(client.completions.create(model="m", prompt="x", logprobs=0, stream=True))
    told = [at for chunk in chunks if chunk.choices[0].logprobs for at in chunk.choices[0].logprobs.text_offset]
    assert told == [0, 0, 2, 2]


def test_the_first_token_of_an_echoed_prompt_has_no_log_probability() -> None:
    """As evaluation harnesses expect it: null, where anything else would be summed up."""
    first = TextDelta("a", scores=[TokenScore(1, "a", [97], None)])
    logprobs = serve([first, scored("b"), ChoiceFinished("stop")]).completions.create(
        model="m", prompt="ab", echo=True, logprobs=1, max_tokens=0
    ).choices[0].logprobs  # fmt: skip
    assert (logprobs.token_logprobs, logprobs.top_logprobs[0]) == ([None, -0.25], None)


def test_no_tokens_are_wanted_only_of_an_echo() -> None:
    assert exchange(echo=True, max_tokens=0).request.most_tokens == 0
    with pytest.raises(InvalidRequest, match="max_tokens: 0 needs echo"):
        exchange(max_tokens=0)


def test_a_token_that_is_not_likely_is_told_beside_those_that_are() -> None:
    other = TokenScore(1, "other", [], -0.1)
    events = [TextDelta("x", scores=[TokenScore(2, "x", [120], -math.inf, [other])]), ChoiceFinished("stop")]
    logprobs = serve(events).completions.create(model="m", prompt="x", logprobs=1).choices[0].logprobs
    assert logprobs.top_logprobs == [{"other": -0.1, "x": -9999.0}]


def test_thoughts_and_calls_have_no_place_in_a_text() -> None:
    events = [thought("hm"), *text_events("a")[:1], *call_events("f", "{}"), ChoiceFinished("tool_calls")]
    answer = serve(events).completions.create(model="m", prompt="x")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("a", "stop")
    chunks = list(serve(events).completions.create(model="m", prompt="x", stream=True))
    assert [chunk.choices[0].text for chunk in chunks] == ["a", ""]


def test_the_prompts_tokens_are_told_with_each_answer() -> None:
    client = serve([USAGE, *text_events("a"), *text_events("b", choice=1)])
    extra = {"return_token_ids": True}
    answer = client.completions.create(model="m", prompt="x", n=2, extra_body=extra)
    assert [choice.prompt_token_ids for choice in answer.choices] == [[5, 6], [5, 6]]
    chunks = list(client.completions.create(model="m", prompt="x", n=2, stream=True, extra_body=extra))
    told = [chunk.choices[0].index for chunk in chunks if "prompt_token_ids" in chunk.choices[0].model_extra]
    assert told == [0, 1]


def test_answers_to_several_prompts_become_one() -> None:
    read = exchange(prompt=["a", "b"], n=2)
    merger = PromptMerger(prompts=2, n=2)
    answer = read.whole()
    for prompt, event in [
        (1, TextDelta("second, other", 1)), (0, TextDelta("first")), (1, ChoiceFinished("length", 1)),
        (0, UsageReport(3, 4, cached=1)), (1, UsageReport(5, 6)),
    ]:  # fmt: skip
        answer.add(merger.event(prompt, event))
    body = json.loads(answer.body())
    assert [choice["text"] for choice in body["choices"]] == ["first", "", "", "second, other"]
    assert body["choices"][3]["finish_reason"] == "length"
    assert body["usage"]["prompt_tokens"] == 8
    assert body["usage"]["completion_tokens"] == 10
