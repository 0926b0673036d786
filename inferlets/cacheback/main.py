# /// script
# [tool.inferd]
# name = "cacheback"
# version = "0.1.0"
# ///
"""Drafts from a table of what followed each pair of tokens before, in the prompt and in the output: newest first, bounded.

After "Cacheback: Speculative Decoding With Nothing But Cache" (Ma et al. 2025): no second model, no training; the table alone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from inferd import Context, DraftTree, Sampler, Speculator

LEADER = 2
"""Tokens that are looked up."""


class CachebackSpeculator(Speculator):
    """Remembers for each pair of tokens the runs that followed it, the least recently used of both forgotten first."""

    def __init__(self, run: int, leaders: int, followers: int) -> None:
        self.run = run
        self.leaders = leaders
        self.followers = followers
        self.reset()

    def reset(self) -> None:
        """Forget the last generation."""
        self.recent: deque[int] = deque(maxlen=LEADER + self.run)
        self.table: OrderedDict[tuple[int, ...], OrderedDict[tuple[int, ...], None]] = OrderedDict()

    def accept(self, tokens: list[int]) -> None:
        """Learn what followed."""
        for token in tokens:
            self.recent.append(token)
            if len(self.recent) == LEADER + self.run:
                whole = tuple(self.recent)
                self._learn(whole[:LEADER], whole[LEADER:])

    def draft(self) -> DraftTree:
        """Return all runs that followed the last pair, as a tree: runs that begin alike share their beginning."""
        pair = tuple(self.recent)[-LEADER:]
        tree = DraftTree([], [])
        places: dict[tuple[int, ...], int] = {}
        for follower in reversed(self.table.get(pair, {})):
            parent = -1
            for end in range(1, len(follower) + 1):
                path = follower[:end]
                if path not in places:
                    places[path] = len(tree.tokens)
                    tree = DraftTree([*tree.tokens, path[-1]], [*tree.parents, parent])
                parent = places[path]
        return tree

    def _learn(self, pair: tuple[int, ...], follower: tuple[int, ...]) -> None:
        runs = self.table.setdefault(pair, OrderedDict())
        runs[follower] = None
        runs.move_to_end(follower)
        self.table.move_to_end(pair)
        if len(runs) > self.followers:
            runs.popitem(last=False)
        if len(self.table) > self.leaders:
            self.table.popitem(last=False)


@dataclass
class Answer:
    """``steps`` of the model for ``tokens`` of text; ``accepted`` of the ``drafted`` tokens held."""

    text: str
    tokens: int
    steps: int
    drafted: int
    accepted: int


async def main(
    prompt: str = "Repeat three times: the pump of the boat is dry.",
    max_tokens: int = 64,
    run: int = 3,
    leaders: int = 4096,
    followers: int = 4,
) -> Answer:
    """Answer a prompt with drafts from a table."""
    speculator = CachebackSpeculator(run, leaders, followers)
    async with Context() as ctx:
        generator = ctx.user(prompt).generate(Sampler.argmax(), max_tokens=max_tokens, speculator=speculator)
        text = await generator.collect_text()
    used = generator.usage
    return Answer(text, used.tokens, used.steps, used.drafted, used.accepted)
