# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "swarm"
# version = "0.1.0"
# [tool.inferd.limits]
# memory_mb = 512
# ///
"""Several programs write one text: an editor launches writers, which take parts from a queue and hear what others wrote."""

import asyncio
import secrets
from dataclasses import dataclass

from inferd import Child, Context, Sampler, launch, queue, topic

PARTS = ("beginning", "middle", "end")


@dataclass
class Story:
    """The parts in order, and how many of them each writer wrote."""

    text: dict[str, str]
    written: list[int]


async def write(about: str, part: str, others: dict[str, str], max_tokens: int) -> str:
    """Return the text of a part, from what the others have written so far."""
    known = " ".join(f"The {name}: {text}" for name, text in others.items())
    async with Context() as ctx:
        ctx.system("You write one part of a short story.").user(
            f"The story is about {about}. {known} Write the {part}."
        )
        return await ctx.generate(Sampler.top_p(0.7, 0.95), max_tokens=max_tokens).collect_text()


async def writer(team: str, about: str, max_tokens: int) -> int:
    """Write parts until there are none left; returns how many."""
    others: dict[str, str] = {}
    count = 0

    async def listen() -> None:
        async for piece in news:
            others[piece["part"]] = piece["text"]

    async with topic.subscribe(f"{team}/written") as news:
        listening = asyncio.create_task(listen())
        while (part := await queue.pull(f"{team}/parts")) is not None:
            text = await write(about, part, others, max_tokens)
            await topic.publish(f"{team}/written", {"part": part, "text": text})
            count += 1
        listening.cancel()
    return count


async def editor(about: str, writers: int, max_tokens: int) -> Story:
    """Launch writers, hand out the parts, and put together what comes back."""
    team = secrets.token_hex(8)
    text: dict[str, str] = {}
    async with topic.subscribe(f"{team}/written") as written, asyncio.TaskGroup() as tasks:
        asked = {"about": about, "team": team, "max_tokens": max_tokens}
        children: list[Child] = [await launch("swarm", asked) for _ in range(writers)]
        counts = [
            tasks.create_task(child.result()) for child in children
        ]  # one that fails ends the others, and the wait
        for part in PARTS:
            await queue.push(f"{team}/parts", part)
        while len(text) < len(PARTS):
            piece = await anext(written)
            text[piece["part"]] = piece["text"]
        for _ in children:
            await queue.push(f"{team}/parts", None)
    return Story({part: text[part] for part in PARTS}, [count.result() for count in counts])


async def main(about: str = "a lighthouse", writers: int = 2, max_tokens: int = 48, team: str = "") -> Story | int:
    """``team`` is for the writers, which are this same program."""
    return await (writer(team, about, max_tokens) if team else editor(about, writers, max_tokens))
