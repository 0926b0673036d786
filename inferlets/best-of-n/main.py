# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "best-of-n"
# version = "0.1.0"
# serves = "chat"
# ///
"""A model that thinks of several answers at once and gives the one that it finds the most likely, token for token."""

import asyncio
import math

from inferd import Context
from inferd.chat import ChatRequest, Reply, open_context

CANDIDATES = 4


async def candidate(request: ChatRequest, ctx: Context, number: int) -> tuple[float, str]:
    """Return an answer with the mean log-probability of its tokens."""
    generator = ctx.generate(
        request.sampler(number),
        max_tokens=request.most_tokens,
        stop=request.stop,
        logprobs=0,
        system_speculation="auto",
    )
    pieces, scores = [], []
    async for step in generator:
        pieces.append(step.text)
        scores += [entry.logprob for entry in step.logprobs]
    return (sum(scores) / len(scores) if scores else -math.inf), "".join(pieces)


async def main(request: ChatRequest) -> None:
    """Write the best of CANDIDATES answers, which share the conversation's keys and values."""
    ctx, _ = await open_context(request)
    async with ctx:
        await ctx.flush()
        contexts = [ctx, *[await ctx.fork() for _ in range(1, CANDIDATES)]]
        found = await asyncio.gather(*(candidate(request, each, number) for number, each in enumerate(contexts)))
        reply = Reply(request)
        for choice in range(request.n):  # the n best, where a client wants several
            await reply.text(sorted(found, reverse=True)[choice % CANDIDATES][1], choice=choice)
            await reply.finish(choice=choice)
