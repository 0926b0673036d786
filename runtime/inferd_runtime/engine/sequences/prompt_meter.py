"""How many prompt tokens the contexts of one session were given, and how many of those did not have to be computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PromptMeter:
    """Shared by the contexts of a session. Each prompt token counts once, in ``prompt_tokens`` when work on it begins.

    ``cached_tokens`` are those of them whose keys and values were found by prefix, or restored.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass
class PromptMarks:
    """What of one sequence's tokens is in the meter: the first ``counted`` are prompt tokens in it, or were generated.

    ``had``: the first so many had keys and values before, so that finding these saves nothing new. ``restored``: the first so
    many came with theirs.
    """

    meter: PromptMeter
    counted: int = 0
    had: int = 0
    restored: int = 0

    def count(self, length: int) -> None:
        """Count the tokens that were added since: work on all ``length`` of them begins."""
        self.meter.prompt_tokens += length - self.counted
        self.meter.cached_tokens += max(0, self.restored - self.counted)
        self.counted = length

    def find(self, start: int, end: int) -> None:
        """Count that tokens ``start`` to ``end`` were found, behind others that are there."""
        self.meter.cached_tokens += max(0, end - max(start, self.had))
        self.had = max(self.had, end)

    def write(self, length: int) -> None:
        """Note that all ``length`` tokens are computed or generated."""
        self.counted = self.had = length

    def drop(self, computed: int) -> None:
        """Note that the keys and values of the first ``computed`` tokens are gone."""
        self.had = max(self.had, min(computed, self.counted))
        self.restored = 0

    def cut(self, length: int) -> None:
        """Note that only the first ``length`` tokens are left."""
        self.counted, self.had, self.restored = (min(mark, length) for mark in (self.counted, self.had, self.restored))

    def fork(self, computed: int, length: int) -> PromptMarks:
        """Return the marks of a copy of the first ``length`` tokens: what is counted here does not count there."""
        copy = PromptMarks(self.meter, self.counted, max(self.had, computed, self.counted), self.restored)
        copy.cut(length)
        return copy
