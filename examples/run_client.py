"""Uploads a program, launches it, talks to it, and waits for its result. `inferd serve` runs beside it.

    python examples/run_client.py [--url http://127.0.0.1:7070] [--token TOKEN]

The connection may break at any time: the client makes it again and goes on behind the last event. The address and the token
also come from INFERD_URL and INFERD_TOKEN.
"""

from __future__ import annotations

import argparse
import asyncio
import os
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


async def talk(url: str, token: str | None) -> None:
    async with inferd.Client(url, token) as client:
        program = await client.upload({"main.py": GREETER}, name="greeter")
        run = await client.launch(program, {"greeting": "Hello"}, limits={"wall_s": 60})
        names = iter(["Ann", "Bob", ""])
        async with aclosing(run.messages()) as messages:
            async for message in messages:
                print(message)
                await run.send(next(names))
        print("greeted:", await run.result())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=os.environ.get("INFERD_URL", inferd.DEFAULT_URL))
    parser.add_argument("--token", default=os.environ.get("INFERD_TOKEN"))
    arguments = parser.parse_args()
    try:
        asyncio.run(talk(arguments.url, arguments.token))
    except inferd.InferdError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
