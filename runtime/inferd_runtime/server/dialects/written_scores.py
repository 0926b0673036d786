"""Log-probabilities that are held until an answer is complete, encoded as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from inferd.chat import TokenScore

Columns: TypeAlias = Callable[[Sequence[TokenScore], str], Mapping[str, list[Any]]]
"""Returns what a dialect writes about the tokens of the next text: lists, by their names in the answer."""


class WrittenScores:
    """Encodes log-probabilities as they come. Encoding those of a long answer at its end would hold up other requests, and as
    objects they take many times the memory.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._pieces: dict[str, list[bytes]] = {name: [] for name in columns((), "")}

    def add(self, scores: Sequence[TokenScore], text: str = "") -> None:
        """Add the log-probabilities of the next text's tokens."""
        for name, values in self._columns(scores, text).items():
            if values:
                self._pieces[name].append(msgspec.json.encode(values)[1:-1])

    def json(self) -> dict[str, msgspec.Raw]:
        """Return each list so far."""
        return {name: msgspec.Raw(b"[" + b",".join(pieces) + b"]") for name, pieces in self._pieces.items()}


def no_columns(scores: Sequence[TokenScore], text: str) -> Mapping[str, list[Any]]:
    """Return no lists."""
    return {}
