"""A call as a name and the JSON of its arguments, as Mistral's newer models and DeepSeek's write it."""

from __future__ import annotations

from inferd.chat.call_forms import HeadedCall
from inferd.chat.call_scanner import BLANK, JsonExtent

MAX_HEAD = 512
"""Characters before the arguments: what has more is no call."""


class HeadedCallScanner:
    """Takes the text of a call from its opening on; see :class:`~inferd.chat.call_scanner.CallScanner`."""

    def __init__(self, written: HeadedCall) -> None:
        self.name = ""
        self.done = False
        self.failed = False
        self._written = written
        self._state = self._in_head
        self._extent = JsonExtent()
        self._taken: list[str] = []
        self._arguments: list[str] = []
        self._tail = ""

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

    def _in_head(self, character: str) -> None:
        if character == "{":
            found = self._written.pattern.fullmatch(self.text[:-1])
            self.name, self.failed = found[1] if found else "", found is None
            self._state = self._in_arguments
            self._in_arguments(character)
        else:
            self.failed = len(self._taken) > MAX_HEAD

    def _in_arguments(self, character: str) -> None:
        self._arguments.append(character)
        if self._extent.take(character):
            self.done, self._state = not self._written.end, self._in_tail

    def _in_tail(self, character: str) -> None:
        """Behind the arguments, up to the call's end mark, with blanks anywhere before it."""
        if character not in BLANK:
            self._tail += character
            end = self._written.end.strip()
            self.done, self.failed = self._tail == end, not end.startswith(self._tail)
