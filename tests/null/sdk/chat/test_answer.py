"""Answering a request: several answers of one conversation end together, with the error that ended them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from inferd.chat import ChatRequest, Reply, answer
from inferd.chat.answer import all_of
from inferd.protocol import InvalidRequest, ProgramError
from inferd_runtime.testing.transport import run_program


@pytest.mark.parametrize("n", [1, 2, 8])
def test_what_ends_one_of_several_answers_is_told_as_it_is(n: int) -> None:
    request = ChatRequest(prompt="a rule: ", n=n, max_tokens=8, stop_token_ids=[10**6])

    async def program() -> None:
        await answer(request)

    with pytest.raises(InvalidRequest, match="stop_token_ids: token id 1000000 is outside the vocabulary"):
        run_program(program)


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
