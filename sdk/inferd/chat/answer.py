"""Answering a request with the model itself: what the built-in chat program does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

from inferd.chat.conversation import open_context
from inferd.chat.refused_tools import naming_its_tool
from inferd.chat.reply import Reply
from inferd.chat.request import ChatRequest
from inferd.context import Context
from inferd.model import Model
from inferd.protocol import ConstraintError, TokenLogprob

SCORED_AT_ONCE = 1024
"""Tokens of a prompt whose log-probabilities come in one reply: its reader does nothing else meanwhile."""


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
            await reply.prompt_scores(scores, top=request.prompt_logprobs)
        if request.echo:
            await _echo(request, reply, scores)
        if request.most_tokens == 0:
            for choice in range(request.n):
                await reply.finish("length", choice=choice)
            return
        answers = enumerate([ctx, *forks])
        try:
            await all_of(
                [reply.write(conversation.generate(each, choice=choice), choice=choice) for choice, each in answers]
            )
        except ConstraintError as error:
            raise await naming_its_tool(error, conversation) from None


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
    scores: list[TokenLogprob] = []
    for start in range(0, len(tokens), SCORED_AT_ONCE):
        part = tokens[start : start + SCORED_AT_ONCE]
        scores += await ctx.prompt_logprobs(part, max(alternatives), adapter=request.adapter or None)
    return scores


async def _echo(request: ChatRequest, reply: Reply, scores: list[TokenLogprob]) -> None:
    prompt = request.prompt or ""
    if not isinstance(prompt, str):
        prompt = await (await Model.load(request.model)).tokenizer.decode(prompt)
    for choice in range(request.n):
        if request.logprobs is None:
            await reply.text(prompt, choice=choice)
        else:
            await reply.scored_text(prompt, scores, choice=choice, top=request.logprobs)
