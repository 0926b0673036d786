"""The pool of threads: work never waits for other work, and a thread is used again."""

from __future__ import annotations

import threading
import time

import pytest

from inferd_runtime.sandbox.threads import MOST_IDLE, ThreadPool

SECONDS = 20.0


def test_an_idle_thread_is_used_again() -> None:
    pool = ThreadPool()
    used: list[int] = []
    for _ in range(5):
        pool.run(lambda: used.append(threading.get_ident()))
        end = time.monotonic() + SECONDS
        while not pool.idle:
            assert time.monotonic() < end
    assert len(used) == 5
    assert len(set(used)) == 1


def test_work_that_takes_long_keeps_nothing_else_waiting() -> None:
    pool = ThreadPool()
    go = threading.Event()
    started = threading.Semaphore(0)

    def work() -> None:
        started.release()
        go.wait(SECONDS)

    for _ in range(3 * MOST_IDLE):
        pool.run(work)
    for _ in range(3 * MOST_IDLE):
        assert started.acquire(timeout=SECONDS)
    go.set()


def test_a_thread_that_cannot_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        ThreadPool().run(lambda: None)
