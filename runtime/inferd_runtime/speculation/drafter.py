"""Where guesses come from. A drafter sees committed tokens only; what it proposes can cost time but never change output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """One source of drafts for one generation."""

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn tokens that now stand in the context, in order."""
        ...

    def propose(self, limit: int) -> Sequence[int]:
        """Guess at most ``limit`` tokens that follow what was observed; empty when it has no idea."""
        ...

    def feedback(self, proposed: int, accepted: int) -> None:
        """Learn how the last proposal went."""
        ...


class OfferedDraft:
    """The draft that a program's own speculator sends with every step."""

    def __init__(self) -> None:
        self._offer: Sequence[int] = ()

    def offer(self, tokens: Sequence[int]) -> None:
        """Set the next proposal."""
        self._offer = tokens

    def observe(self, tokens: Sequence[int]) -> None:
        """The program's speculator learns on its own side."""

    def propose(self, limit: int) -> Sequence[int]:
        """What was offered, cut to the limit."""
        return self._offer[:limit]

    def feedback(self, proposed: int, accepted: int) -> None:
        """The program hears it with the step."""
