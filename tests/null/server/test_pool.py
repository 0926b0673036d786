"""The worker pool: which worker runs what, without any process."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tiers import examples

from inferd.protocol import LimitExceeded
from inferd_runtime.server.supervisor.worker_pool import PlaceRun, PoolSettings, Retire, Start, WorkerPool
from inferd_runtime.server.tenancy.quotas import Quotas


def started(pool: WorkerPool) -> list[str]:
    """Do what the pool decides and make every worker ready; returns the new workers."""
    names = [action.worker for action in pool.decide() if isinstance(action, Start)]
    for name in names:
        pool.ready(name)
    return names


def placed(pool: WorkerPool) -> dict[str, str]:
    return {action.run: action.worker for action in list(pool.decide()) if isinstance(action, PlaceRun)}


def test_starts_the_workers_it_is_set_to_and_keeps_a_spare() -> None:
    pool = WorkerPool(PoolSettings(workers=2, max_workers=4, spare=1))
    assert len(started(pool)) == 2
    pool.submit("r1", "ann")
    pool.submit("r2", "bob")
    actions = list(pool.decide())
    assert sorted(type(action).__name__ for action in actions) == ["PlaceRun", "PlaceRun", "Start"]


def test_a_run_waits_until_a_worker_is_ready() -> None:
    pool = WorkerPool(PoolSettings())
    pool.submit("r1", "ann")
    (start,) = list(pool.decide())
    assert isinstance(start, Start)
    assert pool.waiting == ["r1"]
    pool.ready(start.worker)
    assert placed(pool) == {"r1": start.worker}
    assert pool.worker_of("r1") == start.worker
    assert pool.waiting == []


def test_two_tenants_never_share_a_worker_even_one_after_the_other() -> None:
    pool = WorkerPool(PoolSettings(workers=1, max_workers=2, spare=0))
    (first,) = started(pool)
    pool.submit("r1", "ann")
    assert placed(pool) == {"r1": first}
    pool.finished("r1")
    pool.submit("r2", "bob")
    (second,) = started(pool)
    assert second != first
    assert placed(pool) == {"r2": second}
    assert (pool.tenant_of(first), pool.tenant_of(second)) == ("ann", "bob")


def test_an_idle_worker_of_another_tenant_makes_room_at_the_maximum() -> None:
    pool = WorkerPool(PoolSettings(workers=1, max_workers=1, spare=0))
    (first,) = started(pool)
    pool.submit("r1", "ann")
    placed(pool)
    pool.submit("r2", "bob")
    assert list(pool.decide()) == []  # ann's worker is busy
    pool.finished("r1")
    assert list(pool.decide()) == [Retire(first)]
    assert list(pool.decide()) == []  # told once
    assert pool.is_retiring(first)
    assert pool.lost(first) == []
    (second,) = started(pool)
    assert placed(pool) == {"r2": second}


def test_a_busy_worker_is_never_retired() -> None:
    pool = WorkerPool(PoolSettings(workers=1, max_workers=1, spare=0))
    started(pool)
    pool.submit("r1", "ann")
    placed(pool)
    pool.submit("r2", "bob")
    assert not any(isinstance(action, Retire) for action in pool.decide())


def test_a_full_worker_gets_no_more_runs() -> None:
    pool = WorkerPool(PoolSettings(workers=1, max_workers=1, spare=0, runs_per_worker=2))
    started(pool)
    for number in range(3):
        pool.submit(f"r{number}", "ann")
    assert set(placed(pool)) == {"r0", "r1"}
    assert pool.waiting == ["r2"]
    pool.finished("r0")
    assert set(placed(pool)) == {"r2"}


def test_runs_of_one_tenant_spread_over_workers_that_nobody_has_but_leave_the_spare() -> None:
    pool = WorkerPool(PoolSettings(workers=3, max_workers=3, spare=1))
    names = started(pool)
    for number in range(4):
        pool.submit(f"r{number}", "ann")
    used = set(placed(pool).values())
    assert len(used) == 2
    assert used < set(names)


def test_a_lost_worker_gives_its_runs_back_and_is_replaced() -> None:
    pool = WorkerPool(PoolSettings(workers=1, max_workers=2, spare=0))
    (first,) = started(pool)
    pool.submit("r1", "ann")
    pool.submit("r2", "ann")
    placed(pool)
    assert pool.lost(first) == ["r1", "r2"]
    (second,) = started(pool)
    assert second != first


def test_a_run_that_waits_can_be_withdrawn() -> None:
    pool = WorkerPool(PoolSettings())
    pool.submit("r1", "ann")
    pool.finished("r1")
    started(pool)
    assert placed(pool) == {}


def test_too_many_waiting_runs_are_refused() -> None:
    pool = WorkerPool(PoolSettings(max_waiting=1))
    pool.submit("r1", "ann")
    with pytest.raises(LimitExceeded, match="1 runs wait") as caught:
        pool.submit("r2", "ann")
    detail = caught.value.detail
    assert (detail["limit"], detail["value"], detail["raise_with"]) == ("max_waiting", 1, "the server's --max-waiting")


def test_a_tenants_quotas_bound_what_runs_and_what_waits() -> None:
    quotas = {"ann": Quotas(runs=2, waiting=1)}
    pool = WorkerPool(PoolSettings(workers=2, max_workers=4), lambda tenant: quotas.get(tenant, Quotas()))
    started(pool)
    for number in range(2):
        pool.submit(f"r{number}", "ann")
        placed(pool)
    pool.submit("r2", "ann")
    assert placed(pool) == {}, "two of hers run already"
    with pytest.raises(LimitExceeded, match="1 runs of the tenant wait") as caught:
        pool.submit("r3", "ann")
    assert (caught.value.detail["limit"], caught.value.detail["value"]) == ("waiting", 1)
    pool.submit("b", "bob")
    assert placed(pool).keys() == {"b"}
    pool.finished("r0")
    assert placed(pool).keys() == {"r2"}


def test_one_tenant_cannot_fill_the_queue_nor_all_workers() -> None:
    pool = WorkerPool(PoolSettings(workers=4, max_workers=4, runs_per_worker=1, max_waiting=8))
    started(pool)
    for number in range(20):
        with contextlib.suppress(LimitExceeded):
            pool.submit(f"e{number}", "eve")
        placed(pool)
    assert (pool.running_by_tenant["eve"], pool.waiting_by_tenant["eve"]) == (2, 6)
    pool.submit("a", "ann")
    assert placed(pool).keys() == {"a"}
    pool.submit("b", "bob")
    assert placed(pool).keys() == {"b"}


@st.composite
def attacks(draw: st.DrawFn) -> tuple[PoolSettings, list[tuple[str, int]]]:
    workers = draw(st.integers(2, 8))
    settings = PoolSettings(
        workers=draw(st.integers(1, workers)), max_workers=workers, spare=draw(st.integers(0, 1)),
        runs_per_worker=draw(st.integers(1, 4)), max_waiting=draw(st.integers(8, 30)),
    )  # fmt: skip
    deeds = st.tuples(st.sampled_from(["submit", "finish", "ready", "lose"]), st.integers(0, 1000))
    return settings, draw(st.lists(deeds, max_size=60))


@given(attacks())
@settings(max_examples=examples(300), deadline=None)
def test_whatever_colluding_tenants_do_another_tenants_first_run_gets_a_worker(
    attack: tuple[PoolSettings, list[tuple[str, int]]],
) -> None:
    rules, deeds = attack
    pool, world = WorkerPool(rules), PoolWorld()
    for number, (deed, choice) in enumerate(deeds):
        getattr(world, deed)(pool, choice, f"run-{number}", f"eve-{choice % rules.guarded}")
        world.carry_out(pool)
    pool.submit("first", "ann")
    for _ in range(3):  # one leaves, one starts, the run is placed; of the colluders nobody ends anything
        world.carry_out(pool)
        world.let_go_and_start(pool)
    world.carry_out(pool)
    assert pool.worker_of("first") is not None


class PoolWorld:
    """What the pool's actions lead to."""

    def __init__(self) -> None:
        self.starting: list[str] = []
        self.up: list[str] = []
        self.leaving: list[str] = []

    def carry_out(self, pool: WorkerPool) -> None:
        for action in list(pool.decide()):
            if isinstance(action, Start):
                self.starting.append(action.worker)
            elif isinstance(action, Retire):
                self.up.remove(action.worker)
                self.leaving.append(action.worker)

    def let_go_and_start(self, pool: WorkerPool) -> None:
        while self.leaving:
            pool.lost(self.leaving.pop())
        self.carry_out(pool)
        while self.starting:
            self.up.append(self.starting.pop())
            pool.ready(self.up[-1])

    def submit(self, pool: WorkerPool, choice: int, run: str, tenant: str) -> None:
        with contextlib.suppress(LimitExceeded):
            pool.submit(run, tenant)

    def finish(self, pool: WorkerPool, choice: int, run: str, tenant: str) -> None:
        runs = [*pool.waiting, *pool.running]
        if runs:
            pool.finished(runs[choice % len(runs)])

    def ready(self, pool: WorkerPool, choice: int, run: str, tenant: str) -> None:
        if self.starting:
            self.up.append(self.starting.pop(choice % len(self.starting)))
            pool.ready(self.up[-1])

    def lose(self, pool: WorkerPool, choice: int, run: str, tenant: str) -> None:
        if self.up:
            pool.lost(self.up.pop(choice % len(self.up)))


class PoolMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order, tenants stay apart and nothing is over its bound."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = PoolSettings(workers=1, max_workers=3, spare=1, runs_per_worker=2, max_waiting=500)
        self.pool = WorkerPool(self.settings)
        self.tenants: dict[str, str] = {}
        self.held: dict[str, str] = {}
        self.alive: dict[str, bool] = {}  # worker -> ready
        self.used_by: dict[str, str] = {}
        self.count = 0

    def settle(self) -> None:
        for action in list(self.pool.decide()):
            if isinstance(action, Start):
                self.alive[action.worker] = False
            elif isinstance(action, PlaceRun):
                assert self.alive[action.worker]
                tenant = self.tenants[action.run]
                assert self.used_by.setdefault(action.worker, tenant) == tenant
                self.held[action.run] = action.worker
            else:
                assert action.worker not in self.held.values()

    @rule(tenant=st.sampled_from(["ann", "bob", "eve", "joe"]))
    def submit(self, tenant: str) -> None:
        self.count += 1
        self.tenants[f"r{self.count}"] = tenant
        self.pool.submit(f"r{self.count}", tenant)
        self.settle()

    @precondition(lambda self: not all(self.alive.values()))
    @rule(data=st.data())
    def ready(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, ready in self.alive.items() if not ready)))
        self.alive[name] = True
        self.pool.ready(name)
        self.settle()

    @precondition(lambda self: self.tenants)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.tenants)))
        del self.tenants[run]
        self.held.pop(run, None)
        self.pool.finished(run)
        self.settle()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        del self.alive[name]
        lost = self.pool.lost(name)
        assert lost == sorted(run for run, worker in self.held.items() if worker == name)
        for run in lost:
            del self.held[run], self.tenants[run]
        self.settle()

    @invariant()
    def bounds(self) -> None:
        assert len(self.alive) <= self.settings.max_workers
        for name in self.alive:
            assert list(self.held.values()).count(name) <= self.settings.runs_per_worker
        assert set(self.pool.waiting) == self.tenants.keys() - self.held.keys()

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """A run waits only while every worker that it could use is full, starting or leaving."""
        for run in self.pool.waiting:
            for name, ready in self.alive.items():
                if ready and self.used_by.get(name) == self.tenants[run] and not self.pool.is_retiring(name):
                    assert list(self.held.values()).count(name) == self.settings.runs_per_worker


PoolMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase


@given(st.lists(st.sampled_from(["ann", "bob"]), max_size=12))
def test_with_workers_that_always_start_every_run_is_placed(tenants: list[str]) -> None:
    pool = WorkerPool(PoolSettings(workers=1, max_workers=2, spare=0, runs_per_worker=100))
    for number, tenant in enumerate(tenants):
        pool.submit(f"r{number}", tenant)
    found: dict[str, str] = {}
    for _ in range(4):
        for action in list(pool.decide()):
            if isinstance(action, Start):
                pool.ready(action.worker)
            elif isinstance(action, PlaceRun):
                found[action.run] = action.worker
    assert len(found) == len(tenants)
