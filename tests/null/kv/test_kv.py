"""The page pool, page tables and the prefix index against a plain list model, driven at random."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from tiers import examples

from inferd_runtime.kv.account import Account, Allowance, QuotaExceeded
from inferd_runtime.kv.pool import PagePool, PoolExhausted
from inferd_runtime.kv.prefix import PrefixIndex
from inferd_runtime.kv.table import PageTable, check_chain

PAGE = 4
PAGES = 14


def kv(root: str, tokens: list[int]) -> int:
    """What stands for the K and V of the last token: it depends on everything before, as in a model."""
    return hash((root, tuple(tokens)))


class Left(NamedTuple):
    """What a table that left the cache takes with it."""

    data: list[int]
    chain: list[int]
    pages: int
    charged: int


class Tables(RuleBasedStateMachine):
    """Each table's memory, read through its pages, must be what its own tokens give; no page may leak or be overwritten.

    Two tenants, few different tokens and pages: many prefixes coincide, and what is found must have been computed from the
    same tokens for the same tenant. Tables leave the cache and come back.
    """

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, PAGE)
        self.memory: dict[int, list[int]] = {page: [-1] * PAGE for page in range(PAGES)}
        self.accounts = {"a": Account("a", quota=10), "b": Account("b")}
        self.models: dict[int, tuple[PageTable, str, list[int]]] = {}
        self.left: dict[int, Left] = {}
        self.forgiving = False
        self.found = self.copied = self.back = 0

    def here(self, table: PageTable) -> bool:
        """Bring a table back into the cache. False if there is no room."""
        left = self.left.get(id(table))
        if left is None:
            return True
        _, tenant, model = self.models[id(table)]
        table.allowance = Allowance(left.charged, left.pages - left.charged)
        before = self.pool.available, self.accounts[tenant].used
        try:
            old = table.come_back(left.chain, len(model))
        except PoolExhausted:
            assert before == (self.pool.available, self.accounts[tenant].used)
            assert not table.pages
            table.allowance = None
            return False
        del self.left[id(table)]
        self.back += 1
        assert self.accounts[tenant].used == before[1], "it was on the account all the time"
        assert len(table.pages) == left.pages
        self.accounts[tenant].refund(table.allowance.paid)
        table.allowance = None
        for at in range(old * PAGE, len(model)):
            self.memory[table.pages[at // PAGE]][at % PAGE] = left.data[at]
        table.republish(model, left.chain)
        assert len(table.chain) == len(left.chain)
        return True

    @rule(target=tables, tenant=st.sampled_from("ab"))
    def create(self, tenant: str) -> PageTable:
        table = PageTable(self.pool, self.accounts[tenant], (tenant, ""))
        self.models[id(table)] = (table, tenant, [])
        return table

    @rule(table=tables, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9), kept=st.integers(0, 9))
    def write(self, table: PageTable, tokens: list[int], kept: int) -> None:
        if not self.here(table):
            return
        _, tenant, model = self.models[id(table)]
        before = (list(table.pages), table.length, list(table.chain))
        wanted = table.wanted(len(tokens))
        if wanted > self.pool.available or self.accounts[tenant].short(wanted):
            with pytest.raises((PoolExhausted, QuotaExceeded)):
                table.reserve(len(tokens))
            assert before == (table.pages, table.length, table.chain)
            return
        available = self.pool.available
        for copy in table.reserve(len(tokens)):
            self.memory[copy.target] = list(self.memory[copy.source])
            self.copied += 1
        assert self.pool.available == available - wanted
        for at, _ in enumerate(tokens, start=table.length):
            written = model + tokens[: at + 1 - table.length]
            self.memory[table.pages[at // PAGE]][at % PAGE] = kv(tenant, written)
        model.extend(tokens[:kept])
        table.advance(min(kept, len(tokens)))
        table.publish(model)

    @rule(table=tables, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def reuse(self, table: PageTable, tokens: list[int]) -> None:
        if not self.here(table):
            return
        _, _, model = self.models[id(table)]
        wanted = model + tokens
        before = table.length
        try:
            found = table.reuse(wanted, len(wanted) - 1)
        except QuotaExceeded:
            assert table.length == before
            return
        assert table.length == before + found < len(wanted)
        model.extend(tokens[:found])
        self.found += found > 0

    @rule(target=tables, table=tables, share=st.floats(0, 1))
    def fork(self, table: PageTable, share: float) -> Any:
        if not self.here(table):
            return multiple()
        length = int(table.length * share)
        child = table.fork(length)
        _, tenant, model = self.models[id(table)]
        self.models[id(child)] = (child, tenant, model[:length])
        return child

    @rule(table=tables, share=st.floats(0, 1))
    def truncate(self, table: PageTable, share: float) -> None:
        if not self.here(table):
            return
        length = int(table.length * share)
        table.truncate(length)
        del self.models[id(table)][2][length:]

    @rule(table=tables)
    def leave(self, table: PageTable) -> None:
        if not self.here(table) or not table.length:
            return
        table.trim()
        account, pages = self.accounts[self.models[id(table)][1]], len(table.pages)
        data, chain, before = self.read(table), list(table.chain), account.used
        table.release()
        charged = before - account.used
        account.used = before
        self.left[id(table)] = Left(data, chain, pages, charged)
        self.forgiving |= charged < pages

    @rule(table=consumes(tables))
    def release(self, table: PageTable) -> None:
        if not self.here(table):
            self.accounts[self.models[id(table)][1]].refund(self.left.pop(id(table)).charged)
        table.release()
        assert (table.pages, table.chain, table.length) == ([], [], 0)
        del self.models[id(table)]

    def read(self, table: PageTable) -> list[int]:
        return [self.memory[table.pages[at // PAGE]][at % PAGE] for at in range(table.length)]

    @invariant()
    def contents_are_right(self) -> None:
        for table, tenant, model in self.models.values():
            left = self.left.get(id(table))
            read = self.read(table) if left is None else left.data
            assert read == [kv(tenant, model[: at + 1]) for at in range(len(model))]

    @invariant()
    def nothing_leaks(self) -> None:
        self.pool.check_integrity([table.pages for table, _, _ in self.models.values()])
        meanings = self.pool.index.meanings()
        for table, _, model in self.models.values():
            table.check_integrity(model, meanings)
        for name, account in self.accounts.items():
            mine = {page for table, tenant, _ in self.models.values() if tenant == name for page in table.pages}
            charged = self.pool.charged(account)
            assert charged == len(mine) or (self.forgiving and charged < len(mine))
            away = sum(left.charged for key, left in self.left.items() if self.models[key][1] == name)
            assert account.used == charged + away


TestTables: Any = Tables.TestCase
TestTables.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)


def some_words(rng: random.Random) -> list[int]:
    """Tokens that fill pages often, and alike."""
    return [
        token
        for _ in range(rng.randint(1, 4))
        for token in rng.choice([[0] * 4, [0] * 4, [0] * 4, [1, 1, 1, 0], [0, 0, 1], [1]])
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_long_schedule_loses_nothing(seed: int) -> None:
    """The same events at random, more of them, and such that pages are found, shared, cut and evicted."""
    rng, machine = random.Random(seed), Tables()
    tables: list[PageTable] = []
    for _ in range(700):
        if len(tables) < 2 or rng.random() < 0.1:
            tables.append(machine.create(rng.choice("aab")))
        table = rng.choice(tables)
        what = rng.choices(["write", "reuse", "fork", "truncate", "leave", "release"], [7, 4, 4, 2, 2, 2])[0]
        if len(tables) > 5:
            what = "release"
        if what == "write":
            machine.write(table, some_words(rng), rng.choice([99, 99, 1, 4]))
        elif what == "reuse":
            machine.reuse(table, some_words(rng) * 2)
        elif what == "fork" and machine.here(table):
            tables.append(machine.fork(table, rng.choice([rng.random(), 1.0])))
        elif what == "truncate":
            machine.truncate(table, rng.random())
        elif what == "leave":
            machine.leave(table)
        elif what == "release":
            tables.remove(table)
            machine.release(table)
        machine.contents_are_right()
        machine.nothing_leaks()
        if machine.here(table) and what != "release":
            assert table.has_room(3) == (table.wanted(3) == 0)
    assert min(machine.found, machine.copied, machine.back) > 3, "the schedule meets what it is for"


def filled(pool: PagePool, tokens: list[int], root: object = "t") -> PageTable:
    """A table that has computed the tokens."""
    table = PageTable(pool, Account(), root)
    table.reserve(len(tokens))
    table.advance(len(tokens))
    table.publish(tokens)
    return table


def test_a_page_cannot_be_released_twice() -> None:
    pool = PagePool(2, PAGE)
    pages = pool.take(1, Account())
    pool.release(pages)
    with pytest.raises(ValueError, match="twice"):
        pool.release(pages)
    with pytest.raises(ValueError, match="free"):
        pool.share(pages)


def test_a_failed_take_takes_nothing() -> None:
    pool, account = PagePool(3, PAGE), Account()
    with pytest.raises(PoolExhausted, match="4 KV pages wanted, 3 of 3 free"):
        pool.take(4, account)
    assert (pool.available, account.used) == (3, 0)
    with pytest.raises(QuotaExceeded, match="2 more KV pages wanted, 0 of 1 used"):
        pool.take(2, Account("t", quota=1))
    assert pool.available == 3


@pytest.mark.parametrize(("pages", "page_size"), [(0, 1), (1, 0), (-1, -1)])
def test_a_pool_has_a_page_and_a_page_a_token(pages: int, page_size: int) -> None:
    with pytest.raises(ValueError, match="at least one page of one token"):
        PagePool(pages, page_size)
    assert PagePool(1, 1).take(1, Account()) == [0]
    assert PagePool(1, 1).take(0, Account()) == []


def test_a_page_that_was_forgiven_is_charged_to_who_has_paid_for_it() -> None:
    pool, one, two = PagePool(4, PAGE), Account("one"), Account("two")
    pages = pool.take(2, one, Allowance(forgiven=2))
    assert (one.used, pool.charged(one)) == (0, 0)
    pool.adopt(pages, two)
    assert (two.used, pool.charged(two)) == (0, 0), "whoever shares it owes nothing"
    two.charge(1)
    paid = Allowance(paid=1)
    pool.adopt(pages, two, paid)
    assert (two.used, pool.charged(two), paid.paid) == (1, 1, 0)
    for _ in range(3):
        pool.release(pages)
    assert (two.used, pool.available) == (0, 4)


def test_an_allowance_is_used_before_the_account_is_charged() -> None:
    pool, account = PagePool(12, PAGE), Account("t", quota=3, used=1)
    allowance = Allowance(paid=1, forgiven=1)
    pages = pool.take(3, account, allowance)
    assert (account.used, pool.charged(account), allowance) == (2, 2, Allowance(0, 0))
    pool.release(pages)
    assert account.used == 0
    plenty = Allowance(paid=5, forgiven=5)
    pool.take(7, account, plenty)
    assert (account.used, pool.charged(account), plenty) == (0, 5, Allowance(0, 3))
    with pytest.raises(QuotaExceeded, match="4 more KV pages wanted"):
        pool.take(5, account, Allowance(paid=1))
    assert pool.available == 5


def test_a_page_is_held_kept_or_free() -> None:
    pool, tokens = PagePool(3, PAGE), list(range(8))
    table = filled(pool, tokens)
    assert [pool.is_held(page) for page in range(3)] == [True, True, False]
    pool.check_integrity([table.pages])
    table.release()
    assert (pool.is_held(0), pool.kept, pool.available) == (False, 2, 3)
    pool.forget_kept()
    assert (pool.kept, pool.available, len(pool.index)) == (0, 3, 0)
    pool.check_integrity([])


def test_old_pages_that_nobody_holds_are_no_room_for_others() -> None:
    pool, tokens = PagePool(3, PAGE), list(range(10))
    table = filled(pool, tokens)
    chain = list(table.chain)
    table.release()
    taken = pool.take(1, Account())
    with pytest.raises(PoolExhausted, match="1 KV pages wanted, 2 free"):
        table.come_back(chain, 10)
    assert (table.pages, pool.kept) == ([], 2)
    pool.release(taken)
    assert table.come_back(chain, 10) == 2
    assert (table.pages[:2], table.length, table.chain) == ([0, 1], 10, chain)


@pytest.mark.parametrize("fault", ["lost", "counted twice", "free twice", "free and kept", "uncharged", "index"])
def test_a_pool_whose_books_are_wrong_is_found(fault: str) -> None:
    pool = PagePool(4, PAGE)
    table = filled(pool, list(range(8)))
    owners = [table.pages]
    if fault == "lost":
        owners = []
    elif fault == "counted twice":
        owners *= 2
    elif fault == "free twice":
        pool._free.append(3)
    elif fault == "free and kept":
        pool._kept[3] = None
    elif fault == "uncharged":
        pool._accounts[3] = Account()
    else:
        pool.index._pages[1] = 3
    with pytest.raises(AssertionError):
        pool.check_integrity(owners)


def test_an_account_may_be_used_up_but_no_further() -> None:
    account = Account("t", quota=5)
    account.charge(3)
    assert not account.short(2)
    assert account.short(3)
    account.charge(2)
    with pytest.raises(QuotaExceeded, match="1 more KV pages wanted, 5 of 5 used"):
        account.charge(1)
    assert account.used == 5
    assert not Account("t", used=9).short(1)


def test_what_was_not_reserved_cannot_be_counted() -> None:
    table = PageTable(PagePool(4, PAGE))
    table.reserve(4)
    table.advance(3)
    with pytest.raises(ValueError, match="2 tokens were not reserved"):
        table.advance(2)
    table.advance(1)
    assert table.length == 4


def test_there_is_room_in_pages_of_ones_own() -> None:
    pool = PagePool(8, PAGE)
    table = filled(pool, list(range(8)))
    assert [table.has_room(extra) for extra in (0, 1)] == [True, False]
    table.reserve(3)
    assert [table.has_room(extra) for extra in (3, 4, 5)] == [True, True, False]
    table.advance(2)
    assert table.has_room(2)
    fork = table.fork()
    assert [each.has_room(2) for each in (table, fork)] == [False, False]
    fork.release()
    assert table.has_room(2)


def test_truncate_cannot_lengthen() -> None:
    with pytest.raises(ValueError, match="cannot keep"):
        PageTable(PagePool(1, PAGE)).truncate(1)


def test_a_prefix_outlives_the_table_that_computed_it() -> None:
    pool, tokens = PagePool(8, PAGE), list(range(10))
    filled(pool, tokens).release()
    assert (pool.available, pool.kept) == (8, 2)
    table = PageTable(pool, Account(), "t")
    assert table.reuse([*tokens, 11], 10) == 8
    assert (table.length, pool.kept) == (8, 0)


def test_a_prefix_is_taken_over_piece_by_piece() -> None:
    pool, tokens = PagePool(8, PAGE), list(range(12))
    first = filled(pool, tokens)
    table = PageTable(pool, Account(), "t")
    assert [table.reuse(tokens, limit) for limit in (5, 9, 12)] == [4, 4, 4]
    assert (table.pages, table.chain, table.length) == (first.pages, first.chain, 12)
    assert [table.slot(index) for index in (0, 5, 11)] == [0, 5, 11]
    other = filled(pool, [7] * 6)
    assert [other.slot(index) for index in (0, 3, 5)] == [12, 15, 17]
    other.reserve(1)
    assert other.reuse([7] * 12, 12) == 0, "only behind a full page"


def test_another_root_finds_nothing() -> None:
    pool, tokens = PagePool(8, PAGE), list(range(9))
    filled(pool, tokens)
    for root in ("other", None):
        assert PageTable(pool, Account(), root).reuse(tokens, 8) == 0


def test_what_is_private_is_neither_entered_nor_taken_over() -> None:
    pool, tokens = PagePool(16, PAGE), list(range(12))
    private = PageTable(pool, Account(), "t")
    private.private_from = 6
    private.reserve(12)
    private.advance(12)
    private.publish(tokens)
    assert len(pool.index) == 1
    filled(pool, tokens)
    other = PageTable(pool, Account(), "t")
    other.private_from = 9
    assert other.reuse(tokens, 12) == 8


def test_kept_pages_are_handed_out_deepest_first_and_only_when_none_is_free() -> None:
    pool, tokens = PagePool(4, PAGE), list(range(12))
    filled(pool, tokens).release()
    assert pool.kept == 3
    fresh = pool.take(1, Account())
    assert pool.kept == 3
    pool.take(1, Account())
    assert PageTable(pool, Account(), "t").reuse(tokens, 12) == 8
    assert fresh == [3]


def test_writing_behind_a_truncated_page_takes_it_out_of_the_index() -> None:
    pool, tokens = PagePool(8, PAGE), list(range(8))
    table = filled(pool, tokens)
    table.truncate(6)
    other = PageTable(pool, Account(), "t")
    assert other.reuse([*tokens, 9], 8) == 8, "nothing is overwritten yet"
    other.release()
    table.reserve(1)
    assert other.reuse([*tokens, 9], 8) == 4


def test_truncate_gives_one_page_back_for_each_that_it_leaves_whatever_the_length() -> None:
    pool = PagePool(64, PAGE)
    table = filled(pool, list(range(200)))
    for length in (199, 197, 100, 3, 0):
        table.truncate(length)
        assert pool.available == 64 - -(-length // PAGE)


def test_the_index_never_takes_one_page_for_two_contents() -> None:
    index = PrefixIndex()
    first = index.add("t", (1, 2), 0)
    assert index.add("t", (1, 2), 5) == first
    assert 5 not in index
    index.forget(5)
    assert index.find("t", (1, 2)) is not None
    index.forget(0)
    assert index.find("t", (1, 2)) is None
    assert index.add("t", (1, 2), 0) != first, "an ident is never used again"
    index.check_integrity()


def test_a_fork_that_is_cut_inside_a_page_publishes_behind_its_own_text() -> None:
    pool, tokens = PagePool(16, PAGE), list(range(8))
    table = filled(pool, tokens)
    fork = table.fork()
    fork.truncate(6)
    assert fork.chain == table.chain[:1]
    fork.reserve(6)
    fork.advance(6)
    fork.publish([*tokens[:6], 90, 91, 92, 93, 94, 95])
    assert PageTable(pool, Account(), "t").reuse([*tokens, 92, 93, 94, 95, 96], 12) == 8


def test_a_chain_with_another_texts_ident_is_found() -> None:
    pool, tokens = PagePool(16, PAGE), list(range(8))
    table, other = filled(pool, tokens), filled(pool, tokens[::-1])
    table.check_integrity(tokens, pool.index.meanings())
    table.chain[1] = other.chain[1]
    with pytest.raises(AssertionError, match="prefix ident 4 stands for"):
        table.check_integrity(tokens, pool.index.meanings())
    meanings = dict(enumerate([("t", (0, 1)), (0, (2, 3))]))
    check_chain("t", [0, 1, 7], [0, 1, 2, 3, 4, 5], 2, meanings)
    with pytest.raises(AssertionError, match="prefix ident 7 stands for"):
        check_chain("t", [0, 1, 7], [0, 1, 2, 3, 4, 6], 2, meanings)


def test_a_table_that_does_not_fit_its_tokens_is_found() -> None:
    tokens = list(range(8))

    def broken(message: str, **fields: object) -> None:
        table = filled(PagePool(16, PAGE), tokens)
        for name, value in fields.items():
            setattr(table, name, value)
        with pytest.raises(AssertionError, match=message):
            table.check_integrity(tokens, {})

    broken("9 tokens computed of 8", length=9)
    broken("1 pages for 8 computed tokens", pages=[0])
    broken("twice", pages=[0, 0])
    broken("longer than", length=6)
    broken("longer than", private_from=6)
    broken("page 1 is reserved, but can be found", length=4, chain=[1])
