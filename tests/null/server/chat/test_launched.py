"""Answers of uploaded programs: what their runs say, read as chat events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

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


async def test_a_program_that_finishes_no_answer_is_charged_with_its_prompt() -> None:
    """A text that main returns, or that a Reply wrote without finishing: the client was told of 0 prompt tokens."""
    ended = RunEvent(0, "finished", 0.0, Ending(RunUsage(tokens=5, prompt_tokens=27, cached_tokens=16), ('"hello"',)))

    async def batch(index: int, seconds: float) -> list[RunEvent]:
        return [ended]

    run = SimpleNamespace(
        id="run-1", complete=False, shown_end=1, next_batch=batch, read_by=Follower.move, result="hello"
    )
    events = await LaunchedAnswer(cast("Any", run), EventReader(1), Follower(0)).next()
    assert events == [TextDelta("hello"), ChoiceFinished("stop"), UsageReport(27, 5, 16)]


@pytest.mark.parametrize("result", ['{"a":1}', "7", "[]"])
async def test_a_result_that_is_no_text_is_the_programs_error_and_not_an_empty_answer(result: str) -> None:
    ended = RunEvent(0, "finished", 0.0, Ending(RunUsage(), (result,)))

    async def batch(index: int, seconds: float) -> list[RunEvent]:
        return [ended]

    run = SimpleNamespace(id="run-1", complete=False, shown_end=1, next_batch=batch, read_by=Follower.move)
    with pytest.raises(ProgramError, match="no text"):
        await LaunchedAnswer(cast("Any", run), EventReader(1), Follower(0)).next()
    reader = EventReader(1)
    reader.read({MESSAGE_KEY: [to_message(TextDelta("written"))]})
    assert (await LaunchedAnswer(cast("Any", run), reader, Follower(0)).next())[0] == ChoiceFinished("stop")
