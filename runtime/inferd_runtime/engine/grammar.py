"""The engine's hold on a grammar matcher: masks for a draft, then the way back to what was accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from inferd.protocol import ConstraintError, InternalError
from inferd_grammar import GrammarFailure, Matcher, walk
from inferd_grammar.tokens import bit_mask
from inferd_runtime.engine.sampling import Masks


@contextmanager
def _matcher_errors() -> Iterator[None]:
    try:
        yield
    except GrammarFailure as error:
        raise InternalError(f"the grammar matcher failed: {error}") from error


class GrammarCursor:
    """A matcher that stands at the end of the committed tokens, or further on while a draft is being verified."""

    def __init__(self, matcher: Matcher, words: int, eos_tokens: Sequence[int]) -> None:
        self._matcher = matcher
        self._walked = 0
        self._rest: Masks = ~bit_mask(eos_tokens, words * 32)

    def forced(self) -> list[int]:
        """Tokens that the grammar leaves no choice about, in its canonical split."""
        with _matcher_errors():
            self._return()
            return self._matcher.forced_tokens()

    def masks(self, draft: Sequence[int]) -> Masks:
        """Walk the draft: int32[legal + 1, words], one mask per legal draft token and one for the bonus row."""
        masks = np.empty((len(draft) + 1, self._rest.shape[0]), np.int32)
        with _matcher_errors():
            self._return()
            self._walked = walk(self._matcher, draft, masks)
        return masks[: self._walked + 1]

    def settle(self, accepted: int, token: int) -> None:
        """After verification: undo the rejected part of the walk, then take the sampled token."""
        with _matcher_errors():
            self._matcher.rollback(self._walked - accepted)
            self._walked = 0
            if self._matcher.accept([token]) != 1:
                raise ConstraintError("the constraint leaves no token to go on with")

    def must_end(self) -> bool:
        """Whether end-of-text is the only legal token."""
        with _matcher_errors():
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
