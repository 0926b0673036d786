"""What crosses threads: the worker's outbox, and a run's inbox."""

from __future__ import annotations

import select
import threading

from inferd.protocol import Cancelled, InternalError
from inferd_runtime.sandbox.host.inbox import MAX_MESSAGES, Inbox
from inferd_runtime.sandbox.messages import FromWorker, Output, Sent, Started
from inferd_runtime.sandbox.outbox import MAX_MERGED, Outbox, merged
from inferd_runtime.waker import Waker


def readable(source: Waker | Inbox) -> bool:
    return bool(select.select([source.fileno()], [], [], 0)[0])


def test_output_that_follows_on_is_one_message() -> None:
    messages: list[FromWorker] = [
        Started("a"), Output("a", "stdout", "1"), Output("a", "stdout", "2"), Output("a", "stderr", "3"),
        Output("b", "stderr", "4"), Output("b", "stderr", "5"), Sent("b", 1), Output("b", "stderr", "6"),
    ]  # fmt: skip
    assert list(merged(messages)) == [
        Started("a"), Output("a", "stdout", "12"), Output("a", "stderr", "3"), Output("b", "stderr", "45"),
        Sent("b", 1), Output("b", "stderr", "6"),
    ]  # fmt: skip


def test_merged_output_has_a_size() -> None:
    pieces = [Output("a", "stdout", "x" * 100_000) for _ in range(7)]
    texts = [message.text for message in merged(pieces) if isinstance(message, Output)]
    assert "".join(texts) == "x" * 700_000
    assert max(map(len, texts)) <= MAX_MERGED
    assert len(texts) < 7


def test_outbox_wakes_its_reader_once_for_many_messages() -> None:
    outbox = Outbox()
    assert outbox.take() == []
    for run in ("a", "b"):
        outbox.put(Started(run))
    assert readable(outbox.waker)
    assert outbox.take() == [Started("a"), Started("b")]
    assert not readable(outbox.waker)


def test_no_wake_up_is_lost_between_threads() -> None:
    outbox = Outbox()
    count = 20_000
    writer = threading.Thread(target=_write, args=(outbox, count))
    writer.start()
    seen: list[str] = []
    while len(seen) < count:
        assert select.select([outbox.waker.fileno()], [], [], 20)[0], "nobody woke the reader"
        seen += [message.run for message in outbox.take() if isinstance(message, Started)]
    writer.join()
    assert seen == [str(n) for n in range(count)]


def test_the_first_reason_to_end_counts() -> None:
    inbox = Inbox()
    inbox.end(Cancelled("first").to_wire())
    inbox.end(InternalError("second").to_wire())
    assert inbox.error == Cancelled("first").to_wire()
    assert readable(inbox)


def test_messages_are_taken_once_and_in_order() -> None:
    inbox = Inbox()
    for message in (b"1", b"2"):
        inbox.deliver(message)
    assert readable(inbox)
    assert inbox.take() == [b"1", b"2"]
    assert inbox.take() == []
    assert not readable(inbox)


def test_a_run_that_takes_no_messages_ends() -> None:
    inbox = Inbox()
    for _ in range(MAX_MESSAGES):
        inbox.deliver(b"1")
    assert inbox.error is None
    inbox.deliver(b"1")
    assert inbox.error is not None
    assert inbox.error.detail["limit"] == "messages"
    assert len(inbox.take()) == MAX_MESSAGES


def test_what_comes_after_the_end_is_dropped() -> None:
    inbox = Inbox()
    inbox.close()
    inbox.deliver(b"1")
    inbox.end(Cancelled("late").to_wire())


def _write(outbox: Outbox, count: int) -> None:
    for number in range(count):
        outbox.put(Started(str(number)))
