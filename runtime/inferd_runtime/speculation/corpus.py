"""The source that looks up the end of the context in other outputs of the same tenant, for requests that opt in.

An accepted draft is faster than a rejected one, so a corpus's content can be observed from outside by timing. Therefore it
never leaves its tenant, and holds outputs of requests that opted in, never prompts. Other tenants do not affect it either: if it
made room for theirs, its loss would show a tenant that they are at work.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from concurrent.futures import Executor

from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import Proposal
from inferd_runtime.speculation.ngram import MAX_DRAFT, look_up
from inferd_runtime.speculation.ngram_index import END, REACH, NgramIndex

ORDERS = (4, 8)
"""Shorter matches say little about how another text goes on."""
CAPACITY = 1 << 18
"""Tokens of one tenant; the oldest are forgotten. About 24 bytes each, 8 MB in all."""
CONTRIBUTION = 32_768
"""Tokens that one generation contributes at most: its first ones."""


class Corpus:
    """The outputs of one tenant's generations with one model, one after the other."""

    def __init__(self, capacity: int = CAPACITY, builder: Executor | None = None) -> None:
        """``capacity`` in tokens, 2**20 at most; ``builder`` indexes in the background and belongs to the caller."""
        self.index = NgramIndex(ORDERS, capacity, builder)

    def add(self, output: Sequence[int]) -> None:
        """Add a whole output."""
        self.index.extend([*output, END])


class Corpora:
    """The corpora of one model, by tenant.

    Each tenant has as much room as it would have alone, and all together have no bound: the operator names the tenants, and so
    has memory for them. With a bound, one tenant's use could cost another its corpus, which can be timed.
    """

    def __init__(self, builder: Executor | None = None, capacity: int = CAPACITY) -> None:
        """``capacity`` tokens for each tenant; ``builder`` belongs to the caller."""
        self._builder = builder
        self._capacity = capacity
        self._corpora: dict[str, Corpus] = {}

    def of(self, tenant: str) -> Corpus:
        """Return the tenant's corpus, a new one if there is none."""
        corpus = self._corpora.get(tenant)
        if corpus is None:
            corpus = self._corpora[tenant] = Corpus(self._capacity, self._builder)
        return corpus

    def drafter(self, tenant: str, max_draft: int = MAX_DRAFT, tree: bool = True) -> CorpusDrafter:
        """Return a drafter for one generation of that tenant."""
        return CorpusDrafter(self.of(tenant), max_draft, tree)


class CorpusDrafter(Drafter):
    """Proposes how other outputs went on after the end of this context, and adds its own output when it ends."""

    source = "corpus"
    looks_ahead = True

    def __init__(self, corpus: Corpus, max_draft: int = MAX_DRAFT, tree: bool = True) -> None:
        """``tree``: propose two continuations."""
        self._corpus = corpus
        self._max_draft = max_draft
        self._tree = tree
        self._tail = array("i")
        self._output: array[int] | None = None

    def observe(self, tokens: Sequence[int]) -> None:
        """Keep the output. The first call brings the prompt, which is not contributed."""
        self._tail = (self._tail + array("i", tokens[-REACH:]))[-REACH:]
        if self._output is None:
            self._output = array("i")
        else:
            self._output += array("i", tokens[: CONTRIBUTION - len(self._output)])

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """Return the continuation of the longest match."""
        tail = (self._tail + array("i", ahead))[-REACH:]
        return look_up(self._corpus.index, tail, min(limit, self._max_draft), tree=self._tree)

    def drop(self) -> None:
        """Contribute the output."""
        if self._output:
            self._corpus.add(self._output)
        self._output = None
