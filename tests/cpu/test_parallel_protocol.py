"""Rank 0 and a follower without a model: what is said to whom, and what ends the engine process."""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import numpy as np
import pytest

from inferd.protocol import InferdError, Unavailable
from inferd_runtime.engine.drivers.parallel import LeadingDriver, follow
from inferd_runtime.engine.drivers.parallel_commands import (
    CheckPages,
    CommandDone,
    Failed,
    ForwardCommand,
    Stop,
    decode_command,
    encode,
)
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.stages import Work
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageCopy, PageTable
from inferd_runtime.models.batch import Batch, PageData
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
    with following(driver, ends[1]):
        yield leading, driver
        leading.close()


class Noting(NullDriver):
    """Notes which pages each call had (-1: not named). ``bad``: a page that it cannot bear."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []
        self.bad = b""

    def read_pages(self, pages: Sequence[int]) -> PageData:
        self.seen.append(list(pages))
        return super().read_pages(pages)

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        self.seen.append(list(pages))
        super().write_pages(pages, data)

    def bearable(self, data: PageData) -> bool:
        self.seen.append([-1] * len(data))
        return all(page.tobytes() != self.bad for page in data)


@contextmanager
def following(driver: NullDriver, channel: Connection) -> Iterator[None]:
    """A follower with this driver, which has to be told to stop."""
    thread = threading.Thread(target=follow, args=(driver, watched(), channel))
    thread.start()
    yield
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


def test_pages_that_no_message_holds_go_in_slices(ends: tuple[Connection, Connection]) -> None:
    """A message holds less than 4 GiB, and a long context's pages are more."""
    follower = Noting()
    leading = LeadingDriver(Noting(), watched(), [ends[0]], lost, slice_bytes=2 * follower.page_bytes + 1)
    with following(follower, ends[1]):
        written = np.random.default_rng(0).integers(0, 256, (5, leading.page_bytes), np.uint8)
        leading.write_pages([7, 1, 6, 2, 5], written)
        assert leading.read_pages([7, 1, 6, 2, 5]).tobytes() == written.tobytes()
        assert leading.read_pages([]).shape == (0, leading.page_bytes)
        assert leading.bearable(written)
        assert follower.seen == 2 * [[7, 1], [6, 2], [5]] + [[-1] * 2, [-1] * 2, [-1]]
        for page in range(5):
            follower.bad = written[page, follower.page_bytes :].tobytes()
            assert not leading.bearable(written), "whichever slice it is in"
        leading.close()


def test_one_page_goes_at_least_whatever_the_slice(ends: tuple[Connection, Connection]) -> None:
    leading = LeadingDriver(NullDriver(), watched(), [ends[0]], lost, slice_bytes=1)
    with following(NullDriver(), ends[1]):
        assert leading.read_pages([3, 4]).shape == (2, leading.page_bytes)
        leading.close()


class Endless(NullDriver):
    """Reads more than one message holds; nobody touches the memory."""

    def read_pages(self, pages: Sequence[int]) -> Any:
        return SimpleNamespace(tobytes=lambda: memoryview(mmap.mmap(-1, 1 << 32)))


def test_an_answer_that_no_message_holds_is_a_failure_and_not_the_followers_end(
    leading: LeadingDriver, ends: tuple[Connection, Connection]
) -> None:
    with following(Endless(), ends[1]):
        with pytest.raises(Lost, match=r"rank 1 .*encode bytes-like"):
            leading.read_pages([1])
        assert len(leading.forward(a_batch([3])).logits) == 1, "it still follows"
        leading.close()


def test_a_command_that_no_message_holds_is_said_to_nobody(
    leading: LeadingDriver, ends: tuple[Connection, Connection]
) -> None:
    """Not to the first of the followers, either: they would fall out of step."""
    commands = [CheckPages(b""), CheckPages(memoryview(mmap.mmap(-1, 1 << 32)))]  # type: ignore[arg-type]
    with pytest.raises(msgspec.EncodeError, match="encode bytes-like"):
        leading._each(commands, lambda: True)
    assert not ends[1].poll()


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


def test_a_follower_that_never_reads_ends_the_process(ends: tuple[Connection, Connection]) -> None:
    """What is larger than a socket's buffer would wait for it without end."""
    leading = LeadingDriver(NullDriver(), watched(), [ends[0]], lost, timeout_s=0.05)
    pages = np.zeros((-(-4_000_000 // leading.page_bytes), leading.page_bytes), np.uint8)
    with pytest.raises(Lost, match="took nothing for"):
        leading.bearable(pages)


def test_a_follower_that_stops_within_its_answer_ends_the_process(ends: tuple[Connection, Connection]) -> None:
    leading = LeadingDriver(NullDriver(), watched(), [ends[0]], lost, timeout_s=0.05)
    os.write(ends[1].fileno(), struct.pack("!i", 100) + b"the first bytes")
    with pytest.raises(Lost, match="stopped within its answer"):
        leading.forward(a_batch([3]))


def test_a_follower_that_fails_alone_ends_the_process(
    leading: LeadingDriver, ends: tuple[Connection, Connection]
) -> None:
    thread = answering(ends[1], encode(Failed("MemoryError()")))
    with pytest.raises(Lost, match=r"rank 1 .*MemoryError"):
        leading.forward(a_batch([3]))
    thread.join()


@pytest.mark.parametrize("answer", [CommandDone(), Failed("MemoryError('another')")], ids=["done", "otherwise"])
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
    ends[0].send_bytes(encode(ForwardCommand.of(a_batch([3]))))
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
