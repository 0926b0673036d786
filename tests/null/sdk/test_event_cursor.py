"""Where a reader of a run's events stands: each event once, gaps told, over any number of connections."""

from __future__ import annotations

import json
import random

import pytest

from inferd.client.event_cursor import LONGEST_PAUSE_S, Backoff, EventCursor, EventsDropped
from inferd.protocol import InternalError


def line(index: int, kind: str = "stdout", **more: object) -> bytes:
    return json.dumps({"index": index, "type": kind, "time": 1.0, **more}).encode()


def test_each_event_comes_once_however_often_its_line_does() -> None:
    lines = [*(line(index, text=str(index)) for index in range(20)), line(20, "finished")]
    random_ = random.Random(5)
    for _ in range(50):
        cursor, seen = EventCursor(), list[int]()
        while not cursor.finished:
            start = random_.randint(max(0, cursor.next - 3), cursor.next)  # what a careless relay would repeat
            for one in lines[start : start + random_.randint(0, 6)]:
                event = cursor.take(one)
                if event is not None:
                    seen.append(event.index)
        assert seen == list(range(21))


def test_a_gap_is_told_with_where_to_go_on() -> None:
    cursor = EventCursor(2)
    with pytest.raises(EventsDropped, match="5 events") as told:
        cursor.take(line(6, "dropped", count=5))
    assert (told.value.next, cursor.next) == (7, 7)
    event = cursor.take(line(7, text="on"))
    assert event is not None
    assert event.text == "on"
    with pytest.raises(EventsDropped, match="2 events"):
        cursor.take(line(10))
    assert cursor.next == 10


def test_how_a_run_ended_is_heard_though_more_was_shown_of_it_than_its_server_kept() -> None:
    cursor = EventCursor(9)
    assert cursor.take(line(6)) is None
    event = cursor.take(line(7, "finished"))
    assert event is not None
    assert (event.index, cursor.finished) == (7, True)


def test_pings_say_nothing() -> None:
    assert EventCursor().take(b"\r\n") is None


@pytest.mark.parametrize(
    "bad", [b"{", b"[]", b"3", b'{"index": "x"}', b"\xff", b'{"index":0,"type":"a"}', b"[" * 100_000]
)
def test_a_line_that_is_no_event_is_an_error_of_the_tree(bad: bytes) -> None:
    with pytest.raises(InternalError):
        EventCursor().take(bad)


def test_pauses_grow_and_end_when_patience_does() -> None:
    backoff = Backoff(20.0)
    pauses = []
    while (pause := backoff.pause()) is not None:
        pauses.append(pause)
    assert sum(pauses) == pytest.approx(20.0)
    assert pauses[0] < 0.1
    assert max(pauses) == LONGEST_PAUSE_S
    backoff.succeeded()
    assert backoff.pause() == pauses[0]
    assert Backoff(0.0).pause() is None
