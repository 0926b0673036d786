"""A decode loop of one's own, from a script: a grammar says what may come, the script says how it is chosen.

    python examples/own_decoding.py [--url ws://127.0.0.1:7070] [--token TOKEN] [--width 3]

The answer is one of a list. Instead of going with the likeliest next token, the script follows the few best beginnings side
by side in forks (a beam search), so that a good answer with an unlikely first token is found too. The address and the
token also come from INFERD_URL and INFERD_TOKEN.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass

import inferd
from inferd import Choice, Context, Grammar, Matcher, Model

CITIES = ["Paris", "Porto", "Prague", "Palermo", "Pisa"]
QUESTION = "Which city is the capital of Portugal's northern neighbour on the river Douro? One word."


@dataclass(eq=False)
class Beam:
    """A beginning of the answer: its context, where it stands in the grammar, its log-probability, and its tokens, of which
    the last one is not yet in the context.
    """

    ctx: Context
    matcher: Matcher
    tokens: list[int]
    score: float = 0.0
    ended: bool = False

    async def grow(self, width: int, eos: set[int]) -> list[Beam]:
        """Return the best ways to go on, of those that the grammar allows."""
        row = (await self.ctx.forward(self.tokens[-1:], mask=await self.matcher.mask(), top=width)).rows[0]
        best = zip(row.top_tokens, row.top_logprobs, strict=True)
        return [await self.follow(token, logprob, eos) for token, logprob in best]

    async def follow(self, token: int, logprob: float, eos: set[int]) -> Beam:
        """Return a copy that goes on with one token."""
        matcher = await self.matcher.fork()
        await matcher.accept([token])
        child = Beam(await self.ctx.fork(), matcher, [*self.tokens, token], self.score + logprob)
        child.ended = token in eos
        return child

    async def release(self) -> None:
        """Give back what it holds."""
        await self.ctx.release()
        await self.matcher.release()


async def choose(question: str, options: list[str], width: int) -> tuple[str, float]:
    """Return the likeliest of the options that ``width`` beams find, and its log-probability."""
    model = await Model.load()
    eos = set(model.eos_tokens)
    async with await Grammar.compile(Choice(options)) as grammar, Context() as ctx:
        prompt = await ctx.user(question).cue().tokens()
        await ctx.truncate(len(prompt) - 1)  # the last token is fed by the first pass
        beams = [Beam(await ctx.fork(), grammar.matcher(), [prompt[-1]])]
        while not all(beam.ended for beam in beams):
            grown = [child for beam in beams if not beam.ended for child in await beam.grow(width, eos)]
            kept = sorted([*grown, *(beam for beam in beams if beam.ended)], key=lambda beam: -beam.score)[:width]
            for beam in [*beams, *grown]:
                if beam not in kept:
                    await beam.release()
            beams = kept
        best = beams[0]
        text = await model.tokenizer.decode(best.tokens[1:-1])
        for beam in beams:
            await beam.release()
        return text, best.score


async def ask(url: str, token: str | None, width: int) -> None:
    """Connect, choose, print."""
    async with inferd.connect(url, token=token):
        text, score = await choose(QUESTION, CITIES, width)
        print(f"{text} (log-probability {score:.2f}, {width} beams)")


def main() -> int:
    parser = argparse.ArgumentParser(description="Choose an answer by beam search over a grammar.")
    parser.add_argument("--url", default=os.environ.get("INFERD_URL", inferd.DEFAULT_URL))
    parser.add_argument("--token", default=os.environ.get("INFERD_TOKEN"))
    parser.add_argument("--width", type=int, default=3)
    arguments = parser.parse_args()
    try:
        asyncio.run(ask(arguments.url, arguments.token, arguments.width))
    except inferd.InferdError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
