"""A context: the tokens it holds, and the page table of those that are computed."""

from __future__ import annotations

from collections.abc import Sequence

from inferd.protocol import InvalidRequest, LimitExceeded
from inferd_runtime.engine.noise import mix
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable


class ContextSet:
    """Every live context of one engine, in order of creation, over one page pool."""

    def __init__(self, pool: PagePool, *, vocab_size: int, max_length: int) -> None:
        self.pool = pool
        self.vocab_size = vocab_size
        self.max_length = max_length
        self._live: dict[int, Context] = {}

    def create(self, tenant: str) -> Context:
        """An empty root context of a tenant."""
        context = Context(self, tenant)
        self._live[id(context)] = context
        return context

    def adopt(self, context: Context) -> None:
        """Count a fork among the live ones."""
        self._live[id(context)] = context

    def forget(self, context: Context) -> None:
        """A released context holds nothing any more."""
        self._live.pop(id(context), None)

    def evict_for(self, needy: Context) -> bool:
        """Take the pages of one other context; it is recomputed when it is used next. False when nobody else has any.

        The victim is deterministic: contexts that nothing works on before the others, the youngest first.
        """
        others = [context for context in self._live.values() if context is not needy and context.table.pages]
        if not others:
            return False
        idle = [context for context in others if context.user is None]
        (idle or others)[-1].table.release()
        return True


class Context:
    """``tokens[: table.length]`` are in the KV cache, the rest is pending.

    ``lineage`` keys the sampling noise: 0 for a root, different for every fork, so that siblings with one seed differ.
    ``user`` is what works on the context right now; while it is set, nothing else may change it.
    """

    def __init__(self, family: ContextSet, tenant: str) -> None:
        self._family = family
        self.tenant = tenant
        self.max_length = family.max_length
        self.tokens: list[int] = []
        self.table = PageTable(family.pool)
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
            if not 0 <= token < self._family.vocab_size:
                raise InvalidRequest(f"token id {token} is outside the vocabulary of {self._family.vocab_size}")

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens, computed or not. Raises InvalidRequest when there are fewer."""
        if not 0 <= length <= len(self.tokens):
            raise InvalidRequest(f"cannot truncate to {length} tokens: the context holds {len(self.tokens)}")
        del self.tokens[length:]
        self.table.truncate(min(length, self.table.length))

    def fork(self, length: int | None = None) -> Context:
        """A copy of the first ``length`` tokens (None: all) that shares computed pages and draws different noise."""
        child = Context(self._family, self.tenant)
        child.tokens = self.tokens[:length]
        child.table = self.table.fork(length)
        self._forks += 1
        child.lineage = mix(mix(self.lineage) + self._forks)
        self._family.adopt(child)
        return child

    def release(self) -> None:
        """Give the pages back and forget the tokens."""
        self.table.release()
        self.tokens = []
        self._family.forget(self)
