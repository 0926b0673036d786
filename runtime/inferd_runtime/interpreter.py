"""Python's interpreter in a process that serves: how threads share it, and when its garbage collector rests."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_SECONDS = 2e-4
"""Python lets a thread that computes keep the interpreter for 5 ms while others wait. The step loop and the gateway's loop give
it up around every operation of PyTorch or a socket, and would wait as long as that again and again. Workers, where programs
wait for replies one after the other, keep Python's: so many turns make a round trip a fifth longer.
"""
GC_THRESHOLDS = (700, 10, 100)
"""As by default, but with full collections ten times rarer: the time of one grows with the number of objects, and answers that
are being written have hundreds of thousands of them, none of which is garbage.
"""


def share_interpreter() -> None:
    """Have this process's threads take turns more often."""
    sys.setswitchinterval(SWITCH_SECONDS)


def collect_rarely() -> None:
    """Keep the garbage collector, which all requests of this process wait for, from what is loaded, and from looking at all else
    often.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


@contextmanager
def no_collections() -> Iterator[None]:
    """Let the garbage collector rest while the body runs, which must not wait for it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def loading() -> Iterator[None]:
    """Let the garbage collector rest while the body imports what stays: a sixth of the time that importing torch takes.

    It does not look at what was imported later, either.
    """
    with no_collections():
        yield
        gc.freeze()
