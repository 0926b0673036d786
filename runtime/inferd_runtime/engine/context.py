"""A context: the tokens it holds, and the page table of those that are computed."""

from __future__ import annotations

from collections.abc import Sequence

from inferd.protocol import InvalidRequest, LimitExceeded

from inferd_runtime.engine.noise import mix
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable


class Context:
    """``tokens[: table.length]`` are in the KV cache, the rest is pending.

    ``lineage`` keys the sampling noise: 0 for a root, different for every fork, so that siblings with one seed differ.
    ``user`` is what works on the context right now; while it is set, nothing else may change it.
    """

    def __init__(self, pool: PagePool, *, vocab_size: int, max_length: int) -> None:
        self._pool = pool
        self._vocab_size = vocab_size
        self.max_length = max_length
        self.tokens: list[int] = []
        self.table = PageTable(pool)
        self.lineage = 0
        self.user: object | None = None
        self._forks = 0

    @property
    def pending(self) -> int:
        """Tokens that are not computed yet."""
        return len(self.tokens) - self.table.length

    def append(self, tokens: Sequence[int]) -> None:
        """Add pending tokens. Raises InvalidRequest for an id outside the vocabulary, LimitExceeded past the context."""
        if len(self.tokens) + len(tokens) > self.max_length:
            raise LimitExceeded(
                f"the prompt needs {len(self.tokens) + len(tokens)} tokens, the model's context holds {self.max_length}",
                limit="context_tokens", value=self.max_length, raise_with="a model with a longer context",
            )  # fmt: skip
        self.check_tokens(tokens)
        self.tokens.extend(tokens)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise InvalidRequest for an id outside the vocabulary."""
        for token in tokens:
            if not 0 <= token < self._vocab_size:
                raise InvalidRequest(f"token id {token} is outside the vocabulary of {self._vocab_size}")

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens, computed or not. Raises InvalidRequest when there are fewer."""
        if not 0 <= length <= len(self.tokens):
            raise InvalidRequest(f"cannot truncate to {length} tokens: the context holds {len(self.tokens)}")
        del self.tokens[length:]
        self.table.truncate(min(length, self.table.length))

    def fork(self) -> Context:
        """A copy that shares computed pages and draws different noise."""
        child = Context(self._pool, vocab_size=self._vocab_size, max_length=self.max_length)
        child.tokens = list(self.tokens)
        child.table = self.table.fork()
        self._forks += 1
        child.lineage = mix(mix(self.lineage) + self._forks)
        return child

    def release(self) -> None:
        """Give the pages back and forget the tokens."""
        self.table.release()
        self.tokens = []
