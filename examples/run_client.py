"""Uploads a program, launches it, talks to it, and waits for its result. `inferd serve` runs beside it.

    python examples/run_client.py http://127.0.0.1:7070 TOKEN

The connection may break at any time: the client makes it again and goes on behind the last event.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

import inferd

GREETER = '''
from inferd import session

async def main(greeting: str) -> int:
    """Greets whoever it hears of, until it hears nobody's name."""
    count = 0
    await session.send("Who is there?")
    while name := await session.receive():
        count += 1
        await session.send(f"{greeting}, {name}!")
    return count
'''


async def main(url: str, token: str | None) -> None:
    async with inferd.Client(url, token) as client:
        program = await client.upload({"main.py": GREETER}, name="greeter")
        run = await client.launch(program, {"greeting": "Hello"}, limits={"wall_s": 60})
        names = iter(["Ann", "Bob", ""])
        async with aclosing(run.messages()) as messages:
            async for message in messages:
                print(message)
                await run.send(next(names))
        print("greeted:", await run.result())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
