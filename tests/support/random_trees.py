"""A drafter that means no good."""

from __future__ import annotations

import random
from collections.abc import Sequence

from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import Proposal


class RandomTrees(Drafter):
    """Trees of random tokens, and repetitions of what was written."""

    def __init__(self, seed: int, vocab: int) -> None:
        self._random = random.Random(seed)
        self._vocab = vocab
        self._seen: list[int] = []

    def observe(self, tokens: Sequence[int]) -> None:
        self._seen += tokens

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        if self._random.random() < 0.5:
            tokens = self._random.choices(range(self._vocab), k=min(limit, 6))
            parents = [self._random.randint(-1, node - 1) for node in range(len(tokens))]
            return Proposal(tokens, parents, 0, [1.0] * len(tokens))
        return Proposal(self._seen[-min(limit, 6) :])
