"""The names of a model's control tokens, and how the texts of a conversation are kept from becoming such tokens.

A chat template writes control tokens as text, among the texts of users, tools and documents. So before it is rendered, each name
in those texts is broken by a noncharacter of Unicode, BREAK; behind the template, an unbroken name is the template's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from inferd_runtime.models.template_input import BREAK, END_MARK, TemplateInput

SPOKEN = ("content", "reasoning_content")
"""Fields of a message that hold what its role said."""
NONCHARACTERS = re.compile(f"[{BREAK}{END_MARK}]")
DIGITS = re.compile(r"[0-9]+")
OPENING, CLOSING = "<[{", ">]}"


def is_control(name: str, special: bool, template: str) -> bool:
    """Return True if an added token is one that may structure a conversation: a special one, or one that looks like it.

    Some models mark turns with added tokens that are not special.
    """
    return special or (name[0] in OPENING and name[-1] in CLOSING) or (not name.isspace() and name in template)


class ControlNames:
    """Breaks the names of control tokens in texts, and finds those that nobody has broken.

    ``kept``: names that messages of the assistant may hold, because templates look for them there.
    """

    def __init__(self, names: Iterable[str], kept: Iterable[str] = ()) -> None:
        self._names = frozenset(name for name in names if len(name) > 1)
        self._all = _Pattern(self._names)
        self._unkept = _Pattern(self._names.difference(kept))

    def guarded(self, conversation: TemplateInput) -> TemplateInput:
        """Return a conversation in which no text can become a control token."""
        return replace(
            conversation,
            messages=[self._guarded_message(message) for message in conversation.messages],
            tools=self.guard(conversation.tools),
            arguments=self.guard(conversation.arguments),
        )

    def _guarded_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        own = self._unkept if message.get("role") == "assistant" else self._all
        return {
            key: own.broken(value) if key in SPOKEN and isinstance(value, str) else self.guard(value)
            for key, value in message.items()
        }

    def guard(self, value: Any) -> Any:
        """Return a JSON value with the names broken in all of its texts, the keys of objects included."""
        if isinstance(value, str):
            return self._all.broken(value)
        if isinstance(value, dict):
            return {self._all.broken(key): self.guard(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.guard(item) for item in value]
        return value

    def split(self, text: str) -> list[str]:
        """Return the parts of a rendered text: text, control token, text, ..., text. A text may be empty."""
        parts, done = [], 0
        for found in self._all.names.finditer(text):
            if found.group() in self._names:
                parts += [text[done : found.start()], found.group()]
                done = found.end()
        return [*parts, text[done:]]


class _Pattern:
    """Finds names, and beginnings and ends of names at the borders of a text, which its surroundings could complete."""

    def __init__(self, names: frozenset[str]) -> None:
        # Of families such as <|reserved_7|>, with hundreds of members, one expression is left.
        families = {DIGITS.sub("[0-9]+", re.escape(name)) for name in names}
        expression = "|".join(sorted(families, key=len, reverse=True)) or "(?!)"
        self.names = re.compile(expression)
        self._any_case = re.compile(expression, re.IGNORECASE)
        self._longest = max(map(len, names), default=0)
        self._beginnings = frozenset(name[:end] for name in names for end in range(1, len(name)))
        self._endings = frozenset(name[start:] for name in names for start in range(1, len(name)))
        self._may_begin = re.compile("|".join({re.escape(name[0]) for name in names}) or "(?!)")
        self._may_end = re.compile("|".join({re.escape(name[-1]) for name in names}) or "(?!)")

    def broken(self, text: str) -> str:
        """Return the text without a name in it, and none that begins or ends at its borders."""
        text = NONCHARACTERS.sub("", text)
        while self._any_case.search(text):  # a name may overlap the next one
            text = self._any_case.sub(_with_break, text)
        trimmed = text.strip()  # as templates do
        head, tail = trimmed[: self._longest], trimmed[-self._longest :]
        if self._may_begin.search(tail) and self._ends_open(tail):
            text += BREAK
        if self._may_end.search(head) and self._begins_open(head):
            text = BREAK + text
        return text

    def _ends_open(self, tail: str) -> bool:
        return any(tail[start:] in self._beginnings for start in range(len(tail)))

    def _begins_open(self, head: str) -> bool:
        return any(head[:end] in self._endings for end in range(1, len(head) + 1))


def _with_break(found: re.Match[str]) -> str:
    name = found.group()
    return name[0] + BREAK + name[1:]
