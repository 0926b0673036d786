"""Answering a request with the model itself: what the built-in chat program does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

from inferd.chat.conversation import Conversation, open_context
from inferd.chat.reply import Reply
from inferd.chat.request import ChatRequest
from inferd.context import Context
from inferd.model import Model


async def answer(request: ChatRequest) -> None:
    """Write the request's ``n`` answers, generated side by side from one conversation.

    Raises InvalidRequest, LimitExceeded and ConstraintError for a request that cannot be answered, before anything is written.
    """
    async with AsyncExitStack() as held:
        ctx, conversation = await open_context(request)
        await held.enter_async_context(ctx)
        if request.n > 1:
            await ctx.flush(request.adapter or None)  # computed once, then shared
        forks = [await held.enter_async_context(await ctx.fork()) for _ in range(1, request.n)]
        reply = Reply(request, conversation.shape)
        if request.return_tokens:
            await reply.prompt(await ctx.tokens())
        if request.echo:
            await _echo(request, reply)
        await all_of([_write(request, reply, conversation, each, choice) for choice, each in enumerate([ctx, *forks])])


async def all_of(writing: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of them. The first error ends the others before it is raised: their contexts are let go next."""
    tasks = [asyncio.ensure_future(each) for each in writing]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _write(request: ChatRequest, reply: Reply, conversation: Conversation, ctx: Context, choice: int) -> None:
    generator = ctx.generate(
        request.sampler(choice),
        max_tokens=request.most_tokens,
        stop=request.stop,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        constrain=conversation.constraint,
        system_speculation=request.speculation,
        predict=request.prediction or None,
        logprobs=request.logprobs,
        on_length="cut" if conversation.constraint is None else "complete_or_cut",
        adapter=request.adapter or None,
        priority=request.priority,
    )
    await reply.write(generator, choice=choice)


async def _echo(request: ChatRequest, reply: Reply) -> None:
    prompt = request.prompt or ""
    if not isinstance(prompt, str):
        prompt = await (await Model.load(request.model)).tokenizer.decode(prompt)
    for choice in range(request.n):
        await reply.text(prompt, choice=choice)
