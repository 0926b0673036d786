"""Log-probabilities that are held until an answer is complete, packed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from inferd.chat import TokenScore

_decode = msgspec.msgpack.Decoder(list[TokenScore]).decode


class PackedScores:
    """As objects they take seven times the room, and the garbage collector walks over all of them while everybody waits."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[tuple[bytes, bool]] = []

    def add(self, scores: Sequence[TokenScore], *, of_text: bool = True) -> None:
        """Add those of more tokens; ``of_text``: of the answer's text, and not of what was thought before it."""
        if scores:
            self.count += len(scores)
            self._parts.append((msgspec.msgpack.encode(scores), of_text))

    def read(self, *, text_only: bool = False) -> list[TokenScore]:
        """Return them, or those of the text alone, anew each time."""
        return [score for part, of_text in self._parts if of_text or not text_only for score in _decode(part)]
