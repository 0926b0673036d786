"""Token healing: a prompt that ends inside what the model knows as one token is cut back, and its end written again.

A prompt `...http:` ends in the token `:`, but the model has seen `://` as one token after `http`, so `:` alone says that
no `//` follows. Backing up and constraining the new text to begin with `:` gives the choice back to the model (Lundberg,
guidance, 2023). Only the constraint is made here; cutting the prompt is left to the caller.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from inferd_grammar.constraints import Constraint, PrefixedGrammar
from inferd_grammar.tokens import TokenTable


@dataclass(frozen=True)
class Healed:
    """A prompt cut back: run the model on `tokens`, constrain what it writes by `constraint`, and drop `prefix` from it.

    Nothing was cut if `prefix` is empty.
    """

    tokens: tuple[int, ...]
    prefix: str

    def constraint(self, inner: Constraint | None = None) -> Constraint | None:
        """Return the constraint on the new text, where `inner` constrains what follows the prompt (None: anything)."""
        return PrefixedGrammar(self.prefix, inner) if self.prefix else inner


class Healer:
    """Decides how far to cut. Built once for a table (a sort of the vocabulary); thread-safe."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._sorted = sorted({token for token in table.tokens if token})

    def heal(self, tokens: Sequence[int], *, back: int = 4) -> Healed:
        """Cut the most tokens, at most `back`, whose bytes together begin some longer token.

        Never cut: the first token, special tokens and what stands before them, and the middle of a character. Raises
        ValueError for an id outside the vocabulary, and `back` below 0.
        """
        if back < 0:
            raise ValueError(f"back must not be negative, not {back}")
        for token in tokens:
            if not 0 <= token < self._table.vocab_size:
                raise ValueError(f"token {token} is outside the vocabulary of {self._table.vocab_size}")
        best, prefix, suffix = 0, "", b""
        for count in range(1, min(back, len(tokens) - 1) + 1):
            piece = self._table.tokens[tokens[-count]]
            if not piece:
                break
            suffix = piece + suffix
            text = _text(suffix)
            if text is not None and self._begins_longer(suffix):
                best, prefix = count, text
        return Healed(tuple(tokens[: len(tokens) - best]), prefix)

    def _begins_longer(self, suffix: bytes) -> bool:
        place = bisect_right(self._sorted, suffix)
        return place < len(self._sorted) and self._sorted[place].startswith(suffix)


def _text(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None
