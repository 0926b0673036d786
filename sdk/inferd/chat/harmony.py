"""Answers as gpt-oss writes them: messages with a header each, which says for whom they are.

A header is ``<|start|>assistant``, which the prompt has for the first one, a channel, and for a call the tool: a call looks like
``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>``. See OpenAI's cookbook, "Harmony".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from inferd.chat.answer_parser import (
    AnswerParser,
    AnswerPart,
    AnswerShape,
    ArgumentsPart,
    CallPart,
    ReasoningPart,
    TextPart,
)
from inferd.chat.call_forms import CALL, CHANNEL, CONSTRAIN, END, HARMONY, MESSAGE, RETURN, START
from inferd.chat.composed import AnyOf, InSequence, Repeated, Text, Until
from inferd.chat.request import Tool, ToolChoice
from inferd.schema import OutputConstraint, Regex

HEADER_BEGINNINGS = (START, CHANNEL, MESSAGE, " to=")
BODY_ENDS = (END, CALL, RETURN, START)
RECIPIENT = re.compile(r"to=functions\.([\w-]+)")
THOUGHT = f"{CHANNEL}analysis"
FINAL = f"{START}assistant{CHANNEL}final{MESSAGE}"
PREAMBLE = f"{START}assistant{CHANNEL}commentary{MESSAGE}"
TO_FUNCTION = f"{START}assistant{CHANNEL}commentary to=functions."
MAX_HEADER = 512
"""Characters: what has more is no header."""


class HarmonyParser:
    """Takes an answer's text piece by piece; see :class:`~inferd.chat.answer_parser.AnswerParser`."""

    def __init__(self, shape: AnswerShape) -> None:
        self._shape = shape
        self._held = ""
        self._part: type[TextPart | ReasoningPart | ArgumentsPart] | None = None
        """What the message is that is being read; None in a header."""
        self.calls = 0
        self.over = False

    @property
    def is_thinking(self) -> bool:
        """True within reasoning."""
        return self._part is ReasoningPart

    @property
    def is_in_free_text(self) -> bool:
        """False: a text ends with a mark."""
        return False

    def feed(self, text: str) -> list[AnswerPart]:
        """Return what is certain now that ``text`` has come."""
        self._held += text
        return list(self._parts(last=False))

    def finish(self, *, cut: bool = False) -> list[AnswerPart]:
        """Return what was held back, at the end of the text. If it was ``cut``, the beginning of a header or mark is left out."""
        if cut and any(mark.startswith(self._held) for mark in (*BODY_ENDS, *HEADER_BEGINNINGS)):
            self._held = ""
        return list(self._parts(last=True))

    def _parts(self, last: bool) -> Iterator[AnswerPart]:
        while not self.over:
            before = (self._held, self._part)
            yield from self._header(last) if self._part is None else self._body(self._part, last)
            if (self._held, self._part) == before:
                return

    def _header(self, last: bool) -> Iterator[AnswerPart]:
        header, found, rest = self._held.partition(MESSAGE)
        if found:
            self._held = rest
            yield from self._begin(header)
        elif len(header) > MAX_HEADER or not any(_begins(header, mark, last) for mark in HEADER_BEGINNINGS):
            self._part = TextPart  # no header, as where a program holds the text to a format of its own

    def _begin(self, header: str) -> Iterator[AnswerPart]:
        called = RECIPIENT.search(header)
        if called is not None and called[1] in self._shape.tools:
            self._part, self.calls = ArgumentsPart, self.calls + 1
            yield CallPart(called[1])
        else:
            self._part = ReasoningPart if THOUGHT in header else TextPart

    def _body(self, part: type[TextPart | ReasoningPart | ArgumentsPart], last: bool) -> Iterator[AnswerPart]:
        at, mark = min(((self._held.find(mark), mark) for mark in BODY_ENDS if mark in self._held), default=(-1, ""))
        end = at if mark else len(self._held) - (0 if last else _unsure(self._held))
        text, self._held = self._held[:end], self._held[end:]
        if text:
            yield part(text)
        if mark:
            self._held = self._held.removeprefix("" if mark == START else mark)
            self._part = None
            self.over = part is ArgumentsPart and not self._shape.parallel


def _begins(text: str, mark: str, last: bool) -> bool:
    """Return True if a text begins with a mark, or may do so when more of it comes."""
    return text.startswith(mark) or (not last and mark.startswith(text))


def _unsure(text: str) -> int:
    """Return how many of the last characters may be the beginning of a mark."""
    return max(n for mark in BODY_ENDS for n in range(len(mark)) if text.endswith(mark[:n]))


def parser_of(shape: AnswerShape) -> AnswerParser | HarmonyParser:
    """Return what splits an answer of this shape."""
    return HarmonyParser(shape) if shape.tool_format == HARMONY else AnswerParser(shape)


def harmony_constraint(
    tools: Sequence[tuple[Tool, OutputConstraint]], choice: ToolChoice, output: OutputConstraint | None
) -> OutputConstraint | None:
    """Return what an answer is held to behind its reasoning: calls of tools, which come with their arguments' schemas, or a text
    of ``output``. None where nothing is held.
    """
    if not tools:
        return None if output is None else InSequence([Text(FINAL), output])
    calls = [InSequence([Text(f"{tool.name} {CONSTRAIN}json{MESSAGE}"), schema]) for tool, schema in tools]
    call = InSequence([Text(TO_FUNCTION), AnyOf(calls)])
    if choice.mode == "required":
        return call
    preamble = Repeated(InSequence([Text(PREAMBLE), Until(END)]), 0, 1)
    text = InSequence([Text(FINAL), output or Regex(r"[\s\S]*")])
    return InSequence([preamble, AnyOf([call, text])])
