"""Chat with a runtime from an ordinary script; the answers are printed while they come.

    python examples/stream_chat.py [--url ws://127.0.0.1:7070] [--token TOKEN] [MESSAGE ...]

Every MESSAGE is one turn of the same conversation; without any, the turns are read from the keyboard. The address
and the token also come from INFERD_URL and INFERD_TOKEN.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator

import inferd
from inferd import Context, Sampler


async def chat(url: str, token: str | None, turns: Iterator[str]) -> None:
    """One conversation: the context keeps what was said, so each turn computes only what is new."""
    async with inferd.connect(url, token=token), Context() as ctx:
        ctx.system("You are a helpful assistant.")
        for turn in turns:
            ctx.user(turn)
            async for step in ctx.generate(Sampler.top_p(0.7, 0.95), max_tokens=256, system_speculation=True):
                print(step.text, end="", flush=True)
            print()


def typed_turns() -> Iterator[str]:
    """Lines from the keyboard, up to an empty one."""
    while line := input("> ").strip():
        yield line


def main() -> int:
    parser = argparse.ArgumentParser(description="Chat with a runtime.")
    parser.add_argument("--url", default=os.environ.get("INFERD_URL", inferd.DEFAULT_URL))
    parser.add_argument("--token", default=os.environ.get("INFERD_TOKEN"))
    parser.add_argument("messages", nargs="*", metavar="MESSAGE")
    arguments = parser.parse_args()
    try:
        asyncio.run(
            chat(arguments.url, arguments.token, iter(arguments.messages) if arguments.messages else typed_turns())
        )
    except (inferd.InferdError, EOFError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
