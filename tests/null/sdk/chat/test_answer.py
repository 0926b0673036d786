"""Answering a request: several answers of one conversation end together, with the error that ended them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from inferd.chat import ChatMessage, ChatRequest, OutputFormat, Reply, Tool, ToolChoice, answer
from inferd.chat.answer import all_of
from inferd.protocol import ConstraintError, InvalidRequest, ProgramError
from inferd_runtime.testing.byte_tokenizer import VOCAB_SIZE
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.served import null_model
from inferd_runtime.testing.transport import run_program


@pytest.mark.parametrize("n", [1, 2, 8])
def test_what_ends_one_of_several_answers_is_told_as_it_is(n: int) -> None:
    request = ChatRequest(prompt="a rule: ", n=n, max_tokens=8, stop_token_ids=[10**6])

    async def program() -> None:
        await answer(request)

    with pytest.raises(InvalidRequest, match="stop_token_ids: token id 1000000 is outside the vocabulary"):
        run_program(program)


@pytest.mark.parametrize("output", [None, OutputFormat("json_schema", '{"type": "object"}')])
@pytest.mark.parametrize("choice", [ToolChoice("auto"), ToolChoice("required")])
def test_of_many_tools_the_one_that_is_refused_is_named(choice: ToolChoice, output: OutputFormat | None) -> None:
    """It was told that some pattern does not parse, which may be anybody's of fifty tools."""
    tools = [Tool(f"tool{number}", parameters=_one_text()) for number in range(9)]
    tools[5] = replace(tools[5], parameters=_one_text(pattern="("))
    request = ChatRequest(messages=_question(), tools=tools, tool_choice=choice, output=output, max_tokens=8)
    with pytest.raises(ConstraintError, match=r"^the tool 'tool5': .*unclosed group") as refused:
        run_program(
            lambda: answer(request), null_model(driver=NullDriver(vocab_size=VOCAB_SIZE, max_context=4096, pages=512))
        )
    assert refused.value.detail["param"] == "tools"


def test_where_no_tool_is_at_fault_none_is_named() -> None:
    broken = OutputFormat("json_schema", json.dumps(_one_text(pattern="(")))
    request = ChatRequest(
        messages=_question(), tools=[Tool("tool", parameters=_one_text())], output=broken, max_tokens=8
    )
    with pytest.raises(ConstraintError, match=r"^the constraint cannot be used"):
        run_program(lambda: answer(request))


def _one_text(**keywords: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"text": {"type": "string", **keywords}}, "required": ["text"]}


def _question() -> list[ChatMessage]:
    return [ChatMessage("user", "a question")]


def test_wrong_use_of_a_reply_is_the_programs_fault_and_not_its_clients() -> None:
    request = ChatRequest(prompt="a rule: ", max_tokens=8)
    uses: list[Callable[[Reply], Awaitable[None]]] = [
        lambda reply: reply.text(cast("Any", 5)),
        lambda reply: reply.text("x", choice=5),
        lambda reply: reply.tool_call(cast("Any", None), {}),
    ]

    async def program() -> None:
        for use in uses:
            with pytest.raises(ProgramError):
                await use(Reply(request))

    run_program(program)


def test_the_first_error_ends_the_others_before_it_is_raised() -> None:
    ended: list[str] = []

    async def fails() -> None:
        raise InvalidRequest("first")

    async def waits() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ended.append("the other one")

    async def both() -> None:
        with pytest.raises(InvalidRequest, match="first"):
            await all_of([waits(), fails()])
        assert ended == ["the other one"]

    asyncio.run(both())
