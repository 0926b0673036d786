"""The waker between threads: one wake-up for many, none lost, nothing written once it is closed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from inferd_runtime.waker import Waker


@pytest.fixture
def waker() -> Iterator[Waker]:
    waker = Waker()
    yield waker
    waker.close()


def test_it_is_readable_from_wake_to_drain(waker: Waker) -> None:
    assert not waker.wait(0)
    waker.wake()
    assert waker.wait(0)
    assert select.select([waker], [], [], 0)[0] == [waker]
    waker.drain()
    assert not waker.wait(0)


def test_wake_ups_count_once_and_never_block(waker: Waker) -> None:
    for _ in range(200_000):  # more than a pipe holds
        waker.wake()
    waker.drain()
    assert not waker.wait(0)
    waker.drain()  # nothing to read does not block either


def test_a_waiting_thread_is_woken(waker: Waker) -> None:
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(waker.wait(20)))
    thread.start()
    waker.wake()
    thread.join()
    assert woken == [True]


def test_wait_ends_with_its_time(waker: Waker) -> None:
    assert not waker.wait(0.001)
    assert not waker.wait(-1)


def test_after_close_its_descriptors_are_left_alone() -> None:
    waker = Waker()
    descriptor = waker.fileno()
    waker.wake()
    waker.close()
    read, write = os.pipe()  # takes the numbers that were given back
    try:
        assert descriptor in (read, write)
        waker.wake()
        waker.drain()
        waker.close()
        assert not select.select([read], [], [], 0)[0]
        os.fstat(read), os.fstat(write)
    finally:
        os.close(read)
        os.close(write)


def test_children_do_not_inherit_it(waker: Waker) -> None:
    code = f"import os; os.fstat({waker.fileno()})"
    child = subprocess.run(
        [sys.executable, "-c", code], close_fds=False, stderr=subprocess.PIPE, text=True, check=False
    )
    assert "Bad file descriptor" in child.stderr
