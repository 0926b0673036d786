"""Spares: handed out while there are some, made on the spot when there are none, and made again."""

from __future__ import annotations

import itertools
import threading

from inferd_runtime.sandbox.wasm.spares import Spares


def test_without_spares_each_is_made_on_the_spot() -> None:
    numbers = itertools.count()
    spares = Spares(lambda: next(numbers))
    assert [spares.take(), spares.take()] == [0, 1]


def test_spares_are_made_ahead_and_again() -> None:
    numbers = itertools.count(100)
    made = threading.Semaphore(0)

    def make_ahead() -> int:
        made.release()
        return next(numbers)

    spares = Spares(lambda: -1)
    spares.keep(2, make_ahead)
    assert made.acquire(timeout=0)
    assert made.acquire(timeout=0)
    assert [spares.take(), spares.take(), spares.take()] == [100, 101, 102]
    assert made.acquire(timeout=20)
    assert made.acquire(timeout=20)
    assert made.acquire(timeout=20)
