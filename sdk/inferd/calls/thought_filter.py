"""What an answer says behind the reasoning that comes before it. Pure."""

from __future__ import annotations

from inferd.protocol import ReasoningSpec


class ThoughtFilter:
    """Takes a text piece by piece and returns what stands behind its reasoning; all of it where there is none."""

    def __init__(self, marks: ReasoningSpec | None) -> None:
        self._marks = marks
        self._inside = marks is not None and marks.opened
        self._held = ""

    def take(self, text: str) -> str:
        """Return what of one more piece is the answer's."""
        if self._marks is None:
            return text
        self._held += text
        begin, end = self._marks.begin, self._marks.end
        if not self._inside and not self._held.startswith(begin):
            return "" if begin.startswith(self._held) else self._answer(self._held)
        self._inside = True
        _, mark, answer = self._held.partition(end)
        self._held = self._held[-len(end) :]  # what of it may be the mark's beginning
        return self._answer(answer) if mark else ""

    def _answer(self, text: str) -> str:
        self._marks = None
        return text
