"""A context in the engine: its tokens, and the pages of the KV cache that hold the computed ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferd.protocol import InvalidRequest, LimitExceeded
from inferd_runtime.engine.sampling.noise import mix
from inferd_runtime.engine.scheduling.tenants import Accounts
from inferd_runtime.engine.sequences.parking import Parked, ParkingSpace
from inferd_runtime.engine.sequences.positions import Positions
from inferd_runtime.engine.sequences.prompt_meter import PromptMarks, PromptMeter
from inferd_runtime.engine.sequences.visibility import RunEnds
from inferd_runtime.kv.account import Account, Allowance, QuotaExceeded
from inferd_runtime.kv.pool import PagePool, PoolExhausted
from inferd_runtime.kv.prefix import PrefixKey
from inferd_runtime.kv.table import PageTable, check_chain
from inferd_runtime.speculation.sources import Memory


class SequenceSet:
    """All live contexts of one engine, in order of creation, over one page pool."""

    def __init__(
        self, pool: PagePool, parking: ParkingSpace, accounts: Accounts, *, vocab_size: int, max_length: int
    ) -> None:
        self.pool = pool
        self.parking = parking
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.reused = 0
        self.looked_up = 0
        self._accounts = accounts
        self._live: dict[int, CachedSequence] = {}

    def create(self, tenant: str, salt: str = "", meter: PromptMeter | None = None) -> CachedSequence:
        """Return a new empty context of a tenant, which shares pages only with those of the same ``salt``."""
        context = CachedSequence(self, self._accounts.of(tenant), salt, PromptMarks(meter or PromptMeter()))
        self._live[id(context)] = context
        return context

    def adopt(self, context: CachedSequence) -> None:
        """Add a fork."""
        self._live[id(context)] = context

    def forget(self, context: CachedSequence) -> None:
        """Remove a released context."""
        self._live.pop(id(context), None)

    def __iter__(self) -> Iterator[CachedSequence]:
        return iter(self._live.values())

    def park_another(self, needy: CachedSequence, *, idle: bool) -> bool:
        """Move one context other than ``needy`` out of the cache until it is used again. Returns False if there is none.

        The victim is deterministic: of the tenant that holds most pages, idle contexts before busy ones, the youngest first.
        ``idle``: only a context that no job works on may leave.
        """
        victim: CachedSequence | None = None
        for context in self:
            if context is needy or not context.table.pages or (idle and context.user is not None):
                continue
            if victim is None or context.rank >= victim.rank:
                victim = context
        if victim is None:
            return False
        victim.park()
        return True

    def check_integrity(self) -> None:
        """Raise AssertionError if a page or charge leaks, or a context's pages and chain are not what its tokens give."""
        self.pool.check_integrity([context.table.pages for context in self])
        meanings = self.pool.index.meanings()
        for context in self:
            context.check_integrity(meanings)
        for account in self._accounts:
            mine = [context for context in self if context.account is account]
            parked = sum(context.parked.charged for context in mine if context.parked is not None)
            paid = sum(context.table.allowance.paid for context in mine if context.table.allowance is not None)
            held = self.pool.charged(account)
            assert account.used == held + parked + paid, (
                f"{account}: {held} pages held, {parked} parked, {paid} paid for"
            )
            tokens = sum(len(context.tokens) + context.positions.weight for context in mine)
            assert account.tokens == tokens, f"{account}: {tokens} tokens held"
        buffers = {
            id(c.parked.buffer): c.parked.buffer for c in self if c.parked is not None and c.parked.buffer is not None
        }
        assert self.parking.used == sum(buffer.nbytes for buffer in buffers.values()), "host memory leaks"


class CachedSequence:
    """One context. ``tokens[: computed]`` are in the KV cache or parked on the host, the rest is pending.

    ``lineage`` keys the sampling noise: 0 for a root, different for every fork, so that siblings with one seed differ. ``user``
    is the job that works on the context; while it is set, nothing else may change the context. From ``irregular_from`` on
    (None: nowhere) the KV does not follow from the tokens alone, and is not shared by prefix. ``rows_from``: logits are
    requested from that token on, so its K and V must not be reused (None: from the last one). ``memory`` is the drafter of the
    last generation, for the next one to take over. ``salt`` is a part of what its pages are found by. ``cuts`` counts how often
    tokens were taken away: what a step in flight computes of a context that was cut may be of others than now stand there.
    ``row_seconds``: what its job took in its last step, beside the rows; None before the first.
    """

    def __init__(self, family: SequenceSet, account: Account, salt: str, marks: PromptMarks) -> None:
        self._family = family
        self._marks = marks
        self.account = account
        self.salt = salt
        self.adapter = ""
        self.positions = Positions()
        self.rows_from: int | None = None
        self.tokens: list[int] = []
        self.table = PageTable(family.pool, account, self._root)
        self.parked: Parked | None = None
        self.lineage = 0
        self.user: object | None = None
        self.reused = 0
        self.forks = 0
        self.cuts = 0
        self.memory: Memory | None = None
        self.row_seconds: float | None = None

    @property
    def _root(self) -> tuple[str, str, str]:
        return self.account.tenant, self.adapter, self.salt

    @property
    def max_length(self) -> int:
        """The number of tokens that it may hold: neither an index nor a position may go beyond the model's."""
        return self.model_length - max(0, self.positions.shift)

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return self._family.vocab_size

    @property
    def model_length(self) -> int:
        """The number of positions that the model knows."""
        return self._family.max_length

    @property
    def tenant(self) -> str:
        """The tenant that owns the context."""
        return self.account.tenant

    @property
    def rank(self) -> tuple[int, str, bool]:
        """The order in which contexts leave the cache, highest first: by the tenant's pages, then idle before busy."""
        return self.account.used, self.account.tenant, self.user is None

    @property
    def irregular_from(self) -> int | None:
        """The first token whose K and V do not follow from the tokens alone; None if all do."""
        return self.table.private_from

    @property
    def computed(self) -> int:
        """The number of tokens whose K and V exist."""
        if self.parked is not None:
            return self.parked.length if self.parked.buffer is not None else 0
        return self.table.length

    @property
    def pending(self) -> int:
        """The number of tokens that are not computed yet."""
        if self.parked is not None:
            return len(self.tokens) - self.computed
        return len(self.tokens) - self.table.length

    def append(self, tokens: Sequence[int]) -> None:
        """Add pending tokens. Raises InvalidRequest for an id outside the vocabulary, LimitExceeded past the context."""
        if len(self.tokens) + len(tokens) > self.max_length:
            raise LimitExceeded(
                f"the prompt needs {len(self.tokens) + len(tokens)} tokens, the model's context holds {self.max_length}",
                limit="context_tokens", value=self.max_length, raise_with="a model with a longer context",
            )  # fmt: skip
        self.check_tokens(tokens)
        self._extend(tokens)

    def write(self, tokens: Sequence[int]) -> None:
        """Add generated tokens, which are checked."""
        self._extend(tokens)
        self._marks.write(len(self.tokens))

    def _extend(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self.account.tokens += len(tokens)

    def count_prompt(self) -> None:
        """Count the tokens that were added since the last job in the session's meter: a job on them begins."""
        self._marks.count(len(self.tokens))

    def note_restored(self, length: int) -> None:
        """Note that the first ``length`` tokens came with their K and V."""
        self._marks.restored = length

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Check token ids. Raises InvalidRequest for one outside the vocabulary."""
        if tokens and not (min(tokens) >= 0 and max(tokens) < self._family.vocab_size):
            wrong = next(token for token in tokens if not 0 <= token < self._family.vocab_size)
            raise InvalidRequest(f"token id {wrong} is outside the vocabulary of {self._family.vocab_size}")

    def check_unused(self) -> None:
        """Raises InvalidRequest while a job works on the context."""
        if self.user is not None:
            raise InvalidRequest("the context is in use: close its generation or wait for its operation first")

    def check_room_behind(self) -> None:
        """Check that a token can be generated. Raises InvalidRequest if the context is empty, LimitExceeded if it is full."""
        if not self.tokens:
            raise InvalidRequest("the context is empty: add a prompt first")
        if len(self.tokens) >= self.max_length:
            raise LimitExceeded(
                f"the context is full: {self.max_length} tokens",
                limit="context_tokens", value=self.max_length, raise_with="a model with a longer context",
            )  # fmt: skip

    # -- Truncate, fork, release ----------------------------------------------------------------------------------

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens, computed or not. Raises InvalidRequest if there are fewer."""
        if not 0 <= length <= len(self.tokens):
            raise InvalidRequest(f"cannot truncate to {length} tokens: the context holds {len(self.tokens)}")
        self.cuts += length < len(self.tokens)
        self.account.tokens -= len(self.tokens) - length + self.positions.weight
        del self.tokens[length:]
        self.positions.truncate(length)
        self.account.tokens += self.positions.weight
        self.uncompute(length)
        self._marks.cut(length)
        if self.irregular_from is not None and length <= self.irregular_from:
            self.table.private_from = None
        if self.memory is not None and length < self.memory.length:
            self.memory = None

    def uncompute(self, length: int) -> None:
        """Keep the K and V of at most ``length`` tokens; the tokens after them become pending again."""
        if self.parked is not None:
            self._truncate_parked(self.parked, length)
        elif length < self.table.length:
            self.table.truncate(length)

    def _truncate_parked(self, parked: Parked, length: int) -> None:
        size = self._family.pool.page_size
        parked.length = min(length, parked.length)
        parked.pages = min(parked.pages, -(-parked.length // size))
        del parked.chain[parked.length // size :]
        if parked.charged > parked.pages:
            self.account.refund(parked.charged - parked.pages)
            parked.charged = parked.pages
        if not parked.length:
            self.drop_computed()

    def fork(self, length: int | None = None, *, own_noise: bool = True) -> CachedSequence:
        """Return a copy of the first ``length`` tokens (None: all) that shares the computed pages.

        It has its own noise, unless it is to stand for this one.
        """
        held = len(self.tokens[:length])
        child = CachedSequence(self._family, self.account, self.salt, self._marks.fork(self.computed, held))
        child.adapter = self.adapter
        child._extend(self.tokens[:length])
        child.positions = self.positions.copy(len(child.tokens))
        self.account.tokens += child.positions.weight
        if self.parked is not None:
            size = self._family.pool.page_size
            child.parked = self._family.parking.share(self.parked, len(child.tokens), size)
        child.table = self.table.fork(length)
        if self.irregular_from is not None and self.irregular_from >= len(child.tokens):
            child.table.private_from = None
        if self.memory is not None and self.memory.length <= len(child.tokens):
            child.memory = self.memory.fork()
        if own_noise:
            self.forks += 1
            child.lineage = mix(mix(self.lineage) + self.forks)
        else:
            child.lineage, child.forks = self.lineage, self.forks
        self._family.adopt(child)
        return child

    def check_integrity(self, meanings: dict[int, PrefixKey]) -> None:
        """Raise AssertionError unless table, chain and positions are what the tokens give.

        ``meanings``: see :func:`~inferd_runtime.kv.table.check_chain`.
        """
        first, private = self.positions.irregular_from, self.irregular_from
        assert first is None or (private is not None and private <= first), (
            f"irregular from {first}, private from {private}"
        )
        assert self.table.root == self._root, f"{self.table.root} is before the first page"
        self.table.check_integrity(self.tokens, meanings)
        if self.parked is None:
            return
        size, length = self._family.pool.page_size, self.parked.length
        assert not self.table.pages, "a parked context holds pages"
        assert length <= len(self.tokens), f"{length} tokens parked of {len(self.tokens)}"
        assert len(self.parked.chain) * size <= length, "a parked chain is longer than what is computed"
        check_chain(self.table.root, self.parked.chain, self.tokens, size, meanings)

    def release(self) -> None:
        """Free the pages, and forget the tokens."""
        self.drop_computed()
        self.account.tokens -= len(self.tokens) + self.positions.weight
        self.tokens, self.positions = [], Positions()
        self.memory = None
        self._family.forget(self)

    # -- What the KV depends on besides the tokens ----------------------------------------------------------------

    def use_adapter(self, adapter: str) -> None:
        """Compute with this adapter from now on. Drops what another one computed."""
        if adapter == self.adapter:
            return
        self.drop_computed()
        self.adapter = adapter
        self.table.root = self._root

    def mark_irregular(self, start: int) -> None:
        """Mark that from token ``start`` on, the K and V do not follow from the tokens alone."""
        if self.irregular_from is None:
            self.table.private_from = start

    def place(self, start: int, positions: Sequence[int], visible: Sequence[RunEnds]) -> None:
        """Set positions and visibility of the tokens from ``start`` on, all pending. Empty: as in plain text."""
        self.account.tokens -= self.positions.weight
        self.positions.place(start, positions)
        self.positions.restrict(start, visible)
        self.account.tokens += self.positions.weight
        self._mark_placed()

    def place_all(self, positions: Positions) -> None:
        """Set positions and visibility of all tokens, all pending."""
        self.account.tokens += positions.weight - self.positions.weight
        self.positions = positions
        self._mark_placed()

    def _mark_placed(self) -> None:
        first = self.positions.irregular_from
        if first is not None:
            self.mark_irregular(first)

    def reuse_prefix(self) -> int:
        """Take over pages that already hold the next pending tokens. Returns how many tokens that saves.

        The last token stays pending, as its logits are needed, and so do all from ``rows_from`` on, if that is set. Raises
        LimitExceeded at the tenant's quota.
        """
        try:
            limit = len(self.tokens) - 1
            return self.table.reuse(self.tokens, limit if self.rows_from is None else min(limit, self.rows_from))
        except QuotaExceeded:
            raise quota_error(self.account, 1) from None

    def count_reused(self, tokens: int) -> None:
        """Count tokens that did not have to be computed."""
        self.reused += tokens
        self._family.reused += tokens
        self._marks.find(self.table.length - tokens, self.table.length)

    # -- Out of the cache and back --------------------------------------------------------------------------------

    def park(self) -> None:
        """Leave the cache: the pages move to host memory, or are dropped and recomputed later if that is full."""
        self.table.trim()
        before, length, chain, pages = self.account.used, self.table.length, self.table.chain, self.table.pages
        buffer = self._family.parking.store(pages)
        if buffer is None:
            self._marks.drop(length)
        left = self._return_allowance()
        self.table.release()
        charged = before - self.account.used
        self.account.used += charged
        self.parked = Parked(length, len(pages) + left, charged, chain, buffer)

    def pages_wanted(self, extra: int) -> int:
        """Return how many pages it takes to come back into the cache, if parked, and feed ``extra`` tokens."""
        if self.parked is None:
            return self.table.wanted(extra)
        pool = self._family.pool
        old = self.table.held_again(self.parked.chain) if self.parked.buffer is not None else []
        return -(-(self.computed + extra) // pool.page_size) - sum(map(pool.is_held, old))

    def over_quota(self, pages: int) -> bool:
        """True if the tenant's quota has no room for that many pages, beyond those that it held before it was parked."""
        if self.parked is not None:
            return self.account.short(pages - self.parked.pages)
        allowance = self.table.allowance
        return self.account.short(pages - (0 if allowance is None else allowance.paid + allowance.forgiven))

    def unpark(self) -> None:
        """Come back into the cache. Raises PoolExhausted, and stays parked, if there is no room."""
        parked = self.parked
        if parked is None:
            return
        self.table.allowance = Allowance(parked.charged, parked.pages - parked.charged)
        if parked.buffer is not None:
            try:
                old = self.table.come_back(parked.chain, parked.length)
            except PoolExhausted:
                self.table.allowance = None
                raise
            data = parked.buffer.data[old : len(self.table.pages)]
            self._family.parking.mover.write_pages(self.table.pages[old:], data)
            self.table.republish(self.tokens, parked.chain)
            self._return_allowance()
        self._family.parking.discard(parked)
        self.parked = None

    def reserve(self, extra: int) -> None:
        """Reserve pages of its own for ``extra`` tokens after the computed ones.

        Raises PoolExhausted or QuotaExceeded, and changes nothing, if there is no room.
        """
        copies = self.table.reserve(extra)
        if copies:
            # At once, as the page that is copied may have another owner before the step begins.
            self._family.parking.mover.copy_pages(copies)

    def drop_computed(self) -> None:
        """Drop all K and V; the tokens become pending."""
        self._marks.drop(self.computed)
        self._return_allowance()
        self.table.release()
        if self.parked is not None:
            self.account.refund(self.parked.charged)
            self._family.parking.discard(self.parked)
            self.parked = None

    def _return_allowance(self) -> int:
        """Give up what is left of the allowance for coming back, and return how many pages that is."""
        allowance, self.table.allowance = self.table.allowance, None
        if allowance is None:
            return 0
        self.account.refund(allowance.paid)
        return allowance.paid + allowance.forgiven


def quota_error(account: Account, pages: int) -> LimitExceeded:
    """Return the error for a tenant whose quota has no room for ``pages`` more."""
    most = max(account.quota, 0)
    return LimitExceeded(
        f"tenant {account.tenant!r} may hold {most} KV pages and holds {account.used}; {pages} more are needed",
        limit="tenant_kv_pages", value=most, raise_with="releasing contexts, or a higher quota of the tenant",
    )  # fmt: skip
