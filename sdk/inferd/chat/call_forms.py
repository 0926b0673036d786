"""How models write calls of tools: the marks of each format, which parsers and constraints share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HERMES, LLAMA3, MISTRAL, JSON = "hermes", "llama3", "mistral", "json"
MISTRAL_ARGS, QWEN3_CODER = "mistral_args", "qwen3_coder"
CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"
TOOL_CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
LEADING_MARKS = ("<|python_tag|>", TOOL_CALLS)
"""What stands before calls that are the whole of an answer, where a tokenizer has it."""


@dataclass(frozen=True)
class CallForm:
    """Where a call stands. ``begin``: the mark before each; "": calls are the whole of an answer, which begins with a bracket.

    ``end``: the mark behind each, "" for none. ``opening``: what the call's own text begins with, "" for a name. ``within``: a
    mark behind which calls are the rest of an answer, "" for none.
    """

    begin: str = ""
    end: str = ""
    opening: str = "{"
    within: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks, but for those inside of calls."""
        return tuple(mark for mark in (self.begin, self.end) if mark) or LEADING_MARKS


UNMARKED = CallForm()
MARKED: Mapping[str, CallForm] = {
    HERMES: CallForm(CALL_BEGIN, CALL_END),
    QWEN3_CODER: CallForm(CALL_BEGIN, CALL_END, FUNCTION),
    MISTRAL_ARGS: CallForm(TOOL_CALLS, "", ""),
}
"""The formats whose calls have marks each; those of any other one are JSON without."""
LISTED = CallForm(within=TOOL_CALLS)
"""A list of calls, which text may precede where the model writes the mark."""
SHOWN_MARKS = (CALL_BEGIN, CALL_END, *LEADING_MARKS, ARGS, CALL_ID)
"""What has to be seen in an answer's text to read calls, also where it is a special token."""


def form_of(tool_format: str) -> CallForm:
    """Return where calls of a format stand."""
    return MARKED.get(tool_format, LISTED if tool_format == MISTRAL else UNMARKED)
