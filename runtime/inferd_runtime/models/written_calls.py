"""Whether calls of tools are read as a chat template writes them: it writes one, and what reads its format has to find that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from inferd.chat.answer_parser import AnswerParser, AnswerShape, CallPart
from inferd.chat.call_forms import HARMONY, UNKNOWN, form_of
from inferd.protocol import InvalidRequest, LimitExceeded
from inferd_runtime.models.chat import ChatTemplate
from inferd_runtime.models.chat_formats import TOOL_FORMATS, ReasoningMarks, reasoning_of, tool_format_of
from inferd_runtime.models.jinja_template import RENDER_SECONDS, RenderBudget
from inferd_runtime.models.template_input import TemplateInput

NAME = "get_weather"
ARGUMENTS = {"city": "Oslo", "days": 2}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": NAME, "description": "The weather.", "parameters": PARAMETERS}}
QUESTION: Sequence[dict[str, Any]] = [{"role": "user", "content": "How is it in Oslo?"}]
MOST_CHARACTERS = 1 << 20
CALL = {"id": "call00001", "type": "function", "function": {"name": NAME, "arguments": ARGUMENTS}}


class ReadTemplate(ChatTemplate, Protocol):
    """A template whose text can be read, too."""

    @property
    def chat_template(self) -> str: ...


def written_format(template: ReadTemplate) -> str:
    """Return the format of a template's calls: as its marks tell, where it writes none that could be tried.

    If what reads that format does not find the call, another one whose marks stand there may; else it is "unknown".
    """
    by_marks, reasoning = tool_format_of(template.chat_template), reasoning_of(template.chat_template)
    written = _written_call(template) if template.chat_template else ""
    if NAME not in written or by_marks == HARMONY:
        return by_marks
    marked = [
        each for each in TOOL_FORMATS if (mark := form_of(each).begin or form_of(each).within) and mark in written
    ]
    return next((each for each in (by_marks, *marked) if _is_found(each, reasoning, written)), UNKNOWN)


def _written_call(template: ChatTemplate) -> str:
    """Return an answer that is one call, as a template writes it; "" if it refuses to."""
    budget = RenderBudget(RENDER_SECONDS, MOST_CHARACTERS)
    answer = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    try:
        prompt = template.render(TemplateInput(QUESTION, (TOOL,), cue=True), budget)
        whole = template.render(TemplateInput([*QUESTION, answer], (TOOL,)), budget)
    except (InvalidRequest, LimitExceeded):
        return ""
    begin = next((at for at, (one, other) in enumerate(zip(prompt, whole, strict=False)) if one != other), len(prompt))
    if begin < len(prompt):  # both may go on with the beginning of a mark
        begin = 1 + max(whole.rfind("\n", 0, begin), whole.rfind(">", 0, begin))
    return whole[begin:]


def _is_found(tool_format: str, reasoning: ReasoningMarks, written: str) -> bool:
    marks = (reasoning.begin, reasoning.end) if reasoning.begin else None
    parser = AnswerParser(AnswerShape(tool_format, frozenset({NAME}), marks, schemas={NAME: PARAMETERS}))
    parts = [*parser.feed(written), *parser.finish()]
    return [part.name for part in parts if isinstance(part, CallPart)] == [NAME]
