"""The protocol of drafts that a program makes itself."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Speculator(Protocol):
    """A drafter: any object with these methods. A draft changes how fast text comes, never which."""

    def draft(self) -> tuple[list[int], list[int]]:
        """Return tokens that may come next, and their positions; two empty lists for none."""

    def accept(self, tokens: list[int]) -> None:
        """Take note of what a step added: the part of the draft that held, and the model's own token behind it."""

    def rollback(self, n: int) -> None:
        """Take note that the last ``n`` tokens of the draft did not hold."""

    def reset(self) -> None:
        """Forget everything."""
