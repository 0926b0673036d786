"""What a run writes becomes events: merged, at a bounded rate, never far ahead of the gateway, and nothing is lost."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st

from inferd_runtime.sandbox.host.event_queue import (
    BURST,
    EVENTS_PER_SECOND,
    MERGE_SECONDS,
    MOST_EVENT,
    MOST_MERGED,
    WINDOW_BYTES,
    WINDOW_EVENTS,
    EventQueue,
)
from inferd_runtime.sandbox.messages import Output, Sent


def test_each_line_goes_out_at_once_while_the_run_is_slow() -> None:
    queue = EventQueue("r", 0.0)
    for number in range(1000):
        events = queue.write("stdout", f"{number}\n", number / 40)
        assert events == [Output("r", "stdout", f"{number}\n")]
        assert queue.pause(number / 40) == 0.0
        queue.taken(1)


def test_one_byte_writes_do_not_become_one_event_each() -> None:
    queue, events, writes = EventQueue("r", 0.0), 0, 618_096
    for number in range(writes):
        out = queue.write("stdout", "x", number * 1e-5)  # 100,000 a second
        queue.taken(len(out))
        events += len(out)
    seconds = writes * 1e-5
    assert events <= seconds / MERGE_SECONDS + writes / MOST_MERGED + 2


def test_a_program_that_alternates_between_its_streams_is_held_back() -> None:
    queue, now, events = EventQueue("r", 0.0), 0.0, 0
    for number in range(20_000):
        out = queue.write(("stdout", "stderr")[number % 2], "x", now)
        queue.taken(len(out))
        events += len(out)
        now += queue.pause(now)
    assert events <= 2 * BURST + now * EVENTS_PER_SECOND + 1
    assert now > 30


def test_text_that_follows_soon_is_held_for_milliseconds() -> None:
    queue = EventQueue("r", 0.0)
    assert queue.write("stdout", "a", 1.0) == [Output("r", "stdout", "a")]
    assert queue.write("stdout", "b", 1.001) == []
    assert queue.write("stdout", "c", 1.002) == []
    assert queue.due() == 1.0 + MERGE_SECONDS
    assert queue.flush(queue.due()) == [Output("r", "stdout", "bc")]
    assert queue.due() == math.inf
    assert queue.flush(2.0) == []


def test_a_gateway_that_takes_nothing_stops_the_program() -> None:
    queue = EventQueue("r", 0.0)
    for _ in range(WINDOW_EVENTS):
        assert queue.pause(0.0) == 0.0
        queue.send("1", 0.0)
    assert queue.pause(1e9) == math.inf
    queue.taken(1)
    assert queue.pause(1e9) == 0.0


def test_a_few_large_events_stop_it_as_well() -> None:
    queue = EventQueue("r", 0.0)
    queue.send("x" * WINDOW_BYTES, 0.0)
    assert queue.pause(0.0) == math.inf
    queue.taken(1)
    assert queue.pause(0.0) == 0.0


def test_a_large_text_becomes_events_of_bounded_size() -> None:
    events = EventQueue("r", 0.0).write("stdout", "x" * (3 * MOST_EVENT + 5), 0.0)
    assert [len(event.text) for event in events] == [MOST_EVENT] * 3 + [5]


Write = tuple[str, str, float]


@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr", "message"]), st.text(max_size=5), st.floats(0, 0.01))))
def test_nothing_is_lost_and_the_order_stays(writes: list[Write]) -> None:
    queue, now, out = EventQueue("r", 0.0), 0.0, list[Output | Sent]()
    wanted: list[tuple[str, str]] = []
    for kind, text, seconds in writes:
        now += seconds
        out += queue.send(text, now) if kind == "message" else queue.write(kind, text, now)
        if kind != "message" and wanted and wanted[-1][0] == kind:
            wanted[-1] = (kind, wanted[-1][1] + text)
        elif text or kind == "message":
            wanted.append((kind, text))
    out += queue.flush(now)
    got: list[tuple[str, str]] = []
    for event in out:
        kind, text = ("message", event.json) if isinstance(event, Sent) else (event.stream, event.text)
        if kind != "message" and got and got[-1][0] == kind:
            got[-1] = (kind, got[-1][1] + text)
        else:
            got.append((kind, text))
    assert got == wanted
