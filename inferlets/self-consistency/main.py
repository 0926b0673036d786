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

from inferd import InvalidRequest
from inferd.chat import ChatRequest, Reply, open_context

SAMPLES = 5
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def conclusion(text: str) -> str:
    """Return what a reasoning comes to: its last number, else its last line."""
    numbers = NUMBER.findall(text.replace(",", ""))
    lines = text.strip().splitlines()
    return str(numbers[-1]) if numbers else (lines[-1].strip() if lines else "")


async def main(request: ChatRequest) -> None:
    """Write the conclusion that won, and one of the reasonings that came to it as what was thought."""
    if request.tools or request.output is not None or request.logprobs is not None:
        raise InvalidRequest(
            "self-consistency takes neither tools, nor an output format, nor logprobs: it writes a vote"
        )
    ctx, conversation = await open_context(request)
    async with ctx:
        await ctx.flush(request.adapter or None)
        contexts = [ctx, *[await ctx.fork() for _ in range(1, SAMPLES)]]
        samples = [conversation.generate(each, choice=number) for number, each in enumerate(contexts)]
        texts = await asyncio.gather(*(generator.collect_text() for generator in samples))
    winner, votes = Counter(map(conclusion, texts)).most_common(1)[0]
    reply = Reply(request)
    for choice in range(request.n):
        await reply.reasoning(next(text for text in texts if conclusion(text) == winner), choice=choice)
        await reply.text(f"{winner} ({votes} of {SAMPLES})", choice=choice)
        await reply.finish(choice=choice)
