"""Answers of uploaded programs: what their runs say, read as chat events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from inferd.chat import ChoiceFinished, TextDelta, UsageReport
from inferd.chat.events import to_message
from inferd.chat.reply import MESSAGE_KEY
from inferd.protocol import ProgramError
from inferd_runtime.sandbox.messages import RunUsage
from inferd_runtime.server.chat.launched import LaunchedAnswer
from inferd_runtime.server.chat.program_events import EventReader
from inferd_runtime.server.supervisor.run_events import Ending, RunEvent
from inferd_runtime.server.supervisor.run_followers import Follower


async def at_once(seconds: float) -> None:
    """The turn of whoever is alone."""


async def test_a_program_that_finishes_no_answer_is_charged_with_its_prompt() -> None:
    """A text that main returns, or that a Reply wrote without finishing: the client was told of 0 prompt tokens."""
    ended = RunEvent(0, "finished", 0.0, Ending(RunUsage(tokens=5, prompt_tokens=27, cached_tokens=16), ('"hello"',)))

    async def batch(index: int, seconds: float) -> list[RunEvent]:
        return [ended]

    run = SimpleNamespace(
        id="run-1", complete=False, shown_end=1, next_batch=batch, read_by=Follower.move, result="hello"
    )
    events = await LaunchedAnswer(cast("Any", run), EventReader(1), Follower(0), at_once).next()
    assert events == [TextDelta("hello"), ChoiceFinished("stop"), UsageReport(27, 5, 16)]


@pytest.mark.parametrize("result", ['{"a":1}', "7", "[]"])
async def test_a_result_that_is_no_text_is_the_programs_error_and_not_an_empty_answer(result: str) -> None:
    ended = RunEvent(0, "finished", 0.0, Ending(RunUsage(), (result,)))

    async def batch(index: int, seconds: float) -> list[RunEvent]:
        return [ended]

    run = SimpleNamespace(id="run-1", complete=False, shown_end=1, next_batch=batch, read_by=Follower.move)
    with pytest.raises(ProgramError, match="no text"):
        await LaunchedAnswer(cast("Any", run), EventReader(1), Follower(0), at_once).next()
    reader = EventReader(1)
    reader.read({MESSAGE_KEY: [to_message(TextDelta("written"))]})
    assert (await LaunchedAnswer(cast("Any", run), reader, Follower(0), at_once).next())[0] == ChoiceFinished("stop")


@pytest.mark.parametrize("message", ["1", f'{{"{MESSAGE_KEY}": []}}', '{"x":[[],[],[]]}'])
async def test_messages_that_mean_nothing_for_an_answer_leave_others_their_turns(message: str) -> None:
    """Three megabytes of them, which a run may have waiting, were read in one turn of the gateway's loop, in half a second."""
    said = [RunEvent(index, "message", 0.0, message) for index in range(50)]
    ended = RunEvent(50, "finished", 0.0, Ending(RunUsage(), ('"hello"',)))
    paid, others = list[float](), [0]

    async def batch(index: int, seconds: float) -> list[RunEvent]:
        return [*said, ended][index : index + 5]

    async def turn(seconds: float) -> None:
        paid.append(seconds)

    async def somebody_else() -> None:
        while True:
            others[0] += 1
            await anyio.lowlevel.checkpoint()

    run = SimpleNamespace(
        id="run-1", complete=False, shown_end=51, next_batch=batch, read_by=Follower.move, result="hello"
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(somebody_else)
        events = await LaunchedAnswer(cast("Any", run), EventReader(1), Follower(0), turn).next()
        tasks.cancel_scope.cancel()
    assert events[0] == TextDelta("hello")
    assert others[0] >= len(paid) - 1 >= 10
    assert all(seconds > 0 for seconds in paid)
