"""Runs: their states, their replayable events and the bounds of what is kept."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import replace

import anyio
import pytest
from hypothesis import given, strategies as st

from inferd.protocol import Cancelled, ErrorInfo, InvalidRequest, LimitExceeded, NotFound, Unavailable
from inferd_runtime.sandbox.messages import (
    PART_CHARS,
    Bundle,
    Limits,
    Output,
    ResultPart,
    RunFinished,
    RunUsage,
    Sent,
    in_parts,
)
from inferd_runtime.server.programs.bundles import Program, make_program
from inferd_runtime.server.supervisor import runs
from inferd_runtime.server.supervisor.held_runs import FRAME_BYTES, MOST_POSTPONED_SECONDS, RECEIPT_EVENTS, HeldRun
from inferd_runtime.server.supervisor.run_events import EVENT_OVERHEAD, MAX_UNREAD, EventBuffer, RunState
from inferd_runtime.server.supervisor.run_followers import FIRST_SECONDS, FOLLOWER_SECONDS
from inferd_runtime.server.supervisor.runs import BATCH_BYTES, BATCH_EVENTS, MAX_FOLLOWERS, Run, RunStore
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all

PROGRAM = make_program(Bundle("p", {"main.py": "async def main(x: int = 1): pass"}))


def make_run(capacity: int = 1 << 16, tenant: str = "ann") -> Run:
    return Run(PROGRAM, "{}", tenant, Limits(), EventBuffer(capacity))


def store_of(**changes: int) -> RunStore:
    return RunStore(same_for_all(Quotas(**changes)))


def finished(run: Run, result: str | None = "1", error: ErrorInfo | None = None) -> RunFinished:
    return RunFinished(run.id, RunUsage(tokens=3), result, error)


@given(sizes=st.lists(st.integers(0, 300), max_size=60), capacity=st.integers(1, 2000), start=st.integers(0, 70))
def test_the_buffer_keeps_the_newest_within_its_bound_and_says_what_is_gone(
    sizes: list[int], capacity: int, start: int
) -> None:
    buffer = EventBuffer(capacity)
    for size in sizes:
        buffer.append("stdout", "x" * size, size)
    events = list(buffer.since(start))
    dropped = [event for event in events if event.kind == "dropped"]
    kept = [event for event in events if event.kind != "dropped"]
    assert [event.index for event in kept] == list(range(max(start, buffer.first_index), len(sizes)))
    assert sum(event.payload for event in dropped) == max(buffer.first_index - start, 0)
    assert all(len(event.payload) == sizes[event.index] for event in kept)
    assert buffer.size == buffer.bytes_from(0)
    for index in range(buffer.first_index, len(sizes) + 2):
        assert buffer.bytes_from(index) == sum(
            event.size for event in buffer.since(buffer.first_index) if event.index >= index
        )
    assert buffer.size - buffer.bytes_from(len(sizes) - 1) <= capacity
    if sizes:
        assert buffer.next_index - 1 >= buffer.first_index  # the last one is always here


def test_a_run_goes_through_its_states() -> None:
    run = make_run()
    states = [run.state]
    run.started()
    states.append(run.state)
    assert run.finish_from(finished(run, '{"a": [1]}'))
    assert [*states, run.state] == [RunState.QUEUED, RunState.RUNNING, RunState.SUCCEEDED]
    assert run.result == {"a": [1]}
    assert run.usage.tokens == 3
    assert run.error is None


@pytest.mark.parametrize(
    ("error", "state"), [(Cancelled("x"), RunState.CANCELLED), (Unavailable("x"), RunState.FAILED)]
)
def test_an_error_decides_the_final_state(error: Unavailable | Cancelled, state: RunState) -> None:
    run = make_run()
    run.fail(error.to_wire())
    assert run.state is state
    assert run.error == error.to_wire()


def test_a_run_ends_once_and_says_nothing_after_that() -> None:
    run = make_run()
    run.started()
    assert run.fail(Unavailable("gone").to_wire())
    assert not run.finish_from(finished(run))
    run.wrote(Output(run.id, "stdout", "late"))
    run.sent(Sent(run.id, "1"))
    run.started()
    assert [event.kind for event in run.buffer.since(0)] == ["started", "finished"]
    assert run.error is not None
    assert run.error.code == "unavailable"


def test_messages_are_refused_once_it_is_over_and_cancel_does_nothing() -> None:
    asked: list[str] = []
    run = make_run()
    run.on_cancel = lambda run, error: asked.append(error.code)
    run.cancel()
    run.finish_from(finished(run))
    run.cancel()
    assert asked == ["cancelled"]
    with pytest.raises(InvalidRequest, match="is over"):
        run.deliver(1)


def test_followers_see_what_was_and_what_comes_until_the_end() -> None:
    async def scenario() -> tuple[list[str], list[str]]:
        run = make_run()
        run.started()
        early: list[str] = []
        late: list[str] = []

        async def follow(into: list[str], start: int) -> None:
            async for event in run.follow(start):
                into.append(event.kind)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, early, 0)
            await anyio.wait_all_tasks_blocked()
            for text in "ab":
                run.wrote(Output(run.id, "stdout", text))
            await anyio.wait_all_tasks_blocked()
            run.finish_from(finished(run))
        await follow(late, 2)
        return early, late

    early, late = anyio.run(scenario)
    assert early == ["started", "stdout", "stdout", "finished"]
    assert late == ["stdout", "finished"]


def test_a_follower_that_waits_too_long_gets_an_empty_batch() -> None:
    async def scenario() -> int:
        return len(await make_run().next_batch(0, 0.01))

    assert anyio.run(scenario) == 0


def test_the_store_forgets_the_oldest_finished_runs_only() -> None:
    store = store_of(kept_runs=2)
    runs = [make_run() for _ in range(5)]
    for run in runs:
        store.add(run)
    for run in runs[:4]:
        run.finish_from(finished(run))
        store.retire(run)
        store.retire(run)  # twice is once
    assert [store.find(run.id) is not None for run in runs] == [False, False, True, True, True]
    assert store.active == [runs[4]]
    assert len(store) == 3


def test_the_store_bounds_the_bytes_that_finished_runs_hold() -> None:
    store = store_of(kept_bytes=5 * EVENT_OVERHEAD + 2500)
    for _ in range(10):
        run = make_run(capacity=1 << 20)
        store.add(run)
        run.wrote(Output(run.id, "stdout", "x" * 1000))
        run.finish_from(finished(run, None, Cancelled("x").to_wire()))
        store.retire(run)
    assert len(store) == 2


def test_another_tenants_run_is_not_found() -> None:
    store = store_of()
    run = make_run(tenant="ann")
    store.add(run)
    assert store.get(run.id, "ann") is run
    for run_id, tenant in ((run.id, "bob"), ("run-nix", "ann")):
        with pytest.raises(NotFound):
            store.get(run_id, tenant)
    assert store.of("bob") == []
    assert store.of("ann") == [run]


def test_one_tenants_large_results_push_nobody_elses_out() -> None:
    store = store_of(kept_runs=100, kept_bytes=10_000)
    small, large = make_run(tenant="ann"), [make_run(tenant="bob") for _ in range(5)]
    for run in (small, *large):
        store.add(run)
        run.finish_from(finished(run, f'"{"x" * (9_000 if run.tenant == "bob" else 10)}"'))
        store.retire(run)
    assert store.of("ann") == [small]
    assert store.of("bob") == [large[-1]]


def test_what_active_runs_hold_is_bounded_for_each_tenant() -> None:
    store = store_of(kept_bytes=10_000)
    run = Run(PROGRAM, "x" * 9_000, "ann", Limits(), EventBuffer(1 << 16))
    store.add(run)
    with pytest.raises(LimitExceeded) as caught:
        store.check_room("ann", 2_000)
    assert caught.value.detail["limit"] == "kept_bytes"
    store.check_room("bob", 2_000)
    run.finish_from(finished(run))
    store.retire(run)
    assert run.arguments == ""
    store.check_room("ann", 2_000)
    store.held_elsewhere = {"ann": 9_000, "bob": 1}
    with pytest.raises(LimitExceeded, match="9000 bytes already"):
        store.check_room("ann", 2_000)
    store.check_room("bob", 2_000)


def test_a_follower_gets_no_more_than_a_batch_at_a_time() -> None:
    run = make_run(capacity=1 << 20)
    for _ in range(BATCH_EVENTS + 10):
        run.wrote(Output(run.id, "stdout", "x"))
    batch = anyio.run(run.next_batch, 0)
    assert len(batch) == BATCH_EVENTS
    run.wrote(Output(run.id, "stdout", "y" * (2 * BATCH_BYTES)))
    assert [event.index for event in anyio.run(run.next_batch, BATCH_EVENTS)] == list(
        range(BATCH_EVENTS, BATCH_EVENTS + 10)
    )
    assert len(anyio.run(run.next_batch, BATCH_EVENTS + 10)) == 1


def test_what_a_follower_has_not_read_is_kept_and_the_program_waits_for_it_but_not_for_ever() -> None:
    """What a program printed faster than the command line read it was lost, and the run a success."""
    run, text = make_run(1 << 12), "x" * 1000
    held, confirmed = HeldRun(run, "worker", math.inf), list[int]()
    run.on_read = lambda run: confirmed.append(held.receipt())
    with run.followed_from(0) as reader, run.followed_from(7):
        for _ in range(RECEIPT_EVENTS):
            assert held.count(1000)
            run.wrote(Output(run.id, "stdout", text))
            assert held.receipt() == 0
        assert [event.payload for event in run.buffer.since(0)] == [text] * RECEIPT_EVENTS
        run.read_by(reader, 20)
        assert (run.buffer.first_index, confirmed) == (7, [0]), "the other one has not read"
        run.expire_followers(time.monotonic() + FOLLOWER_SECONDS - 1)
        assert run.outruns_followers
        run.expire_followers(time.monotonic() + FOLLOWER_SECONDS + 1)
        assert confirmed == [0, RECEIPT_EVENTS]
    assert run.buffer.size - run.buffer.bytes_from(RECEIPT_EVENTS - 1) <= run.buffer.capacity


def test_what_no_program_waits_for_is_dropped_even_if_it_is_unread() -> None:
    run = make_run(1 << 12)
    with run.followed_from(0):
        for _ in range(30):
            run.called("x" * 100_000)
        assert 0 < run.buffer.first_index < 29
        assert run.buffer.size - run.buffer.bytes_from(29) <= run.buffer.capacity + MAX_UNREAD


def test_the_program_waits_for_the_launcher_that_is_about_to_follow_and_not_for_one_that_has_read_all() -> None:
    run = make_run(1 << 12)
    for _ in range(9):
        run.wrote(Output(run.id, "stdout", "x" * 1000))
    assert run.outruns_followers
    run.expire_followers(time.monotonic() + FIRST_SECONDS + 1)
    assert not run.outruns_followers
    assert run.buffer.first_index > 0
    with run.followed_from(9):
        run.expire_followers(time.monotonic() + 2 * FOLLOWER_SECONDS)
        run.wrote(Output(run.id, "stdout", "x" * 5000))
        run.wrote(Output(run.id, "stdout", "y"))
        assert run.buffer.first_index == 9


@pytest.mark.parametrize(("start", "waits"), [(0, False), (1, False), (2, True)])
def test_who_asks_for_all_that_a_program_says_is_the_first_follower(start: int, waits: bool) -> None:
    """Behind one who left out that it has started, programs waited 2 s for another."""
    run = make_run(1 << 12)
    run.started()
    with run.followed_from(start) as reader:
        for _ in range(9):
            run.wrote(Output(run.id, "stdout", "x" * 1000))
        run.read_by(reader, run.buffer.next_index)
        assert run.outruns_followers == waits


def test_so_many_may_follow_one_run() -> None:
    run = make_run()
    with ExitStack() as open_streams:
        for _ in range(MAX_FOLLOWERS):
            open_streams.enter_context(run.followed())
        with pytest.raises(LimitExceeded, match="streams"), run.followed():
            pass
    with run.followed():
        pass


def test_a_line_break_in_json_does_not_end_the_line_of_an_event() -> None:
    run = make_run()
    run.sent(Sent(run.id, '{"a":\n1}'))
    run.finish_from(finished(run, "[1,\r\n2]"))
    assert next(event.payload for event in run.buffer.since(0)) == '{"a": 1}'
    assert run.ending is not None
    assert run.ending.result == "[1,  2]"


def test_a_jump_of_the_systems_clock_does_not_change_how_long_a_run_took(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    run.started()
    monkeypatch.setattr(time, "time", lambda: 4e9)
    run.fail(Unavailable("x").to_wire())
    assert run.usage.wall_ms < 60_000


def test_a_long_result_goes_in_parts_and_is_the_same_at_the_end() -> None:
    text = '"' + "ä" * (2 * PART_CHARS) + '"'
    run = make_run()
    held = HeldRun(run, "worker", 1.0)
    *parts, last = in_parts(RunFinished(run.id, RunUsage(), text))
    assert [type(part) for part in (*parts, last)] == [ResultPart, ResultPart, RunFinished]
    for part in parts:
        assert isinstance(part, ResultPart)
        assert held.add_part(part.text, 4)
    assert isinstance(last, RunFinished)
    assert run.finish_from(last, held.parts)
    assert run.ending is not None
    assert run.ending.result == text
    assert run.ending.size == len(text)
    short = RunFinished(run.id, RunUsage(), "1")
    assert list(in_parts(short)) == [short]


def test_parts_of_a_result_beyond_the_runs_limit_are_not_taken() -> None:
    held = HeldRun(make_run(), "worker", 1.0)
    assert not held.add_part("x", 2 * Limits().output_bytes + FRAME_BYTES * Limits().output_events + 1)


def test_events_behind_any_number_are_none_yet() -> None:
    buffer = EventBuffer(1 << 16)
    buffer.append("stdout", "a", 1)
    for start in (1, 2**63, 10**300):
        assert list(buffer.since(start)) == []


def test_a_run_has_more_time_to_end_while_its_worker_ends_others_but_not_for_ever() -> None:
    held = HeldRun(make_run(), "worker", 1.0)
    held.postpone(50.0)
    assert held.kill_at == math.inf, "nobody asked for its end"
    held.tell(Cancelled("").to_wire(), 10.0)
    for kill_at, expected in ((12.0, 12.0), (11.0, 12.0), (1000.0, 10.0 + MOST_POSTPONED_SECONDS)):
        held.postpone(kill_at)
        assert held.kill_at == expected


def large_program(name: str, size: int) -> Program:
    return replace(PROGRAM, name=name, bundle=Bundle(name, {"main.py": "x" * size}))


def test_a_run_that_is_over_holds_no_files_of_its_program() -> None:
    """Each kept a copy, uncounted: of 16,000 children that are over, and whose parents may ask for them, tens of gigabytes."""
    store, run = store_of(), make_run()
    shown = run.record().program
    store.add(run)
    run.finish_from(finished(run))
    store.retire(run)
    assert run.program.bundle.size == 0
    assert run.program.interface.parameters == []
    assert run.record().program == shown


def test_a_tenants_runs_hold_programs_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of runs of different programs held them all, uncounted."""
    monkeypatch.setattr(runs, "MAX_PROGRAM_BYTES", 100_000)
    store, one, other = store_of(), large_program("one", 60_000), large_program("other", 60_000)
    waiting = [replace(make_run(), program=one, id=name) for name in "ab"]
    for run in waiting:
        store.check_program("ann", one)
        store.add(run)
    with pytest.raises(LimitExceeded) as caught:
        store.check_program("ann", other)
    assert caught.value.detail["limit"] == "program_bytes"
    store.check_program("bob", other)
    for run in waiting:
        run.finish_from(finished(run))
        store.retire(run)
    store.check_program("ann", other)
