"""An answer's text is split the same, however it is cut into pieces."""

from __future__ import annotations

import json
import time
import tracemalloc

import pytest
from answer_parts import joined
from hypothesis import given, strategies as st

from inferd.chat.answer_parser import (
    MAX_HELD,
    AnswerParser,
    AnswerPart,
    AnswerShape,
    ArgumentsPart,
    CallPart,
    ReasoningPart,
    TextPart,
)

TOOLS = frozenset({"weather"})
HERMES = AnswerShape("hermes", TOOLS, ("<think>", "</think>"))
LLAMA = AnswerShape("llama3", TOOLS)
NAMED = AnswerShape("mistral_args", TOOLS, ("[THINK]", "[/THINK]"))
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}, "at": {"type": "array"},
    },
}  # fmt: skip
LFM2 = AnswerShape("lfm2", TOOLS)
XML = AnswerShape("qwen3_coder", TOOLS, schemas={"weather": WEATHER})
MISTRAL = AnswerShape("mistral", TOOLS)
DEEPSEEK = AnswerShape("deepseek_v3", TOOLS, ("<think>", "</think>"))
DEEPSEEK_31 = AnswerShape("deepseek_v31", TOOLS)
CALL = CallPart("weather")
GLM = AnswerShape("glm", TOOLS)
BEHIND_CALLS = (
    (HERMES, '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'),
    (XML, "<tool_call>\n<function=weather>\n</function>\n</tool_call>"),
    (GLM, "<tool_call>weather\n</tool_call>"),
    (NAMED, "[TOOL_CALLS]weather[ARGS]{}"),
    (LFM2, "<|tool_call_start|>[weather()]<|tool_call_end|>"),
)


def parse(shape: AnswerShape, pieces: list[str], *, cut: bool = False) -> list[AnswerPart]:
    """Return the parts of a text that comes in pieces, neighbours of one kind joined."""
    parser = AnswerParser(shape)
    return joined([*(part for piece in pieces for part in parser.feed(piece)), *parser.finish(cut=cut)])


CASES = [
    (HERMES, "Hello <tool", [TextPart("Hello <tool")]),
    (HERMES, "<think>\nhm\n</think>\n\nYes.", [ReasoningPart("\nhm\n"), TextPart("Yes.")]),
    (HERMES, "<think", [TextPart("<think")]),
    (
        HERMES,
        'Sure. <tool_call>\n{"name": "weather", "arguments": {"at": [1, "}\\""]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>',
        [TextPart("Sure. "), CALL, ArgumentsPart('{"at": [1, "}\\""]}'), CALL, ArgumentsPart("{}")],
    ),
    (HERMES, '<tool_call>{"name": "weather"}</tool_call>\n\nDone.\n\nYes.\n', [CALL, TextPart("\n\nDone.\n\nYes.\n")]),
    (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"a": 1', [CALL, ArgumentsPart('{"a": 1')]),
    (HERMES, '<tool_call>\n{"na', [TextPart('<tool_call>\n{"na')]),
    (HERMES, "a <tool_call>no</tool_call> b", [TextPart("a <tool_call>no</tool_call> b")]),
    (LLAMA, "[1, 2] and", [TextPart("[1, 2] and")]),
    (HERMES, '{"name": "weather", "arguments": {}}', [TextPart('{"name": "weather", "arguments": {}}')]),
    (AnswerShape("hermes", TOOLS, ("<think>", "</think>"), thinking=True), "a</think>\n\nb", [ReasoningPart("a"), TextPart("b")]),
    (LLAMA, '{"name": "weather", "parameters": {"x": 1}}', [CALL, ArgumentsPart('{"x": 1}')]),
    (LLAMA, '<|python_tag|>{"parameters": {"x": 1}, "name": "weather"}', [CALL, ArgumentsPart('{"x": 1}')]),
    (LLAMA, '{"name": "other", "parameters": {}}', [TextPart('{"name": "other", "parameters": {}}')]),
    (LLAMA, '{"answer": 42} is it', [TextPart('{"answer": 42} is it')]),
    (LLAMA, "It is 42.", [TextPart("It is 42.")]),
    (
        MISTRAL,
        '[TOOL_CALLS][{"name": "weather", "arguments": {"x": 1}}, {"name": "weather", "arguments": "{\\"x\\": 2}"}]',
        [CALL, ArgumentsPart('{"x": 1}'), CALL, ArgumentsPart('{"x": 2}')],
    ),
    (NAMED, 'Sure.[TOOL_CALLS]weather[ARGS]{"x": "}"}[TOOL_CALLS]weather[CALL_ID]a1[ARGS] {}',
     [TextPart("Sure."), CALL, ArgumentsPart('{"x": "}"}'), CALL, ArgumentsPart("{}")]),
    (NAMED, '[THINK]hm[/THINK][TOOL_CALLS]weather{"x": 1}', [ReasoningPart("hm"), CALL, ArgumentsPart('{"x": 1}')]),
    (NAMED, "[TOOL_CALLS]other[ARGS]{}", [TextPart("[TOOL_CALLS]other[ARGS]{}")]),
    (NAMED, "[TOOL_CALLS] no call!", [TextPart("[TOOL_CALLS] no call!")]),
    (NAMED, "weather{}", [TextPart("weather{}")]),
    (XML, "Sure.\n<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n"
          "</parameter>\n<parameter=unit>\nC\n</parameter>\n<parameter=at>\n[1, 2]\n</parameter>\n</function>\n</tool_call>",
     [TextPart("Sure.\n"), CALL, ArgumentsPart('{"city": "New\\nYork", "days": 3, "unit": "C", "at": [1, 2]}')]),
    (XML, "<tool_call><function=weather></function></tool_call>\n<tool_call>\n<function=weather>\n<parameter=city>\n12\n"
          "</parameter>\n<parameter=days>\nmany\n</parameter>\n<parameter=new>\nTrue\n</parameter>\n</function>\n</tool_call>",
     [CALL, ArgumentsPart("{}"), CALL, ArgumentsPart('{"city": "12", "days": "many", "new": "True"}')]),
    (XML, "<tool_call>\n<function=other>\n</function>\n</tool_call> done",
     [TextPart("<tool_call>\n<function=other>\n</function>\n</tool_call> done")]),
    (XML, "<tool_call>what</tool_call>", [TextPart("<tool_call>what</tool_call>")]),
    (HERMES, '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>',
     [TextPart('<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>')]),
    (
        MISTRAL, 'Wait. [TOOL_CALLS] [{"name": "weather", "arguments": {}}]',
        [TextPart("Wait. "), CALL, ArgumentsPart("{}")],
    ),
    (
        DEEPSEEK,
        "<think>hm</think>Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"x": "}"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [ReasoningPart("hm"), TextPart("Sure."), CALL, ArgumentsPart('{"x": "}"}'), CALL, ArgumentsPart("{}")],
    ),
    (
        DEEPSEEK,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>other\n```json\n{}\n```<｜tool▁call▁end｜>",
        [TextPart("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>other\n```json\n{}\n```<｜tool▁call▁end｜>")],
    ),
    (
        DEEPSEEK_31,
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>weather'
        "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>\nDone.",
        [CALL, ArgumentsPart('{"x": 1}'), CALL, ArgumentsPart("{}"), TextPart("\nDone.")],
    ),
    (DEEPSEEK_31, "<｜tool▁calls▁begin｜> is a mark", [TextPart("<｜tool▁calls▁begin｜> is a mark")]),
    *(
        (
            AnswerShape(name, TOOLS),
            f'Sure. {begin}[{{"name": "weather", "arguments": {{"x": 1}}}}, {{"name": "weather", "arguments": {{}}}}]{end}',
            [TextPart("Sure. "), CALL, ArgumentsPart('{"x": 1}'), CALL, ArgumentsPart("{}")],
        )
        for name, begin, end in (
            ("granite", "<|tool_call|>", ""),
            ("granite", "<|tool_call|>", "<|/tool_call|>"),
            ("phi4", "functools", ""),
            ("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
            ("jamba", "<tool_calls>\n", "\n</tool_calls>"),
        )
    ),
    (
        AnswerShape("glm", TOOLS, ("<think>", "</think>"), schemas={"weather": WEATHER}),
        "<think>hm</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>New\nYork\n</arg_value>\n<arg_key>days"
        "</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>weather<arg_key>city</arg_key><arg_value>Rome"
        "</arg_value></tool_call>\n<tool_call>weather\n</tool_call>",
        [ReasoningPart("hm"), CALL, ArgumentsPart('{"city": "New\\nYork\\n", "days": 3}'), CALL,
         ArgumentsPart('{"city": "Rome"}'), CALL, ArgumentsPart("{}")],
    ),
    (AnswerShape("glm", TOOLS), "<tool_call>other\n</tool_call>", [TextPart("<tool_call>other\n</tool_call>")]),
    (AnswerShape("phi4", TOOLS), "functools is a module", [TextPart("functools is a module")]),
    (
        AnswerShape("seed_oss", TOOLS, schemas={"weather": WEATHER}),
        "<seed:tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</seed:tool_call>",
        [CALL, ArgumentsPart('{"city": "Rome"}')],
    ),
    (
        AnswerShape("minimax_m2", TOOLS, schemas={"weather": WEATHER}),
        'Sure.\n<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Rome</parameter>\n<parameter name="days">3'
        '</parameter>\n</invoke>\n<invoke name="weather">\n</invoke>\n</minimax:tool_call>',
        [TextPart("Sure.\n"), CALL, ArgumentsPart('{"city": "Rome", "days": 3}'), CALL, ArgumentsPart("{}")],
    ),
    (
        AnswerShape("minicpm", TOOLS, schemas={"weather": WEATHER}),
        'Sure.<function name="weather"><param name="city">Rome</param><param name="days">3</param></function>\n'
        '<function name="weather"></function>',
        [TextPart("Sure."), CALL, ArgumentsPart('{"city": "Rome", "days": 3}'), CALL, ArgumentsPart("{}")],
    ),
    (AnswerShape("minicpm", TOOLS), "a <function of x> here", [TextPart("a <function of x> here")]),
    (
        AnswerShape("gigachat", TOOLS),
        'Sure.<|function_call|>{"name": "weather", "arguments": {"x": 1}}',
        [TextPart("Sure."), CALL, ArgumentsPart('{"x": 1}')],
    ),
    (
        LFM2,
        "Sure.<|tool_call_start|>[weather(city='L\\'Aquila \"x\"', days=3, on=True, at=[1.5, None, {'a': (2,)}]), weather()]"
        "<|tool_call_end|>Done.",
        [
            TextPart("Sure."), CALL,
            ArgumentsPart('{"city": "L\'Aquila \\"x\\"", "days": 3, "on": true, "at": [1.5,null,{"a":[2]}]}'),
            CALL, ArgumentsPart("{}"), TextPart("Done."),
        ],
    ),
    (
        LFM2,
        '<|tool_call_start|>[weather(city="a\\nb)]", on=true)]<|tool_call_end|>',
        [CALL, ArgumentsPart('{"city": "a\\nb)]", "on": true}')],
    ),
    (LFM2, "<|tool_call_start|>[other(x=1)]<|tool_call_end|>", [TextPart("<|tool_call_start|>[other(x=1)]<|tool_call_end|>")]),
    (AnswerShape(), '<tool_call>{"name": "weather"}', [TextPart('<tool_call>{"name": "weather"}')]),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "text", "expected"), CASES)
def test_an_answer_is_split_however_it_is_cut(shape: AnswerShape, text: str, expected: list[AnswerPart]) -> None:
    """Every cut into two, and one character at a time."""
    assert parse(shape, list(text)) == expected
    for at in range(len(text) + 1):
        assert parse(shape, [text[:at], text[at:]]) == expected


REQUIRED = AnswerShape("json", TOOLS, required=True)
CUT_CASES = [
    (HERMES, "Hello <tool", [TextPart("Hello ")]),
    (HERMES, "a <", [TextPart("a <")]),
    (HERMES, "<thi", []),
    (HERMES, "<think>hm</th", [ReasoningPart("hm")]),
    (HERMES, "Sure. <tool_call>", [TextPart("Sure. ")]),
    (HERMES, '<tool_call>\n{"na', []),
    (HERMES, '<tool_call>\n{"arguments": {"a": 1}, "na', []),
    (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"a": 1', [CALL, ArgumentsPart('{"a": 1')]),
    (HERMES, '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool', [CALL, ArgumentsPart("{}")]),
    (HERMES, '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>\n<tool_c', [CALL, ArgumentsPart("{}")]),
    (HERMES, "<tool_call>no", [TextPart("<tool_call>no")]),
    (MISTRAL, '[TOOL_CALLS][{"name": "wea', []),
    (MISTRAL, "[TOOL_CA", []),
    (LLAMA, '<|python_tag|>{"name"', []),
    (LLAMA, '{"name": "Ro', [TextPart('{"name": "Ro')]),
    (NAMED, "[TOOL_CALLS]weat", []),
    (NAMED, '[TOOL_CALLS]weather[ARGS]{"x": 1', [CALL, ArgumentsPart('{"x": 1')]),
    (NAMED, "[TOOL_CALLS]weather[AR", []),
    (XML, "<tool_call>\n<function=wea", []),
    (
        XML,
        "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\nRo",
        [CALL, ArgumentsPart('{"days": 3, "city": "Ro')],
    ),
    (DEEPSEEK, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>wea", []),
    (DEEPSEEK, "Sure.<｜tool▁calls", [TextPart("Sure.")]),
    (
        DEEPSEEK_31,
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"x": 1',
        [CALL, ArgumentsPart('{"x": 1')],
    ),
    (LFM2, "Sure.<|tool_call_start|>[wea", [TextPart("Sure.")]),
    (LFM2, "<|tool_call_start|>[weather(city='Ro", [CALL, ArgumentsPart('{"city": "Ro')]),
    (LFM2, "<|tool_call_start|>[weather()]<|tool_ca", [CALL, ArgumentsPart("{}")]),
    (REQUIRED, '{"name": "wea', []),
    (REQUIRED, '{"na', []),
    (REQUIRED, '{"other"', [TextPart('{"other"')]),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "text", "expected"), CUT_CASES)
def test_a_call_that_was_cut_leaves_none_of_its_marks_in_the_text(
    shape: AnswerShape, text: str, expected: list[AnswerPart]
) -> None:
    assert parse(shape, list(text), cut=True) == parse(shape, [text], cut=True) == expected


LETTERS = st.text(alphabet='<>/tool_cal{}"\\ \n:ax1[],name')
PIECES = (
    "<tool_call>", "</tool_call>", "<function=", "weather", ">", "<parameter=", "city", "</parameter>", "</function>",
    "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "{", "}", '"', "\n", "other", '{"name": "weather", "arguments": {}}',
)  # fmt: skip
ANY_TEXT = LETTERS | st.lists(st.sampled_from(PIECES)).map("".join)
SHAPES = [HERMES, LLAMA, MISTRAL, NAMED, XML]


@given(ANY_TEXT, st.sampled_from([*SHAPES, AnswerShape()]))
def test_any_text_is_read(text: str, shape: AnswerShape) -> None:
    """Nothing raises, and pieces make no difference."""
    assert parse(shape, list(text)) == parse(shape, [text])


@given(ANY_TEXT, st.sampled_from(SHAPES))
def test_text_without_a_call_is_whole(text: str, shape: AnswerShape) -> None:
    """What looked like the beginning of a call is shown when it was none."""
    parts = parse(shape, [text])
    if not any(isinstance(part, CallPart | ReasoningPart) for part in parts):
        assert "".join(part.text for part in parts if isinstance(part, TextPart)) == text


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5)))
def test_arguments_come_out_as_they_were_written(arguments: dict[str, object]) -> None:
    """The text of the arguments is the JSON that stands there."""
    written = json.dumps(arguments)
    text = f'<tool_call>\n{{"name": "weather", "arguments": {written}}}\n</tool_call>'
    assert parse(HERMES, list(text)) == [CALL, ArgumentsPart(written)]


def test_one_call_is_the_end_where_there_may_be_one_only() -> None:
    once = AnswerShape("hermes", TOOLS, parallel=False)
    text = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
    parser = AnswerParser(once)
    assert parser.feed(f"{text}\n{text} more") == [CALL, ArgumentsPart("{}")]
    assert parser.over
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("shape", "unit"),
    [
        *((shape, unit) for shape in (HERMES, LLAMA, MISTRAL)
          for unit in (" ", "[", "<tool_call>", '{"name": "weather", "arguments": {"a": "x')),
        (NAMED, '[TOOL_CALLS]weather[ARGS]{"a": "x'),
        (XML, "<tool_call>\n<function=weather>\n<parameter=city>\nx"),
        (XML, "<tool_call>\n<function=weather"),
        *((shape, f"{call}\n") for shape, call in BEHIND_CALLS),
    ],
)  # fmt: skip
def test_long_texts_are_read_in_time_in_proportion_to_them(shape: AnswerShape, unit: str) -> None:
    """What was held back was looked at again with every piece: seconds for 50,000 blanks."""
    parser = AnswerParser(shape)
    began = time.process_time()
    for piece in (unit, *["   " if unit == " " else unit[-1]] * 100_000):
        parser.feed(piece)
    parser.finish()
    assert time.process_time() - began < 5


def test_a_piece_of_blanks_is_looked_at_once_where_a_name_may_end() -> None:
    """Looking for the end of the line behind each of 8,000 blanks took 0.4 s."""
    parser = AnswerParser(GLM)
    began = time.process_time()
    parser.feed("<tool_call>weather" + " " * 30_000)
    assert time.process_time() - began < 1
    assert parse(GLM, ["<tool_call>weather  ", " \n</tool_call>"]) == [CALL, ArgumentsPart("{}")]


@pytest.mark.parametrize(("shape", "call"), BEHIND_CALLS)
def test_blanks_behind_a_call_are_held_back_up_to_a_number(shape: AnswerShape, call: str) -> None:
    """More are text: nothing grows for as long as a model writes them."""
    assert parse(shape, [call, " " * MAX_HELD]) == [CALL, ArgumentsPart("{}")]
    assert joined(parse(shape, [call, *[" "] * (MAX_HELD + 1), "x"]))[-1] == TextPart(" " * (MAX_HELD + 1) + "x")


@pytest.mark.parametrize(
    ("shape", "opening"),
    [
        (HERMES, '<tool_call>{"name": "weather", "arguments": {"a": "'),
        (NAMED, '[TOOL_CALLS]weather[ARGS]{"a": "'),
        (LFM2, "<|tool_call_start|>[weather(a='"),
    ],
)
def test_a_long_call_is_held_as_text_and_not_as_a_list_of_characters(shape: AnswerShape, opening: str) -> None:
    """It took 84 bytes for each: 43 MB for half a million, in the gateway, of each answer that is read."""
    parser = AnswerParser(shape)
    parser.feed(opening)
    tracemalloc.start()
    for _ in range(40_000):
        parser.feed("\u65e5\u672c\u8a9e" * 3)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 360_000 * 32


def test_a_text_without_quotes_comes_out_while_it_is_written() -> None:
    parser = AnswerParser(XML)
    told = ""
    for piece in ("<tool_call>\n<function=weather>\n<parameter=city>\n", 'São "P', "aulo\n", "é\n</para", "meter>\n"):
        told += "".join(part.text for part in parser.feed(piece) if isinstance(part, ArgumentsPart))
        if piece == "aulo\n":
            assert told.startswith('{"city": "São')
    parser.feed("</function>\n</tool_call>")
    assert told == '{"city": "São \\"Paulo\\né"'


def test_a_call_that_is_nested_without_end_is_text_and_no_bug() -> None:
    text = '{"arguments": ' + "[" * 100_000 + "]" * 100_000 + ', "name": "weather"}'
    assert parse(LLAMA, [text]) == [TextPart(text)]
