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

    Ctrl+C and SIGTERM cancel it, so that it cleans up; then this raises KeyboardInterrupt or Cancelled. A second Ctrl+C
    does not wait.
    """

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await function(*args)

    share_interpreter()
    try:
        return anyio.run(main)
    except asyncio.CancelledError:
        raise Cancelled("stopped by SIGTERM") from None


def on_first_sigterm(action: Callable[[], object]) -> None:
    """Call ``action`` at the first SIGTERM from now on; the second one, and Ctrl+C at any time, cancel the current task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def first() -> None:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        action()

    loop.add_signal_handler(signal.SIGTERM, first)
