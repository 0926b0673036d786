"""Calls of a custom tool by the pulled model are texts of its grammar, as Lark reads it. Skipped where it is not pulled."""

from __future__ import annotations

import json
from typing import Literal

import lark
import pytest

from inferd import protocol as p
from inferd.chat import OutputFormat, ToolChoice, custom_tool
from inferd.chat.call_forms import HERMES, LFM2, QWEN3_CODER
from inferd.chat.tool_calls import tool_constraint
from inferd_runtime.testing.direct import DirectSession

pytestmark = pytest.mark.real
GRAMMAR = """
start: "SELECT" NAME ("," NAME)~0..2 "FROM" NAME ("WHERE" NAME "=" STRING)? ";"
NAME: /[a-z_]{1,12}/
STRING: /"[^"\\n]{0,20}"/
%ignore /[ \\n]/
"""


def text_of(tool_format: str, call: str) -> str:
    """Return the text that a call gives to the tool."""
    if tool_format == QWEN3_CODER:
        return call.partition("<parameter=input>\n")[2].partition("\n</parameter>")[0]
    written = call.partition('"input":' if tool_format == HERMES else "input=")[2]
    text: str = json.JSONDecoder().raw_decode(written)[0]
    return text


@pytest.mark.parametrize("tool_format", [HERMES, QWEN3_CODER, LFM2])
@pytest.mark.parametrize("kind", ["lark", "regex"])
def test_a_call_is_a_text_of_the_grammar(
    session: DirectSession, tool_format: str, kind: Literal["lark", "regex"]
) -> None:
    held = OutputFormat(kind, GRAMMAR if kind == "lark" else r'SELECT [a-z, ]{1,30} FROM "[a-z]{1,12}"\n;')
    constraint = tool_constraint(tool_format, [custom_tool("sql", "", held)], ToolChoice("required", parallel=False))
    assert constraint is not None
    whole = 0
    for seed in range(4):
        context = session.chat("Use the tool sql.", 'Which users live in "Rome"?')
        done = session.generate(
            context, max_tokens=120, constraint=constraint.constraint, sampling=p.Sampling(0.9, seed=seed)
        )
        if done.finish == "stop":
            whole += 1
            text = text_of(tool_format, done.text)
            (lark.Lark(GRAMMAR) if kind == "lark" else lark.Lark(f"start: /{held.value}/")).parse(text)
    assert whole
