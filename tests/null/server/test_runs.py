"""Runs: their states, their replayable events and the bounds of what is kept."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given, strategies as st

from inferd.protocol import Cancelled, ErrorInfo, InvalidRequest, NotFound, Unavailable
from inferd_runtime.sandbox.messages import Bundle, Limits, Output, RunFinished, RunUsage, Sent
from inferd_runtime.server.programs.bundles import make_program
from inferd_runtime.server.supervisor.runs import EVENT_OVERHEAD, EventBuffer, Run, RunState, RunStore

PROGRAM = make_program(Bundle("p", {"main.py": "async def main(): pass"}))


def make_run(capacity: int = 1 << 16, tenant: str = "ann") -> Run:
    return Run(PROGRAM, "{}", tenant, Limits(), EventBuffer(capacity))


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
    assert buffer.size <= capacity or buffer.next_index - buffer.first_index == 1
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
    store = RunStore(max_finished=2, max_bytes=1 << 20)
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
    store = RunStore(max_finished=100, max_bytes=3 * (EVENT_OVERHEAD + 1000))
    for _ in range(10):
        run = make_run(capacity=1 << 20)
        store.add(run)
        run.wrote(Output(run.id, "stdout", "x" * 1000))
        run.finish_from(finished(run, None, Cancelled("x").to_wire()))
        store.retire(run)
    assert len(store) == 2


def test_another_tenants_run_is_not_found() -> None:
    store = RunStore(10, 1 << 20)
    run = make_run(tenant="ann")
    store.add(run)
    assert store.get(run.id, "ann") is run
    for run_id, tenant in ((run.id, "bob"), ("run-nix", "ann")):
        with pytest.raises(NotFound):
            store.get(run_id, tenant)
    assert store.of("bob") == []
    assert store.of("ann") == [run]
