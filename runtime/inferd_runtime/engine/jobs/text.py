"""Tokens to text as they arrive: whole characters only, without text that may still become part of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class TextTokenizer(Protocol):
    """The methods of a tokenizer that the engine and the sessions use."""

    eos_tokens: tuple[int, ...]

    def encode(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        """Return the ids of a text. Special tokens are read as text unless ``special``; ``start`` adds the BOS token."""

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of ids. Special tokens are left out unless ``special``."""

    def stream(self) -> Callable[[int], str]:
        """Return a decoder that takes one id at a time and returns the text that it completes ("" inside a character)."""


class TextAssembler:
    """Feeds tokens to a stream decoder and watches for stop strings, behind the first ``least`` tokens.

    ``include_stop``: the stop string is a part of the text. ``stopped_by``: the stop string that is complete, "" before.
    """

    def __init__(
        self, decode: Callable[[int], str], stops: Sequence[str], least: int = 0, *, include_stop: bool = False
    ) -> None:
        self.include_stop = include_stop
        self._decode = decode
        self._stops = tuple(stops)
        self._unwatched = least
        self._held = ""
        self.stopped_by = ""

    def feed(self, token: int) -> str:
        """Decode a token, and return the text that is certain now. Sets ``stopped_by`` if a stop string is complete."""
        if not self._stops or self._unwatched > 0:
            self._unwatched -= 1
            return self._decode(token)
        self._held += self._decode(token)
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            text, self._held = self._held[: at + len(self.stopped_by) * self.include_stop], ""
            return text
        keep = self._undecided()
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text

    def rest(self) -> str:
        """Return the text that was held back as the start of a stop string, at the end of the generation."""
        text, self._held = self._held, ""
        return text

    def _undecided(self) -> int:
        """Return the length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
