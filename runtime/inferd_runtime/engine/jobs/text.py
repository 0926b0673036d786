"""Tokens to text as they come: whole characters only, and nothing that a stop string may still swallow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class TextTokenizer(Protocol):
    """What the engine and the sessions need of a tokenizer."""

    eos_tokens: tuple[int, ...]

    def encode(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        """Text to ids; special tokens are read as text unless ``special``; ``start`` adds what opens a text (BOS)."""
        ...

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Ids to text; special tokens are left out unless ``special``."""
        ...

    def stream(self) -> Callable[[int], str]:
        """A decoder that takes one id at a time and returns the text that it completes ("" inside a character)."""
        ...


class TextAssembler:
    """Feeds tokens to a stream decoder and watches for stop strings."""

    def __init__(self, decode: Callable[[int], str], stops: Sequence[str]) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, token: int) -> str:
        """The text that is certain after this token; ``stopped`` is set when a stop string is complete."""
        self._held += self._decode(token)
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = self._undecided()
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text

    def rest(self) -> str:
        """What was held back for a stop string that did not come."""
        text, self._held = self._held, ""
        return text

    def _undecided(self) -> int:
        """The length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
