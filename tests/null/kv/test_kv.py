"""The page pool and page tables against a plain list model, driven at random."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from inferd_runtime.kv.pool import PagePool, PoolExhausted
from inferd_runtime.kv.table import PageTable

PAGE = 4


class Tables(RuleBasedStateMachine):
    """Each table's memory, read through its pages, must equal a plain list; no page may leak or be written when shared."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(24, PAGE)
        self.memory: dict[int, list[int]] = {page: [-1] * PAGE for page in range(24)}
        self.models: dict[int, tuple[PageTable, list[int]]] = {}
        self.stamp = 0

    @rule(target=tables)
    def create(self) -> PageTable:
        table = PageTable(self.pool)
        self.models[id(table)] = (table, [])
        return table

    @rule(table=tables, count=st.integers(1, 9), kept=st.integers(0, 9))
    def write(self, table: PageTable, count: int, kept: int) -> None:
        before = (list(table.pages), table.length)
        if table.shortage(count):
            with pytest.raises(PoolExhausted):
                table.reserve(count)
            assert before == (table.pages, table.length)
            return
        for copy in table.reserve(count):
            self.memory[copy.target] = list(self.memory[copy.source])
        model = self.models[id(table)][1]
        for at in range(table.length, table.length + count):
            self.stamp += 1
            self.memory[table.pages[at // PAGE]][at % PAGE] = self.stamp
            if at < table.length + min(kept, count):
                model.append(self.stamp)
        table.advance(min(kept, count))

    @rule(target=tables, table=tables)
    def fork(self, table: PageTable) -> PageTable:
        child = table.fork()
        self.models[id(child)] = (child, list(self.models[id(table)][1]))
        return child

    @rule(table=tables, share=st.floats(0, 1))
    def truncate(self, table: PageTable, share: float) -> None:
        length = int(table.length * share)
        table.truncate(length)
        del self.models[id(table)][1][length:]

    @rule(table=consumes(tables))
    def release(self, table: PageTable) -> None:
        table.release()
        del self.models[id(table)]

    @invariant()
    def contents_are_right(self) -> None:
        for table, model in self.models.values():
            read = [self.memory[table.pages[at // PAGE]][at % PAGE] for at in range(table.length)]
            assert read == model

    @invariant()
    def nothing_leaks(self) -> None:
        self.pool.check_integrity([table.pages for table, _ in self.models.values()])


TestTables: Any = Tables.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_page_cannot_be_released_twice() -> None:
    pool = PagePool(2, PAGE)
    pages = pool.take(1)
    pool.release(pages)
    with pytest.raises(ValueError, match="twice"):
        pool.release(pages)
    with pytest.raises(ValueError, match="free"):
        pool.share(pages)


def test_a_failed_take_takes_nothing() -> None:
    pool = PagePool(3, PAGE)
    with pytest.raises(PoolExhausted, match="4 KV pages wanted, 3 of 3 free"):
        pool.take(4)
    assert pool.available == 3


def test_truncate_cannot_lengthen() -> None:
    with pytest.raises(ValueError, match="cannot keep"):
        PageTable(PagePool(1, PAGE)).truncate(1)
