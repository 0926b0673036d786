"""An uploaded program that answers a chat request: a run in the sandbox, like any other."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio.lowlevel
import msgspec

from inferd.chat import ChatEvent, ChatRequest, UsageReport
from inferd.protocol import InferdError, ProgramError
from inferd_runtime.carriable import read_json
from inferd_runtime.server.chat.answer_pace import TURN_SECONDS, Turn, seconds_of
from inferd_runtime.server.chat.program_events import EventReader
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.programs.launch_checks import check_arguments, check_limits
from inferd_runtime.server.supervisor.held_runs import RunRequest
from inferd_runtime.server.supervisor.run_events import Ending, RunEvent
from inferd_runtime.server.supervisor.run_followers import Follower
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.supervisor.runtime import Runtime

IDLE_SECONDS = 15.0
REQUEST_PARAMETER = "request"
TEXT, NOTHING = '"', "null"
"""What the JSON of a text begins with, and that of nothing."""


class LaunchedAnswer:
    """Made by :func:`launched_answer`: reads the messages of a run, up to its end."""

    def __init__(self, run: Run, reader: EventReader, follower: Follower, turn: Turn) -> None:
        self.run = run.id
        self._run = run
        self._reader = reader
        self._follower = follower
        self._turn = turn

    async def next(self) -> list[ChatEvent]:
        """Wait for more events; see :class:`AnswerSource`."""
        while not self._run.complete or self._follower.index < self._run.shown_end:
            events: list[ChatEvent] = []
            taken = 0.0
            batch = await self._run.next_batch(self._follower.index, IDLE_SECONDS)
            started = time.thread_time()
            for event in batch:
                try:
                    more = self._events(event)
                except InferdError:
                    if not events:
                        raise
                    return events  # what came before; the next call meets the error again
                self._run.read_by(self._follower, event.index + 1)
                events += more
                taken += sum(map(seconds_of, more))
                if taken >= TURN_SECONDS:
                    break  # the rest comes with the next call: other requests have their turns between
            await self._turn(time.thread_time() - started)
            # What is there already is not waited for, and may mean nothing for the answer.
            await anyio.lowlevel.checkpoint()
            if events:
                return events
        return []

    def _events(self, event: RunEvent) -> list[ChatEvent]:
        """Raises the error that the run ended with, and ProgramError if some of its messages were dropped."""
        if event.kind == "message":
            return self._reader.read(read_json(event.payload, "a message of the program"))
        if event.kind == "dropped":
            raise ProgramError("the client read more slowly than the program wrote, and a part of the answer is lost")
        if not isinstance(event.payload, Ending):
            return []
        if event.payload.error is not None:
            raise event.payload.error.to_exception()
        used = event.payload.usage
        report = UsageReport(used.prompt_tokens, used.tokens, used.cached_tokens)
        return self._reader.finish(self._returned(event.payload.parts or (NOTHING,)), report)

    def _returned(self, parts: Sequence[str]) -> Any:
        """Return what the program returned if that is a text or nothing; its JSON for another value, which is not read: it is
        refused, and may be large.
        """
        if parts[0] == NOTHING:
            return None
        return self._run.result if parts[0].startswith(TEXT) else parts


@asynccontextmanager
async def launched_answer(
    runtime: Runtime, tenant: str, program: Program, request: ChatRequest, turn: Turn
) -> AsyncIterator[LaunchedAnswer]:
    """Launch a program with the request as its argument ``request``; the run is cancelled if it goes on when the block ends.

    ``turn``: the tenant's, for what reading the program's messages takes.

    Raises what :meth:`Runtime.launch_request` raises, and InvalidRequest for a program that takes no such argument.
    """
    arguments = check_arguments(program, {REQUEST_PARAMETER: msgspec.to_builtins(request)})
    limits = check_limits(program, {}, runtime.settings)
    runtime.use.check_limits(tenant, limits.cpu_s, limits.memory_mb)
    run = runtime.launch_request(RunRequest(program, arguments, limits, retry_safe=program.retry_safe), tenant)
    try:
        with run.followed_from(0) as follower:
            yield LaunchedAnswer(run, EventReader(request.n), follower, turn)
    finally:
        run.cancel("the client left")
