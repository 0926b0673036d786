"""Edges of planning: budgets of a token, prompts without room, who counts as contended."""

from __future__ import annotations

from typing import Any

import pytest

from inferd.protocol import LimitExceeded, Sampling
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.scheduling.fairness import StepCost
from inferd_runtime.engine.scheduling.scheduler import PATIENCE, REFUSALS
from inferd_runtime.engine.scheduling.tenants import Tenancy, TenantLimits
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.testing.null_driver import NullDriver

GREEDY = RowSampler.resolve(Sampling(), seed=0, lineage=0)


def start(engine: Engine, prompt: list[int], max_tokens: int = 100, tenant: str = "", priority: int = 0) -> Generation:
    context = engine.create_context(tenant)
    context.append(prompt)
    return start_on(engine, context, max_tokens, priority)


def start_on(engine: Engine, context: CachedSequence, max_tokens: int = 100, priority: int = 0) -> Generation:
    spec = GenerationSpec(GREEDY, max_tokens, (), priority=priority)
    generation = Generation(context, spec, TextAssembler(str, ()))
    engine.submit(generation)
    return generation


def steps(engine: Engine, count: int, *generations: Generation) -> list[int]:
    """Step, take what comes, and return how many tokens each generation got."""
    made = [0] * len(generations)
    for _ in range(count):
        engine.step()
        for at, generation in enumerate(generations):
            made[at] += sum(len(step.tokens) for step in generation.take())
    return made


def test_at_a_budget_of_one_token_a_stream_and_a_prompt_take_turns() -> None:
    """A prompt of thirty tokens takes sixty steps, and the stream runs in each one between."""
    engine = Engine(NullDriver(vocab_size=16, pages=64, max_context=200), EngineOptions(1))
    stream = start(engine, [2])
    assert steps(engine, 4, stream) == [4]
    prompt = start(engine, [3] * 30)
    assert steps(engine, 40, stream, prompt) == [20, 0]


def test_a_long_prompt_never_delays_a_stream_of_its_tenant() -> None:
    engine = Engine(NullDriver(vocab_size=16, pages=64, max_context=400), EngineOptions(16))
    prompt, stream = start(engine, [3] * 300), start(engine, [2])
    assert steps(engine, 15, prompt, stream) == [0, 15]


def test_after_so_many_prompts_without_room_the_others_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(NullDriver(vocab_size=16, pages=8, page_size=4, max_context=200), EngineOptions(64))
    running = start(engine, [1] * 20)
    steps(engine, 1, running)
    tried: list[CachedSequence] = []
    find = type(engine.scheduler)._find_room

    def counted(self: Any, context: CachedSequence) -> bool:
        tried.append(context)
        return find(self, context)

    monkeypatch.setattr(type(engine.scheduler), "_find_room", counted)
    for number in range(3 * REFUSALS):
        start(engine, [number % 16] * 24)
    assert steps(engine, 1, running) == [1]
    assert len(tried) <= REFUSALS + 2  # the stream itself may look for room, too


def test_the_order_of_a_round_ends_where_the_budget_does() -> None:
    """Ninety streams and sixteen tokens: each step asks sixteen of them for work, and not the others."""
    engine = Engine(NullDriver(vocab_size=16, pages=200, page_size=4, max_context=200), EngineOptions(16))
    streams = [start(engine, [1]) for _ in range(90)]
    asked: list[Generation] = []
    for stream in streams:
        work = stream.work
        stream.work = lambda *given, stream=stream, work=work: asked.append(stream) or work(*given)  # type: ignore[method-assign, func-returns-value]
    engine.step()
    assert len(asked) == 16


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Generation]:
    """Return a list that gets each generation whose method of that name is called."""
    asked: list[Generation] = []
    method = getattr(Generation, name)
    monkeypatch.setattr(Generation, name, lambda self, *given: asked.append(self) or method(self, *given))  # type: ignore[func-returns-value]
    return asked


def test_no_more_streams_are_asked_for_drafts_than_a_step_has_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a tenant with a thousand streams has everybody wait for a thousand guesses in each step of sixteen tokens."""
    engine = Engine(NullDriver(vocab_size=16, pages=200, page_size=4, max_context=200), EngineOptions(16))
    streams = [start(engine, [1]) for _ in range(90)]
    for stream in streams:
        stream.speculates = True
    asked = counted(monkeypatch, "propose")
    assert sum(steps(engine, 1, *streams)) == 16
    assert len(asked) == 16


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many jobs of a tenant are looked at in a round: fewer than in use, so that fewer are more."""
    monkeypatch.setattr("inferd_runtime.engine.scheduling.queues.LOOKED_AT", 128)
    return 128


@pytest.mark.parametrize("reads", [True, False])
def test_a_step_of_one_tenant_does_not_look_at_all_streams_of_another(
    monkeypatch: pytest.MonkeyPatch, looked_at: int, reads: bool
) -> None:
    """Whether they run, or wait for a reader that never comes."""
    count = 3 * looked_at
    engine = Engine(
        NullDriver(vocab_size=16, pages=2 * count, max_context=400), EngineOptions(looked_at, cost=StepCost(8.0))
    )
    many = [start(engine, [1], tenant="many") for _ in range(count)]
    for _ in range(0 if reads else 3 * 17):
        engine.step()
    lone = start(engine, [2], 300, tenant="lone")
    steps(engine, 4, lone)
    looked = counted(monkeypatch, "ready")
    rounds = 20
    assert sum(steps(engine, rounds, lone)) > rounds // 3
    assert len(looked) < rounds * (2 * looked_at + 50)
    for _ in range(40):
        steps(engine, 20, lone)
        steps(engine, 1, *many)
    assert all(one.delivered_length > 2 for one in many), "each has its turn, those that slept, too"


def test_a_stream_that_wakes_up_is_found_among_hundreds_that_sleep(looked_at: int) -> None:
    """Nobody else wants anything, so that the engine would rest."""
    engine = Engine(NullDriver(vocab_size=16, pages=8 * looked_at, max_context=400), EngineOptions(looked_at))
    many = [start(engine, [1]) for _ in range(2 * looked_at)]
    while engine.step():
        pass
    for one in (many[5], many[-1]):
        one.take()
        assert engine.step()
        assert len(one.outbox) == 1
        while engine.step():
            pass


def test_who_holds_little_of_the_cache_does_not_wait_for_pages_that_another_tenants_streams_fill() -> None:
    """Else each page, every few tokens, takes PATIENCE steps, and longer the more streams wait before."""
    engine = Engine(NullDriver(vocab_size=16, pages=60, page_size=16, max_context=600), EngineOptions(64))
    many = [start(engine, [1 + at % 9] * 3, 500, tenant="many") for at in range(200)]
    steps(engine, 20, *many)
    lone = start(engine, [2] * 3, 300, tenant="lone")
    since = longest = 0
    for _ in range(300):
        since = 0 if steps(engine, 1, lone, *many)[0] else since + 1
        longest = max(longest, since)
        engine.check_integrity()
    assert longest <= 4


def test_a_prompt_without_room_holds_no_page_of_those_it_found() -> None:
    """Else two prompts that share a beginning could keep each other, and everybody else, from running."""
    engine = Engine(NullDriver(vocab_size=16, pages=10, page_size=4, max_context=200), EngineOptions(64))
    known = start(engine, [1] * 9, max_tokens=1)
    steps(engine, 1, known)
    known.close()
    other = start(engine, [2] * 24)
    steps(engine, 1, other)
    waiting = start(engine, [1] * 8 + [3] * 16)
    steps(engine, 1, other, waiting)
    assert not waiting.context.table.pages
    engine.check_integrity()


def test_a_prompt_that_waits_too_long_pushes_a_stream_out() -> None:
    """Two streams hold a page each, and it needs three of four."""
    engine = Engine(NullDriver(vocab_size=16, pages=4, page_size=256, max_context=2000), EngineOptions(1024))
    streams = [start(engine, [1] * 4, max_tokens=200) for _ in range(2)]
    steps(engine, 2, *streams)
    waiting = start(engine, [3] * 600, max_tokens=1)
    steps(engine, PATIENCE - 1, *streams, waiting)
    assert not waiting.finished()
    steps(engine, 3, *streams, waiting)
    assert waiting.finish == "length"


def test_priorities_share_one_tenants_time_by_weight() -> None:
    """Their weights are 2 to 1; rounding to whole steps brings the share a little below that."""
    engine = Engine(NullDriver(vocab_size=16, pages=400, max_context=2000), EngineOptions(64, cost=StepCost(1.0)))
    high, low = (start(engine, [1], max_tokens=1900, priority=priority) for priority in (1, 0))
    made = steps(engine, 100, high, low)
    assert 1.5 < made[0] / made[1] < 2.5


def test_time_alone_is_no_debt() -> None:
    """Who ran while nobody else wanted to is not held back when somebody comes."""
    engine = Engine(NullDriver(vocab_size=16, pages=400, max_context=2000), EngineOptions(64, cost=StepCost(1.0)))
    early = start(engine, [1], max_tokens=1900, tenant="early")
    steps(engine, 60, early)
    late = start(engine, [1], max_tokens=1900, tenant="late")
    made = steps(engine, 40, early, late)
    assert made[0] == pytest.approx(made[1], abs=2)


def test_a_shared_beginning_beyond_the_quota_is_refused_by_the_quota() -> None:
    tenancy = Tenancy(named={"t": TenantLimits(kv_pages=5)})
    engine = Engine(
        NullDriver(vocab_size=16, pages=64, page_size=4, max_context=200), EngineOptions(64, tenancy=tenancy)
    )
    first = start(engine, [1] * 17, max_tokens=1, tenant="t")
    steps(engine, 1, first)
    first.close()
    first.context.release()  # its pages are kept, and found again
    beside = start(engine, [2] * 12, max_tokens=1, tenant="t")
    steps(engine, 1, beside)
    second = start(engine, [1] * 30, max_tokens=1, tenant="t")
    steps(engine, 2, second)
    assert isinstance(second.error, LimitExceeded)
    assert second.error.detail["limit"] == "tenant_kv_pages"
