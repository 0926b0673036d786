"""A decoding loop of one's own that drafts: guess, have the guess verified in one step, go on behind what stands.

    python examples/verify_loop.py [--url ws://127.0.0.1:7070] [--token TOKEN]

The drafter is the ten lines of `lookup`: it proposes what followed the last two tokens wherever they stood before, each
place as a branch of one tree. The loop brings the tokens that `generate` brings with the same sampler, drawn ones too, in
fewer steps where the text repeats itself. The address and the token also come from INFERD_URL and INFERD_TOKEN.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import inferd
from inferd import Context, Model, Sampler

TEXT = "The meeting is on Monday at 10:00 in room 4. Please bring the report and the list of open questions."
ROOM = 64  # tokens that one step verifies at most


def lookup(tokens: list[int], match: int = 2, branches: int = 3, length: int = 12) -> tuple[list[int], list[int]]:
    """Return a tree of what followed the last ``match`` tokens before, newest place first: token ids, and the parent of each."""
    end = tokens[-match:]
    places = [at for at in range(len(tokens) - match, match - 1, -1) if tokens[at - match : at] == end][:branches]
    draft: list[int] = []
    parents: list[int] = []
    for place in places:
        branch = tokens[place : place + length][: ROOM - len(draft)]
        parents += [-1 if at == 0 else len(draft) + at - 1 for at in range(len(branch))]
        draft += branch
    return draft, parents


async def answer(ctx: Context, sampler: Sampler, max_tokens: int) -> tuple[list[int], int]:
    """Return the answer's tokens, and how many steps they took."""
    ends = (await Model.load()).eos_tokens
    tokens = await ctx.tokens()
    start, steps = len(tokens), 0
    while len(tokens) - start < max_tokens and tokens[-1] not in ends:
        draft, parents = lookup(tokens)
        done = await ctx.verify(draft, parents, sampler)
        tokens += [*done.accepted, done.token]
        steps += 1
    return tokens[start : start + max_tokens], steps


async def compare(url: str, token: str | None) -> None:
    """The same answer from `generate` and from the loop."""
    sampler = Sampler.top_p(0.7, 0.95, seed=1)
    async with inferd.connect(url, token=token):
        tokenizer = (await Model.load()).tokenizer
        prompt = f"Repeat this text, but write Tuesday instead of Monday:\n{TEXT}"
        async with Context().user(prompt).cue() as ctx:
            tokens, steps = await answer(ctx, sampler, 128)
        async with Context().user(prompt).cue() as ctx:
            plain = await ctx.generate(sampler, max_tokens=128).collect_text()
        text = await tokenizer.decode(tokens)
        print(f"{len(tokens)} tokens in {steps} steps")
        print(text)
        print("the texts are the same" if text == plain else f"the texts differ: {plain}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Decode in a loop that drafts by itself.")
    parser.add_argument("--url", default=os.environ.get("INFERD_URL", inferd.DEFAULT_URL))
    parser.add_argument("--token", default=os.environ.get("INFERD_TOKEN"))
    arguments = parser.parse_args()
    try:
        asyncio.run(compare(arguments.url, arguments.token))
    except inferd.InferdError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
