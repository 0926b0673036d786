"""Proposals of single sources, and the draft that a step verifies: a tree of guessed tokens, most often a chain."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Probabilities = npt.NDArray[np.float32]
ROOT = -1
"""The parent of a node that follows the committed tokens."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One source's guess of the next tokens.

    ``parents``: one per token, each smaller than its own index, ROOT for the first (empty: a chain). ``match``: the tokens of
    context that the guess is based on, for sources that look something up. ``confidence``: per token the chance that it is
    right if its parent is (empty: not known). ``probabilities`` float32[n, V]: the distributions that the tokens were drawn
    from, for rejection sampling.
    """

    tokens: Sequence[int]
    parents: Sequence[int] = ()
    match: int = 0
    confidence: Sequence[float] = ()
    probabilities: Probabilities | None = None

    def parent(self, node: int) -> int:
        """Return the parent of a node."""
        return self.parents[node] if self.parents else node - 1


NOTHING = Proposal(())


@dataclass(frozen=True, slots=True)
class Draft:
    """The tokens that one step verifies, parents before children, depth first.

    ``sources``: the first source that proposed each token. ``survival``: the chance that a token and all before it are
    accepted; it never grows from parent to child. ``probabilities`` as in :class:`Proposal`; a draft that has them is a chain.
    If such a draft was cut at a token because of what that token is, ``refused`` is that token (else -1), and the distributions
    stay: without them, rejection sampling would favour the tokens that drafts are cut at.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    sources: Sequence[str]
    survival: Sequence[float]
    probabilities: Probabilities | None = None
    refused: int = -1

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def uncut_length(self) -> int:
        """The number of tokens before a sampled draft was cut at a token. Decisions may depend on this, not on the length."""
        return len(self.tokens) if self.probabilities is None else len(self.probabilities)

    @property
    def is_chain(self) -> bool:
        """True if every token follows the one before."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def children(self) -> dict[tuple[int, int], int]:
        """Return which node follows a node (ROOT: the context) with a token; of equal siblings the first."""
        nodes = reversed(range(len(self.tokens)))
        return {(self.parents[node], self.tokens[node]): node for node in nodes}

    def select(self, nodes: Sequence[int]) -> Draft:
        """Return the draft of these nodes alone, ascending. The parent of each must be among them."""
        if len(nodes) == len(self.tokens):
            return self
        place = {ROOT: ROOT} | {node: at for at, node in enumerate(nodes)}
        rows = None if self.probabilities is None else self.probabilities[list(nodes)]
        return Draft(
            [self.tokens[node] for node in nodes],
            [place[self.parents[node]] for node in nodes],
            [self.sources[node] for node in nodes],
            [self.survival[node] for node in nodes],
            rows,
        )

    def likeliest(self, count: int) -> Draft:
        """Return the draft of the ``count`` nodes that are most likely to be accepted."""
        if self.probabilities is not None:
            return self._first(max(0, count))
        if count >= len(self.tokens):
            return self
        # A parent is at least as likely as its children and comes before them: the stable order never leaves it out.
        order = sorted(range(len(self.tokens)), key=lambda node: -self.survival[node])
        return self.select(sorted(order[: max(0, count)]))

    def _first(self, count: int) -> Draft:
        """Return the first ``count`` of the sampled tokens, among which a refused one counts."""
        if self.probabilities is None or count >= self.uncut_length or count > len(self.tokens):
            return self
        return replace(self.select(range(count)), probabilities=self.probabilities[:count], refused=-1)

    def before(self, node: int) -> Draft:
        """Return the part of a chain before ``node``, which cannot be verified."""
        if node >= len(self.tokens):
            return self
        cut = self.select(range(node))
        if self.probabilities is None:
            return cut
        return replace(cut, probabilities=self.probabilities, refused=self.tokens[node])

    def followed_by(self, tokens: Sequence[int], source: str) -> Draft:
        """Return the chain followed by tokens that are certain if all of it is accepted."""
        if not tokens or self.probabilities is not None:
            return self
        count = len(self) + len(tokens)
        return Draft(
            [*self.tokens, *tokens], range(ROOT, count - 1),
            [*self.sources, *[source] * len(tokens)], [*self.survival, *[self.survival[-1]] * len(tokens)],
        )  # fmt: skip

    def without(self, tokens: Collection[int]) -> Draft:
        """Return the draft without these tokens and their descendants."""
        unwanted = next((node for node, token in enumerate(self.tokens) if token in tokens), None)
        if unwanted is None:
            return self
        if self.is_chain:
            return self.before(unwanted)
        kept: dict[int, None] = {ROOT: None}
        for node, parent in enumerate(self.parents):
            if parent in kept and self.tokens[node] not in tokens:
                kept[node] = None
        return self.select(list(kept)[1:])

    def behind_first(self) -> Draft:
        """Return the chain without its first token, which another step feeds."""
        count = len(self.tokens)
        if count < 2:
            return NO_DRAFT
        return Draft(self.tokens[1:], range(ROOT, count - 2), self.sources[1:], self.survival[1:])

    def chain(self) -> Draft:
        """Return the likeliest path as a chain."""
        path: list[int] = []
        while True:
            above = path[-1] if path else ROOT
            below = [node for node, parent in enumerate(self.parents) if parent == above]
            if not below:
                return self.select(path)
            path.append(max(below, key=lambda node: self.survival[node]))


NO_DRAFT = Draft((), (), (), ())


class DraftBuilder:
    """Merges proposals by prefix: a token that two sources propose in the same place is verified once."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._sources: list[str] = []
        self._survival: list[float] = []
        self._children: dict[tuple[int, int], int] = {}
        self._first: Proposal | None = None

    def add(self, source: str, proposal: Proposal, survival: Sequence[float]) -> list[int]:
        """Merge a proposal whose node ``i`` and all before it are accepted with the chance ``survival[i]``.

        Returns the node that each of its tokens became.
        """
        if self._first is None and proposal.tokens:
            self._first = proposal
        nodes: list[int] = []
        for at, token in enumerate(proposal.tokens):
            parent = proposal.parent(at)
            nodes.append(self._node(ROOT if parent == ROOT else nodes[parent], token, source, survival[at]))
        return nodes

    def _node(self, parent: int, token: int, source: str, survival: float) -> int:
        if parent != ROOT:
            survival = min(survival, self._survival[parent])
        node = self._children.get((parent, token))
        if node is None:
            node = self._children[parent, token] = len(self._tokens)
            self._tokens.append(token)
            self._parents.append(parent)
            self._sources.append(source)
            self._survival.append(survival)
        elif survival > self._survival[node]:
            self._survival[node] = survival
        return node

    def build(self) -> tuple[Draft, list[int]]:
        """Return the draft, depth first, and the index in it of each node that :meth:`add` returned."""
        order = self._depth_first()
        place = [0] * len(order)
        for at, node in enumerate(order):
            place[node] = at
        alone = self._first is not None and len(self._first.tokens) == len(order)
        return Draft(
            [self._tokens[node] for node in order],
            [ROOT if self._parents[node] == ROOT else place[self._parents[node]] for node in order],
            [self._sources[node] for node in order],
            [self._survival[node] for node in order],
            self._first.probabilities if alone and self._first is not None else None,
        ), place

    def _depth_first(self) -> list[int]:
        below: dict[int, list[int]] = {}
        for node, parent in enumerate(self._parents):
            below.setdefault(parent, []).append(node)
        order, left = [], below.get(ROOT, [])[::-1]
        while left:
            node = left.pop()
            order.append(node)
            left += below.get(node, [])[::-1]
        return order
