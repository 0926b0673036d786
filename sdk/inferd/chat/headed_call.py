"""A call as a name and the JSON of its arguments, as Mistral's newer models and DeepSeek's write it."""

from __future__ import annotations

from inferd.chat.call_forms import HeadedCall
from inferd.chat.call_scanner import BLANK, CharacterScanner

MAX_HEAD = 512
"""Characters before the arguments: what has more is no call."""


class HeadedCallScanner(CharacterScanner):
    """Takes the text of a call from its opening on."""

    def __init__(self, written: HeadedCall) -> None:
        super().__init__(self._in_head)
        self._written = written
        self._head = self._tail = ""

    def _in_head(self, character: str) -> None:
        if character == "{":
            found = self._written.pattern.fullmatch(self._head)
            self.name, self.failed = found[1] if found else "", found is None
            self._state = self._in_arguments
            self._in_arguments(character)
        else:
            self._head += character
            self.failed = len(self._head) > MAX_HEAD

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
