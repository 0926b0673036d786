"""An asyncio event loop whose only blocking point is the host's ``wait``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from types import CoroutineType
from typing import Any, NoReturn
from weakref import WeakSet

from inferd.protocol import ProgramError
from inferd_runtime.sandbox.runner.completions import Completions

MOST_SKIPPED = 16
"""So many rounds of the loop, while something is always ready to run, before the host is asked for what has finished."""

MOST_LINES = 8
"""So many lines are named in which tasks wait."""

NO_PIPES = (
    "a program has no sockets, processes, pipes or signals: it fetches (inferd.http.fetch), gets messages (inferd.session) and "
    "starts other programs (inferd.launch)"
)


class _Selector:
    """What BaseEventLoop asks for events. There are none: finished operations set their futures themselves."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions
        self._skipped = 0

    def select(self, timeout: float | None) -> Sequence[Any]:
        if timeout is not None and timeout <= 0 and self._skipped < MOST_SKIPPED:
            self._skipped += 1  # something is ready to run: asking the host costs more than that, mostly for nothing
            return ()
        self._skipped = 0
        if timeout is None and not self._completions.pending:
            raise ProgramError(
                "the program would wait for ever: every task waits for another one, and no operation or timer is under way; "
                f"they wait at {', '.join(_waiting_lines()) or 'no line of the program'}"
            )
        self._completions.wait(timeout)
        return ()


def _waiting_lines() -> list[str]:
    """Return the lines of the program's own files in which tasks wait, some of them if there are many."""
    lines = set()
    for task in asyncio.all_tasks():
        awaited: Any = task.get_coro()
        line = ""
        while isinstance(awaited, CoroutineType):
            file = awaited.cr_code.co_filename
            if awaited.cr_frame is not None and not file.startswith(("/", "<")):  # those of programs are relative
                line = f"{file}:{awaited.cr_frame.f_lineno}"
            awaited = awaited.cr_await
        lines.add(line)
    return sorted(lines - {""})[:MOST_LINES]


class GuestEventLoop(asyncio.BaseEventLoop):
    """Timers, tasks, futures and operations; no files, sockets, signals, threads or processes: those raise."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _asyncgens: WeakSet[AsyncGenerator[Any]]

    def __init__(self, completions: Completions) -> None:
        super().__init__()
        self._selector = _Selector(completions)

    @property
    def has_generators(self) -> bool:
        """True if asynchronous generators that were begun have not ended."""
        return bool(self._asyncgens)

    def quiet_seconds(self) -> float | None:
        """Return how long nothing but the calling task can run: 0 if something can now, None if there is no end."""
        if self._ready or self._stopping:
            return 0.0
        if self._scheduled:
            return max(self._scheduled[0].when() - self.time(), 0.0)
        return None

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run a function at once, as there is no thread for it; ``asyncio.to_thread`` comes here. Tasks stand still meanwhile."""
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whatever the function raises is its caller's
            future.set_exception(error)
        return future

    def _refuse(self, *positional: Any, **named: Any) -> NoReturn:
        raise NotImplementedError(NO_PIPES)

    _make_subprocess_transport = _refuse
    _make_read_pipe_transport = _make_write_pipe_transport = _refuse
    create_connection = create_server = create_datagram_endpoint = _refuse
    add_reader = add_writer = add_signal_handler = _refuse  # type: ignore[assignment]

    def _process_events(self, event_list: Sequence[Any]) -> None:
        """Called by BaseEventLoop with what the selector returned, which is nothing."""

    def _write_to_self(self) -> None:
        """Called by ``call_soon_threadsafe`` to wake a loop that blocks in another thread: there is none."""


def running_loop() -> GuestEventLoop:
    """Return the loop that runs the calling task."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, GuestEventLoop)
    return loop


def run_to_end(loop: GuestEventLoop, main: Any) -> Any:
    """Run a coroutine to its end, then end what it left behind, as ``asyncio.run`` does. Closes ``loop``."""
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            _end_tasks(loop)
            if loop.has_generators:
                loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    for task in left:
        if not task.cancelled() and task.exception() is not None:
            loop.call_exception_handler(
                {"message": "a task failed while it was being ended", "exception": task.exception(), "task": task}
            )
