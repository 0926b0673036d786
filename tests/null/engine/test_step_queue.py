from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from inferd.protocol import MOST_JOINED, MOST_STEPS, SourceCount, Step, TokenLogprob
from inferd_runtime.engine.jobs.step_queue import MAX_UNDELIVERED_STEPS, MOST_HELD, StepQueue

PLAIN = Step([1], "a")
DRAFTED = Step([3], "c", drafted=1, sources=[SourceCount("ngram", 1)])
SCORED = Step([5], "e", logprobs=[TokenLogprob(5, -0.5)])
STEPS = st.lists(st.sampled_from([PLAIN, Step([2], ""), Step([], "rest"), DRAFTED, SCORED]), max_size=30)


@given(STEPS, st.integers(0, 30))
def test_joined_steps_tell_what_the_steps_tell(steps: list[Step], asked_after: int) -> None:
    queue = StepQueue()
    for at, step in enumerate(steps):
        if at == asked_after:
            queue.expect(MOST_JOINED, joined=True)
        queue.append(step)
    found = queue.take()
    assert not queue
    assert [token for step in found for token in step.tokens] == [token for step in steps for token in step.tokens]
    assert "".join(step.text for step in found) == "".join(step.text for step in steps)
    assert sum(step.joined for step in found) == len(steps)
    assert [step for step in found if step.sources or step.logprobs] == [
        step for step in steps if step.sources or step.logprobs
    ]


def test_steps_that_tell_more_than_their_text_are_not_joined() -> None:
    queue = StepQueue()
    queue.expect(MOST_JOINED, joined=True)
    for step in (PLAIN, Step([2], ""), DRAFTED, Step([4], "d"), SCORED):
        queue.append(step)
    assert queue.take() == [Step([1, 2], "a", joined=2), DRAFTED, Step([4], "d"), SCORED]


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("step", [PLAIN, DRAFTED])
@pytest.mark.parametrize("least", [1, 9, MOST_STEPS, MOST_JOINED])
def test_what_a_reader_does_not_take_is_bounded(step: Step, least: int, joined: bool) -> None:
    """Each takes memory of the engine; what is joined takes little."""
    queue = StepQueue()
    queue.expect(least, joined=joined)
    count = enough = 0
    while not queue.full():
        enough += queue.enough
        queue.append(step)
        count += 1
    assert len(queue) <= MOST_HELD
    assert queue.enough
    assert enough > 0
    assert count <= max(MAX_UNDELIVERED_STEPS, 2 * least)
    if joined and step is PLAIN:
        assert len(queue) == 1
        assert count == max(MAX_UNDELIVERED_STEPS, 2 * least)


def test_what_may_not_be_held_is_not_waited_for() -> None:
    """Large probes: fewer steps than the reader waits for fill what may wait for it."""
    queue = StepQueue(most=3)
    queue.expect(MOST_STEPS)
    for _ in range(2):
        queue.append(SCORED)
        assert not queue.enough
    assert queue.full(coming=1)
    queue.append(SCORED)
    assert queue.enough
    assert queue.full()


def test_a_program_that_takes_part_is_a_step_behind_at_most() -> None:
    queue = StepQueue()
    queue.run_ahead(1)
    queue.append(PLAIN)
    assert queue.full()
    queue.take()
    queue.expect(1)
    queue.append(PLAIN)
    assert not queue.full()
