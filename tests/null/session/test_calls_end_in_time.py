"""Calls of tools in every way of writing them: whatever the tokens that are left, no text ends in the middle of a call."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from inferd.chat.answer_parser import AnswerShape, ArgumentsPart, CallPart
from inferd.chat.call_forms import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    GIGACHAT,
    HERMES,
    LFM2,
    LLAMA3,
    MISTRAL_ARGS,
    XML,
    form_of,
)
from inferd.chat.harmony import parser_of
from inferd.chat.request import Tool, ToolChoice
from inferd.chat.tool_calls import tool_constraint
from inferd_grammar import Compiled, GrammarCompiler, TokenTable
from inferd_runtime.session.constraints.conversion import to_grammar

COMPILER = GrammarCompiler(TokenTable.of_bytes())
FIND = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "n": {"type": "integer", "minimum": 10},
        "kind": {"enum": ["note", "letter"]},
        "inner": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": ["string", "null"]}},
            "required": ["x"],
        },
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    },
    "required": ["text", "n"],
}
TOOLS = [Tool("find", "", FIND), Tool("stop", "", {"type": "object", "properties": {"why": {"type": "string"}}})]
ARGUMENTS = {"text": "tea", "n": 12, "kind": "letter", "inner": {"x": 1.5, "y": "a"}, "tags": ["b", "c"]}
NAMES = frozenset(tool.name for tool in TOOLS)


def written(form: str) -> str:
    """A call with all of its arguments, as the form writes it."""
    marks = form_of(form)
    whole = json.dumps(ARGUMENTS, separators=(",", ":"))
    if form in XML:
        xml = XML[form]
        texts = {
            key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            for key, value in ARGUMENTS.items()
        }
        values = "".join(xml.value_head(key) + text + xml.value_tail for key, text in texts.items())
        call = f"{xml.call_head('find')}{values}{xml.end}"
        return f"{marks.begin}" + (f"\n{call}\n{marks.end}" if marks.end else call)
    if form == LFM2:
        named = (f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in ARGUMENTS.items())
        return f"{marks.begin}[find({', '.join(named)})]{marks.end}"
    if form == MISTRAL_ARGS:
        return f"{marks.begin}find[ARGS]{whole}"
    if form in (DEEPSEEK_V3, DEEPSEEK_V31):
        head, end = (
            ("function<｜tool▁sep｜>find\n```json\n", "\n```") if form == DEEPSEEK_V3 else ("find<｜tool▁sep｜>", "")
        )
        return f"{marks.begin}{marks.opening}{head}{whole}{end}<｜tool▁call▁end｜>{marks.end}"
    call = f'{{"name": "find", "arguments": {whole}}}'
    if form == LLAMA3:
        return call.replace(": ", ":").replace(", ", ",").replace("arguments", "parameters")
    if form == GIGACHAT:
        return f"{marks.begin}{call.replace(': ', ':', 1).replace(', ', ',', 1).replace(': ', ':', 1)}"
    return f"{marks.begin}\n{call.replace(': ', ':', 1).replace(', ', ',', 1).replace(': ', ':', 1)}\n{marks.end}"


def ended(compiled: Compiled, wanted: bytes, room: int) -> bytes:
    """What becomes of a text in so much room: a model that wants it, and behind its first other byte anything."""
    planner, matcher, table = compiled.planner(), compiled.matcher(), compiled._table
    assert planner is not None
    row, text = np.empty(matcher.words, np.int32), b""
    for left in range(room, 0, -1):
        matcher.fill(row)
        legal = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[1:257]).tolist()
        want = wanted[len(text)] if wanted.startswith(text) and len(text) < len(wanted) else -1
        token = planner.admit((want if want in legal else legal[-1]) + 1 if legal else table.eos_ids[0], left)
        if token in table.eos_ids:
            break
        assert matcher.take([token]) == 1
        text += bytes([token - 1])
    return text


def calls_in(form: str, text: str, *, required: bool) -> list[dict[str, Any]]:
    """The calls of a text that was cut. Raises ValueError for half a call."""
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    parser = parser_of(AnswerShape(form, NAMES, required=required, schemas=schemas))
    found: list[str] = []
    for part in [*parser.feed(text), *parser.finish(cut=True)]:
        if isinstance(part, CallPart):
            found.append("")
        elif isinstance(part, ArgumentsPart):
            found[-1] += part.text
    return [json.loads(arguments) for arguments in found]


def test_a_character_of_several_tokens_ends_no_text() -> None:
    """A text that may hold calls ended where a model wrote the first byte of one: no end was found in the middle of it."""
    constraint = tool_constraint(HERMES, TOOLS, ToolChoice("auto"))
    assert constraint is not None
    compiled = COMPILER.compile(to_grammar(constraint.constraint))
    wanted = ("Bücher über 水 \U0001f642! " + written(HERMES).replace("tea", "té水\U0001f642")).encode()
    whole = ended(compiled, wanted, len(wanted) + 20)
    assert whole.startswith(wanted)
    for room in range(1, len(wanted), 3):
        text = ended(compiled, wanted, room)
        assert len(text) <= room
        text.decode()
        calls_in(HERMES, text.decode(), required=False)


def test_the_ends_of_calls_are_searched_where_they_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request with tools had the step loop search for them: 100 ms, once for each vocabulary."""
    constraint = tool_constraint(HERMES, [*TOOLS, Tool("other")], ToolChoice("auto"))
    assert constraint is not None
    compiled = COMPILER.compile(to_grammar(constraint.constraint))
    monkeypatch.setattr("inferd_grammar.completion.search.EndSearch.__init__", None)
    planner = compiled.planner()
    assert planner is not None
    assert planner.needed == 0


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("form", [*XML, LFM2, HERMES, GIGACHAT, MISTRAL_ARGS, DEEPSEEK_V3, DEEPSEEK_V31, LLAMA3])
def test_no_text_ends_in_the_middle_of_a_call(form: str, mode: str) -> None:
    constraint = tool_constraint(form, TOOLS, ToolChoice(mode))  # type: ignore[arg-type]
    assert constraint is not None
    compiled = COMPILER.compile(to_grammar(constraint.constraint))
    before = "" if mode == "required" or form == LLAMA3 else "Well. "
    wanted = (before + written(form)).encode()
    planner, needed = compiled.planner(), 0
    assert planner is not None
    needed = planner.needed
    found = []
    for room in [*range(needed, len(wanted), 7), len(wanted) + 20]:
        text = ended(compiled, wanted, room).decode(errors="replace")
        assert len(text.encode()) <= room or mode == "auto"
        found.append(calls_in(form, text, required=mode == "required"))
        assert found[-1] or mode == "auto", text
    assert ARGUMENTS in found[-1], "what fits is written as it was wanted"
    assert any(calls and calls[0] != ARGUMENTS for calls in found), "what does not is shorter, and whole"
