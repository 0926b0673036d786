"""Rank 0 and a follower without a model: what is said to whom, and what ends the engine process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np
import pytest

from inferd.protocol import InferdError, Unavailable
from inferd_runtime.engine.drivers.parallel import LeadingDriver, follow
from inferd_runtime.engine.drivers.parallel_commands import Done, Failed, Forward, Stop, decode_command, encode
from inferd_runtime.engine.plan import Planned, Work, prepare
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageCopy, PageTable
from inferd_runtime.models.batch import Batch
from inferd_runtime.models.parallel import WatchedPass
from inferd_runtime.testing.null_driver import NullDriver


class Lost(BaseException):
    """The engine process would have ended; not an Exception, which the step loop would catch."""


def lost(error: InferdError) -> NoReturn:
    assert isinstance(error, Unavailable)
    raise Lost(error.message)


def watched() -> WatchedPass:
    return WatchedPass(lambda *arguments: pytest.fail("no model runs here"))


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    """Rank 0's end of a channel and the follower's."""
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def leading(ends: tuple[Connection, Connection]) -> LeadingDriver:
    return LeadingDriver(NullDriver(), watched(), [ends[0]], lost, timeout_s=20.0)


@pytest.fixture
def two(leading: LeadingDriver, ends: tuple[Connection, Connection]) -> Iterator[tuple[LeadingDriver, NullDriver]]:
    """With a follower that has a driver of its own."""
    driver = NullDriver()
    thread = threading.Thread(target=follow, args=(driver, watched(), ends[1]))
    thread.start()
    yield leading, driver
    leading.close()
    thread.join(20.0)
    assert not thread.is_alive()


def a_batch(tokens: list[int]) -> Batch:
    table = PageTable(PagePool(8, 4))
    table.reserve(len(tokens))
    return prepare([Planned(None, Work(tokens, len(tokens), hidden=1), table)], 4)  # type: ignore[arg-type]


def answering(channel: Connection, reply: bytes) -> threading.Thread:
    """A follower that answers one command so."""

    def answer() -> None:
        channel.recv_bytes()
        channel.send_bytes(reply)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_every_call_reaches_the_follower(two: tuple[LeadingDriver, NullDriver]) -> None:
    leading, follower = two
    outputs = leading.forward(a_batch([5, 6, 7, 8, 9]))
    assert np.array_equal(outputs.logits, follower.forward(a_batch([5, 6, 7, 8, 9])).logits)
    leading.copy_pages([PageCopy(0, 3)])
    leading.move_tokens([1], [20])
    read = leading.read_pages([0, 3, 5])
    assert read.shape == (3, leading.page_bytes)
    assert leading.page_bytes == 2 * follower.page_bytes
    for part in np.split(read, 2, axis=1):
        assert np.array_equal(part, follower.read_pages([0, 3, 5]))
    leading.write_pages([6], np.concatenate([read[:1, ::-1], read[1:2]])[:1])
    assert np.array_equal(follower.read_pages([6])[0], read[0, ::-1][follower.page_bytes :])
    assert leading.bearable(read)


def test_what_fails_alike_is_raised_and_the_next_call_works(two: tuple[LeadingDriver, NullDriver]) -> None:
    leading, _ = two
    with pytest.raises(IndexError):
        leading.read_pages([10**6])
    assert len(leading.forward(a_batch([3])).logits) == 1


def test_a_follower_that_is_gone_ends_the_process(leading: LeadingDriver, ends: tuple[Connection, Connection]) -> None:
    ends[1].close()
    with pytest.raises(Lost, match="has ended"):
        leading.forward(a_batch([3]))


def test_a_follower_that_goes_during_a_call_ends_the_process(
    leading: LeadingDriver, ends: tuple[Connection, Connection]
) -> None:
    def leave() -> None:
        ends[1].recv_bytes()
        ends[1].close()

    thread = threading.Thread(target=leave)
    thread.start()
    with pytest.raises(Lost, match="has ended"):
        leading.forward(a_batch([3]))
    thread.join()


def test_a_follower_that_gives_no_answer_ends_the_process(ends: tuple[Connection, Connection]) -> None:
    driver = LeadingDriver(NullDriver(), watched(), [ends[0]], lost, timeout_s=0.01)
    with pytest.raises(Lost, match="no answer for"):
        driver.forward(a_batch([3]))


def test_a_follower_that_fails_alone_ends_the_process(
    leading: LeadingDriver, ends: tuple[Connection, Connection]
) -> None:
    thread = answering(ends[1], encode(Failed("MemoryError()")))
    with pytest.raises(Lost, match=r"rank 1 .*MemoryError"):
        leading.forward(a_batch([3]))
    thread.join()


@pytest.mark.parametrize("answer", [Done(), Failed("MemoryError('another')")], ids=["done", "otherwise"])
def test_rank_0_that_fails_alone_ends_the_process(
    leading: LeadingDriver, ends: tuple[Connection, Connection], answer: Any
) -> None:
    thread = answering(ends[1], encode(answer))
    with pytest.raises(Lost, match="rank 0"):
        leading.read_pages([10**6])
    thread.join()


class Reducing(NullDriver):
    """Its pass breaks off inside the model."""

    def __init__(self, run: WatchedPass) -> None:
        super().__init__()
        self._run = run

    def forward(self, batch: Batch) -> Any:
        return self._run(None, None, None, None)  # type: ignore[arg-type]


def broken_pass() -> WatchedPass:
    def run(*arguments: object) -> NoReturn:
        raise RuntimeError("out of memory")

    return WatchedPass(run)


def test_a_pass_that_breaks_off_ends_the_process_even_if_all_say_the_same(ends: tuple[Connection, Connection]) -> None:
    """Two ranks may fail in two different reductions with one message."""
    run = broken_pass()
    driver = LeadingDriver(Reducing(run), run, [ends[0]], lost)
    thread = answering(ends[1], encode(Failed("RuntimeError('out of memory')")))
    with pytest.raises(Lost, match="failed in one of its ranks"):
        driver.forward(a_batch([3]))
    thread.join()


def test_a_follower_whose_pass_breaks_off_ends(ends: tuple[Connection, Connection]) -> None:
    """It must not go on to the next command: rank 0 waits in a reduction, and only the follower's end frees it."""
    run = broken_pass()
    ends[0].send_bytes(encode(Forward.of(a_batch([3]))))
    with pytest.raises(RuntimeError, match="out of memory"):
        follow(Reducing(run), run, ends[1])
    assert not ends[0].poll()


def test_stop_is_the_last_thing_that_is_said(leading: LeadingDriver, ends: tuple[Connection, Connection]) -> None:
    leading.close()
    assert isinstance(decode_command(ends[1].recv_bytes()), Stop)
    ends[1].close()
    leading.close()  # a follower that is gone already


def test_what_cannot_be_divided_is_refused_before_anything_is_said(
    leading: LeadingDriver, ends: tuple[Connection, Connection]
) -> None:
    table = PageTable(PagePool(8, 4))
    table.reserve(1)
    for planned, reason in (
        (Planned(None, Work([3], 1), table, "a"), "adapters"),  # type: ignore[arg-type]
        (Planned(None, Work([3], 1), table, carried=0), "carries no tokens"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=reason):
            leading.forward(prepare([planned], 4))
    assert not ends[1].poll()
