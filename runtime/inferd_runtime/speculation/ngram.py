"""The source that looks up the end of the context in the context itself (prompt lookup)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import NOTHING, ROOT, Proposal
from inferd_runtime.speculation.ngram_index import NgramIndex
from inferd_runtime.speculation.words import NEWEST, WordIndex

MAX_DRAFT = 16
WORD_MATCH = 1
"""What a word that was found by its first letters counts as, in tokens that agree: fewer than any other match has."""
SIGNS_MATCH = 0
"""The same for up to SIGNS tokens without a letter or a digit in any: what follows line breaks and brackets is new more often."""
SIGNS = 3
BRANCH_SHARE = 4
"""If two continuations are proposed, the second gets one of so many tokens."""


class NgramDrafter(Drafter):
    """Proposes the continuation of the newest longest match over prompt and output, and beside it the most frequent one. Where
    no tokens match, it looks for the word that has been begun.

    The controller decides how much of it is verified, by experience with matches of that length. Memory: what
    :class:`NgramIndex` remembers, 256k tokens at most.
    """

    source = "ngram"
    looks_ahead = True

    def __init__(
        self,
        max_draft: int = MAX_DRAFT,
        builder: Executor | None = None,
        tree: bool = True,
        words: WordIndex | None = None,
    ) -> None:
        """``builder`` indexes long texts in the background; it belongs to the caller. ``tree``: propose two continuations; else
        only the most frequent one, which is right a little more often than the newest. ``words``: None where words are not
        looked for.
        """
        self._index = NgramIndex(builder=builder)
        self._words = words
        self._max_draft = max_draft
        self._tree = tree

    @property
    def observed(self) -> int:
        """The number of observed tokens."""
        return self._index.size

    def begin(self, prompt: Sequence[int]) -> None:
        """Index the tokens of the context that are new."""
        self.observe(prompt[self.observed :])

    def observe(self, tokens: Sequence[int]) -> None:
        """Index committed tokens."""
        self._index.extend(tokens)

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """Return the continuation of the longest match, as a chain or a tree of two chains that part at the root."""
        limit, tail = min(limit, self._max_draft), self._index.tail(ahead)
        proposal = look_up(self._index, tail, limit, ahead, self._tree)
        if self._words is None or limit <= 0:
            return proposal
        if not proposal.tokens:
            return self._look_up_word(self._words, tail, limit, ahead)
        agreed = tail[-proposal.match :]
        only_signs = proposal.match <= SIGNS and not self._words.any_letter(agreed)
        return replace(proposal, match=SIGNS_MATCH) if only_signs else proposal

    def _look_up_word(self, words: WordIndex, tail: array[int], limit: int, ahead: Sequence[int]) -> Proposal:
        first, text = self._index.newest(NEWEST)
        found = words.find(text, tail)
        if found is None:
            return NOTHING
        tokens = found.tokens[:limit]
        if found.behind >= 0 and len(tokens) < limit:
            tokens += self._index.continuation(first + found.behind, limit - len(tokens), ahead)
        return Proposal(tokens, match=WORD_MATCH)

    def wait_until_indexed(self) -> None:
        """Wait until all that was observed is indexed, so that proposals no longer depend on time."""
        self._index.wait_until_indexed()

    def resume(self, max_draft: int, tree: bool) -> NgramDrafter:
        """Set the options of the next generation on the context, and return the same drafter."""
        self._max_draft, self._tree = max_draft, tree
        return self

    def fork(self) -> NgramDrafter:
        """Return a copy that shares the index of all but the newest tokens."""
        twin = NgramDrafter(self._max_draft, tree=self._tree, words=self._words)
        twin._index = self._index.fork()
        return twin


def look_up(index: NgramIndex, tail: array[int], limit: int, ahead: Sequence[int] = (), tree: bool = True) -> Proposal:
    """Return how the index's text, followed by ``ahead``, went on after ``tail`` before, in ``limit`` tokens."""
    found = index.find(tail) if limit > 0 else None
    if found is None:
        return NOTHING
    branch = limit // BRANCH_SHARE
    if found.newest == found.frequent or not branch or not tree:
        return Proposal(index.continuation(found.frequent, limit, ahead), match=found.agreement)
    newest = index.continuation(found.newest, limit - branch, ahead)
    frequent = index.continuation(found.frequent, branch, ahead)
    parents = [*range(ROOT, len(newest) - 1), ROOT, *range(len(newest), len(newest) + len(frequent) - 1)]
    return Proposal(newest + frequent, parents[: len(newest) + len(frequent)], found.agreement)
