"""The states of a generation: every state with every event, and what that means for where it can get."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from inferd import Context, InvalidRequest, Sampler
from inferd.calls.generation_state import IN_STEP, REFUSALS, TRANSITIONS, GenerationEvent, GenerationState, Lifecycle
from inferd.protocol import CloseGenerate, StartGenerate
from inferd.testing import FakeRuntime

OVER = {GenerationState.LEFT, GenerationState.CLOSED}
STOPPED = {GenerationState.ENDING, GenerationState.INTERRUPTED, GenerationState.LEAVING, *OVER}
BY_THE_PROGRAM = (GenerationEvent.ASK, GenerationEvent.LEAVE, GenerationEvent.CLOSE)
IN_ANY_STATE = (*BY_THE_PROGRAM, GenerationEvent.RELEASE)


def reached_from(*states: GenerationState) -> set[GenerationState]:
    found = set(states)
    while more := {moves[state] for moves in TRANSITIONS.values() for state in found if state in moves} - found:
        found |= more
    return found


def at(state: GenerationState) -> Lifecycle:
    lifecycle = Lifecycle()
    lifecycle.state = state
    return lifecycle


def test_the_docstring_lists_every_change() -> None:
    rows = [line.split() for line in (Lifecycle.__doc__ or "").splitlines()]
    events = {event.name for event in GenerationEvent}
    listed = [
        tuple(row[:3]) for row in rows if len(row) > 2 and row[0] in events and row[1] in GenerationState.__members__
    ]
    changes = {
        (event.name, state.name, to.name) for event, moves in TRANSITIONS.items() for state, to in moves.items() if state != to
    }  # fmt: skip
    assert set(listed) == changes
    assert len(listed) == len(changes)


@pytest.mark.parametrize("state", GenerationState)
@pytest.mark.parametrize("event", IN_ANY_STATE)
def test_whatever_a_program_does_is_answered_or_refused_in_every_state(
    event: GenerationEvent, state: GenerationState
) -> None:
    lifecycle, refusal = at(state), REFUSALS.get(event, {}).get(state)
    assert (refusal is None) == (state in TRANSITIONS[event])
    if refusal is None:
        lifecycle.on(event)
        assert lifecycle.state is TRANSITIONS[event][state]
    else:
        with pytest.raises(InvalidRequest, match=refusal.partition(":")[0]):
            lifecycle.on(event)
        assert lifecycle.state is state


def test_every_state_is_reached_and_what_is_over_stays_over() -> None:
    assert reached_from(GenerationState.NEW) == set(GenerationState)
    assert reached_from(*STOPPED) == STOPPED, "no step is handed out behind a gap"
    for state in OVER:
        assert reached_from(state) == {state}


def test_one_task_at_a_time() -> None:
    for state in IN_STEP:
        assert all(state in REFUSALS[event] for event in BY_THE_PROGRAM)
        assert state in TRANSITIONS[GenerationEvent.RETURN], "the task can always give the generation back"


@pytest.mark.parametrize("state", [state for state in GenerationState if state not in IN_STEP])
def test_closing_ends_it_from_wherever_nobody_waits(state: GenerationState) -> None:
    lifecycle = at(state)
    lifecycle.on(GenerationEvent.CLOSE)
    assert lifecycle.state in STOPPED
    lifecycle.on(GenerationEvent.CLOSE)  # the first try may have failed
    lifecycle.on(GenerationEvent.RELEASED)
    assert lifecycle.state in OVER


@given(st.lists(st.sampled_from(list(GenerationEvent)), max_size=30))
def test_any_run_of_events(events: list[GenerationEvent]) -> None:
    """A generation that was left never delivers and never ends quietly; one that was not asked for sends nothing."""
    lifecycle, sent, left = Lifecycle(), False, False
    for event in events:
        before = lifecycle.state
        if before in TRANSITIONS[event]:
            lifecycle.on(event)
        sent = sent or (event is GenerationEvent.SEND and lifecycle.state is GenerationState.WAITING)
        left = left or lifecycle.state is GenerationState.LEAVING
        assert sent or lifecycle.state not in (
            GenerationState.DELIVERING,
            GenerationState.RUNNING,
            GenerationState.FINISHED,
            GenerationState.ENDING,
        )
        assert not left or lifecycle.state in (GenerationState.LEAVING, GenerationState.LEFT)


async def test_a_start_that_nobody_waits_for_is_closed_even_if_the_first_try_is_cancelled() -> None:
    """Cancelling whoever closes does not cancel the start, which alone knows what there is to close."""
    gate = asyncio.Event()

    class Held(FakeRuntime):
        async def call(self, request: Any) -> Any:
            if isinstance(request, StartGenerate):
                await gate.wait()
            return await super().call(request)

    with Held(["abc", "xyz"]) as runtime:
        ctx = Context().append("p")
        await ctx.flush()
        for use in (anext(ctx.generate(Sampler.argmax())), ctx.tokens()):
            task = asyncio.ensure_future(use)
            for _ in range(5):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        gate.set()
        assert await ctx.tokens() == list(b"p")
        assert len(runtime.of_kind(CloseGenerate)) == 1
        assert await ctx.generate(Sampler.argmax()).collect_text() == "xyz"
