"""Running ahead: the step behind the one on its way changes no token, loses no page and makes nobody wait.

The loop without it is the plain twin. Both are held to what the model says row after row, and to each other step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sampling_driver import SamplingNullDriver
from tiers import examples

from inferd.protocol import InternalError, LimitExceeded
from inferd_grammar import Compiled, GrammarCompiler, RegexGrammar, TokenTable
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.forward_pass import ForwardPass, Prefill, RowSpec
from inferd_runtime.engine.jobs.step_queue import MAX_UNDELIVERED_STEPS
from inferd_runtime.engine.scheduling.fairness import StepCost
from inferd_runtime.engine.scheduling.tenants import Tenancy, TenantLimits
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE, ByteTokenizer
from inferd_runtime.testing.speculation import BlindTree, GenerationUnderTest, Oracle, Wrong

from .overlap_cases import (
    FREE_ROWS,
    GREEDY,
    MODEL,
    Device,
    Patch,
    Watched,
    finish,
    lockstep,
    make_request,
    release,
    start,
)

# -- It overlaps ------------------------------------------------------------------------------------------------------


def test_the_next_step_is_launched_before_the_one_on_its_way_is_waited_for() -> None:
    driver = Watched(**MODEL)
    engine = Engine(driver)
    running = [start(engine, make_request(driver, [1, 2, 3], seed, max_tokens=20)) for seed in range(4)]
    finish(engine, running)
    assert driver.early == [False] + [True] * 19
    assert engine.steps == 20
    assert all(launch.waited for launch in driver.launches), "nothing is behind a step that ends everybody"


def test_without_overlap_every_step_is_waited_for_before_the_next() -> None:
    driver = Watched(**MODEL)
    engine = Engine(driver, EngineOptions(overlap=False))
    finish(engine, [start(engine, make_request(driver, [1, 2, 3], seed)) for seed in range(4)])
    assert not any(driver.early)


def test_the_chunks_of_a_prompt_are_run_ahead_of() -> None:
    driver = Watched(**MODEL)
    engine = Engine(driver, EngineOptions(token_budget=8))
    finish(engine, [start(engine, make_request(driver, [1, 2] * 10, 1, max_tokens=5))])
    assert driver.early == [False] + [True] * 6
    assert [len(fed) for fed in driver.fed] == [8, 8, 4, 1, 1, 1, 1]


def test_nobody_runs_ahead_beside_a_job_that_has_to_be_asked() -> None:
    driver = Watched(**MODEL)
    engine = Engine(driver, EngineOptions(times=FREE_ROWS))
    odd = start(engine, make_request(driver, [1, 2], 1), paced=True)
    odd.generation.allow()
    plain = start(engine, make_request(driver, [3], 0, max_tokens=40))
    while not odd.generation.finished():
        engine.step()
        plain.take()
        odd.take()
        odd.generation.allow()
    # With the token that certainly ends it, it wants nothing any more.
    assert not any(driver.early[:-1])
    finish(engine, [odd, plain])
    assert any(driver.early)


def test_a_job_whose_guesses_are_always_wrong_is_run_ahead_of_all_the_same() -> None:
    """They are asked for ever more rarely, and no step is lost to them."""
    driver = Watched(**MODEL)
    engine = Engine(driver, EngineOptions(times=FREE_ROWS))
    request = make_request(driver, [1, 2], 0, max_tokens=50)
    finish(engine, [start(engine, request, [Wrong(request, 6)])])
    plain = Watched(**MODEL)
    twin = Engine(plain, EngineOptions(times=FREE_ROWS, overlap=False))
    finish(twin, [start(twin, request, [Wrong(request, 6)])])
    drafted = [sum(len(fed) > 1 for fed in one.fed[1:]) for one in (driver, plain)]
    assert 3 < drafted[0] <= drafted[1] + 4
    assert len(plain.fed) == len(driver.fed)
    assert sum(driver.early) > 25


def test_a_newcomer_waits_for_the_step_on_its_way_and_no_longer() -> None:
    driver = Watched(**MODEL)
    engine = Engine(driver)
    old = [start(engine, make_request(driver, [1, 2, 3], seed, max_tokens=50)) for seed in range(3)]
    for seed in (5, 6, 7, 8):
        for _ in range(seed):
            engine.step()
            for one in old:
                one.take()
        assert driver.early[-1], "a step is on its way"
        launched = len(driver.fed)
        old.append(start(engine, make_request(driver, [5, 4] * 5, seed, max_tokens=30)))
        engine.step()
        engine.step()
        assert len(driver.fed[launched]) > len(old), "its prompt is in the very next step"
    finish(engine, old)


def test_a_job_that_the_clock_holds_back_is_not_kept_waiting() -> None:
    """One stream beside a dozen of another tenant, where rows cost as much as steps: it gets its half with overlap, too."""
    rates = []
    for overlap in (True, False):
        driver = Watched(**{**MODEL, "max_context": 500}, pages=2000)
        engine = Engine(driver, EngineOptions(512, cost=StepCost(1.0), overlap=overlap))
        many = [start(engine, make_request(driver, [1], 0, max_tokens=450), tenant="many") for _ in range(12)]
        lone = start(engine, make_request(driver, [2], 0, max_tokens=450), tenant="lone")
        while driver.tokens_fed < 600:
            engine.step()
            for one in (*many, lone):
                one.take()
        rates.append(len(lone.tokens) / driver.tokens_fed)
    assert rates[0] == pytest.approx(rates[1], rel=0.1)


# -- The twins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 2000), marks=pytest.mark.long)])
def test_the_twins_go_in_lockstep(seeds: range, page_size: int) -> None:
    assert sum(lockstep(seed, page_size) for seed in seeds) > 3 * len(seeds)


@pytest.fixture(scope="module")
def grammar() -> Compiled:
    table = TokenTable.from_tokenizer_json(ByteTokenizer.tokenizer_json(), vocab_size=VOCAB_SIZE, eos_ids=[END])
    return GrammarCompiler(table).compile(RegexGrammar(r"(a[0-4]{3}|b[5-9]{3}|[x-z]{4}){1,4}"))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("pages", [400, 30])
def test_grammars_drafts_and_plain_streams_mixed(grammar: Compiled, pages: int, overlap: bool) -> None:
    driver = Watched(vocab_size=VOCAB_SIZE, scale=1.0, pages=pages, max_context=100)
    engine = Engine(driver, EngineOptions(token_budget=40, times=FREE_ROWS, overlap=overlap))
    running: list[GenerationUnderTest] = []
    for seed in range(12):
        request = make_request(driver, b"some text"[: 1 + seed % 9], seed, max_tokens=15 + 5 * (seed % 5))
        if seed % 4 == 1:
            request = make_request(driver, b"x", seed, max_tokens=20, grammar=grammar)
        running.append(start(engine, request, [Oracle(request, VOCAB_SIZE)] if seed % 4 == 2 else []))
        for _ in range(3):
            engine.step()
            for one in running:
                one.take()
    finish(engine, running)
    assert any(driver.early) == overlap
    release(engine, running)


@pytest.mark.parametrize("seed", range(6))
def test_fixed_widths_run_ahead_as_well(seed: int) -> None:
    driver = Watched(**MODEL)
    engine = Engine(driver, EngineOptions(fixed_rows=3))
    running = [start(engine, make_request(driver, [1] * (1 + at), 5 * seed + at)) for at in range(3)]
    finish(engine, running)
    assert sum(driver.early) > 10
    assert {len(fed) % 3 for fed in driver.fed[1:]} == {0}
    release(engine, running)


def test_a_generation_that_pauses_with_what_is_in_flight_feeds_no_draft_without_the_token_before_it() -> None:
    """The step failed: its rows counted from a token that was not there."""
    driver = Watched(**MODEL, pages=20)
    engine = Engine(driver, EngineOptions(20, times=FREE_ROWS))
    request = make_request(driver, [0] * 20, 0, max_tokens=30)
    one = start(engine, request, [BlindTree(request, 6, 0)])
    while engine.step():
        pass  # nobody reads
    assert one.generation.outbox.full()
    finish(engine, [one])
    release(engine, [one])


class Schedule(RuleBasedStateMachine):
    """Two tenants, one with a quota, in a small cache. Whatever a session may do happens while steps are on their way."""

    overlap = True
    broke_down = False

    def __init__(self) -> None:
        super().__init__()
        self.model = SamplingNullDriver(**MODEL)
        self.driver = Watched(**MODEL, pages=20)
        tenancy = Tenancy(named={"small": TenantLimits(kv_pages=9)})
        self.engine = Engine(self.driver, EngineOptions(20, 40 * 32, tenancy, times=FREE_ROWS, overlap=self.overlap))
        self.contexts: list[CachedSequence] = []
        self.running: list[GenerationUnderTest] = []

    def start(self, context: CachedSequence, data: st.DataObject) -> None:
        seed = data.draw(st.integers(0, 20))
        stop = "".join(map(chr, data.draw(st.lists(st.integers(0, 5), max_size=2))))
        limit, eos = data.draw(st.sampled_from([1, 2, 7, 30])), data.draw(st.sampled_from([END, 4]))
        request = make_request(
            self.model, context.tokens, seed, max_tokens=limit, eos=eos, stop=stop, lineage=context.lineage
        )
        makers: list[Callable[..., Drafter]] = data.draw(st.sampled_from([[], [], [], [], [Oracle], [BlindTree]]))
        drafters = [make(request, 6, seed) for make in makers]
        paced = data.draw(st.sampled_from([False] * 5 + [True]))
        logprobs = data.draw(st.sampled_from([None] * 5 + [1]))
        self.running.append(
            GenerationUnderTest.submit(self.engine, context, request, drafters, paced=paced, logprobs=logprobs)
        )

    def idle(self, least: int = 0, most: int = 100) -> list[CachedSequence]:
        return [one for one in self.contexts if one.user is None and least <= len(one.tokens) <= most]

    @precondition(lambda self: len(self.contexts) < 6)
    @rule(
        tenant=st.sampled_from(["small", "large"]),
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        data=st.data(),
    )
    def begin(self, tenant: str, prompt: list[int], data: st.DataObject) -> None:
        self.contexts.append(self.engine.create_context(tenant))
        self.contexts[-1].append(prompt)
        self.start(self.contexts[-1], data)

    @precondition(lambda self: self.idle(1, 54))
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        self.start(data.draw(st.sampled_from(self.idle(1, 54))), data)

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), what=st.sampled_from(["truncate", "park", "release", "read"]))
    def idle_context(self, data: st.DataObject, what: str) -> None:
        context = data.draw(st.sampled_from(self.idle()))
        if what == "truncate":
            context.truncate(data.draw(st.integers(0, len(context.tokens))))
        elif what == "park" and context.table.pages:
            context.park()
        elif what == "release":
            self.contexts.remove(context)
            context.release()
        elif what == "read" and context.parked is None and context.table.length >= 4:
            full = context.table.pages[: context.table.length // 4]
            held = self.driver.read_pages(full).view(np.int64).reshape(-1)[::2]
            assert held.tolist() == context.tokens[: len(held)]

    @precondition(lambda self: self.idle(1, 50))
    @rule(
        data=st.data(),
        tokens=st.lists(st.integers(0, 2), min_size=1, max_size=5),
        kind=st.sampled_from([Prefill, ForwardPass]),
    )
    def other_jobs(self, data: st.DataObject, tokens: list[int], kind: type) -> None:
        context = data.draw(st.sampled_from(self.idle(1, 50)))
        if kind is Prefill:
            context.append(tokens)
            job: Any = Prefill(context)
            job.end_if_done()
        else:
            job = ForwardPass(context, tokens, [], RowSpec(GREEDY))
        self.engine.submit(job)

    @rule(steps=st.sampled_from([1, 1, 2, 3, 9]))
    def steps(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()
            self.engine.check_integrity()

    @rule(where=st.sampled_from(["fail_launch", "fail_wait"]))
    def break_down(self, where: str) -> None:
        """The next step fails on the device; what is launched behind it may not."""
        getattr(self.driver, where).add(len(self.driver.early))
        self.broke_down = True
        self.engine.step()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.running))
        one.take()
        one.generation.allow()

    @precondition(lambda self: self.running and len(self.contexts) < 6)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.running))
        child = one.generation.context.fork(one.generation.delivered_length)
        assert child.tokens == [*one.request.prompt, *one.tokens]
        self.contexts.append(child)
        if len(child.tokens) < 55:
            self.start(child, data)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        one = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        keep = data.draw(st.integers(0, len(one.tokens)))
        goes_on = not one.generation.finished()
        one.generation.close(keep)
        if goes_on or keep < len(one.tokens):
            assert one.generation.context.tokens == [*one.request.prompt, *one.tokens[:keep]]

    @invariant()
    def nothing_is_lost(self) -> None:
        self.engine.check_integrity()
        for one in self.running:
            self.check_error(one)
            assert tuple(one.tokens) == one.request.tokens[: len(one.tokens)]
            assert len(one.generation.outbox) <= MAX_UNDELIVERED_STEPS

    def check_error(self, one: GenerationUnderTest) -> None:
        """Only the tenant with a quota may meet it, and nobody an error of the device unless it broke down."""
        error = one.generation.error
        if self.broke_down and isinstance(error, InternalError):
            return
        assert error is None or (isinstance(error, LimitExceeded) and one.generation.context.tenant == "small"), error

    def teardown(self) -> None:
        for _ in range(1000):
            for one in self.running:
                one.take()
                one.generation.allow()
            if not self.engine.step():
                break
            self.engine.check_integrity()
        for one in self.running:
            if one.generation.error is None:
                one.check()
        for context in self.contexts:
            context.release()
        self.engine.close()
        self.engine.pool.check_integrity([])


class PlainSchedule(Schedule):
    """The plain twin."""

    overlap = False


BRISK = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
Schedule.TestCase.settings = PlainSchedule.TestCase.settings = BRISK
TestAnySchedule = Schedule.TestCase
TestAnySchedulePlainly = PlainSchedule.TestCase


# -- What goes wrong on the device ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["launch", "wait"])
@pytest.mark.parametrize("number", range(6))
def test_a_step_that_fails_takes_its_jobs_with_it_and_nothing_else(where: str, number: int) -> None:
    driver = Watched(**MODEL)
    engine = Engine(driver)
    (driver.fail_launch if where == "launch" else driver.fail_wait).add(number)
    asked = [make_request(driver, [1, 2, 3], seed, max_tokens=limit) for seed, limit in enumerate((3, 9, 12))]
    running = [start(engine, request) for request in asked]
    while any(not one.generation.finished() for one in running):
        assert engine.step()
        engine.check_integrity()
        for one in running:
            one.take()
    for one in running:
        ended_before = len(one.request.tokens) <= number
        assert isinstance(one.generation.error, InternalError) is not ended_before
        assert tuple(one.tokens) == one.request.tokens[:number], "what came before it stays"
        one.generation.close()
        assert tuple(one.generation.context.tokens) == one.request.prompt + tuple(one.tokens)
    again = [
        GenerationUnderTest.submit(
            engine, one.generation.context, make_request(driver, one.generation.context.tokens, seed), []
        )
        for seed, one in enumerate(running)
    ]
    finish(engine, again)
    assert all(launch.waited for launch in driver.launches), "what was launched behind it, too"
    release(engine, again)


def test_an_engine_that_ends_waits_for_the_step_on_its_way() -> None:
    driver = Watched(**MODEL)
    engine = Engine(driver)
    running = start(engine, make_request(driver, [1, 2, 3], 0))
    engine.step()
    assert not driver.launches[-1].waited
    running.generation.close()
    running.generation.context.release()
    engine.check_integrity()
    engine.close()
    assert driver.launches[-1].waited
    engine.pool.check_integrity([])
    engine.close()


# -- The time of a step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("busy", "each"), [(5.0, 5.0), (0.25, 1.0)])
def test_a_steps_time_runs_from_one_result_to_the_next(busy: float, each: float, monkeypatch: Patch) -> None:
    """The device's where the device is slower, the host's where the host is."""
    device = Device(busy, **MODEL)
    engine = Engine(device, EngineOptions(clock=lambda: device.now))
    seconds: list[float] = []
    monkeypatch.setattr(engine.draft_budget, "learn", lambda plan, price, emitted, took: seconds.append(took))
    finish(engine, [start(engine, make_request(device, [1, 2, 3], 0, max_tokens=12))])
    assert seconds[1:-1] == [each] * 10
    assert sum(seconds) == device.now, "no time is counted twice, and none is lost"
