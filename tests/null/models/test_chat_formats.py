"""What is read off a chat template: the format of tool calls, and the marks of reasoning."""

from __future__ import annotations

import pytest
from chat_models import KINDS

from inferd_runtime.models.chat_formats import TOOL_FORMATS, reasoning_of, tool_format_of
from inferd_runtime.settings.settings import ENGINE_FIELDS

FORMATS = {"chatml": "json", "hermes": "hermes", "llama3": "llama3", "mistral": "mistral"}


@pytest.mark.parametrize(("kind", "expected"), FORMATS.items())
def test_the_format_of_tool_calls_is_found_in_the_template(kind: str, expected: str) -> None:
    assert tool_format_of(KINDS[kind].template) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("'[TOOL_CALLS]' + name + '[ARGS]' + arguments | tojson", "mistral_args"),
        ("'[TOOL_CALLS]' + calls | tojson", "mistral"),
        ("'<tool_call>\\n<function=' + call.name + '>'", "qwen3_coder"),
        ("'<tool_call>' + call | tojson", "hermes"),
        ("'<｜tool▁sep｜>' + name + '\\n```json\\n' + arguments", "deepseek_v3"),
        ("name + '<｜tool▁sep｜>' + arguments", "deepseek_v31"),
        ("respond with <|tool_call|> followed by a JSON list", "granite"),
        ("<|start_of_role|>available_tools<|end_of_role|>", "granite"),
        ('formatted as functools[{"name": ', "phi4"),
        ("'<TOOLCALL>[' + calls", "nemotron"),
        ("'<tool_calls>[' + calls", "jamba"),
        ("'<seed:tool_call>\\n<function=' + name", "seed_oss"),
        ("'<|channel|>commentary to=functions.' + name + '<|call|>'", "harmony"),
        ('<|header_start|>{"name": name, "parameters": values}', "llama3"),
        ("'<tool_call>' + name + '<arg_key>' + key", "glm"),
        ("'<minimax:tool_call>\\n<invoke name=' + name", "minimax_m2"),
        ("'<|function_call|>' + call | tojson", "gigachat"),
        ("""'<function name="' + name + '"><param name="' + key""", "minicpm"),
        ("'<|tool_call_start|>[' + name + '('", "lfm2"),
        ("List of tools: <|tool_list_start|>[", "lfm2"),
        ("{{ messages }}", "json"),
    ],
)
def test_newer_formats_are_told_from_older_ones(template: str, expected: str) -> None:
    assert tool_format_of(template) == expected


@pytest.mark.parametrize(
    "template",
    [
        "<|tool_calls_section_begin|>",
        "<other:tool_call><invoke name=",
        "<|START_ACTION|>[",
        "<|action_start|><|plugin|>",
        "<|tools_prefix|>[",
        "<function_calls>",
        "<start_function_call>call:",
    ],
)
def test_marks_that_nobody_here_reads_are_not_taken_for_json(template: str) -> None:
    assert tool_format_of(template) == "unknown"


@pytest.mark.parametrize(
    ("template", "begin", "end"),
    [
        ("{{ messages }}", "", ""),
        ("{% set content = content.split('</think>')[-1] %}", "<think>", "</think>"),
        ("'[THINK]' + reasoning + '[/THINK]'", "[THINK]", "[/THINK]"),
        ("<|START_THINKING|>{{ x }}<|END_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"),
        (
            "'<|start|>assistant<|channel|>' + 'analysis<|message|>' + x + '<|end|>'",
            "<|channel|>analysis<|message|>",
            "<|end|>",
        ),
        ("<|im_end|><|end|>", "", ""),
    ],
)
def test_the_marks_of_reasoning_are_found_in_the_template(template: str, begin: str, end: str) -> None:
    assert reasoning_of(template)[:2] == (begin, end)


def test_every_format_can_be_set_by_the_operator() -> None:
    field = ENGINE_FIELDS["tool_format"]
    for name in ("auto", *TOOL_FORMATS):
        assert field.convert("--tool-format", name) == name
