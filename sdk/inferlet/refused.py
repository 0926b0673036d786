"""What of Pie's surface there is not here: it is refused by its name."""

from __future__ import annotations

from typing import NoReturn


class NotOffered(NotImplementedError):
    """A name of Pie's that this runtime refuses. The message says why, and what to do instead."""


def refuse(name: str, reason: str) -> NoReturn:
    """Raise NotOffered for a name."""
    raise NotOffered(f"inferlet: {name} is refused: {reason}")
