# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "self-consistency"
# version = "0.1.0"
# serves = "chat"
# ///
"""A model that reasons several times and gives the answer that most of its reasonings come to (Wang et al. 2022)."""

import asyncio
import re
from collections import Counter

from inferd import Context
from inferd.chat import ChatRequest, Reply, open_context

SAMPLES = 5
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


async def sample(request: ChatRequest, ctx: Context, number: int) -> str:
    """Return one reasoning."""
    generator = ctx.generate(
        request.sampler(number), max_tokens=request.most_tokens, stop=request.stop, system_speculation="auto"
    )
    return await generator.collect_text()


def conclusion(text: str) -> str:
    """Return what a reasoning comes to: its last number, else its last line."""
    numbers = NUMBER.findall(text.replace(",", ""))
    lines = text.strip().splitlines()
    return str(numbers[-1]) if numbers else (lines[-1].strip() if lines else "")


async def main(request: ChatRequest) -> None:
    """Write the conclusion that won, and one of the reasonings that came to it as what was thought."""
    ctx, _ = await open_context(request)
    async with ctx:
        await ctx.flush()
        contexts = [ctx, *[await ctx.fork() for _ in range(1, SAMPLES)]]
        texts = await asyncio.gather(*(sample(request, each, number) for number, each in enumerate(contexts)))
    winner, votes = Counter(map(conclusion, texts)).most_common(1)[0]
    reply = Reply(request)
    for choice in range(request.n):
        await reply.reasoning(next(text for text in texts if conclusion(text) == winner), choice=choice)
        await reply.text(f"{winner} ({votes} of {SAMPLES})", choice=choice)
        await reply.finish(choice=choice)
