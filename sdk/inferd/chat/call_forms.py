"""How models write calls of tools: the marks of each format, which parsers and constraints share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

HERMES, LLAMA3, MISTRAL, JSON = "hermes", "llama3", "mistral", "json"
MISTRAL_ARGS, QWEN3_CODER, SEED_OSS, GLM = "mistral_args", "qwen3_coder", "seed_oss", "glm"
DEEPSEEK_V3, DEEPSEEK_V31 = "deepseek_v3", "deepseek_v31"
GRANITE, PHI4, NEMOTRON, JAMBA = "granite", "phi4", "nemotron", "jamba"
MINIMAX_M2, MINICPM, GIGACHAT, LFM2 = "minimax_m2", "minicpm", "gigachat", "lfm2"
HARMONY = "harmony"
UNKNOWN = "unknown"
"""Of a template that names marks of calls, but none of a format here."""
CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"
TOOL_CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
DEEPSEEK_CALLS, DEEPSEEK_CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DEEPSEEK_CALL, DEEPSEEK_SEP, DEEPSEEK_CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
GRANITE_CALLS, PHI4_CALLS = "<|tool_call|>", "functools"
NEMOTRON_CALLS, NEMOTRON_CALLS_END = "<TOOLCALL>", "</TOOLCALL>"
JAMBA_CALLS, JAMBA_CALLS_END = "<tool_calls>", "</tool_calls>"
SEED_CALL, SEED_CALL_END = "<seed:tool_call>", "</seed:tool_call>"
MINIMAX_CALLS, MINIMAX_CALLS_END, INVOKE = "<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="'
MINICPM_CALL, GIGACHAT_CALL = "<function ", "<|function_call|>"
LFM2_CALLS, LFM2_CALLS_END = "<|tool_call_start|>", "<|tool_call_end|>"
START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
HARMONY_MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
LEADING_MARKS = ("<|python_tag|>", TOOL_CALLS, GRANITE_CALLS, NEMOTRON_CALLS, JAMBA_CALLS)
"""What stands before calls that are the whole of an answer, where a tokenizer has it."""


@dataclass(frozen=True)
class CallForm:
    """Where a call stands. ``begin``: the mark before each, or before several; "": calls are the whole of an answer, which begins
    with a bracket.

    ``end``: the mark behind each, "" for none. ``opening``: what the call's own text begins with, "" for a name. ``within``: a
    mark behind which calls are the rest of an answer, or up to ``end``, "" for none. ``between``: what separates calls that have
    one ``begin``; None: each has its own. ``around``: what stands between such calls and their marks.
    """

    begin: str = ""
    end: str = ""
    opening: str = "{"
    within: str = ""
    between: str | None = None
    around: tuple[str, str] = ("", "")

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks, except those inside of calls."""
        return tuple(mark for mark in (self.begin, self.within, self.end) if mark) + (
            () if self.begin else LEADING_MARKS
        )


UNMARKED = CallForm()
MARKED: Mapping[str, CallForm] = {
    HERMES: CallForm(CALL_BEGIN, CALL_END),
    QWEN3_CODER: CallForm(CALL_BEGIN, CALL_END, FUNCTION),
    SEED_OSS: CallForm(SEED_CALL, SEED_CALL_END, FUNCTION),
    GLM: CallForm(CALL_BEGIN, "", ""),
    MINICPM: CallForm(MINICPM_CALL, "", "name="),
    MINIMAX_M2: CallForm(MINIMAX_CALLS, MINIMAX_CALLS_END, INVOKE, between="\n", around=("\n", "\n")),
    GIGACHAT: CallForm(GIGACHAT_CALL, ""),
    LFM2: CallForm(LFM2_CALLS, LFM2_CALLS_END, "", between=", ", around=("[", "]")),
    MISTRAL_ARGS: CallForm(TOOL_CALLS, "", ""),
    DEEPSEEK_V3: CallForm(DEEPSEEK_CALLS, DEEPSEEK_CALLS_END, DEEPSEEK_CALL, between="\n"),
    DEEPSEEK_V31: CallForm(DEEPSEEK_CALLS, DEEPSEEK_CALLS_END, DEEPSEEK_CALL, between=""),
}
"""The formats whose calls have marks each; those of any other one are JSON without."""
LISTED: Mapping[str, CallForm] = {
    MISTRAL: CallForm(within=TOOL_CALLS),
    GRANITE: CallForm(within=GRANITE_CALLS, end="<|/tool_call|>"),
    PHI4: CallForm(within=PHI4_CALLS),
    NEMOTRON: CallForm(within=NEMOTRON_CALLS, end=NEMOTRON_CALLS_END),
    JAMBA: CallForm(within=JAMBA_CALLS, end=JAMBA_CALLS_END),
}
"""The formats whose calls are one list, which text may precede where the model writes the mark."""


@dataclass(frozen=True)
class XmlForm:
    """A call whose arguments have marks each. ``call`` and ``key`` stand around the names of the function ("" behind it: a line's
    end) and of an argument, ``value`` between that and its value, ``value_end`` and ``end`` behind. ``line``: what stands around
    a value, and is no part of it. ``feed``: what stands behind the head of a call, and behind each argument.
    """

    call: tuple[str, str]
    key: tuple[str, str]
    value: str
    value_end: str
    end: str
    line: str = ""
    feed: str = "\n"

    def call_head(self, name: str) -> str:
        """Return the beginning of a call as models write it."""
        return f"{self.call[0]}{name}{self.call[1]}{self.feed}"

    def value_head(self, name: str) -> str:
        """Return what stands before an argument's value."""
        value = f"\n{self.value}" if self.value else ""
        return f"{self.key[0]}{name}{self.key[1]}{value}{self.line}"

    @property
    def value_tail(self) -> str:
        """What stands behind a value."""
        return f"{self.line}{self.value_end}{self.feed}"


_CODER = XmlForm((FUNCTION, ">"), (PARAMETER, ">"), "", PARAMETER_END, FUNCTION_END, "\n")
XML: Mapping[str, XmlForm] = {
    QWEN3_CODER: _CODER,
    SEED_OSS: _CODER,
    MINIMAX_M2: XmlForm((INVOKE, '">'), ('<parameter name="', '">'), "", PARAMETER_END, "</invoke>"),
    MINICPM: XmlForm(('name="', '">'), ('<param name="', '">'), "", "</param>", FUNCTION_END, feed=""),
    GLM: XmlForm(("", ""), (KEY, KEY_END), VALUE, VALUE_END, CALL_END),
}


@dataclass(frozen=True)
class HeadedCall:
    """A call that is a name and the JSON of its arguments. ``before`` stands before the name, ``behind`` between the two, ``end``
    behind them. ``pattern``: all that may stand before the arguments, with the name in its group.
    """

    before: str
    behind: str
    end: str
    pattern: re.Pattern[str]


HEADED: Mapping[str, HeadedCall] = {
    MISTRAL_ARGS: HeadedCall("", ARGS, "", re.compile(r"\s*([\w-]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*")),
    DEEPSEEK_V3: HeadedCall(
        f"{DEEPSEEK_CALL}function{DEEPSEEK_SEP}", "\n```json\n", f"\n```{DEEPSEEK_CALL_END}",
        re.compile(rf"{DEEPSEEK_CALL}\s*function\s*{DEEPSEEK_SEP}\s*([\w-]+)\s*(?:```(?:json)?)?\s*"),
    ),
    DEEPSEEK_V31: HeadedCall(
        DEEPSEEK_CALL, DEEPSEEK_SEP, DEEPSEEK_CALL_END,
        re.compile(rf"{DEEPSEEK_CALL}\s*([\w-]+)\s*{DEEPSEEK_SEP}\s*"),
    ),
}  # fmt: skip
SHOWN_MARKS = (
    *(CALL_BEGIN, CALL_END, *LEADING_MARKS, ARGS, CALL_ID, SEED_CALL, SEED_CALL_END),
    *(DEEPSEEK_CALLS, DEEPSEEK_CALL, DEEPSEEK_SEP, DEEPSEEK_CALL_END, DEEPSEEK_CALLS_END),
    *(MINIMAX_CALLS, MINIMAX_CALLS_END, GIGACHAT_CALL, LFM2_CALLS, LFM2_CALLS_END),
    *("<|/tool_call|>", NEMOTRON_CALLS_END, JAMBA_CALLS_END, KEY, KEY_END, VALUE, VALUE_END),
)
"""What has to be seen in an answer's text to read calls, also where it is a special token."""


def form_of(tool_format: str) -> CallForm:
    """Return where calls of a format stand."""
    return MARKED.get(tool_format) or LISTED.get(tool_format, UNMARKED)
