"""The worker's outbox: messages from many threads for the one that owns the socket."""

from __future__ import annotations

import select
import threading

from inferd_runtime.sandbox.messages import Sent, Started
from inferd_runtime.sandbox.outbox import Outbox


def test_outbox_wakes_its_reader_once_for_many_messages() -> None:
    outbox = Outbox()
    assert outbox.take() == []
    for run in ("a", "b"):
        outbox.put(Sent(run, "1"))
    assert outbox.waker.wait(0)
    assert outbox.take() == [Sent("a", "1"), Sent("b", "1")]
    assert not outbox.waker.wait(0)


def test_that_a_run_has_started_wakes_nobody_and_goes_before_what_it_says() -> None:
    outbox = Outbox()
    outbox.put(Started("a"))
    assert not outbox.waker.wait(0)
    outbox.put(Sent("a", "1"))
    assert outbox.waker.wait(0)
    assert outbox.take() == [Started("a"), Sent("a", "1")]


def test_no_wake_up_is_lost_between_threads() -> None:
    outbox = Outbox()
    count = 20_000
    writer = threading.Thread(target=_write, args=(outbox, count))
    writer.start()
    seen: list[str] = []
    while len(seen) < count:
        assert select.select([outbox.waker.fileno()], [], [], 20)[0], "nobody woke the reader"
        seen += [message.run for message in outbox.take() if isinstance(message, Sent)]
    writer.join()
    assert seen == [str(n) for n in range(count)]


def _write(outbox: Outbox, count: int) -> None:
    for number in range(count):
        outbox.put(Sent(str(number), "1"))
