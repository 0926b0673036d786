"""A speculator of one's own, from a script: the caller knows roughly what the answer will be, and says so.

    python examples/custom_speculator.py [--url ws://127.0.0.1:7070] [--token TOKEN]

The task is an edit, so most of the answer is a copy of the input. Both runs give the same text; the second one
takes fewer steps. The address and the token also come from INFERD_URL and INFERD_TOKEN.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import inferd
from inferd import Context, Model, Sampler, Speculator

TEXT = "The meeting is on Monday at 10:00 in room 4. Please bring the report and the list of open questions."


class CopySpeculator(Speculator):
    """Drafts from an expected text: finds the last few tokens in it, and proposes what follows them there."""

    def __init__(self, expected: list[int], match: int = 2, max_draft: int = 12) -> None:
        self._expected = expected
        self._match = match
        self._max_draft = max_draft
        self._tail: list[int] = []
        self._length = 0

    def reset(self) -> None:
        self._tail, self._length = [], 0

    def accept(self, tokens: list[int]) -> None:
        self._length += len(tokens)
        self._tail = [*self._tail, *tokens][-self._match :]

    def draft(self) -> tuple[list[int], list[int]]:
        for start in range(len(self._expected) - self._match + 1):
            end = start + self._match
            if self._expected[start:end] == self._tail:
                tokens = self._expected[end : end + self._max_draft]
                return tokens, list(range(self._length, self._length + len(tokens)))
        return [], []


async def edit(speculator: Speculator | None) -> str:
    """Let the model edit the text; says how many steps it took."""
    async with Context() as ctx:
        ctx.user(f"Repeat this text, but write Tuesday instead of Monday:\n{TEXT}")
        generator = ctx.generate(Sampler.argmax(), max_tokens=128, speculator=speculator)
        text = await generator.collect_text()
    usage = generator.usage
    print(f"{usage.tokens} tokens in {usage.steps} steps; accepted {usage.accepted} of {usage.drafted} drafted")
    return text


async def compare(url: str, token: str | None) -> None:
    """The same edit, without drafts and with them."""
    async with inferd.connect(url, token=token):
        model = await Model.load()
        plain = await edit(None)
        drafted = await edit(CopySpeculator(await model.tokenizer.encode(TEXT)))
        print(plain)
        print("the texts are the same" if plain == drafted else f"the texts differ: {drafted}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare generation with and without a speculator.")
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
