"""A run's events through the front: cut behind whole events, wherever the bytes of the stream were cut."""

from __future__ import annotations

import json

from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd_runtime.cluster.front.run_stream import MOST_HELD, EventSplitter


def _encoded(index: int, kind: str, text: str, as_sse: bool) -> bytes:
    payload = json.dumps({"index": index, "type": kind, "time": 1.5, "text": text}, separators=(",", ":")).encode()
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (index, kind.encode(), payload) if as_sse else payload + b"\n"


@given(
    texts=st.lists(st.text(), max_size=8),
    as_sse=st.booleans(),
    start=st.integers(0, 1000),
    cuts=st.lists(st.integers(1, 40), min_size=1),
    pings=st.booleans(),
)
@settings(max_examples=examples(200), deadline=None)
def test_what_is_passed_on_ends_behind_an_event_whose_index_is_known(
    texts: list[str], as_sse: bool, start: int, cuts: list[int], pings: bool
) -> None:
    events = [_encoded(start + at, "stdout", text, as_sse) for at, text in enumerate(texts)]
    ping = (b": ping\n\n" if as_sse else b"\n") if pings else b""
    stream, splitter, passed = ping.join(events) + ping, EventSplitter(start, as_sse), b""
    ends = {len(ping.join(events[: at + 1])): start + at + 1 for at in range(len(events))}
    position = 0
    while position < len(stream):
        size = cuts[position % len(cuts)]
        passed += splitter.split(stream[position : position + size])
        position += size
        assert stream.startswith(passed)
        complete = [following for end, following in ends.items() if end <= len(passed)]
        assert splitter.next == max(complete, default=start)
    assert passed == stream
    assert not splitter.finished


def test_the_last_event_is_known_and_an_event_that_is_too_long_to_hold_passes_in_parts() -> None:
    splitter = EventSplitter(0, as_sse=False)
    assert splitter.split(b'{"index":3,"type":"fini') == b""
    splitter.drop()
    assert splitter.split(b'{"index":3,"type":"finished","time":1}\n')
    assert (splitter.next, splitter.finished) == (4, True)
    assert len(splitter.split(b"x" * (MOST_HELD + 1))) == MOST_HELD + 1
