"""Answering a request with the model itself: what the built-in chat program does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from inferd.chat.conversation import open_context
from inferd.chat.reply import Reply
from inferd.chat.request import ChatRequest
from inferd.context import Context
from inferd.model import Model
from inferd.protocol import TokenLogprob


async def answer(request: ChatRequest) -> None:
    """Write the request's ``n`` answers, generated side by side from one conversation.

    Raises InvalidRequest, LimitExceeded and ConstraintError for a request that cannot be answered, before anything is written.
    """
    async with AsyncExitStack() as held:
        ctx, conversation = await open_context(request)
        await held.enter_async_context(ctx)
        scores = await _scored_prompt(request, ctx)
        if request.n > 1 or (request.most_tokens == 0 and not request.echo):
            await ctx.flush(request.adapter or None)  # computed once, then shared, or found by the next request
        forks = [await held.enter_async_context(await ctx.fork()) for _ in range(1, request.n)]
        reply = Reply(request, conversation.shape, len(conversation.tokens))
        if request.return_tokens:
            await reply.prompt(await ctx.tokens())
        if request.prompt_logprobs is not None:
            await reply.prompt_scores(_most_likely(scores, request.prompt_logprobs))
        if request.echo:
            await _echo(request, reply, scores)
        if request.most_tokens == 0:
            for choice in range(request.n):
                await reply.finish("length", choice=choice)
            return
        answers = enumerate([ctx, *forks])
        await all_of(
            [reply.write(conversation.generate(each, choice=choice), choice=choice) for choice, each in answers]
        )


async def all_of(writing: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Wait for all of them. The first error ends the others before it is raised: their contexts are let go next."""
    tasks = [asyncio.ensure_future(each) for each in writing]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _scored_prompt(request: ChatRequest, ctx: Context) -> list[TokenLogprob]:
    """Return how likely each token of the prompt is, [] where nobody asks. It is computed while the context takes the prompt
    once more, from its start.
    """
    asked = [request.logprobs if request.echo else None, request.prompt_logprobs]
    alternatives = [count for count in asked if count is not None]
    if not alternatives:
        return []
    tokens = await ctx.tokens()
    await ctx.truncate(0)
    return await ctx.prompt_logprobs(tokens, max(alternatives), adapter=request.adapter or None)


def _most_likely(scores: list[TokenLogprob], count: int) -> list[TokenLogprob]:
    """Return the scores with ``count`` alternatives at most."""
    return [
        replace(each, top_tokens=each.top_tokens[:count], top_logprobs=each.top_logprobs[:count]) for each in scores
    ]


async def _echo(request: ChatRequest, reply: Reply, scores: list[TokenLogprob]) -> None:
    prompt = request.prompt or ""
    if not isinstance(prompt, str):
        prompt = await (await Model.load(request.model)).tokenizer.decode(prompt)
    for choice in range(request.n):
        if request.logprobs is None:
            await reply.text(prompt, choice=choice)
        else:
            await reply.scored_text(prompt, _most_likely(scores, request.logprobs), choice=choice)
