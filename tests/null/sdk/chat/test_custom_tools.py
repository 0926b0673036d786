"""Custom tools: in every format of calls the text of one is held to its grammar, and read back as it was meant."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from session_runtime import SayingDriver, SessionRuntime

from inferd import InvalidRequest, JsonSchema
from inferd.chat import (
    ChatMessage,
    ChatRequest,
    OutputFormat,
    Tool,
    ToolChoice,
    custom_arguments,
    custom_tool,
    open_context,
)
from inferd.chat.answer_parser import AnswerShape, ArgumentsPart, CallPart
from inferd.chat.call_forms import HARMONY, HEADED, HERMES, JSON, LFM2, LISTED, LLAMA3, MARKED, XML
from inferd.chat.harmony import parser_of
from inferd.chat.tool_calls import call_or_json, tool_constraint
from inferd.transport import transport_in_force
from inferd_grammar import Constraint, GrammarError
from inferd_runtime.server.dialects.custom_calls import input_of
from inferd_runtime.session.constraints.conversion import to_grammar
from tests.support.byte_texts import BYTES, takes

FORMATS = sorted({*MARKED, *LISTED, *HEADED, *XML, LLAMA3, JSON, HARMONY})
MUST = ToolChoice("required", parallel=False)
ADD = Tool("add", "", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
INPUTS = {
    "regex": (OutputFormat("regex", r'[a-z"\\\n<é]{1,20}'), 'say "é"\\\n<b'.replace(" ", ""), "1"),
    "lark": (
        OutputFormat("lark", 'start: WORD ("\\n" WORD)*\nWORD: /[a-z]+["\\\\]?/\n%ignore / +/'),
        'ab"\ncd\\',
        "ab ab",
    ),
    "lines": (OutputFormat("lark", 'start: (/[a-z]+/ "\\n")+'), "ab\ncd\n", "ab"),
    "choice": (OutputFormat("choice", options=["yes\n", "no"]), "yes\n", "yes"),
}


def held(tool_format: str, tools: list[Tool], choice: ToolChoice) -> Constraint:
    constraint = tool_constraint(tool_format, tools, choice)
    assert constraint is not None
    return to_grammar(constraint.constraint)


def written(tool_format: str, tool: Tool, text: str) -> str:
    """Return a call, all of which but the text of the tool is forced where it alone may be called."""
    matcher = BYTES.compile(held(tool_format, [tool], MUST)).matcher()
    head = bytearray()
    while forced := matcher.forced():
        assert matcher.accept([byte + 1 for byte in forced]) == len(forced)
        head += forced
    if tool_format in XML:
        return head.decode() + text + XML[tool_format].value_tail + XML[tool_format].end
    inside = head.decode().removesuffix('"') + json.dumps(text, ensure_ascii=False)
    closing = {LFM2: ")", HARMONY: "}"}.get(tool_format) or (
        f"}}{HEADED[tool_format].end}" if tool_format in HEADED else "}}"
    )
    return inside + closing + ("]" if tool_format in LISTED else "")


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("kind", INPUTS)
def test_the_text_of_a_custom_tool_is_held_to_its_grammar_and_read_back(tool_format: str, kind: str) -> None:
    wanted, good, bad = INPUTS[kind]
    tool = custom_tool("run", "", wanted)
    call = written(tool_format, tool, good)
    grammar = held(tool_format, [tool], MUST)
    assert takes(grammar, call)
    assert not takes(grammar, written(tool_format, tool, bad))
    parser = parser_of(AnswerShape(tool_format, frozenset({"run"}), required=True, schemas={"run": tool.parameters}))
    parts = [*parser.feed(call), *parser.finish()]
    assert [part.name for part in parts if isinstance(part, CallPart)] == ["run"]
    assert input_of("".join(part.text for part in parts if isinstance(part, ArgumentsPart))) == good


@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_call_that_is_left_to_the_model_is_held_from_its_opening_on(tool_format: str) -> None:
    tool = custom_tool("run", "", INPUTS["lark"][0])
    free = held(tool_format, [ADD, tool], ToolChoice())
    good, bad = (written(tool_format, tool, text) for text in INPUTS["lark"][1:])
    if tool_format in MARKED:
        form = MARKED[tool_format]
        good, bad = (
            text + (form.around[1] + form.end if form.between is not None else form.end and "\n" + form.end)
            for text in (good, bad)
        )
    assert takes(free, good)
    assert not takes(free, bad)
    assert takes(free, "plain text") or tool_format == HARMONY


@pytest.mark.parametrize("tool_format", [LLAMA3, *LISTED])
def test_functions_beside_a_custom_tool_are_held_as_ever(tool_format: str) -> None:
    tool = custom_tool("run", "", OutputFormat("regex", "[ab\n]+"))
    key = "parameters" if tool_format == LLAMA3 else "arguments"
    add, run = f'{{"name":"add","{key}":{{"a":1}}}}', f'{{"name":"run","{key}":{{"input":"a\\nb"}}}}'
    wrong = add.replace("1", '"1"')
    for parallel in (True, False):
        grammar = held(tool_format, [ADD, tool], ToolChoice("required", parallel=parallel))
        one, two = ("[{}]", "[{},{}]") if tool_format in LISTED else ("{}", "{}{}")
        assert takes(grammar, one.format(add))
        assert takes(grammar, one.format(run))
        assert takes(grammar, two.format(add, run)) == (parallel and tool_format in LISTED)
        assert not takes(grammar, one.format(wrong))


def test_an_answer_that_may_be_json_or_a_call_of_a_custom_tool() -> None:
    either = call_or_json([custom_tool("run", "", OutputFormat("regex", "[ab\n]+"))], JsonSchema({"type": "integer"}))
    grammar = to_grammar(either.constraint)
    assert takes(grammar, "12")
    assert takes(grammar, '{"name":"run","arguments":{"input":"a\\n"}}')
    assert not takes(grammar, '{"name":"run","arguments":{"input":"c"}}')


@pytest.mark.parametrize("tool_format", sorted(XML))
def test_a_grammar_that_may_hold_the_end_of_a_value_without_quotes_is_refused_by_name(tool_format: str) -> None:
    tool = custom_tool("run", "", OutputFormat("lark", "start: /[^x]+/"))
    with pytest.raises(GrammarError, match=r"the texts of the Lark grammar may hold '(<.|.n<)'"):
        BYTES.compile(held(tool_format, [tool], MUST))


def test_a_custom_tool_without_a_grammar_takes_any_text() -> None:
    grammar = held(HERMES, [custom_tool("run")], ToolChoice())
    arguments = custom_arguments("a\nb").replace(": ", ":")
    assert takes(grammar, f'<tool_call>\n{{"name":"run","arguments":{arguments}}}\n</tool_call>')


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_search_for_an_end_changes_no_text_of_a_grammar(mode: Literal["auto", "required"]) -> None:
    """A model that would have written `hello = "hi"` wrote `helloa = "000"`: what had no end that was found was left out."""
    grammar = 'start: (stmt "\\n")+\nstmt: NAME " = " STR\nNAME: /[a-z]{1,8}/\nSTR: /"[^"\\n]{0,30}"/'
    tool = custom_tool("run", "", OutputFormat("lark", grammar))
    call = '<tool_call>\n{"name":"run","arguments":{"input":"hello = \\"hi\\"\\nbye = \\"\\"\\n"}}\n</tool_call>'
    said = f"Look: {call}" if mode == "auto" else call
    request = ChatRequest(
        messages=[ChatMessage("user", "x")], tools=[tool], tool_choice=ToolChoice(mode), max_tokens=200
    )
    with SessionRuntime(SayingDriver(lambda prompt: said.encode(), room=8192)) as runtime, transport_in_force(runtime):
        ctx, conversation = await open_context(request)
        assert await conversation.generate(ctx).collect_text() == said
        await ctx.release()


def test_a_tool_says_what_its_text_has_to_be() -> None:
    request = ChatRequest(tools=[custom_tool("run", "Runs it.", OutputFormat("lark", "start: A\nA: /a/"))])
    (shown,) = request.template_tools()
    assert shown["function"]["description"] == "Runs it."
    told = shown["function"]["parameters"]["properties"]["input"]["description"]
    assert told == "The input of the tool, a text. All of it is one text of this Lark grammar:\nstart: A\nA: /a/"


def test_an_invalid_choice_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="options"):
        held(HERMES, [custom_tool("run", "", OutputFormat("choice"))], MUST)
