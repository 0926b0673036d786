"""Log-probabilities that are held until an answer is complete, as the JSON that they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from inferd.chat import TokenScore

Columns: TypeAlias = Callable[[Sequence[TokenScore], str], Mapping[str, list[Any]]]
"""What a dialect writes of the tokens of the next text: lists, by the names that they have in the answer."""


class WrittenScores:
    """They are written as they come: an answer with very many would be written at once, while everybody waits. As objects they
    would take many times the room.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._pieces: dict[str, list[bytes]] = {name: [] for name in columns((), "")}

    def add(self, scores: Sequence[TokenScore], text: str = "") -> None:
        """Add those of the next text, of which the answer may tell nothing."""
        for name, values in self._columns(scores, text).items():
            if values:
                self._pieces[name].append(msgspec.json.encode(values)[1:-1])

    def json(self) -> dict[str, msgspec.Raw]:
        """Return each list so far."""
        return {name: msgspec.Raw(b"[" + b",".join(pieces) + b"]") for name, pieces in self._pieces.items()}


def no_columns(scores: Sequence[TokenScore], text: str) -> Mapping[str, list[Any]]:
    """Write nothing of tokens."""
    return {}
