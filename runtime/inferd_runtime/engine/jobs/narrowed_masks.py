"""A text that holds some tokens only, or does not end before it has a number of them: a constraint's masks with fewer tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from inferd.protocol import ConstraintError
from inferd_grammar.tokens import bit_mask
from inferd_runtime.engine.jobs.grammar_masks import OutputMasks
from inferd_runtime.engine.sampling.host_sampling import Masks
from inferd_runtime.speculation.drafts import ROOT, Draft


class NarrowedMasks(OutputMasks):
    """The masks of a constraint (``inner``, None: without one), less what a text may not hold.

    ``allowed``: the only tokens that it may hold; none: any. ``ends``, the tokens that end it, are left out until there are
    ``least`` tokens; where nothing else is left, the text ends all the same. A constraint that leaves none of ``allowed`` ends
    the generation with ConstraintError.
    """

    def __init__(
        self,
        inner: OutputMasks | None,
        vocab_size: int,
        *,
        allowed: Collection[int] = (),
        ends: Collection[int] = (),
        least: int = 0,
    ) -> None:
        self._inner = inner or OutputMasks()
        self._left = least
        self._others: Masks = ~bit_mask(list(ends), vocab_size)
        self._allowed = frozenset(allowed)
        self._only: Masks | None = bit_mask(list(allowed), vocab_size) if allowed else None

    def forced(self) -> list[int]:
        """Return the tokens that the constraint forces."""
        return self._inner.forced()

    def completed(self, draft: Draft, limit: int) -> Draft:
        """Return a chain followed by what the constraint forces behind it."""
        return self._inner.completed(draft, limit)

    def masks(self, draft: Draft) -> tuple[Draft, Masks | None]:
        """Return the part of the draft that the constraint allows, and its masks. See :class:`OutputMasks`.

        Tokens that are left out stay in the draft: no row emits them.
        """
        legal, masks = self._inner.masks(draft)
        if self._left <= 0 and self._only is None:
            return legal, masks
        if masks is None:
            masks = np.full((len(legal) + 1, len(self._others)), -1, np.int32)
        return legal, self._narrowed(masks, _depths(legal))

    def _narrowed(self, masks: Masks, depths: Sequence[int]) -> Masks:
        masks = masks.copy()
        for row, depth in zip(masks, depths, strict=True):
            if self._only is not None:
                _keep(row, self._only)
            if depth < self._left:
                _keep(row, self._others)
        return masks

    @property
    def steers(self) -> bool:
        """True if the constraint steers the text to an end."""
        return self._inner.steers

    @property
    def keeps_budget(self) -> bool:
        """True if the text is complete when its tokens are used up."""
        return self._inner.keeps_budget

    def admit(self, tokens: Sequence[int], room: int) -> list[int]:
        """Return the tokens to commit instead of sampled ones."""
        return self._inner.admit(tokens, room)

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit tokens after verification. Raises ConstraintError for one that is not allowed: nothing else was left."""
        if self._allowed and not self._allowed.issuperset(tokens):
            raise ConstraintError(
                "the constraint leaves none of the allowed tokens to go on with", param="allowed_token_ids"
            )
        self._left -= len(tokens)
        self._inner.advance(tokens)

    def must_end(self) -> bool:
        """True if the constraint allows nothing but the end."""
        return self._inner.must_end()


def _keep(row: Masks, wanted: Masks) -> None:
    """Take all but the wanted tokens out of a row, in place; a row that has none of them stays as it is."""
    left = row & wanted
    if left.any():
        row[:] = left


def _depths(draft: Draft) -> list[int]:
    """Return how many draft tokens come before each sampled row: 0 for the first one, then behind each node."""
    depths = [0]
    for at, parent in enumerate(range(ROOT, len(draft) - 1) if draft.is_chain else draft.parents):
        assert parent < at
        depths.append(depths[parent + 1] + 1)
    return depths
