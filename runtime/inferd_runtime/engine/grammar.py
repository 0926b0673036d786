"""The engine's hold on a grammar matcher: masks for a draft, then the way back to what was accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from inferd.protocol import ConstraintError, InternalError
from inferd_grammar import GrammarFailure, Matcher, walk
from inferd_grammar.errors import DeadEnd
from inferd_grammar.tokens import bit_mask
from inferd_runtime.engine.sampling import Masks
from inferd_runtime.models.batch import Seen


@contextmanager
def matcher_errors() -> Iterator[None]:
    """What a broken matcher raises becomes an InternalError; a dead end is the constraint's own: ConstraintError."""
    try:
        yield
    except DeadEnd as error:
        raise ConstraintError(f"the constraint leaves no token to go on with: {error}") from error
    except GrammarFailure as error:
        raise InternalError(f"the grammar matcher failed: {error}") from error


class OutputMasks(Protocol):
    """What constrains a generation, standing at the end of its committed tokens."""

    def forced(self) -> list[int]:
        """Tokens that are certain to come next."""
        ...

    def masks(self, draft: Sequence[int]) -> Masks:
        """int32[legal + 1, words]: one mask per draft token up to the first illegal one, and one for the row behind."""
        ...

    def settle(self, accepted: int, token: int) -> None:
        """After verification: ``accepted`` tokens of the draft stand, and ``token`` behind them."""
        ...

    def must_end(self) -> bool:
        """Whether end-of-text is known to be the only token that may come next."""
        ...


class OfferedMask:
    """The mask that a program's own constraint sends with every step. No draft: nobody knows the masks behind it."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._row: Masks = np.full((1, -(-vocab_size // 32)), -1, np.int32)

    def offer(self, allowed: Seen | None) -> None:
        """Set the next mask, bool[V]; None allows everything. Raises ConstraintError for one that allows nothing."""
        if allowed is None:
            self._row.fill(-1)
            return
        if not allowed.any():
            raise ConstraintError("the program's constraint allows no token")
        packed = self._row.view(np.uint8).reshape(-1)
        packed.fill(0)
        bits = np.packbits(allowed, bitorder="little")
        packed[: len(bits)] = bits

    def forced(self) -> list[int]:
        """None: the program says what may come, not what must."""
        return []

    def masks(self, draft: Sequence[int]) -> Masks:
        """int32[1, words]."""
        return self._row

    def settle(self, accepted: int, token: int) -> None:
        """The program hears it with the step."""

    def must_end(self) -> bool:
        """Not known before the next mask."""
        return False


class GrammarCursor:
    """A matcher that stands at the end of the committed tokens, or further on while a draft is being verified."""

    def __init__(self, matcher: Matcher, words: int, eos_tokens: Sequence[int]) -> None:
        self._matcher = matcher
        self._walked = 0
        self._rest: Masks = ~bit_mask(eos_tokens, words * 32)

    def forced(self) -> list[int]:
        """Tokens that the grammar leaves no choice about, in its canonical split."""
        with matcher_errors():
            self._return()
            return self._matcher.forced_tokens()

    def masks(self, draft: Sequence[int]) -> Masks:
        """Walk the draft: int32[legal + 1, words], one mask per legal draft token and one for the bonus row."""
        masks = np.empty((len(draft) + 1, self._rest.shape[0]), np.int32)
        with matcher_errors():
            self._return()
            self._walked = walk(self._matcher, draft, masks)
        return masks[: self._walked + 1]

    def settle(self, accepted: int, token: int) -> None:
        """After verification: undo the rejected part of the walk, then take the sampled token."""
        with matcher_errors():
            self._matcher.rollback(self._walked - accepted)
            self._walked = 0
            if self._matcher.accept([token]) != 1:
                raise ConstraintError("the constraint leaves no token to go on with")

    def must_end(self) -> bool:
        """Whether end-of-text is the only legal token."""
        with matcher_errors():
            # Inside a text this is all there is to ask; the mask is only looked at where the text may end.
            if not self._matcher.may_end():
                return False
            row = np.empty_like(self._rest)
            self._matcher.fill(row)
        return not np.bitwise_and(row, self._rest).any()

    def _return(self) -> None:
        """Undo a walk that was never verified (the step had no room for it)."""
        self._matcher.rollback(self._walked)
        self._walked = 0
