"""Do the proofs of running ahead bite? Each fault that is built in must be found; the engine as it is passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from inferd.protocol import LimitExceeded
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.in_flight import InFlightStep
from inferd_runtime.engine.job import Continuation, Job, NextWork, Planned
from inferd_runtime.engine.jobs.generation import Generation
from inferd_runtime.engine.jobs.step_queue import MAX_UNDELIVERED_STEPS
from inferd_runtime.engine.overlap import OverlapPlanner
from inferd_runtime.engine.scheduling.queues import Queues, ReadyJobs
from inferd_runtime.engine.scheduling.scheduler import Scheduler
from inferd_runtime.engine.scheduling.tenants import Tenancy, TenantLimits
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.stages import Work
from inferd_runtime.kv.account import QuotaExceeded
from inferd_runtime.kv.pool import PoolExhausted
from inferd_runtime.kv.table import PageTable
from inferd_runtime.testing.null_driver import WrongHistory

from . import test_overlap as proofs
from .overlap_cases import MODEL, Patch, Watched, finish, lockstep, make_request, pages_ahead, release, start


def check_lockstep() -> None:
    for seed in range(40):
        lockstep(seed, 3)


def check_tight_cache() -> None:
    """Streams that fill the cache, so that some have to leave it, or their tenant's quota, so that some end with an error."""
    for seed, quota in ((0, 0), (1, 0), (0, 12), (1, 12)):
        errors = []
        for overlap in (True, False):
            tenancy = Tenancy(named={"small": TenantLimits(kv_pages=quota)})
            driver = Watched(**MODEL, pages=24 if quota else 12)
            engine = Engine(driver, EngineOptions(24, tenancy=tenancy, overlap=overlap))
            requests = [make_request(driver, [at], 5 * seed + at, max_tokens=10 + 8 * at) for at in range(3)]
            running = [start(engine, request, tenant="small") for request in requests]
            while any(not one.generation.finished() for one in running):
                engine.step()
                engine.check_integrity()
                for one in running:
                    one.take()
            errors.append([type(one.generation.error) for one in running])
            finish(engine, [one for one in running if one.generation.error is None])
            release(engine, running)
            assert any(driver.early) == overlap
        assert sorted(map(str, errors[0])) == sorted(map(str, errors[1]))
        assert (LimitExceeded in errors[0]) == bool(quota)


def check_slow_reader() -> None:
    driver = Watched(**MODEL)
    engine = Engine(driver)
    slow = [start(engine, make_request(driver, [1], 0, max_tokens=40)), start(engine, make_request(driver, [2], 1))]
    while any(not one.generation.finished() for one in slow):
        for _ in range(20):
            engine.step()
            assert all(len(one.generation.outbox) <= MAX_UNDELIVERED_STEPS for one in slow)
        slow[0].take()
        slow[1].take()
    finish(engine, slow)


def check_given_back() -> None:
    """A page for every token: whoever ends by a token that nobody could know has one too many on the way."""
    driver = Watched(**MODEL, page_size=1)
    engine = Engine(driver)
    requests = [make_request(driver, [1, 2], seed, max_tokens=40, eos=4) for seed in (0, 1, 2, 5, 6)]
    assert sum(request.finish == "stop" for request in requests) > 2
    finish(engine, [start(engine, request) for request in requests])
    engine.close()
    assert not pages_ahead(engine)


CHECKS: dict[str, Callable[[], None]] = {
    "lockstep": check_lockstep,
    "tight": check_tight_cache,
    "given back": check_given_back,
    "slow reader": check_slow_reader,
    "newcomer": proofs.test_a_newcomer_waits_for_the_step_on_its_way_and_no_longer,
    "clock": proofs.test_a_job_that_the_clock_holds_back_is_not_kept_waiting,
    "overlap": proofs.test_the_next_step_is_launched_before_the_one_on_its_way_is_waited_for,
    "wrong guesses": proofs.test_a_job_whose_guesses_are_always_wrong_is_run_ahead_of_all_the_same,
    "end": proofs.test_an_engine_that_ends_waits_for_the_step_on_its_way,
}


@pytest.mark.parametrize("name", ["tight", "given back", "slow reader"])
def test_the_engine_as_it_is_passes(name: str) -> None:
    CHECKS[name]()


def everything_stands(patch: Patch) -> None:
    patch.setattr(InFlightStep, "is_wanted", lambda step, index: True)


def not_one_further(patch: Patch) -> None:
    patch.setattr(Planned, "start", property(lambda item: item.table.length))


def planned_with(change: Callable[[list[Planned]], list[Planned]]) -> Callable[[Patch], None]:
    honest = OverlapPlanner.plan
    return lambda patch: patch.setattr(OverlapPlanner, "plan", lambda planner, step: change(honest(planner, step)))


def neighbours_token(plan: list[Planned]) -> list[Planned]:
    return [item._replace(carried=plan[at - 1].carried) for at, item in enumerate(plan)]


def place_in_this_step(plan: list[Planned]) -> list[Planned]:
    return [item._replace(carried=at) for at, item in enumerate(plan)]


def nothing_carried(plan: list[Planned]) -> list[Planned]:
    return [item._replace(carried=-1) for item in plan]


def no_page_reserved(patch: Patch) -> None:
    honest = CachedSequence.reserve
    patch.setattr(CachedSequence, "reserve", lambda context, extra: honest(context, extra) if extra == 1 else None)


def pages_taken_back(patch: Patch) -> None:
    """With the step before, as if they were a rejected draft's."""
    patch.setattr(
        PageTable, "_give_back", lambda table, length, honest=PageTable._give_back: honest(table, table.length)
    )


def pages_kept(patch: Patch) -> None:
    """By a job that has ended: nobody gives the page back that was meant for its next token."""
    patch.setattr(PageTable, "trim_unplanned", lambda table: None)


def room_not_asked(patch: Patch) -> None:
    patch.setattr(Scheduler, "_has_room", lambda scheduler, context, tokens: True)


def nobody_joins(patch: Patch) -> None:
    def certain(scheduler: Scheduler, ready: ReadyJobs) -> ReadyJobs:
        known = honest(scheduler, ready)
        return ReadyJobs(*([job for job in jobs if job in scheduler._in_flight] for jobs in (known.short, known.long)))

    honest = Scheduler._certain
    patch.setattr(Scheduler, "_certain", certain)


def clock_not_asked(patch: Patch) -> None:
    def everybody(queues: Queues) -> list[ReadyJobs]:
        fair = round_of(queues)
        return [*fair, *queues.others(fair)]

    def plan_behind(scheduler: Scheduler, in_flight: Mapping[Job, Continuation | None]) -> list[Planned]:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(Queues, "next_round", everybody)
            return honest(scheduler, in_flight)

    round_of, honest = Queues.next_round, Scheduler.plan_behind
    patch.setattr(Scheduler, "plan_behind", plan_behind)


def outbox_not_asked(patch: Patch) -> None:
    def next_work(generation: Generation, in_flight: Work) -> NextWork:
        return NextWork.NOTHING if generation.finished() or generation._room() <= 1 else NextWork.ROW

    patch.setattr(Generation, "next_work", next_work)


def length_not_asked(patch: Patch) -> None:
    def next_work(generation: Generation, in_flight: Work) -> NextWork:
        known = honest(generation, in_flight)
        return NextWork.ROW if known is NextWork.NOTHING else known

    honest = Generation.next_work
    patch.setattr(Generation, "next_work", next_work)


def host_does_not_follow(patch: Patch) -> None:
    patch.setattr(InFlightStep, "move_back", lambda step, before: None)


def not_waited_for(patch: Patch) -> None:
    patch.setattr(Engine, "close", lambda engine: None)


FAULTS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "what a job that has ended still gets is committed": (everything_stands, "lockstep"),
    "the row behind has the place of the one before": (not_one_further, "lockstep"),
    "a row is fed its neighbour's token": (planned_with(neighbours_token), "lockstep"),
    "a token is looked up by its place in the step it is fed in": (planned_with(place_in_this_step), "lockstep"),
    "the unknown token is fed as it stands there": (planned_with(nothing_carried), "lockstep"),
    "no page is reserved": (no_page_reserved, "lockstep"),
    "the page is taken back while a step writes it": (pages_taken_back, "lockstep"),
    "the page of a job that has ended is kept": (pages_kept, "given back"),
    "nobody asks whether there is room": (room_not_asked, "tight"),
    "nobody asks who else wants to run": (nobody_joins, "newcomer"),
    "nobody asks whose turn it is": (clock_not_asked, "clock"),
    "nobody asks whether the reader is slow": (outbox_not_asked, "slow reader"),
    "nobody asks whether the length is reached": (length_not_asked, "overlap"),
    "rows that the device moved are thrown away": (host_does_not_follow, "wrong guesses"),
    "a step in flight is left alone at the end": (not_waited_for, "end"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, monkeypatch: Patch) -> None:
    build_in, check = FAULTS[fault]
    build_in(monkeypatch)
    with pytest.raises((AssertionError, ValueError, PoolExhausted, QuotaExceeded, WrongHistory)):
        CHECKS[check]()
