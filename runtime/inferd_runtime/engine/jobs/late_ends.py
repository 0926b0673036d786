"""A text that may not end before it has a number of tokens: masks without the tokens that would end it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from inferd_grammar.tokens import bit_mask
from inferd_runtime.engine.jobs.grammar_masks import OutputMasks
from inferd_runtime.engine.sampling.host_sampling import Masks
from inferd_runtime.speculation.drafts import ROOT, Draft


class LateEnds:
    """The masks of a constraint (``inner``, None: without one), less the tokens that end the text.

    ``ends`` are left out until there are ``least`` tokens. Where the constraint allows nothing else, the text ends all the same.
    """

    def __init__(self, inner: OutputMasks | None, ends: Collection[int], vocab_size: int, least: int) -> None:
        self._inner = inner
        self._left = least
        self._others: Masks = ~bit_mask(list(ends), vocab_size)

    def forced(self) -> list[int]:
        """Return the tokens that the constraint forces."""
        return [] if self._inner is None else self._inner.forced()

    def completed(self, draft: Draft, limit: int) -> Draft:
        """Return a chain followed by what the constraint forces behind it."""
        return draft if self._inner is None else self._inner.completed(draft, limit)

    def masks(self, draft: Draft) -> tuple[Draft, Masks | None]:
        """Return the legal part of the draft, and its masks. See :class:`OutputMasks`."""
        legal, masks = (draft, None) if self._inner is None else self._inner.masks(draft)
        if self._left <= 0:
            return legal, masks
        if masks is None:
            masks = np.full((len(legal) + 1, len(self._others)), -1, np.int32)
        return legal, self._without_ends(masks, _depths(legal))

    def _without_ends(self, masks: Masks, depths: Sequence[int]) -> Masks:
        masks = masks.copy()
        for row, depth in zip(masks, depths, strict=True):
            others = row & self._others
            if depth < self._left and others.any():
                row[:] = others
        return masks

    @property
    def steers(self) -> bool:
        """True if the constraint steers the text to an end."""
        return self._inner is not None and self._inner.steers

    @property
    def keeps_budget(self) -> bool:
        """True if the text is complete when its tokens are used up."""
        return self._inner is not None and self._inner.keeps_budget

    def admit(self, tokens: Sequence[int], room: int) -> list[int]:
        """Return the tokens to commit instead of sampled ones."""
        return list(tokens) if self._inner is None else self._inner.admit(tokens, room)

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit tokens after verification."""
        self._left -= len(tokens)
        if self._inner is not None:
            self._inner.advance(tokens)

    def must_end(self) -> bool:
        """True if the constraint allows nothing but the end."""
        return self._inner is not None and self._inner.must_end()


def _depths(draft: Draft) -> list[int]:
    """Return how many draft tokens come before each sampled row: 0 for the first one, then behind each node."""
    depths = [0]
    for at, parent in enumerate(range(ROOT, len(draft) - 1) if draft.is_chain else draft.parents):
        assert parent < at
        depths.append(depths[parent + 1] + 1)
    return depths
