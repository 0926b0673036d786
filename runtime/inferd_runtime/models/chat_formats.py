"""What a chat template says about its model: how it writes calls of tools, and what it puts around its reasoning.

Tables, read off the template's text: a template names the marks of its format where it renders earlier turns.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from inferd.chat.call_forms import (
    ARGS,
    CALL_BEGIN,
    DEEPSEEK_SEP,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    FUNCTION,
    GIGACHAT,
    GIGACHAT_CALL,
    GLM,
    GRANITE,
    GRANITE_CALLS,
    HARMONY,
    HERMES,
    JAMBA,
    JAMBA_CALLS,
    JSON,
    KEY,
    LFM2,
    LFM2_CALLS,
    LLAMA3,
    MINICPM,
    MINIMAX_CALLS,
    MINIMAX_M2,
    MISTRAL,
    MISTRAL_ARGS,
    NEMOTRON,
    NEMOTRON_CALLS,
    PHI4,
    PHI4_CALLS,
    QWEN3_CODER,
    SEED_CALL,
    SEED_OSS,
    TOOL_CALLS,
    UNKNOWN,
)

TOOL_FORMATS = (
    *(HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, QWEN3_CODER, DEEPSEEK_V3, DEEPSEEK_V31, GRANITE, PHI4, NEMOTRON, JAMBA),
    *(SEED_OSS, GLM, MINIMAX_M2, MINICPM, GIGACHAT, LFM2, HARMONY, JSON),
)


class FormatMark(NamedTuple):
    """A template that holds all of ``texts`` uses ``tool_format``."""

    texts: tuple[str, ...]
    tool_format: str


class ReasoningMarks(NamedTuple):
    """What stands before and behind a model's reasoning. A template that holds all of ``texts`` knows them."""

    begin: str
    end: str
    texts: tuple[str, ...] = ()


FORMAT_MARKS = (
    FormatMark((CALL_BEGIN, KEY), GLM),
    FormatMark(("<|channel|>", "<|call|>", "to="), HARMONY),
    FormatMark((DEEPSEEK_SEP, "```json"), DEEPSEEK_V3),
    FormatMark((DEEPSEEK_SEP,), DEEPSEEK_V31),
    FormatMark((TOOL_CALLS, ARGS), MISTRAL_ARGS),
    FormatMark((TOOL_CALLS,), MISTRAL),
    FormatMark((CALL_BEGIN, FUNCTION), QWEN3_CODER),
    FormatMark((CALL_BEGIN,), HERMES),
    FormatMark(("<|python_tag|>",), LLAMA3),
    FormatMark(("<|start_header_id|>", '"parameters"'), LLAMA3),
    FormatMark(("<|header_start|>", '"parameters"'), LLAMA3),
    FormatMark((GRANITE_CALLS,), GRANITE),
    FormatMark(("<|start_of_role|>available_tools",), GRANITE),
    FormatMark((f"{PHI4_CALLS}[",), PHI4),
    FormatMark(("<|tool|>", "<|/tool|>"), PHI4),
    FormatMark((NEMOTRON_CALLS,), NEMOTRON),
    FormatMark((SEED_CALL, FUNCTION), SEED_OSS),
    FormatMark((JAMBA_CALLS,), JAMBA),
    FormatMark((MINIMAX_CALLS, "<invoke name="), MINIMAX_M2),
    FormatMark((GIGACHAT_CALL,), GIGACHAT),
    FormatMark((LFM2_CALLS,), LFM2),
    FormatMark(("<|tool_list_start|>",), LFM2),
    FormatMark(('<function name="', '<param name="'), MINICPM),
)
"""The first that a template holds counts."""
CALL_MARK = re.compile(r"<[^<>\s]*(?:call|invoke|start_action|action_start|tools_prefix)[^<>\s]*>", re.IGNORECASE)
"""What looks like a mark of calls: a template that has one, and is not in the table, writes calls in a way of its own."""
REASONING_MARKS = (
    ReasoningMarks("<think>", "</think>", ("</think>",)),
    ReasoningMarks("[THINK]", "[/THINK]", ("[/THINK]",)),
    ReasoningMarks("<seed:think>", "</seed:think>", ("</seed:think>",)),
    ReasoningMarks("<reasoning>", "</reasoning>", ("</reasoning>",)),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>", ("<|END_THINKING|>",)),
    ReasoningMarks("<|inner_prefix|>", "<|inner_suffix|>", ("<|inner_suffix|>",)),
    ReasoningMarks("<|channel|>analysis<|message|>", "<|end|>", ("<|channel|>", "analysis", "<|end|>")),
)
"""Qwen 3, DeepSeek, SmolLM3 and others; Magistral; Seed; models that were taught by text; Command; Apertus; gpt-oss."""
NO_REASONING = ReasoningMarks("", "")
ASSISTANT_MARKS = frozenset({"<tool_call>", "</tool_call>", *(text for marks in REASONING_MARKS for text in marks[:2])})
"""What templates look for in the text of an assistant's earlier message, to tell its reasoning apart or leave it out."""


def tool_format_of(template: str) -> str:
    """Return how a model with this template writes calls of tools: JSON alone where it has no marks for them, "unknown" where it
    has others than those in the table.
    """
    found = next((mark.tool_format for mark in FORMAT_MARKS if all(text in template for text in mark.texts)), None)
    return found or (UNKNOWN if CALL_MARK.search(template) else JSON)


def reasoning_of(template: str) -> ReasoningMarks:
    """Return the marks of the reasoning that a template tells apart, empty ones if it does not."""
    return next((marks for marks in REASONING_MARKS if all(text in template for text in marks.texts)), NO_REASONING)
