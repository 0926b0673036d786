"""Threads take turns at the interpreter: one that computes does not hold up the loop. What is loaded is not collected."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from inferd_runtime.interpreter import SWITCH_SECONDS, loading, share_interpreter

TURNS = 100
ROUNDS = 5


@pytest.fixture
def busy() -> Iterator[None]:
    """A thread that computes, and what this process had set before."""
    over, before = threading.Event(), sys.getswitchinterval()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    yield
    over.set()
    thread.join()
    sys.setswitchinterval(before)


def seconds() -> float:
    """How long it takes to give the interpreter up, and to get it again, TURNS times."""
    started = time.perf_counter()
    for _ in range(TURNS):
        time.sleep(0)
    return time.perf_counter() - started


@pytest.mark.usefixtures("busy")
def test_a_thread_that_computes_does_not_keep_the_interpreter_from_the_loop() -> None:
    sys.setswitchinterval(0.02)
    kept = max(seconds() for _ in range(2))  # on a busy machine the thread may not run meanwhile
    share_interpreter()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    assert min(seconds() for _ in range(ROUNDS)) < kept / 4


def test_what_is_loaded_is_not_looked_at_by_collections() -> None:
    frozen = gc.get_freeze_count()
    try:
        with loading():
            assert not gc.isenabled()
            kept = [[] for _ in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= frozen + len(kept)
    finally:
        gc.unfreeze()


def test_an_import_that_fails_leaves_the_collector_as_it_was() -> None:
    frozen = gc.get_freeze_count()
    with pytest.raises(ModuleNotFoundError), loading():
        import a_module_that_is_not_there  # type: ignore[import-not-found] # noqa: F401
    assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen
