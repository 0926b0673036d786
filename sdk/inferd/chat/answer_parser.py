"""A model's text, split while it comes into reasoning, text, and tool calls. Pure and synchronous."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from inferd.chat.call_forms import (
    HARMONY,
    HARMONY_MARKS,
    HEADED,
    HERMES,
    LEADING_MARKS,
    LFM2,
    SHOWN_MARKS,
    XML,
    CallForm,
    form_of,
)
from inferd.chat.call_scanner import BLANK, CallScanner, CharacterScanner
from inferd.chat.headed_call import HeadedCallScanner
from inferd.chat.python_call import PythonCallScanner
from inferd.chat.xml_call import Schemas, XmlCallScanner

BETWEEN_CALLS = BLANK + "[],;"
MAX_HELD = 256
"""Characters without a meaning that are held back, at the start, between calls or behind one: more of them are text."""


@dataclass(frozen=True)
class AnswerShape:
    """How to read an answer. ``tools``: the names that may be called; none: no calls are looked for, and what looks like a call
    of any other name is text. ``schemas``: those of their arguments. ``reasoning``: the marks around what the model thinks, None
    where it has none; ``thinking``: the prompt has opened them already.
    ``parallel``: there may be several calls; else the first one is the end. ``required``: the answer is calls and nothing else.
    ``held``: its text is held to a format. ``mark_tokens``: the marks around reasoning as tokens.
    """

    tool_format: str = HERMES
    tools: frozenset[str] = frozenset()
    reasoning: tuple[str, str] | None = None
    thinking: bool = False
    parallel: bool = True
    required: bool = False
    held: bool = False
    schemas: Schemas = field(default_factory=dict)
    mark_tokens: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    @property
    def form(self) -> CallForm:
        """Where calls stand."""
        return form_of(self.tool_format)

    @property
    def shown(self) -> tuple[str, ...]:
        """The marks that have to be seen in the text."""
        own = HARMONY_MARKS if self.tool_format == HARMONY else ()
        return (*(self.reasoning or ()), *(SHOWN_MARKS if self.tools else ()), *own)

    def scanner(self) -> CharacterScanner | XmlCallScanner:
        """Return what reads a call."""
        if self.tool_format in HEADED:
            return HeadedCallScanner(HEADED[self.tool_format])
        if self.tool_format == LFM2:
            return PythonCallScanner()
        if self.tool_format in XML:
            return XmlCallScanner(XML[self.tool_format], self.schemas)
        return CallScanner()


@dataclass(frozen=True)
class TextPart:
    """More text."""

    text: str


@dataclass(frozen=True)
class ReasoningPart:
    """More of what the model thinks."""

    text: str


@dataclass(frozen=True)
class CallPart:
    """A call begins. Its arguments follow."""

    name: str


@dataclass(frozen=True)
class ArgumentsPart:
    """More of the last call's arguments."""

    text: str


AnswerPart: TypeAlias = TextPart | ReasoningPart | CallPart | ArgumentsPart


class AnswerParser:
    """Takes an answer's text piece by piece; every character comes out once, except marks and what stands around calls.

    ``calls``: how many have begun."""

    def __init__(self, shape: AnswerShape) -> None:
        self._shape = shape
        self._held = ""
        self._state = self._thinking if shape.thinking and shape.reasoning else self._beginning
        self._form = shape.form
        self._call = shape.scanner()
        self._announced = False
        self._skipped = ""
        self._follows_call = False
        self._blank = ""
        self.calls = 0

    def feed(self, text: str) -> list[AnswerPart]:
        """Return what is certain now that ``text`` has come."""
        self._held += text
        return list(self._parts(last=False))

    def finish(self, *, cut: bool = False) -> list[AnswerPart]:
        """Return what was held back, at the end of the text. If it was ``cut``, the beginning of a mark or call is left out."""
        if cut and self._is_in_mark:
            self._held = ""
        parts = list(self._parts(last=True))
        return parts if cut and self._is_in_call else [*parts, *self._give_up()]

    @property
    def is_thinking(self) -> bool:
        """True within reasoning."""
        return self._state == self._thinking

    @property
    def is_in_free_text(self) -> bool:
        """True within text beside calls that nothing holds, so that it has no end of its own."""
        is_text = self._state in (self._text, self._beginning, self._leading, self._after_thinking)
        is_held = self._shape.required or self._shape.held or not self._shape.tools
        return is_text and not is_held and not self._follows_call

    @property
    def _is_in_mark(self) -> bool:
        """True if what is held back is the beginning of a mark: more than its first character, where there may be other text."""
        marks = [*(self._shape.reasoning or ()), *(self._form.marks if self._shape.tools else ())]
        held = self._held.lstrip(BLANK)
        return len(held) > (0 if self._shape.required else 1) and any(mark.startswith(held) for mark in marks)

    @property
    def _is_in_call(self) -> bool:
        """True if what is held back is certainly the beginning of a call, or stands between two of them."""
        marked = self._shape.required or any(mark in self._skipped for mark in self._form.marks)
        return marked and not self._call.failed

    def _parts(self, last: bool) -> Iterator[AnswerPart]:
        """Run the states until none of them gets further: a state takes text from ``_held``, and may go to another one."""
        while True:
            before = (self._held, self._state)
            yield from self._state(last)
            if (self._held, self._state) == before:
                return

    def _beginning(self, last: bool) -> Iterator[AnswerPart]:
        """At the start: the model may think first, or call a tool at once."""
        opening, _ = self._shape.reasoning or ("", "")
        stripped = self._held.lstrip(BLANK)
        if len(self._held) - len(stripped) > MAX_HELD:
            self._state = self._text
        elif opening and not last and opening.startswith(stripped[: len(opening)]) and len(stripped) < len(opening):
            return
        elif opening and stripped.startswith(opening):
            self._held, self._state = stripped[len(opening) :], self._thinking
        elif stripped or last or not (opening or self._leads_with_calls):
            self._state = self._leading if self._leads_with_calls else self._text
        yield from ()

    @property
    def _leads_with_calls(self) -> bool:
        return bool(self._shape.tools) and not self._form.begin

    def _thinking(self, last: bool) -> Iterator[AnswerPart]:
        assert self._shape.reasoning is not None
        text, found = self._until(self._shape.reasoning[1], last)
        if text:
            yield ReasoningPart(text)
        if found:
            self._held = self._held.lstrip("\n")
            self._state = self._after_thinking

    def _after_thinking(self, last: bool) -> Iterator[AnswerPart]:
        """Leave out the blank lines between what was thought and the answer."""
        self._held = self._held.lstrip(BLANK)
        if self._held:
            self._state = self._leading if self._leads_with_calls else self._text
        yield from ()

    def _text(self, last: bool) -> Iterator[AnswerPart]:
        wanted = (self._form.begin or self._form.within) if self._shape.tools else ""
        text, found = self._until(wanted, last)
        yield from self._said(text, BLANK)
        if found:
            self._skipped, self._state = wanted, self._between_calls

    def _leading(self, last: bool) -> Iterator[AnswerPart]:
        """Where an answer that begins with a bracket is a call, and any other one is text."""
        stripped = self._held.lstrip(BLANK)
        if len(self._held) - len(stripped) > MAX_HELD:
            self._state = self._text
            return
        for mark in (*LEADING_MARKS, self._form.within):
            if not last and len(stripped) < len(mark) and mark.startswith(stripped):
                return
            stripped = stripped.removeprefix(mark).lstrip(BLANK)
        if not stripped and not last:
            return
        self._state = self._text
        if stripped[:1] in ("{", "["):
            self._skip(stripped)
            self._state = self._between_calls
        yield from ()

    def _between_calls(self, last: bool) -> Iterator[AnswerPart]:
        """Look for the next call's beginning. Behind a mark of their own calls end with another; others end with the text."""
        opening, end = self._form.opening, self._form.end
        listed = opening == "{" or "[" in self._form.around
        self._skip(self._held.lstrip(BETWEEN_CALLS if listed else BLANK))
        if len(self._skipped) > MAX_HELD:
            yield from self._give_up()
        elif end and self._held.startswith(end) and self.calls:
            self._held, self._skipped, self._state = self._held[len(end) :], "", self._text
        elif not self._held or (end.startswith(self._held) and not last):
            return
        elif self._held.startswith(opening):
            self._call, self._announced, self._state = self._shape.scanner(), False, self._in_call
        elif last or not opening.startswith(self._held):
            yield from self._give_up()

    def _in_call(self, last: bool) -> Iterator[AnswerPart]:
        self._held = self._call.feed(self._held)
        if self._call.name and not self._announced and not self._call.failed:
            self._call.failed = self._call.name not in self._shape.tools
            if not self._call.failed:
                self._announced, self._skipped, self.calls = True, "", self.calls + 1
                self._follows_call, self._blank = True, ""
                yield CallPart(self._call.name)
        if self._announced and (text := self._call.new_arguments()):
            yield ArgumentsPart(text)
        if self._call.failed:
            yield from self._give_up()
        elif self._call.done:
            self._call = self._shape.scanner()
            follows = self._text if self._form.begin and not self._form.end else self._between_calls
            self._state = follows if self._shape.parallel else self._over

    @property
    def over(self) -> bool:
        """True once nothing more can come out."""
        return self._state == self._over

    def _over(self, last: bool) -> Iterator[AnswerPart]:
        """Behind the only call."""
        self._held = ""
        yield from ()

    def _give_up(self) -> Iterator[AnswerPart]:
        """What looked like a call is none: it is text, except what has been announced."""
        text = self._skipped if self._announced else self._skipped + self._call.text
        yield from self._said(text, BETWEEN_CALLS)
        if self.over:
            return
        self._call, self._announced, self._skipped, self._state = self._shape.scanner(), False, "", self._text

    def _said(self, text: str, blank: str) -> Iterator[AnswerPart]:
        """Yield text. What is ``blank`` behind a call waits for more, and is left out where another call or the end comes."""
        text, self._blank = self._blank + text, ""
        if self._follows_call and len(text) <= MAX_HELD and not text.strip(blank):
            self._blank = text
        elif text:
            self._follows_call = False
            yield TextPart(text)

    def _skip(self, rest: str) -> None:
        """Take the held text up to ``rest``. It is shown if no call follows."""
        self._skipped += self._held[: len(self._held) - len(rest)]
        self._held = rest

    def _until(self, mark: str, last: bool) -> tuple[str, bool]:
        """Take the text before ``mark``, or as much as cannot be the mark's beginning; say whether the mark was there."""
        at = self._held.find(mark) if mark else -1
        if at >= 0:
            text, self._held = self._held[:at], self._held[at + len(mark) :]
            return text, True
        keep = 0 if last else max(n for n in range(len(mark) or 1) if self._held.endswith(mark[:n]))
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text, False
