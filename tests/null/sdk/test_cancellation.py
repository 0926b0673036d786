"""A program that is cancelled, at every single point where it waits: nothing hangs, nothing leaks, its contexts go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from inferd import Choice, Context, DraftTree, InferdError, InvalidRequest, Sampler, Speculator
from inferd.transport import transport_in_force
from inferd_runtime.engine.engine import EngineOptions
from inferd_runtime.testing.byte_tokenizer import VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.served import null_model

GREEDY = Sampler.argmax()


class SteppedRuntime:
    """A session whose engine makes one step in each turn of the event loop; a cancelled call cancels its request."""

    def __init__(self) -> None:
        driver = NullDriver(vocab_size=VOCAB_SIZE, pages=60, page_size=4)
        self.direct = DirectSession(null_model(driver=driver, options=EngineOptions(token_budget=8)))

    async def call(self, request: Any) -> Any:
        ticket, replies = self.direct.submit(request)
        try:
            while not replies:
                self.direct.engine.step()
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.direct.session.cancel(ticket)
            assert len(replies) == 1, "a cancelled request is answered, too"
            raise
        await asyncio.sleep(0)
        if isinstance(replies[0], InferdError):
            raise replies[0]
        return replies[0]


class Asking(Speculator):
    """A speculator that waits wherever it can."""

    async def reset(self) -> None:
        await asyncio.sleep(0)

    async def accept(self, tokens: list[int]) -> None:
        await asyncio.sleep(0)

    async def draft(self) -> DraftTree:
        await asyncio.sleep(0)
        return DraftTree([1, 2, 3], [-1, -1, 1])

    async def rollback(self, n: int) -> None:
        await asyncio.sleep(0)


async def program(contexts: list[Context]) -> None:
    """Everything that a program awaits, in one go."""
    ctx = Context().system("s").user("a longer question, more than one step")
    contexts.append(ctx)
    await ctx.flush()
    contexts.append(await ctx.fork())
    await ctx.forward([1, 2, 3], at=[0, 2])
    async for _ in ctx.generate(GREEDY, max_tokens=6, system_speculation=True):
        contexts.append(await ctx.fork())
        if len(contexts) > 4:
            break
    await ctx.truncate(5)
    await ctx.prompt_logprobs([5, 6, 7])
    await ctx.verify([1, 2, 3], [-1, -1, 1])
    await ctx.generate(GREEDY, max_tokens=3, speculator=Asking()).collect_tokens()
    await contexts[1].user("more").generate(GREEDY, max_tokens=5, stop=["x"]).collect_text()
    await contexts[1].release()


async def cancelled_after(turns: int) -> bool:
    """Run the program for that many turns of the loop, cancel it, and use on what it made. True if it had ended."""
    contexts: list[Context] = []
    task = asyncio.create_task(program(contexts))
    for _ in range(turns):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for context in contexts:
        if not context.released:
            before = await context.tokens()
            made = await context.append("b").generate(GREEDY, max_tokens=3).collect_tokens()
            assert (await context.tokens())[: len(before) + 1 + len(made)] == [*before, ord("b"), *made]
            await context.release()
    return ended


def test_a_cancel_at_any_await_leaks_nothing_and_leaves_the_contexts_usable() -> None:
    for turns in range(1000):
        runtime = SteppedRuntime()
        with transport_in_force(runtime):
            ended = asyncio.run(cancelled_after(turns))
        runtime.direct.engine.check_integrity()
        runtime.direct.close()
        if ended:
            assert turns >= 40, "the program has that many places to be cancelled at"
            return
    pytest.fail("the program never ended")


USES: list[Callable[[Context], Awaitable[Any]]] = [
    lambda ctx: ctx.generate(GREEDY, max_tokens=6).collect_tokens(),
    lambda ctx: ctx.generate(GREEDY, max_tokens=6, speculator=Asking()).collect_tokens(),
    lambda ctx: ctx.generate(GREEDY, max_tokens=6, constrain=Choice(["a", "b"])).collect_text(),
    lambda ctx: ctx.forward([1, 2, 3], at=[0, 2]),
    lambda ctx: ctx.run_tools([], max_tokens=4).collect(),
]


@pytest.mark.parametrize("use", USES)
def test_a_release_at_any_await_of_another_task_ends_what_runs_there_and_leaks_nothing(
    use: Callable[[Context], Awaitable[Any]],
) -> None:
    async def released_after(turns: int) -> bool:
        ctx = Context().user("a question")
        task = asyncio.ensure_future(use(ctx))
        for _ in range(turns):
            await asyncio.sleep(0)
        ended = task.done()
        await ctx.release()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        assert not ended or not isinstance(outcome, BaseException)
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, InvalidRequest), repr(outcome)
            assert "released" in outcome.message
        return ended

    for turns in range(200):
        runtime = SteppedRuntime()
        with transport_in_force(runtime):
            ended = asyncio.run(released_after(turns))
        held = runtime.direct.session._state
        assert not held.contexts, turns
        assert not held.generations, turns
        runtime.direct.engine.check_integrity()
        runtime.direct.close()
        if ended:
            assert turns > 3
            return
    pytest.fail("the program never ended")


OPERATIONS: list[Callable[[Context], Awaitable[Any]]] = [
    lambda ctx: ctx.flush(),
    lambda ctx: ctx.fork(),
    lambda ctx: ctx.forward([]),
    lambda ctx: ctx.generate(GREEDY, max_tokens=2).collect_tokens(),
]


@pytest.mark.parametrize("operate", OPERATIONS)
def test_a_cancel_at_any_await_loses_neither_the_prompt_nor_the_open_turn(
    operate: Callable[[Context], Awaitable[Any]],
) -> None:
    async def asked(turns: int) -> tuple[bool, list[int]]:
        ctx = Context().user("a question")
        task = asyncio.ensure_future(operate(ctx))
        for _ in range(turns):
            await asyncio.sleep(0)
        ended = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await ctx.generate(GREEDY, max_tokens=1).collect_tokens()
        return ended, await ctx.tokens()

    ended, turns, prompt = False, 0, []
    while not ended:
        runtime = SteppedRuntime()
        with transport_in_force(runtime):
            ended, tokens = asyncio.run(asked(turns))
        runtime.direct.close()
        prompt = prompt or tokens[:-1]  # of the first: it was cancelled before anything was sent
        assert tokens[: len(prompt)] == prompt, turns
        turns += 1
    assert turns > 3
