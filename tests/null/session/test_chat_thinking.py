"""Answers of models that think first, and whose marks are tokens: what clients see under formats, tools and budgets."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest
from chat_models import HERMES, ChatKind, make

from inferd import protocol as p
from inferd.chat import (
    ChatMessage,
    ChatRequest,
    OutputFormat,
    SamplingOptions,
    TextDelta,
    TokenScore,
    Tool,
    ToolChoice,
    answer,
)
from inferd.chat.answer_parser import AnswerShape
from inferd.chat.reply import MOST_SCORED, Reply, _AnswerStream
from inferd.transport import transport_in_force
from inferd_grammar import GrammarCompiler, TokenTable
from inferd_runtime.engine.adapters import AdapterSet
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.server.chat.program_events import EventReader
from inferd_runtime.server.dialects.collected import CollectedAnswer
from inferd_runtime.server.dialects.openai.answer_parts import prompt_columns
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.transport import DirectTransport

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
WEATHER = Tool("weather", parameters=CITY)
FORMAT = OutputFormat("json_schema", json.dumps({**CITY, "additionalProperties": False}))
CHOICE = OutputFormat("choice", options=["yes", "no"])
TURNS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
BY_ITSELF = HERMES.replace("<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n")
CLOSED = HERMES.replace("<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n")
NAMED = (
    BY_ITSELF.replace(
        "<tool_call>\n{{ call.function | tojson }}\n</tool_call>", "[TOOL_CALLS]{{ call.function.name }}[ARGS]{}"
    )
    .replace("<think>", "[THINK]")
    .replace("</think>", "[/THINK]")
)
NAMED_MARKS = ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]")
DEEPSEEK_MARKS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
DEEPSEEK = BY_ITSELF.replace(
    "<tool_call>\n{{ call.function | tojson }}\n</tool_call>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    "{{ call.function.name + '\n```json\n' + call.function.arguments }}"
    "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
)
HARMONY_MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")
HARMONY = (
    "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for message in messages %}<|start|>{{ message.role }}<|channel|>analysis<|message|>{{ message.content }}<|end|>"
    "{% for call in message.tool_calls or [] %}to=functions.{{ call.function.name }}<|call|>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
GLM_MARKS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
KINDS = {
    "glm": ChatKind(BY_ITSELF + "{# <arg_key> #}", TURNS, ("<think>", "</think>", *GLM_MARKS)),
    "deepseek": ChatKind(DEEPSEEK, TURNS, ("<think>", "</think>", *DEEPSEEK_MARKS)),
    "harmony": ChatKind(HARMONY, ("<|endoftext|>", *HARMONY_MARKS, "<|return|>")),
    "opened": ChatKind(HERMES, TURNS, MARKS),
    "by itself": ChatKind(BY_ITSELF, TURNS, MARKS),
    "special marks": ChatKind(NAMED, (*TURNS[:2], *NAMED_MARKS, TURNS[2])),
    "closed": ChatKind(CLOSED, TURNS, MARKS),
    "no reasoning": ChatKind(
        BY_ITSELF.replace("'</think>' in content", "false").replace("split('</think>')", "split('x')"), TURNS, MARKS
    ),
}
CALLING = ("<tool_call>", "[TOOL_CALLS]", "<｜tool▁calls▁begin｜>")
"""The tokens that open a call."""
THINKS = ("opened", "by itself", "special marks")


class Listening(DirectTransport):
    """A transport that keeps what the program says to its client."""

    def __init__(self, model: ServedModel, choices: int) -> None:
        super().__init__(model)
        self.answer = CollectedAnswer(choices, vars, prompt_columns=prompt_columns)
        self._reader = EventReader(choices)

    async def call(self, request: Any) -> Any:
        if not isinstance(request, p.SendMessage):
            return await super().call(request)
        for event in self._reader.read(request.message):
            self.answer.add(event)
        return p.Done()


def served(kind: str) -> ServedModel:
    tokenizer = make(KINDS[kind])
    table = TokenTable.from_tokenizer_json(tokenizer.json, eos_ids=tokenizer.eos_tokens)
    driver = NullDriver(vocab_size=table.vocab_size, pages=2048, max_context=2048)
    info = p.ModelInfo("null", table.vocab_size, 2048, driver.page_size, list(tokenizer.eos_tokens), "null")
    engine = Engine(driver, EngineOptions(token_budget=64))
    return ServedModel(info, engine, tokenizer, GrammarCompiler(table), AdapterSet(driver))


MODELS = {kind: served(kind) for kind in KINDS}


def answered(
    kind: str, seed: int = 1, *, ends: float = 6.0, begins: float = 6.0, calls: float = 0.0, **fields: Any
) -> tuple[CollectedAnswer, p.StartGenerate]:
    """An answer of a model that ends its reasoning now and then, and what was asked of the engine. ``calls``: how much it
    wants to call.
    """
    model = MODELS[kind]
    names = model.grammars.table.special_names
    biases = {str(names[name]): ends for name in ("</think>", "[/THINK]", "<|end|>") if name in names}
    begin_marks = ("<think>", "[THINK]", "<|channel|>")
    biases |= {str(names[name]): begins for name in begin_marks if name in names and kind != "opened"}
    biases |= {str(names[name]): calls for name in CALLING if calls and name in names}
    request = ChatRequest(
        messages=[ChatMessage("user", "Which city?")],
        sampling=SamplingOptions(temperature=0.7, seed=seed, logit_bias=biases),
        speculation=False,
        **{"max_tokens": 200, **fields},
    )
    transport = Listening(model, request.n)
    try:
        with transport_in_force(transport):
            asyncio.run(answer(request))
    finally:
        transport.direct.close()
    (started,) = [each for each in transport.requests if isinstance(each, p.StartGenerate)]
    return transport.answer, started


@pytest.mark.parametrize("kind", THINKS)
def test_a_format_holds_what_comes_behind_the_reasoning(kind: str) -> None:
    thought = 0
    for seed in range(5):
        (choice,) = answered(kind, seed, output=FORMAT)[0].choices
        assert json.loads(choice.text)["city"] in ("Rome", "Oslo")
        assert choice.reason == "stop"
        assert not any(mark in choice.reasoning + choice.text for mark in ("</think>", "[/THINK]"))
        thought += bool(choice.reasoning)
    assert thought >= 3


@pytest.mark.parametrize("kind", THINKS)
def test_calls_that_must_come_come_behind_the_reasoning(kind: str) -> None:
    thought = 0
    for seed in range(5):
        choice = answered(kind, seed, tools=[WEATHER], tool_choice=ToolChoice("required"))[0].choices[0]
        assert {call.name for call in choice.calls} == {"weather"}
        assert all(json.loads(call.arguments)["city"] in ("Rome", "Oslo") for call in choice.calls[:-1])
        assert choice.text.strip() == ""
        thought += bool(choice.reasoning)
    assert thought >= 3


@pytest.mark.parametrize("kind", THINKS)
def test_a_model_may_end_its_reasoning_where_it_may_call_tools(kind: str) -> None:
    """Under any constraint special tokens were out of reach, and with them the end of the reasoning."""
    biases = [7.5 + seed / 2 for seed in range(7)]
    asked: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 60, "begins": 10.0}
    found = [answered(kind, seed, ends=ends, **asked)[0].choices[0] for seed, ends in enumerate(biases)]
    assert any(choice.reasoning and (choice.text or choice.calls) for choice in found)
    assert not any("</think>" in choice.text or "[/THINK]" in choice.text for choice in found)


def test_reasoning_before_text_that_nothing_has_to_follow_is_cut_as_it_is() -> None:
    collected, _ = answered("opened", ends=-100.0, tools=[WEATHER], max_tokens=12)
    (choice,) = collected.choices
    assert (choice.text, choice.reason, collected.usage.reasoning) == ("", "length", 12)


@pytest.mark.parametrize("kind", ["closed", "no reasoning"])
def test_without_reasoning_a_format_holds_from_the_first_token(kind: str) -> None:
    (choice,) = (found := answered(kind, output=FORMAT))[0].choices
    assert (choice.reasoning, found[1].reasoning) == ("", None)
    assert json.loads(choice.text)["city"] in ("Rome", "Oslo")


@pytest.mark.parametrize("kind", THINKS)
@pytest.mark.parametrize("output", [CHOICE, None])
@pytest.mark.parametrize("budget", [0, 7])
def test_a_budget_ends_the_reasoning(kind: str, output: OutputFormat | None, budget: int) -> None:
    collected, _ = answered(kind, ends=-100.0, begins=12.0, output=output, reasoning_budget=budget, max_tokens=40)
    (choice,) = collected.choices
    assert collected.usage.reasoning == budget  # without its marks
    assert choice.text
    if output is not None:
        assert choice.text in ("yes", "no")


@pytest.mark.parametrize("kind", THINKS)
def test_drafts_change_no_answer(kind: str) -> None:
    for fields in (
        {"output": FORMAT},
        {"tools": [WEATHER], "tool_choice": ToolChoice("required")},
        {"reasoning_budget": 9},
    ):
        plain = answered(kind, 3, **fields)[0].choices[0]
        drafted = answered(kind, 3, **fields, prediction=plain.reasoning + plain.text)[0].choices[0]
        calls = [[(call.name, call.arguments) for call in choice.calls] for choice in (plain, drafted)]
        assert (plain.text, plain.reasoning, plain.reason, calls[0]) == (
            drafted.text,
            drafted.reasoning,
            drafted.reason,
            calls[1],
        )


@pytest.mark.parametrize("kind", ["opened", "special marks"])
def test_calls_whose_marks_are_tokens_are_held_to_the_schema(kind: str) -> None:
    """The marks of calls that must come were written in letters, and nothing held what stood between them."""
    model = MODELS[kind]
    begin = model.grammars.table.special_names["[TOOL_CALLS]" if kind == "special marks" else "<tool_call>"]
    for seed in range(5):
        request = {
            "tools": [WEATHER],
            "tool_choice": ToolChoice("required"),
            "return_tokens": True,
            "reasoning_budget": 0,
        }
        (choice,) = answered(kind, seed, **request)[0].choices
        assert begin in choice.tokens or not choice.tokens
        assert all(json.loads(call.arguments)["city"] in ("Rome", "Oslo") for call in choice.calls[:1])


@pytest.mark.parametrize("kind", ["deepseek", "glm", "harmony"])
def test_calls_of_other_models_are_held_behind_their_reasoning(kind: str) -> None:
    marks = (*DEEPSEEK_MARKS, *GLM_MARKS, *HARMONY_MARKS)
    for seed in range(3):
        asked: dict[str, Any] = {"tools": [WEATHER], "tool_choice": ToolChoice("required", parallel=False)}
        (choice,) = answered(kind, seed, **asked)[0].choices
        (call,) = choice.calls
        assert (call.name, choice.text, choice.reason) == ("weather", "", "tool_calls")
        assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")
        (free,) = answered(kind, seed, tools=[WEATHER])[0].choices
        assert all(call.name == "weather" for call in free.calls)
        (held,) = answered(kind, seed, output=FORMAT)[0].choices
        assert json.loads(held.text)["city"] in ("Rome", "Oslo")
        assert not any(mark in held.text for mark in marks)


@pytest.mark.parametrize("kind", [*THINKS, "deepseek", "glm"])
def test_a_call_that_may_come_behind_reasoning_is_complete(kind: str) -> None:
    """Where a model may think first, a call that nothing asked for was cut wherever the tokens were used up."""
    endings = set[str]()
    for most in (*range(1, 40, 2), 60, 90):
        (choice,) = answered(kind, most, calls=9.0, ends=9.0, tools=[WEATHER], max_tokens=most)[0].choices
        assert all(json.loads(call.arguments)["city"] in ("Rome", "Oslo") for call in choice.calls), (most, choice)
        endings.add(choice.reason)
    assert "tool_calls" in endings


@pytest.mark.parametrize("kind", ["opened", "special marks", "deepseek", "harmony"])
@pytest.mark.parametrize("several", [False, True])
def test_a_call_that_must_come_is_complete_or_told_as_cut(kind: str, several: bool) -> None:
    """Where the marks are tokens no end was known, so that any call could be cut anywhere."""
    mail = {"to": {"type": "string", "format": "email"}, "body": {"type": "string", "minLength": 3}}
    sends = Tool("send_mail", parameters={"type": "object", "properties": mail, "required": ["to", "body"]})
    asked: dict[str, Any] = {
        "tools": [sends, WEATHER] if several else [WEATHER],
        "tool_choice": ToolChoice("required", parallel=several),
        "reasoning_budget": 0,
    }
    complete = []
    for most in (1, 12, 20, 28, 36, 44, 52, 120):
        (choice,) = answered(kind, most, max_tokens=most, **asked)[0].choices
        complete.append(choice.reason == "tool_calls")
        assert choice.reason in ("tool_calls", "length")
        if complete[-1]:
            calls = [(call.name, json.loads(call.arguments)) for call in choice.calls]
            assert all(value["city"] in ("Rome", "Oslo") for name, value in calls if name == "weather")
            assert all("@" in value["to"] for name, value in calls if name == "send_mail")
    assert complete == sorted(complete), complete
    assert complete[-1]


def test_scores_that_wait_behind_a_call_come_a_few_at_a_time() -> None:
    """In one event they would hold up whoever writes it."""
    stream = _AnswerStream(Reply(ChatRequest([])), AnswerShape("hermes", frozenset({"f"})), 0)
    scores = [TokenScore(number, "x", [120], -1.0) for number in range(3 * MOST_SCORED + 1)]
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    events = [*stream.events(call, [], scores), *stream.last_events(cut=False)]
    told = [event.scores for event in events if isinstance(event, TextDelta)]
    assert [len(each) for each in told] == [MOST_SCORED, MOST_SCORED, MOST_SCORED, 1]
    assert [score for each in told for score in each] == scores


def test_a_prompt_that_is_scored_in_pieces_has_the_scores_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of that name is hidden by its function."""
    whole, _ = answered("opened", prompt_logprobs=3)
    monkeypatch.setattr(sys.modules["inferd.chat.answer"], "SCORED_AT_ONCE", 7)
    pieces, _ = answered("opened", prompt_logprobs=3)
    scores = whole.choices[0].prompt_scores.json()["prompt_logprobs"]
    assert scores == pieces.choices[0].prompt_scores.json()["prompt_logprobs"]
    assert bytes(scores).count(b"decoded_token") > 60
    assert whole.choices[0].text == pieces.choices[0].text
