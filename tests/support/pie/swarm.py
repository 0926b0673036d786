"""Parts of a story go from writer to writer: some by a queue, the end by a broadcast."""

import asyncio

from inferlet import Context, Model, Sampler, messaging, runtime


async def write(model: Model, name: str, source: str, target: str) -> None:
    story = await messaging.pull(source)
    ctx = Context(model).user(f"Go on: {story}")
    text = await ctx.generate(Sampler.argmax(), max_tokens=3).collect_text()
    messaging.push(target, f"{story}|{name}:{len(text) > 0}")


async def main(input: dict) -> list[str]:
    model, me = Model.load(runtime.models()[0]), runtime.instance_id()
    with messaging.subscribe(f"{me}/end") as ends:
        writers = [
            asyncio.create_task(write(model, name, f"{me}/{at}", f"{me}/{at + 1}")) for at, name in enumerate("abc")
        ]
        messaging.push(f"{me}/0", "start")
        messaging.broadcast(f"{me}/end", await messaging.pull(f"{me}/3"))
        async for story in ends:
            await asyncio.gather(*writers)
            return story.split("|")
