"""Who runs when: weighted fair queueing over tenants and priorities, in a machine where a row costs time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from inferd.protocol import Sampling, TokenProbes
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.step_probes import StepProbes
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.scheduling.fairness import (
    LINGER_LEADS,
    QUANTUM_SECONDS,
    SAVED_SECONDS,
    FairClock,
    StepCost,
    StepMeter,
)
from inferd_runtime.engine.scheduling.tenants import Tenancy, TenantLimits
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.stages import Verified
from inferd_runtime.models.batch import Batch, Outputs
from inferd_runtime.testing.null_driver import NullDriver

GREEDY = RowSampler.resolve(Sampling(), seed=0, lineage=0)


class Machine:
    """An engine whose clock counts token times: ``fixed`` per step and one per token. No pause of the process counts."""

    def __init__(self, fixed: float, weights: dict[str, float] | None = None) -> None:
        named = {tenant: TenantLimits(weight=weight) for tenant, weight in (weights or {}).items()}
        options = EngineOptions(64, tenancy=Tenancy(named=named), cost=StepCost(fixed), clock=lambda: 0.0)
        self.engine = Engine(NullDriver(vocab_size=16, pages=4096, max_context=2000), options)
        self.fixed = fixed
        self.now = 0.0
        self.served: Counter[str] = Counter()

    def start(self, tenant: str, prompt: int = 1, priority: int = 0, max_tokens: int = 1500) -> Generation:
        """A greedy generation of a tenant."""
        context = self.engine.create_context(tenant)
        context.append([1 + len(self.served) % 3] * prompt)
        spec = GenerationSpec(GREEDY, max_tokens, (), priority=priority)
        generation = Generation(context, spec, TextAssembler(str, ()))
        self.engine.submit(generation)
        return generation

    def run(self, until: float, generations: list[Generation]) -> None:
        """Step until that time; every step's tokens are counted by tenant and priority, and taken."""
        while self.now < until:
            before = {id(g): len(g.context.tokens) for g in generations}
            fed = self._step()
            self.now += self.fixed + fed
            for generation in generations:
                generation.take()
                made = len(generation.context.tokens) - before[id(generation)]
                self.served[f"{generation.context.tenant}{generation.priority:+d}"] += made

    def _step(self) -> int:
        driver = self.engine.driver
        assert isinstance(driver, NullDriver)
        before = driver.tokens_fed
        assert self.engine.step()
        return driver.tokens_fed - before


@pytest.mark.parametrize("fixed", [1.0, 8.0, 200.0])
def test_a_lone_stream_beside_fifty_is_slowed_by_at_most_twice_its_fair_share(fixed: float) -> None:
    """Two tenants: the fair share of each is half of the machine, so the lone stream may take four times as long at most."""
    alone = Machine(fixed)
    one = alone.start("one")
    alone.run(200 * (fixed + 1), [one])
    crowded = Machine(fixed)
    many = [crowded.start("many") for _ in range(50)]
    crowded.run(20 * (fixed + 50), many)
    crowded.now = 0.0
    one = crowded.start("one")
    crowded.run(200 * (fixed + 1), [*many, one])
    slower = alone.served["one+0"] / crowded.served["one+0"]
    assert slower <= 2 * 2
    assert slower <= 2.2, "and in fact it gets its half"
    assert crowded.served["many+0"] > crowded.served["one+0"], "the fifty get the rest"


def test_time_is_shared_by_weight() -> None:
    machine = Machine(4.0, {"heavy": 3.0})
    jobs = [machine.start(tenant) for tenant in ("heavy", "light") for _ in range(40)]
    machine.run(15_000.0, jobs)
    assert machine.served["heavy+0"] / machine.served["light+0"] == pytest.approx(3.0, rel=0.1)


def test_a_priority_doubles_the_share_inside_a_tenant_and_takes_nothing_from_others() -> None:
    machine = Machine(4.0)
    jobs = [machine.start("a", priority=priority) for priority in (0, 1) for _ in range(40)]
    jobs += [machine.start("b") for _ in range(40)]
    machine.run(15_000.0, jobs)
    served = machine.served
    assert served["a+1"] / served["a+0"] == pytest.approx(2.0, rel=0.1)
    assert (served["a+1"] + served["a+0"]) / served["b+0"] == pytest.approx(1.0, rel=0.1)


def test_everybody_runs_in_every_step_where_rows_cost_nothing() -> None:
    machine = Machine(1000.0)
    jobs = [machine.start(tenant) for tenant in ("a",) * 30 + ("b",)]
    machine.run(50 * 1031.0, jobs)
    assert machine.served["b+0"] >= 48


def test_who_comes_back_shuts_nobody_out_where_rows_cost_nothing() -> None:
    """It is owed time; were the others' rows left out of its steps for that, they would lose as much and it would win nothing."""
    machine = Machine(1000.0)
    many = [machine.start("many") for _ in range(60)]
    guest = machine.start("guest")
    machine.run(10 * 1061.0, [*many, guest])
    scheduler = machine.engine.scheduler
    theirs = [item for item in scheduler.plan() if item.job is not guest]
    for _ in range(20):
        scheduler.charge(theirs)
    machine.served.clear()
    machine.run(machine.now + 20 * 1061.0, [*many, guest])
    assert machine.served["guest+0"] >= 19
    assert machine.served["many+0"] >= 60 * 19


@pytest.mark.parametrize(("fixed", "prompt", "joins"), [(1000.0, 1, True), (4.0, 1, False), (1000.0, 300, False)])
def test_a_tenant_joins_others_where_their_decode_rows_alone_run_and_cost_nothing(
    fixed: float, prompt: int, joins: bool
) -> None:
    machine = Machine(fixed)
    scheduler = machine.engine.scheduler
    machine.start("guest")
    assert not scheduler.joins_others("guest"), "there is nobody else"
    for _ in range(3):
        machine.start("many", prompt=prompt)
    assert scheduler.joins_others("guest") == joins


def test_a_long_prompt_of_one_tenant_does_not_stall_the_stream_of_another() -> None:
    machine = Machine(8.0)
    stream = machine.start("stream")
    machine.run(90.0, [stream])
    before = machine.served["stream+0"]
    prefill = machine.start("prefill", prompt=1900, max_tokens=1)
    start = machine.now
    while prefill.context.pending > 1 and not prefill.finished():
        machine.run(machine.now + 1, [stream, prefill])
    tokens = machine.served["stream+0"] - before
    assert (machine.now - start) / tokens <= 2.2 * 9, "twice as long per token as alone"


def test_nobody_saves_up_time_while_away() -> None:
    machine = Machine(4.0)
    busy = [machine.start("busy") for _ in range(40)]
    late = [machine.start("late") for _ in range(40)]
    machine.run(2_000.0, [*busy, *late])
    for generation in late:
        generation.close()
    machine.run(10_000.0, busy)
    late = [machine.start("late") for _ in range(40)]
    machine.served.clear()
    machine.run(20_000.0, [*busy, *late])
    assert machine.served["late+0"] / machine.served["busy+0"] == pytest.approx(1.0, rel=0.1)


def test_a_tenant_cannot_forget_its_debt_by_leaving() -> None:
    """Bursts of fifty beside ten streams that stay: without a debt they would get five times as much."""
    machine = Machine(4.0)
    steady = [machine.start("steady") for _ in range(10)]
    for _ in range(200):
        burst = [machine.start("burst", max_tokens=1) for _ in range(50)]
        while not all(generation.finished() for generation in burst):
            machine.run(machine.now + 1, [*steady, *burst])
        for generation in burst:
            generation.take()
            generation.close()
            generation.context.release()
    assert machine.served["burst+0"] / machine.served["steady+0"] <= 1.5


def test_every_job_gets_its_turn_where_the_budget_is_smaller_than_the_queue() -> None:
    machine = Machine(4.0)
    jobs = [machine.start("t") for _ in range(150)]
    for _ in range(150):
        machine.run(machine.now + 1, jobs)
    lengths = [len(job.context.tokens) for job in jobs]
    assert max(lengths) - min(lengths) <= 2


def test_a_prompt_is_not_starved_by_streams_that_would_fill_every_step() -> None:
    machine = Machine(4.0)
    jobs = [machine.start("t") for _ in range(100)]
    machine.run(500.0, jobs)
    prompt = machine.start("t", prompt=240, max_tokens=1)
    for _ in range(240 // (64 // 8) + 2):
        machine.run(machine.now + 1, [*jobs, prompt])
    assert prompt.finished()


def test_a_budget_of_one_token_serves_everybody() -> None:
    engine = Engine(NullDriver(vocab_size=16, pages=64, max_context=100), EngineOptions(1))
    jobs = []
    for prompt in (1, 20, 3):
        context = engine.create_context()
        context.append([2] * prompt)
        jobs.append(Generation(context, GenerationSpec(GREEDY, 5, ()), TextAssembler(str, ())))
        engine.submit(jobs[-1])
    for _ in range(60):
        engine.step()
    assert all(job.finish == "length" for job in jobs)


def test_planning_leaves_pages_as_a_plain_layout_would() -> None:
    """The vectorised layout against the obvious one, with chunks, drafts and single rows in one batch."""
    generator = random.Random(5)
    engine = Engine(NullDriver(vocab_size=16, pages=512, page_size=4, max_context=2000), EngineOptions(48))
    contexts: list[CachedSequence] = []
    for number in range(12):
        context = engine.create_context()
        context.append([number] * generator.randint(1, 30))
        spec = GenerationSpec(GREEDY, 40, ())
        engine.submit(Generation(context, spec, TextAssembler(str, ())))
        contexts.append(context)
    for _ in range(15):
        plan = engine.scheduler.plan()
        batch = prepare(plan, 4)
        expected = [row for item in plan for row in plain_rows(item)]
        assert list(zip(batch.tokens, batch.positions, batch.slots, strict=True)) == expected
        last = [span.first + span.count for span in batch.spans]
        rows = [end - item.work.rows + i for item, end in zip(plan, last, strict=True) for i in range(item.work.rows)]
        assert batch.logit_rows.tolist() == rows
        engine.step()


def plain_rows(item: Planned) -> list[tuple[int, int, int]]:
    """(token, position, slot) of one planned job, one by one."""
    rows = []
    for offset, token in enumerate(item.work.tokens):
        at = item.table.length + offset
        rows.append((token, at, item.table.pages[at // 4] * 4 + at % 4))
    return rows


def test_the_step_behind_one_in_flight_is_for_those_whose_turn_it_is() -> None:
    machine = Machine(fixed=4.0)
    mine, other = machine.start("a"), machine.start("b")
    scheduler = machine.engine.scheduler
    in_flight = [item for item in scheduler.plan() if item.job is mine]
    assert [item.job for item in scheduler.plan_behind({mine: None})] == [other]
    scheduler.charge(in_flight * 1000)
    assert [item.job for item in scheduler.plan_behind({})] == [other]


class Timed:
    """Engines of one thread whose steps take ``fixed`` and so much for each token, and share one clock of tenants."""

    def __init__(self, models: int, fixed: float, row: float) -> None:
        self.now = 0.0
        self.fixed, self.row = fixed, row
        self.clock: FairClock[str] = FairClock(lambda tenant: 1.0, linger=LINGER_LEADS)
        cost = StepCost(fixed / row, row, timed=True)
        self.engines = [
            Engine(TimedDriver(self), EngineOptions(512, cost=cost, fairness=self.clock, clock=lambda: self.now))
            for _ in range(models)
        ]

    def start(self, engine: int, tenant: str, prompt: int = 1) -> Generation:
        """A greedy generation that goes on for as long as its context allows."""
        context = self.engines[engine].create_context(tenant)
        context.append([1 + context.max_length % 3] * prompt)
        generation = Generation(context, GenerationSpec(GREEDY, 3000, ()), TextAssembler(str, ()))
        self.engines[engine].submit(generation)
        return generation

    def run(self, seconds: float, generations: list[Generation]) -> None:
        """Step the engines in turn."""
        end = self.now + seconds
        while self.now < end:
            progressed = [engine.step() for engine in self.engines]
            assert any(progressed)
            for generation in generations:
                generation.take()


class TimedDriver(NullDriver):
    """Takes its time."""

    def __init__(self, machine: Timed) -> None:
        super().__init__(vocab_size=16, pages=4096, max_context=4000)
        self._machine = machine

    def forward(self, batch: Batch) -> Outputs:
        self._machine.now += self._machine.fixed + self._machine.row * len(batch.tokens)
        return super().forward(batch)


def made(generation: Generation, machine: Timed, seconds: float, others: list[Generation]) -> int:
    """The tokens that a generation makes meanwhile."""
    before = len(generation.context.tokens)
    machine.run(seconds, [generation, *others])
    return len(generation.context.tokens) - before


def test_a_stream_keeps_half_of_the_time_beside_prompts_of_another_model() -> None:
    """Models of one process are stepped in turn, so that taking turns by steps would leave it a tenth."""
    machine = Timed(2, fixed=2e-3, row=1e-4)
    alone = made(machine.start(0, "one"), machine, 1.0, [])
    machine = Timed(2, fixed=2e-3, row=1e-4)
    stream, prompts = machine.start(0, "one"), [machine.start(1, "many", prompt=3900) for _ in range(40)]
    assert made(stream, machine, 1.0, prompts) >= 0.9 * alone / 2


class SlowRows(StepProbes):
    """Takes its time over each row."""

    def __init__(self, machine: Timed, seconds: float) -> None:
        super().__init__((), 1)
        self._machine, self._seconds = machine, seconds

    def read(self, done: Verified) -> list[TokenProbes]:
        self._machine.now += self._seconds
        return super().read(done)


def start_slow(machine: Timed, seconds: float) -> Generation:
    """A generation of another tenant whose rows are each worked on for so long."""
    context = machine.engines[0].create_context("slow")
    context.append([1])
    spec = GenerationSpec(GREEDY, 3000, (), probes=SlowRows(machine, seconds))
    generation = Generation(context, spec, TextAssembler(str, ()))
    machine.engines[0].submit(generation)
    return generation


@pytest.mark.parametrize("streams", [1, 20])
def test_a_stream_keeps_half_of_the_time_beside_rows_that_take_long_to_read(streams: int) -> None:
    machine = Timed(1, fixed=2e-3, row=1e-4)
    alone = made(machine.start(0, "one"), machine, 1.0, [])
    machine = Timed(1, fixed=2e-3, row=1e-4)
    stream, slow = machine.start(0, "one"), [start_slow(machine, 0.014) for _ in range(streams)]
    assert made(stream, machine, 3.0, slow) >= 0.9 * 3 * alone / 2


def test_a_step_waits_for_few_rows_that_take_long_to_read() -> None:
    machine = Timed(1, fixed=2e-3, row=1e-4)
    stream, slow, took = machine.start(0, "one"), list[Generation](), list[float]()
    for number in range(100):
        if number % 10 == 0:
            slow += [start_slow(machine, 0.014) for _ in range(20)]
        before = machine.now
        machine.engines[0].step()
        for generation in (stream, *slow):
            generation.take()
        took.append(machine.now - before)
    assert max(took[:10]) <= 0.15, "all together took 0.28 s"
    assert max(took[10:]) <= 1.5 * QUANTUM_SECONDS, "new ones take what the tenant's others took"


def test_steps_are_short_while_another_tenant_may_wait_for_their_end() -> None:
    machine = Timed(1, fixed=2e-3, row=1e-3)
    stream, prompts = machine.start(0, "one"), [machine.start(0, "many", prompt=3000) for _ in range(4)]
    machine.run(1.0, [stream, *prompts])
    longest = 0.0
    for _ in range(200):
        before = machine.now
        machine.engines[0].step()
        stream.take()
        longest = max(longest, machine.now - before)
    assert longest <= 1.5 * QUANTUM_SECONDS


def test_a_long_prompt_that_is_alone_has_whole_steps() -> None:
    machine = Timed(1, fixed=2e-3, row=1e-3)
    prompt = machine.start(0, "one", prompt=2049)
    for _ in range(4):
        machine.engines[0].step()
    assert prompt.context.pending == 1


def test_what_a_narrow_step_takes_is_learnt_and_shared_evenly() -> None:
    meter = StepMeter(StepCost(1000.0, 1e-3, timed=True))
    for _ in range(100):
        meter.shares({"a": 1}, 4e-3)
    shares = meter.shares({"a": 1, "b": 49}, 24e-3)
    assert shares["a"] == pytest.approx(2e-3 + 20e-3 / 50, rel=0.01)
    assert sum(shares.values()) == pytest.approx(24e-3)


def test_who_is_away_for_a_moment_keeps_its_place_and_who_is_away_for_long_does_not() -> None:
    clock: FairClock[str] = FairClock(lambda tenant: 1.0, 1.0, linger=10)
    clock.next_round(["a", "b"])
    clock.charge("a", 5.0)
    clock.next_round(["a"])
    clock.charge("a", 2.0)
    assert clock.next_round(["a", "b"]) == ["b"], "seven behind"
    for _ in range(20):
        clock.next_round(["a"])
        clock.charge("a", 1.0)
    assert clock.next_round(["a", "b"]) == ["a", "b"], "it starts where the other is"


@pytest.mark.parametrize("pinging", [("b",), ("b", "c")])
def test_who_asks_for_a_trifle_now_and_then_saves_up_no_turns(pinging: tuple[str, ...]) -> None:
    """Ten seconds of it would have kept a stream from its next token for ten seconds."""
    clock: FairClock[str] = FairClock(lambda tenant: 1.0, 0.004, linger=LINGER_LEADS)
    for _ in range(5000):
        for one in pinging:
            clock.next_round([one], "requests")
            clock.charge(one, 1e-5)
        clock.next_round([], "requests")
        clock.next_round(["stream"], "steps")
        clock.charge("stream", 2e-3)
    waited = 0.0
    while "stream" not in (first := clock.next_round(["stream", *pinging], "steps")) and waited < 1.0:
        clock.charge(first[0], 2e-3)
        waited += 2e-3
    assert waited <= 1.1 * len(pinging) * SAVED_SECONDS


def test_what_is_owed_is_still_owed_after_a_moment_in_which_nothing_was_wanted() -> None:
    clock: FairClock[str] = FairClock(lambda tenant: 1.0, 0.004, linger=LINGER_LEADS)
    clock.next_round(["stream", "slow"])
    clock.charge("slow", 0.5)
    clock.next_round(["slow"])
    clock.charge("slow", 0.5)
    owed = 0.0
    while clock.next_round(["stream", "slow"]) == ["stream"] and owed < 2.0:
        clock.charge("stream", 2e-3)
        owed += 2e-3
    assert 0.45 <= owed <= 0.55, "what it had while the stream wanted something"


def test_what_is_paid_while_away_is_owed_when_one_is_back() -> None:
    """A compile of four seconds ends after its tenant has gone: the next thing that it asks waits."""
    clock: FairClock[str] = FairClock(lambda tenant: 1.0, 0.01)
    clock.next_round(["here"])
    clock.charge("gone", 4.0)
    assert clock.next_round(["here", "gone"]) == ["here"]
