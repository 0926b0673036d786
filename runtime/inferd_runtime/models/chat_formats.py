"""What a chat template says about its model: how it writes calls of tools, and what it puts around its reasoning.

Tables, read off the template's text: a template names the marks of its format where it renders earlier turns.
"""

from __future__ import annotations

from typing import NamedTuple

from inferd.chat.call_forms import (
    ARGS,
    CALL_BEGIN,
    FUNCTION,
    HERMES,
    JSON,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    QWEN3_CODER,
    TOOL_CALLS,
)

TOOL_FORMATS = (HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, QWEN3_CODER, JSON)


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
    FormatMark((TOOL_CALLS, ARGS), MISTRAL_ARGS),
    FormatMark((TOOL_CALLS,), MISTRAL),
    FormatMark((CALL_BEGIN, FUNCTION), QWEN3_CODER),
    FormatMark((CALL_BEGIN,), HERMES),
    FormatMark(("<|python_tag|>",), LLAMA3),
    FormatMark(("<|start_header_id|>", '"parameters"'), LLAMA3),
)
"""The first that a template holds counts; JSON alone where it holds none."""
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
    """Return how a model with this template writes calls of tools."""
    return next((mark.tool_format for mark in FORMAT_MARKS if all(text in template for text in mark.texts)), JSON)


def reasoning_of(template: str) -> ReasoningMarks:
    """Return the marks of the reasoning that a template tells apart, empty ones if it does not."""
    return next((marks for marks in REASONING_MARKS if all(text in template for text in marks.texts)), NO_REASONING)
