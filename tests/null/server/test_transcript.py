"""A run that is started again: what it has said is not repeated, and what it says otherwise is found out."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from inferd.protocol import Unavailable
from inferd_runtime.sandbox.messages import Bundle, Limits, Output, RunFinished, RunUsage, Sent
from inferd_runtime.server.programs.bundles import make_program
from inferd_runtime.server.supervisor.run_events import EventBuffer
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.supervisor.transcript import ReplayDiffers

PROGRAM = make_program(Bundle("p", {"main.py": "async def main(): pass"}))
SAYINGS = st.lists(
    st.tuples(st.sampled_from(["stdout", "stderr", "message"]), st.text("aäb", min_size=1, max_size=4)), max_size=8
)
Saying = tuple[str, str]


def new_run() -> Run:
    return Run(PROGRAM, "{}", "ann", Limits(), EventBuffer(1 << 16), retry_safe=True)


def say(run: Run, sayings: list[Saying]) -> None:
    for kind, text in sayings:
        if kind == "message":
            run.sent(Sent(run.id, f'"{text}"'))
        else:
            run.wrote(Output(run.id, kind, text))


def pieces(sayings: list[Saying], cuts: list[int]) -> list[Saying]:
    """The same, with texts cut elsewhere."""
    out: list[Saying] = []
    for place, (kind, text) in enumerate(sayings):
        cut = cuts[place % len(cuts)] % (len(text) + 1) if cuts and kind != "message" else 0
        out += [(kind, part) for part in (text[:cut], text[cut:]) if part]
    return out


def heard(run: Run) -> list[Saying]:
    """What the run's events say, adjacent texts of a stream joined."""
    out: list[Saying] = []
    for event in run.buffer.since(0):
        if out and out[-1][0] == event.kind != "message":
            out[-1] = (event.kind, out[-1][1] + event.payload)
        elif event.kind in ("stdout", "stderr", "message"):
            out.append((event.kind, event.payload))
    return out


@given(SAYINGS, st.lists(st.integers(0, 100), max_size=3), st.lists(st.integers(0, 5), max_size=4))
def test_crashes_at_any_place_repeat_and_lose_nothing(
    sayings: list[Saying], crashes: list[int], cuts: list[int]
) -> None:
    run, plain = new_run(), new_run()
    say(plain, sayings)
    for crash in crashes:
        said = pieces(sayings, cuts)
        say(run, said[: crash % (len(said) + 1)])
        run.again()
    before = list(run.buffer.since(0))
    say(run, sayings)
    assert heard(run) == heard(plain)
    assert list(run.buffer.since(0))[: len(before)] == before  # delivered events stay as they were
    assert run.finish_from(RunFinished(run.id, RunUsage(), "1"))


@given(SAYINGS.filter(bool), SAYINGS)
def test_a_run_that_says_something_else_is_found_out(first: list[Saying], second: list[Saying]) -> None:
    run, other = new_run(), new_run()
    say(run, first)
    say(other, second)
    same = heard(other)[: len(heard(run))]
    repeats = same[:-1] == heard(run)[:-1] and same and _begins(same[-1], heard(run)[-1])
    run.again()
    if repeats:
        say_all(run, second)
        assert heard(run) == heard(other)
    else:
        with pytest.raises(ReplayDiffers):
            say_all(run, second)
        assert heard(run) == heard_first(first)


def say_all(run: Run, sayings: list[Saying]) -> None:
    say(run, sayings)
    run.finish_from(RunFinished(run.id, RunUsage(), "1"))


def _begins(said: Saying, before: Saying) -> bool:
    return said[0] == before[0] and (said[1] == before[1] if said[0] == "message" else said[1].startswith(before[1]))


def heard_first(sayings: list[Saying]) -> list[Saying]:
    run = new_run()
    say(run, sayings)
    return heard(run)


def test_a_run_ended_from_outside_need_not_repeat_anything() -> None:
    run = new_run()
    say(run, [("stdout", "abc")])
    run.again()
    assert run.fail(Unavailable("gone").to_wire())


def test_messages_to_a_run_are_kept_for_its_next_attempt_within_a_bound() -> None:
    run = new_run()
    run.deliver({"a": 1})
    assert run.inputs == ['{"a":1}']
    run.deliver("x" * (1 << 20))
    assert run.inputs == []
    assert not run.retry_safe
