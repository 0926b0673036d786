"""OpenAI's own client against a real server: the built-in program in the gateway's process, and the same one in the sandbox."""

from __future__ import annotations

import json
import re
import time

import httpx
import openai
import pytest
from pydantic import BaseModel

from .conftest import LiveServer

ASK = [{"role": "user", "content": "Write a line about the sea."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
    },
}


ENDLESS = {"structured_outputs": {"regex": "[a-z ]{4000,}"}}
NO_SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nix"}}}}


LISTING = 'start: LINE ("\\n" LINE)~1..2\nLINE: /"[a-c]{1,3}"/'
RUN = {
    "type": "custom",
    "custom": {"name": "run", "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": LISTING}}},
}
NO_GRAMMAR = {
    "tools": [
        {
            "type": "custom",
            "custom": {
                "name": "x",
                "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "a: /b"}},
            },
        }
    ],
    "tool_choice": "required",
}
RUN_BY_NAME = {"type": "custom", "custom": {"name": "run"}}


class Person(BaseModel):
    name: str
    age: int


@pytest.mark.parametrize("model", ["tiny", "chat"])
class TestBothWays:
    """What holds whether the program runs in the gateway's process (``tiny``) or in the sandbox (``chat``)."""

    def test_a_seed_gives_the_same_text_streamed_or_whole(self, client: openai.OpenAI, model: str) -> None:
        asked = {"messages": ASK, "max_tokens": 12, "seed": 7, "temperature": 0.9}
        whole = client.chat.completions.create(model="tiny", **asked)
        same = client.chat.completions.create(model=model, **asked)
        stream = client.chat.completions.create(
            model=model, stream=True, stream_options={"include_usage": True}, **asked
        )
        chunks = list(stream)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert whole.choices[0].message.content == same.choices[0].message.content == streamed != ""
        assert chunks[-1].usage is not None
        assert whole.usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens > 0

    def test_json_of_a_schema_is_parsed(self, client: openai.OpenAI, model: str) -> None:
        answer = client.chat.completions.parse(model=model, messages=ASK, response_format=Person, max_tokens=60, seed=1)
        assert isinstance(answer.choices[0].message.parsed, Person)
        assert answer.choices[0].finish_reason == "stop"

    @pytest.mark.parametrize(
        "choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=["required", "named"]
    )
    def test_a_call_keeps_to_its_tool(self, client: openai.OpenAI, model: str, choice: object) -> None:
        asked = {"messages": ASK, "tools": [WEATHER], "tool_choice": choice, "max_tokens": 120, "seed": 3}
        whole = client.chat.completions.create(model=model, parallel_tool_calls=False, **asked)
        calls = whole.choices[0].message.tool_calls
        assert whole.choices[0].finish_reason == "tool_calls"
        assert calls is not None
        (call,) = calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        with client.chat.completions.stream(model=model, parallel_tool_calls=False, **asked) as stream:
            final = stream.get_final_completion()
        streamed = final.choices[0].message.tool_calls
        assert streamed is not None
        assert streamed[0].function.arguments == call.function.arguments

    def test_a_call_that_was_cut_is_told_as_such_and_can_be_sent_back(self, client: openai.OpenAI, model: str) -> None:
        asked = {"messages": ASK, "tools": [WEATHER], "tool_choice": "required", "seed": 3}
        found = []
        for tokens in range(1, 60, 6):
            (choice,) = client.chat.completions.create(model=model, max_tokens=tokens, **asked).choices
            if choice.finish_reason != "length":
                break
            assert not choice.message.content
            found += choice.message.tool_calls or []
            if not choice.message.tool_calls:
                continue
            result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "cut"}
            again = client.chat.completions.create(
                model=model, max_tokens=4, tools=[WEATHER], messages=[*ASK, choice.message, result]
            )
            assert again.usage is not None
        assert {call.function.name for call in found} == {"weather"}
        assert any(not call.function.arguments.endswith("}") for call in found)

    @pytest.mark.parametrize("choice", ["required", RUN_BY_NAME], ids=["required", "named"])
    def test_a_custom_tool_is_called_with_a_text_of_its_grammar(
        self, client: openai.OpenAI, model: str, choice: object
    ) -> None:
        asked = {"messages": ASK, "tools": [RUN], "tool_choice": choice, "max_tokens": 120, "seed": 3}
        whole = client.chat.completions.create(model=model, parallel_tool_calls=False, **asked)
        (call,) = whole.choices[0].message.tool_calls
        assert (call.type, call.custom.name, whole.choices[0].finish_reason) == ("custom", "run", "tool_calls")
        assert re.fullmatch(r'"[a-c]{1,3}"(\n"[a-c]{1,3}"){1,2}', call.custom.input)
        chunks = client.chat.completions.create(model=model, parallel_tool_calls=False, stream=True, **asked)
        deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or []]
        assert "".join(delta.custom["input"] for delta in deltas) == call.custom.input
        result = {"role": "tool", "tool_call_id": call.id, "content": "ran"}
        said = [*ASK, whole.choices[0].message, result]
        answer = client.chat.completions.create(model=model, messages=said, tools=[RUN], max_tokens=4)
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")

    def test_text_beside_tools_that_is_cut_is_told_as_such(self, client: openai.OpenAI, model: str) -> None:
        answer = client.chat.completions.create(model=model, messages=ASK, tools=[WEATHER], max_tokens=5, temperature=0)
        assert answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "length"

    def test_a_conversation_with_tools_goes_on(self, client: openai.OpenAI, model: str) -> None:
        called = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
        messages = [
            *ASK,
            {"role": "assistant", "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        ]
        answer = client.chat.completions.create(model=model, messages=messages, tools=[WEATHER], max_tokens=8)
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")

    def test_several_answers_share_the_prompt(self, client: openai.OpenAI, model: str) -> None:
        answer = client.chat.completions.create(model=model, messages=ASK, n=3, seed=5, max_tokens=6, temperature=1.5)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert len({choice.message.content for choice in answer.choices}) > 1
        one = client.chat.completions.create(model=model, messages=ASK, seed=5, max_tokens=6, temperature=1.5)
        assert answer.choices[0].message.content == one.choices[0].message.content
        assert answer.usage is not None
        assert one.usage is not None
        assert answer.usage.prompt_tokens == one.usage.prompt_tokens

    def test_logprobs_name_each_token(self, client: openai.OpenAI, model: str) -> None:
        answer = client.chat.completions.create(
            model=model, messages=ASK, max_tokens=5, temperature=0, logprobs=True, top_logprobs=2
        )
        scores = answer.choices[0].logprobs
        assert scores is not None
        assert scores.content is not None
        assert (
            b"".join(bytes(each.bytes or []) for each in scores.content).decode() == answer.choices[0].message.content
        )
        assert all(each.top_logprobs[0].logprob == each.logprob for each in scores.content)

    def test_a_stop_string_ends_the_text_and_is_told(self, client: openai.OpenAI, model: str) -> None:
        whole = client.chat.completions.create(model=model, messages=ASK, max_tokens=12, temperature=0)
        text = whole.choices[0].message.content or ""
        stop = text[3:5]
        cut = client.chat.completions.create(model=model, messages=ASK, max_tokens=12, temperature=0, stop=[stop])
        assert cut.choices[0].message.content == text[: text.index(stop)]
        assert cut.choices[0].model_extra is not None
        assert cut.choices[0].model_extra["stop_reason"] == stop
        shown = {"stop": [stop], "extra_body": {"include_stop_str_in_output": True}}
        with_it = client.chat.completions.create(model=model, messages=ASK, max_tokens=12, temperature=0, **shown)
        assert with_it.choices[0].message.content == text[: text.index(stop)] + stop


def test_a_prediction_is_counted_and_changes_nothing(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=12, temperature=0)
    text = plain.choices[0].message.content or ""
    predicted = client.chat.completions.create(
        model="tiny", messages=ASK, max_tokens=12, temperature=0, prediction={"type": "content", "content": text}
    )
    assert predicted.choices[0].message.content == text
    assert predicted.usage is not None
    details = predicted.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) > 0


def test_models_are_listed_with_programs(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert {"tiny", "chat", "best-of-n", "self-consistency"} <= set(names)
    assert client.models.retrieve("best-of-n").owned_by == "default"
    assert client.models.retrieve("best-of-n@0.1.0").id == "best-of-n@0.1.0"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_programs_are_models(client: openai.OpenAI) -> None:
    best = client.chat.completions.create(model="best-of-n", messages=ASK, max_tokens=8, seed=1)
    assert best.choices[0].message.content
    assert best.usage is not None
    assert best.usage.completion_tokens > 8  # of all candidates
    voted = client.chat.completions.create(model="self-consistency@0.1.0", messages=ASK, max_tokens=8, seed=1)
    assert "of 5)" in (voted.choices[0].message.content or "")


def test_the_stream_of_a_program_begins_with_the_prompts_tokens(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"messages": ASK, "max_tokens": 4, "stream": True, "stream_options": options}
    first, *_, last = client.chat.completions.create(model="best-of-n", **asked)
    assert first.usage.prompt_tokens == last.usage.prompt_tokens > 0


def test_embeddings_are_the_same_as_numbers_and_as_base64(client: openai.OpenAI) -> None:
    numbers = client.embeddings.create(model="tiny", input=["a b", "c"], encoding_format="float")
    packed = client.embeddings.create(model="tiny", input=["a b", "c"])
    assert packed.data[1].embedding == pytest.approx(numbers.data[1].embedding)
    assert numbers.usage.prompt_tokens > 2


def test_a_repeated_prefix_is_told_as_cached(server: LiveServer, client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "The harbour was quiet, and then the gulls came. " * 8}]
    headers = {"X-Session-Id": "harbour"}
    first = client.chat.completions.create(model="tiny", messages=long, max_tokens=3, extra_headers=headers)
    again = client.chat.completions.create(model="tiny", messages=long, max_tokens=3, extra_headers=headers)
    salted = client.chat.completions.create(model="tiny", messages=long, max_tokens=3, extra_body={"cache_salt": "s"})
    cached = [each.usage.prompt_tokens_details.cached_tokens for each in (first, again, salted)]  # type: ignore[union-attr]
    assert first.usage is not None
    assert cached[0] == cached[2] == 0 < first.usage.prompt_tokens - 17 <= (cached[1] or 0)


def test_a_client_that_leaves_ends_its_generation(server: LiveServer, client: openai.OpenAI) -> None:
    with server.http() as http:
        stream = client.chat.completions.create(
            model="tiny", messages=ASK, stream=True, max_tokens=3000, extra_body=ENDLESS
        )
        next(iter(stream))
        assert running(http) == 1
        stream.close()
        deadline = time.monotonic() + 5
        while running(http):
            assert time.monotonic() < deadline


def running(http: httpx.Client) -> int:
    """How many generations run."""
    lines = http.get("/metrics").text.splitlines()
    line = next(line for line in lines if line.startswith("vllm:num_requests_running"))
    return int(float(line.rpartition(" ")[2]))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"wrong": 1}, "wrong"),
        (NO_SCHEMA, "response_format"),
        (NO_GRAMMAR, "tools"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(client: openai.OpenAI, body: dict[str, object], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=ASK, max_tokens=3, extra_body=body)
    assert refused.value.param == param


def test_a_wrong_key_is_refused(server: LiveServer) -> None:
    with server.openai(api_key="wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


@pytest.mark.parametrize(
    "line", ["1 / 0", "while True: pass", "raise SystemExit(3)", "await reply.text('x', choice=3)"]
)
def test_a_program_that_fails_ends_the_stream_with_an_error(server: LiveServer, line: str) -> None:
    source = (
        "# /// script\n# [tool.inferd]\n# serves = 'chat'\n# [tool.inferd.limits]\n# cpu_s = 1.0\n# ///\n"
        "from inferd.chat import ChatRequest, Reply\n"
        "async def main(request: ChatRequest) -> None:\n"
        f"    reply = Reply(request)\n    await reply.text('so far')\n    {line}\n"
    )
    name = f"fails-{abs(hash(line)) % 10_000}"
    server.upload(source, name)
    pieces: list[str | None] = []
    with server.openai() as client:
        stream = client.chat.completions.create(model=name, messages=ASK, stream=True)
        with pytest.raises(openai.APIError):
            pieces.extend(choice.delta.content for chunk in stream for choice in chunk.choices)
    assert "so far" in pieces
