"""Answers of gpt-oss: messages with headers, told apart however they are cut; and what they are held to."""

from __future__ import annotations

import pytest
from answer_parts import joined

from inferd import Grammar, JsonSchema
from inferd.chat import Tool, ToolChoice
from inferd.chat.answer_parser import AnswerPart, AnswerShape, ArgumentsPart, CallPart, ReasoningPart, TextPart
from inferd.chat.harmony import FINAL, TO_FUNCTION, HarmonyParser, harmony_constraint
from inferd.chat.tool_calls import checked_parameters
from inferd.schema import OutputConstraint
from inferd_runtime.testing.transport import run_program

TOOLS, CALL = frozenset({"weather"}), CallPart("weather")
WEATHER = Tool(
    "weather", parameters={"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
)
AUTO, MUST = ToolChoice(), ToolChoice("required")
SHAPE = AnswerShape("harmony", TOOLS, ("<|channel|>analysis<|message|>", "<|end|>"))
ONE = AnswerShape("harmony", TOOLS, parallel=False)
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
CASES = [
    (SHAPE, f"{THOUGHT}<|channel|>final<|message|>Yes <b>.", [ReasoningPart("hm"), TextPart("Yes <b>.")]),
    (
        SHAPE,
        THOUGHT + '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"x": 1}<|call|>',
        [ReasoningPart("hm"), CALL, ArgumentsPart('{"x": 1}')],
    ),
    (
        SHAPE,
        '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"x": 1}',
        [CALL, ArgumentsPart('{"x": 1}')],
    ),
    (
        SHAPE,
        "<|channel|>commentary<|message|>I look.<|end|>" + THOUGHT.removesuffix("<|start|>assistant"),
        [TextPart("I look."), ReasoningPart("hm")],
    ),
    (SHAPE, "<|channel|>commentary to=functions.other<|message|>{}", [TextPart("{}")]),
    (SHAPE, '{"a": 1}', [TextPart('{"a": 1}')]),
    (SHAPE, "<", [TextPart("<")]),
    (
        ONE,
        "<|channel|>commentary to=functions.weather<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>x",
        [CALL, ArgumentsPart("{}")],
    ),
]


def parse(shape: AnswerShape, pieces: list[str], *, cut: bool = False) -> list[AnswerPart]:
    parser = HarmonyParser(shape)
    return joined([*(part for piece in pieces for part in parser.feed(piece)), *parser.finish(cut=cut)])


@pytest.mark.parametrize(("shape", "text", "expected"), CASES)
def test_messages_are_told_apart_however_they_are_cut(
    shape: AnswerShape, text: str, expected: list[AnswerPart]
) -> None:
    assert parse(shape, list(text)) == expected
    for at in range(len(text) + 1):
        assert parse(shape, [text[:at], text[at:]]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|chan", []),
        ("<|channel|>analysis<|message|>hm<|e", [ReasoningPart("hm")]),
        ('<|channel|>commentary to=functions.weather<|message|>{"x', [CALL, ArgumentsPart('{"x')]),
    ],
)
def test_a_cut_answer_shows_no_marks(text: str, expected: list[AnswerPart]) -> None:
    assert parse(SHAPE, [text], cut=True) == expected


def accepts(choice: ToolChoice, text: str, output: OutputConstraint | None = None, *, tools: bool = True) -> bool:
    schemas = [(WEATHER, JsonSchema(checked_parameters(WEATHER)))] if tools else []
    constraint = harmony_constraint(schemas, choice, output)
    assert constraint is not None

    async def main() -> bool:
        async with await Grammar.compile(constraint) as grammar, grammar.matcher() as matcher:
            return await matcher.accept(list(text.encode())) == len(text.encode()) and matcher.may_end

    result: bool = run_program(main)
    return result


ROME = TO_FUNCTION + 'weather <|constrain|>json<|message|>{"city":"Rome"}'


@pytest.mark.parametrize(
    ("choice", "text", "allowed"),
    [
        (AUTO, f"{FINAL}Anything.", True),
        (AUTO, ROME, True),
        (AUTO, f"<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>{ROME}", True),
        (AUTO, ROME.replace("Rome", "Oslo"), False),
        (AUTO, "Anything.", False),
        (MUST, ROME, True),
        (MUST, f"{FINAL}Anything.", False),
    ],
)
def test_calls_are_held_and_texts_are_free(choice: ToolChoice, text: str, allowed: bool) -> None:
    assert accepts(choice, text) is allowed


def test_a_format_holds_the_last_message() -> None:
    number = JsonSchema({"type": "integer"})
    assert accepts(AUTO, f"{FINAL}7", number, tools=False)
    assert not accepts(AUTO, f"{FINAL}seven", number)
    assert harmony_constraint([], AUTO, None) is None
