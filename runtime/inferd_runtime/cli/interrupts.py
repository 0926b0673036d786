"""Ends an asynchronous command in order when the user or the system wants it to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import anyio

from inferd.protocol import Cancelled
from inferd_runtime.interpreter import share_interpreter

T = TypeVar("T")
Args = TypeVarTuple("Args")


def run_async(function: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """Run an async function as the whole process.

    Ctrl+C, SIGTERM and a terminal's end (SIGHUP) cancel it, so that it cleans up; then this raises KeyboardInterrupt or
    Cancelled. A second Ctrl+C does not wait.
    """

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        for number in ending_signals():
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await function(*args)

    share_interpreter()
    try:
        return anyio.run(main)
    except asyncio.CancelledError:
        raise Cancelled("stopped by a signal") from None


def ending_signals() -> list[signal.Signals]:
    """Return the signals that ask a process to end; SIGHUP is none of them where `nohup` has it ignored."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGHUP] if hangs_up else [signal.SIGTERM]


def _heard() -> None:
    """A hang-up behind another signal says nothing new."""


def on_first_sigterm(action: Callable[[], object]) -> None:
    """Call ``action`` at the first SIGTERM or SIGHUP from now on; a SIGTERM behind it, and Ctrl+C at any time, cancel this task.

    A terminal that is closed hangs up twice, which is no wish to end at once.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def first() -> None:
        for number in ending_signals():
            loop.add_signal_handler(number, task.cancel if number is signal.SIGTERM else _heard)
        action()

    for number in ending_signals():
        loop.add_signal_handler(number, first)
