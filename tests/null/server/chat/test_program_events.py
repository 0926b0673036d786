"""What programs say, checked: dialects get events in an order that all of them can write."""

from __future__ import annotations

from typing import Any

import pytest

from inferd.chat import PromptScores, ReasoningDelta, TextDelta, TokenScore, ToolArguments, ToolCallStarted, UsageReport
from inferd.chat.events import to_message
from inferd.chat.reply import MESSAGE_KEY
from inferd.protocol import ProgramError
from inferd_runtime.server.chat.program_events import MAX_EVENTS, MAX_PARTS, MAX_RETURNED, EventReader


def message(*events: Any) -> dict[str, Any]:
    return {MESSAGE_KEY: [to_message(event) for event in events]}


STARTED, ARGUMENTS = ToolCallStarted(0, "c", "f"), ToolArguments(0, "{")


def test_arguments_follow_their_call() -> None:
    assert EventReader(1).read(message(STARTED, ARGUMENTS, ARGUMENTS)) == [STARTED, ARGUMENTS, ARGUMENTS]


def test_answers_are_written_side_by_side() -> None:
    other = TextDelta("x", choice=1)
    assert EventReader(2).read(message(STARTED, other, ARGUMENTS)) == [STARTED, other, ARGUMENTS]


@pytest.mark.parametrize(
    "events",
    [
        (ARGUMENTS,),
        (STARTED, TextDelta("x"), ARGUMENTS),
        (STARTED, ToolCallStarted(1, "d", "f"), ARGUMENTS),
        (ToolCallStarted(1, "c", "f"),),
        (ToolCallStarted(-1, "c", "f"),),
    ],
)
def test_arguments_anywhere_else_are_the_programs_fault(events: tuple[Any, ...]) -> None:
    with pytest.raises(ProgramError, match="tool call"):
        EventReader(1).read(message(*events))


@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("alternating", [False, True])
def test_what_an_answer_has_many_objects_for_is_bounded(choices: int, alternating: bool) -> None:
    """800,000 calls in an answer that was not streamed held the gateway up for 19 s when they were written."""
    reader, numbers = EventReader(choices), range(MAX_PARTS // choices)
    for choice in range(choices):
        for number in numbers:
            call = ToolCallStarted(number, "c", "f", choice)
            turn = (TextDelta if number % 2 else ReasoningDelta)("x", choice)
            reader.read(message(turn, turn) if alternating else message(call, ToolArguments(number, "{}", choice)))
    with pytest.raises(ProgramError, match="more than"):
        reader.read(message(ToolCallStarted(0 if alternating else len(numbers), "c", "f")))


def test_long_texts_in_many_pieces_are_one_part() -> None:
    reader = EventReader(2)
    for _ in range(2 * MAX_PARTS):
        reader.read(message(TextDelta("x"), TextDelta("y", 1)))


def test_a_message_that_was_refused_is_refused_when_it_is_read_again() -> None:
    """What came before it is sent first: read a second time, a call of the wrong number had become the right one."""
    reader = EventReader(1)
    for _ in range(3):
        with pytest.raises(ProgramError, match="tool call 1"):
            reader.read(message(ToolCallStarted(1, "c", "f")))
    with pytest.raises(ProgramError, match="tool call 1"):
        reader.read(message(STARTED))


def test_bytes_of_tokens_are_bytes() -> None:
    for data in ([256], [-1], [0, 1 << 63]):
        wrong = TokenScore(1, "x", data, 0.0)
        for scores in ([wrong], [TokenScore(1, "x", [0, 255], 0.0, [wrong])]):
            for event in (TextDelta("x", scores=scores), ReasoningDelta("x", scores=scores), PromptScores(scores)):
                with pytest.raises(ProgramError, match="byte"):
                    EventReader(1).read(message(event))


@pytest.mark.parametrize("report", [UsageReport(1 << 53, 0), UsageReport(0, -1), UsageReport(0, 0, cached=1 << 64)])
def test_what_was_used_fits_into_the_store_of_responses(report: UsageReport) -> None:
    with pytest.raises(ProgramError, match="tokens"):
        EventReader(1).read(message(report))


def test_one_message_cannot_bring_so_many_events_that_the_gateway_stands_still() -> None:
    many = message(*[TextDelta("x")] * MAX_EVENTS)
    assert len(EventReader(1).read(many)) == MAX_EVENTS
    many[MESSAGE_KEY].append(many[MESSAGE_KEY][0])
    with pytest.raises(ProgramError, match=str(MAX_EVENTS)):
        EventReader(1).read(many)


def test_a_long_text_that_is_returned_is_not_copied_for_each_answer() -> None:
    short = EventReader(128).finish("x" * MAX_RETURNED, UsageReport(0, 0))
    assert sum(isinstance(event, TextDelta) for event in short) == 128
    with pytest.raises(ProgramError, match="write them"):
        EventReader(128).finish("x" * (MAX_RETURNED + 1), UsageReport(0, 0))
