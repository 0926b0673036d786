"""How many tokens a model thought: those between the marks of its reasoning, which do not count themselves."""

from __future__ import annotations

from collections.abc import Sequence


class ReasoningCount:
    """Takes an answer's tokens step by step. ``begin`` and ``end``: the marks as tokens; ``opened``: the prompt has the first."""

    def __init__(self, begin: Sequence[int], end: Sequence[int], *, opened: bool) -> None:
        self.tokens = 0
        self._begin, self._end = list(begin), list(end)
        self._is_open = opened
        self._last: list[int] = []

    def take(self, tokens: Sequence[int], *, is_thinking: bool) -> None:
        """Take the tokens of a step. ``is_thinking``: what the text says behind it, which is right where a mark is written with
        other tokens; then that mark counts.
        """
        for token in tokens:
            self.tokens += self._is_open
            mark = self._end if self._is_open else self._begin
            self._last = [*self._last, token][-len(mark) :] if mark else []
            if mark and self._last == mark:
                self.tokens -= len(mark) if self._is_open else 0
                self._is_open, self._last = not self._is_open, []
        if self._is_open != is_thinking:
            self.tokens += len(tokens) if is_thinking and not self._is_open else 0
            self._is_open, self._last = is_thinking, []
