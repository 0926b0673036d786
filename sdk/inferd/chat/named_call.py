"""A call as newer models of Mistral write it: ``name[ARGS]{...}``."""

from __future__ import annotations

from collections.abc import Callable

from inferd.chat.call_forms import ARGS, CALL_ID
from inferd.chat.call_scanner import BLANK, JsonExtent

MAX_NAME = 256
"""Characters of a name, of a call's id, and of a mark: what is longer is no call."""


class NamedCallScanner:
    """Takes the text of a call from its name on; see :class:`~inferd.chat.call_scanner.CallScanner`.

    The mark before the arguments, and a call's id before it, may be missing.
    """

    def __init__(self) -> None:
        self.name = ""
        self.done = False
        self.failed = False
        self._state: Callable[[str], None] = self._in_name
        self._extent = JsonExtent()
        self._taken: list[str] = []
        self._word: list[str] = []
        self._arguments: list[str] = []

    @property
    def text(self) -> str:
        """All that was taken."""
        return "".join(self._taken)

    def feed(self, text: str) -> str:
        """Take text up to the call's end, or to where it fails, and return what is behind."""
        for at, character in enumerate(text):
            if self.done or self.failed:
                return text[at:]
            self._taken.append(character)
            self._state(character)
        return ""

    def new_arguments(self) -> str:
        """Return the arguments' text that has come since the last call."""
        new, self._arguments = "".join(self._arguments), []
        return new

    def _in_name(self, character: str) -> None:
        if character in "[{":
            self._named = self._take_word()
            self.failed = not self._named
            self._go_on(character)
        else:
            self._word.append(character)
            named = character.isalnum() or character in "_-" + BLANK
            self.failed = not named or len(self._word) > MAX_NAME

    def _go_on(self, character: str) -> None:
        """Read what a bracket begins: a mark, or the arguments."""
        if character == "[":
            self._state = self._in_mark
            self._word = [character]
        else:
            self.name, self._state = self._named, self._in_arguments
            self._in_arguments(character)

    def _in_mark(self, character: str) -> None:
        self._word.append(character)
        mark = "".join(self._word)
        if mark == ARGS:
            self._word, self._state = [], self._before_arguments
            self.name = self._named
        elif mark == CALL_ID:
            self._word, self._state = [], self._in_id
        else:
            self.failed = not (ARGS.startswith(mark) or CALL_ID.startswith(mark))

    def _in_id(self, character: str) -> None:
        if character in "[{":
            self._go_on(character)
        else:
            self._word.append(character)
            self.failed = len(self._word) > MAX_NAME

    def _before_arguments(self, character: str) -> None:
        if character == "{":
            self._go_on(character)
        else:
            self.failed = character not in BLANK

    def _in_arguments(self, character: str) -> None:
        self._arguments.append(character)
        self.done = self._extent.take(character)

    def _take_word(self) -> str:
        word, self._word = "".join(self._word).strip(), []
        return "" if any(character in word for character in BLANK) else word
