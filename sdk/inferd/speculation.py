"""Drafts that a program makes itself."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from inferd.protocol import Generation

T = TypeVar("T")


class Speculator:
    """A program's own guess at what comes next; pass an instance as ``generate(speculator=...)`` and override what
    you need.

    A speculator changes how fast text comes, never which text. All four methods are called by the generator, in the
    task that iterates it, and are ordinary functions (no ``async``). One generation calls, in this order:

    1. ``reset()`` once, when the generation starts, so that one object can serve several generations in turn.
    2. ``accept(prompt)`` once, with every token that the context holds.
    3. Then for every step: ``draft()``; the runtime verifies the draft; ``rollback(n)`` if the last ``n`` tokens of
       that draft were not accepted (n >= 1); ``accept(tokens)`` with what the step really added, if it added
       anything: the accepted part of the draft, then the token that the model chose itself. End-of-text is not
       among them.

    ``draft`` returns ``(tokens, positions)``: two lists of equal length. ``positions`` are absolute: the first is
    the number of tokens in the context so far (the sum of the lengths given to ``accept`` since ``reset``), each
    next one is one higher. Two empty lists mean "no guess", which is a plain step. What a draft holds beyond
    ``max_tokens`` is not sent.

    If a method raises, or ``draft`` returns something else or a token that the model does not have, the traceback
    is written once to stderr, the speculator is not called again in this generation, and the generation goes on
    without it.
    """

    def reset(self) -> None:
        """Forget the last generation."""

    def draft(self) -> tuple[list[int], list[int]]:
        """The guess for the next step, and its positions. By default none."""
        return [], []

    def accept(self, tokens: list[int]) -> None:
        """``tokens`` are now part of the context."""

    def rollback(self, n: int) -> None:
        """The last ``n`` tokens of the last draft were rejected."""


class Drafting:
    """Calls a speculator by its contract, and goes on without it once it breaks."""

    def __init__(self, speculator: Speculator, start: Generation) -> None:
        self._speculator = speculator
        self._position = start.position
        self._drafted = 0
        self._broken = False
        self._guarded(speculator.reset, None)
        self._guarded(lambda: speculator.accept(list(start.prompt)), None)

    def propose(self, room: int) -> tuple[list[int], list[int]]:
        """The next draft and its positions, at most ``room`` tokens of it; empty once the speculator is off."""
        nothing: tuple[list[int], list[int]] = ([], [])
        tokens, positions = self._guarded(self._checked_draft, nothing)
        self._drafted = len(tokens)
        return tokens[:room], positions[:room]

    def give_up(self, reason: str) -> None:
        """The runtime refused the draft: go on without the speculator."""
        self._broken = True
        self._report(reason)

    def settle(self, accepted: int, tokens: Sequence[int]) -> None:
        """Tell the speculator what became of its draft: ``accepted`` of it held, ``tokens`` were added in all."""
        rejected, self._drafted = self._drafted - accepted, 0
        self._position += len(tokens)
        if rejected > 0:
            self._guarded(lambda: self._speculator.rollback(rejected), None)
        if tokens:
            self._guarded(lambda: self._speculator.accept(list(tokens)), None)

    def _checked_draft(self) -> tuple[list[int], list[int]]:
        tokens, positions = self._speculator.draft()
        tokens, positions = list(tokens), list(positions)
        if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in tokens):
            raise TypeError(f"draft() must return token ids, not {tokens!r}")
        expected = list(range(self._position, self._position + len(tokens)))
        if positions != expected:
            raise ValueError(f"draft() must give the positions {_span(expected)}, not {positions!r}")
        return tokens, positions

    def _guarded(self, call: Callable[[], T], otherwise: T) -> T:
        if self._broken:
            return otherwise
        try:
            return call()
        except Exception:  # noqa: BLE001 - the boundary to the program's speculator: a bad guess must not cost the text
            self._broken = True
            self._report(traceback.format_exc())
            return otherwise

    def _report(self, reason: str) -> None:
        name = type(self._speculator).__name__
        print(f"inferd: {name} failed; this generation goes on without it\n{reason}", file=sys.stderr)


def _span(positions: list[int]) -> str:
    return f"{positions[0]} to {positions[-1]}" if positions else "[]"
