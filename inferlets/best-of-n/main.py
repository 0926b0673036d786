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
from dataclasses import dataclass

from inferd import Context, InvalidRequest
from inferd.chat import ChatRequest, Conversation, FinishReason, Reply, open_context

CANDIDATES = 4


@dataclass
class Candidate:
    """An answer, with the mean log-probability of its tokens. ``reason``: "length" for one that was cut."""

    likelihood: float
    text: str
    reason: FinishReason | None


async def candidate(conversation: Conversation, ctx: Context, number: int) -> Candidate:
    """Return one answer, as the request asks."""
    generator = conversation.generate(ctx, choice=number, logprobs=0)
    pieces, scores = [], []
    async for step in generator:
        pieces.append(step.text)
        scores += [entry.logprob for entry in step.logprobs]
    reason: FinishReason | None = "length" if generator.finish == "length" else None
    return Candidate(sum(scores) / len(scores) if scores else -math.inf, "".join(pieces), reason)


async def main(request: ChatRequest) -> None:
    """Write the best of CANDIDATES answers, which share the conversation's keys and values."""
    if request.logprobs is not None:
        raise InvalidRequest("best-of-n does not tell log-probabilities: it has used them up", param="logprobs")
    ctx, conversation = await open_context(request)
    async with ctx:
        await ctx.flush(request.adapter or None)
        contexts = [ctx, *[await ctx.fork() for _ in range(1, CANDIDATES)]]
        found = await asyncio.gather(*(candidate(conversation, each, number) for number, each in enumerate(contexts)))
    best = sorted(found, key=lambda each: -each.likelihood)
    reply = Reply(request, conversation.shape)
    for choice in range(request.n):  # the n best, where a client wants several
        await reply.write_text(best[choice % CANDIDATES].text, best[choice % CANDIDATES].reason, choice=choice)
