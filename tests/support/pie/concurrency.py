"""Two generations at once, whose steps take turns."""

import asyncio

from inferlet import Context, Model, Sampler, runtime, session


async def write(ctx: Context, name: str, log: list[str]) -> str:
    async for step in ctx.generate(Sampler.argmax(), max_tokens=6):
        await step.execute()
        log.append(name)
    session.send(f"{name} done")
    return name


async def main(input: dict) -> dict:
    model, log = Model.load(runtime.models()[0]), []
    contexts = [Context(model).user(f"Tell of {thing}") for thing in ("the sea", "a pump")]
    ended = await asyncio.gather(*(write(ctx, name, log) for ctx, name in zip(contexts, "ab", strict=True)))
    return {"ended": ended, "log": log}
