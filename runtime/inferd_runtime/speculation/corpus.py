"""Lookup in what the same tenant's other generations wrote. Only for requests that ask for it.

A draft that is accepted is faster than one that is not, so what a corpus holds can be told from outside by timing. Therefore it
never leaves its tenant, and holds outputs of requests that opted in, never prompts. Nor does what others do change it: were it
to make room for theirs, its loss would tell a tenant that they are at work.
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
"""Two or three tokens in common say little about what another text goes on with."""
CAPACITY = 1 << 18
"""Tokens of one tenant; the oldest are forgotten. About 24 bytes each, 8 MB in all."""
CONTRIBUTION = 32_768
"""Tokens that one generation leaves behind, at most: its first."""


class Corpus:
    """What one tenant's generations wrote with one model, one output behind the other."""

    def __init__(self, capacity: int = CAPACITY, builder: Executor | None = None) -> None:
        """``capacity`` in tokens, 2**20 at most; ``builder`` indexes in the background and belongs to the caller."""
        self.index = NgramIndex(ORDERS, capacity, builder)

    def add(self, output: Sequence[int]) -> None:
        """Remember a whole output."""
        self.index.extend([*output, END])


class Corpora:
    """The corpora of one model, by tenant.

    Each tenant has as much room as it would have alone, and there is no bound on all together: the operator names the tenants,
    so these are as many as it has memory for. A bound would let one tenant's use cost another its corpus, or its turn to have
    one, and both can be timed.
    """

    def __init__(self, builder: Executor | None = None, capacity: int = CAPACITY) -> None:
        """``capacity`` tokens for each tenant; ``builder`` belongs to the caller."""
        self._builder = builder
        self._capacity = capacity
        self._corpora: dict[str, Corpus] = {}

    def of(self, tenant: str) -> Corpus:
        """The tenant's corpus, new where there is none."""
        corpus = self._corpora.get(tenant)
        if corpus is None:
            corpus = self._corpora[tenant] = Corpus(self._capacity, self._builder)
        return corpus

    def drafter(self, tenant: str, max_draft: int = MAX_DRAFT, tree: bool = True) -> CorpusDrafter:
        """A source for one generation of that tenant."""
        return CorpusDrafter(self.of(tenant), max_draft, tree)


class CorpusDrafter(Drafter):
    """Proposes how other outputs went on where they read like the end of this context; leaves its own behind when it ends."""

    source = "corpus"

    def __init__(self, corpus: Corpus, max_draft: int = MAX_DRAFT, tree: bool = True) -> None:
        """``tree``: whether to propose two continuations."""
        self._corpus = corpus
        self._max_draft = max_draft
        self._tree = tree
        self._tail = array("i")
        self._output: array[int] | None = None

    def observe(self, tokens: Sequence[int]) -> None:
        """The first call brings the prompt, which is not contributed; the others output."""
        self._tail = (self._tail + array("i", tokens[-REACH:]))[-REACH:]
        if self._output is None:
            self._output = array("i")
        else:
            self._output += array("i", tokens[: CONTRIBUTION - len(self._output)])

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """The continuation of the longest match."""
        tail = (self._tail + array("i", ahead))[-REACH:]
        return look_up(self._corpus.index, tail, min(limit, self._max_draft), tree=self._tree)

    def drop(self) -> None:
        """Contribute the output."""
        if self._output:
            self._corpus.add(self._output)
        self._output = None
