"""Calls of tools, side by side, each with an end in time: what runs while a model waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from inferd.calls.outcomes import retrieve_error
from inferd.chat.request import ToolCall
from inferd.protocol import Cancelled, LimitExceeded, ProgramError
from inferd.tools.events import ToolResult
from inferd.tools.function import ToolFunction
from inferd.tools.options import CheckedToolOptions
from inferd.tools.results import error_text, result_text

GRACE = 1.0
"""Seconds that calls have to end in when a run is left."""


class ToolCaller:
    """Runs calls of ``tools``, by name. A call that does not end in time is cancelled, and not waited for."""

    def __init__(self, tools: Mapping[str, ToolFunction], options: CheckedToolOptions) -> None:
        self._tools = tools
        self._options = options
        self._running: set[asyncio.Future[Any]] = set()

    async def results(self, calls: Sequence[ToolCall]) -> AsyncGenerator[ToolResult, None]:
        """Yield the results of calls as they come. Raises the first error where errors end a run, and cancels the others."""
        tasks = [asyncio.ensure_future(self._result(call)) for call in calls]
        waiting = list(tasks)
        try:
            while waiting:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                ended, waiting = _parted(waiting)
                for task in ended:
                    yield task.result()
        finally:
            await self._end(tasks)

    async def _end(self, tasks: Sequence[asyncio.Task[ToolResult]]) -> None:
        """Cancel what still runs, and give it a moment to end by itself."""
        for task in tasks:
            task.cancel()
            task.add_done_callback(retrieve_error)
        running = {*self._running, *(task for task in tasks if not task.done())}
        self._running.clear()
        for called in running:
            called.cancel()
        if running:
            await asyncio.wait(running, timeout=GRACE)

    async def _result(self, call: ToolCall) -> ToolResult:
        try:
            value = await self._in_time(call)
            return ToolResult(call, result_text(call.name, value, self._options.max_result))
        except Cancelled:  # the run's own end, which is none of the tool's
            raise
        except Exception as error:
            if self._options.on_error == "raise":
                raise
            return ToolResult(call, error_text(error), is_error=True)

    async def _in_time(self, call: ToolCall) -> Any:
        """Return what a tool returns. Raises what it raises, and LimitExceeded when its time is over."""
        task = asyncio.ensure_future(self._tools[call.name].run(call.arguments))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._options.timeout)
        finally:
            task.cancel()
            task.add_done_callback(retrieve_error)
        if not done:
            raise LimitExceeded(
                f"{call.name} did not end in {self._options.timeout:g} s",
                limit="tool_time", value=self._options.timeout, raise_with="run_tools(timeout=...)",
            )  # fmt: skip
        if task.cancelled():
            raise ProgramError(f"{call.name} was cancelled")
        return task.result()


def _parted(
    tasks: Sequence[asyncio.Task[ToolResult]],
) -> tuple[list[asyncio.Task[ToolResult]], list[asyncio.Task[ToolResult]]]:
    """Return those that have ended, and the others, both in their order."""
    return [task for task in tasks if task.done()], [task for task in tasks if not task.done()]
