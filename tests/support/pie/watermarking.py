"""Chooses each token itself from the distribution, and prefers those of a green list that hangs on the token before."""

import math
import random

from inferlet import Context, Distribution, Model, Sampler, runtime


def is_green(token: int, before: int) -> bool:
    return random.Random(before * 1_000_003 + token).random() < 0.5


async def main(input: dict) -> dict:
    model = Model.load(runtime.models()[0])
    ctx = Context(model).user("Write about the sea.").cue()
    await ctx.flush()
    generator = ctx.generate(Sampler.argmax(), max_tokens=8, auto_flush=False)
    made, before = [], 0
    async for step in generator:
        step.clear_sampler()
        handle = step.probe(0, Distribution(temperature=1.0, k=40))
        tokens, chances = (await step.execute()).distribution(handle)
        weights = [
            chance * math.exp(4.0 * is_green(token, before)) for token, chance in zip(tokens, chances, strict=True)
        ]
        before = max(zip(weights, tokens, strict=True))[1]
        made += generator.accept([before])
    green = sum(is_green(token, last) for last, token in zip([0, *made[:-1]], made, strict=True))
    return {"tokens": len(made), "green": green}
