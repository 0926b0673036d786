# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "watermark"
# version = "0.1.0"
# ///
"""Write a text with a watermark, or look for one: a sampler of one's own prefers a part of the vocabulary that a key decides.

Kirchenbauer et al., "A Watermark for Large Language Models" (ICML 2023); the green tokens follow from the token before.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from inferd import Candidates, Context, CustomSampler, Model

GREEN = 0.5
"""The share of the vocabulary that is preferred behind each token."""


@dataclass
class Marked:
    """``z``: by how many standard deviations the text has more green tokens than chance gives; above 4 it is marked."""

    text: str
    z: float


def is_green(key: bytes, before: int, token: int) -> bool:
    """Return True for the tokens that are preferred behind another one."""
    digest = hashlib.blake2b(b"%d %d" % (before, token), key=key, digest_size=2).digest()
    return int.from_bytes(digest, "big") < GREEN * 2**16


def z_score(key: bytes, tokens: Sequence[int]) -> float:
    """Return how far the green tokens are above their expected number; a pair that repeats counts once."""
    pairs = set(pairwise(tokens))
    green = sum(is_green(key, *pair) for pair in pairs)
    return (green - GREEN * len(pairs)) / math.sqrt(max(1, len(pairs)) * GREEN * (1 - GREEN))


async def main(
    prompt: str = "Describe the sea.",
    key: str = "a secret",
    strength: float = 3.0,
    temperature: float = 0.8,
    max_tokens: int = 96,
    seed: int | None = None,
    check: str = "",
) -> Marked:
    """Answer ``prompt`` with a watermark, or tell whether the text ``check`` has one."""
    secret = hashlib.sha256(key.encode()).digest()
    tokenizer = (await Model.load()).tokenizer
    if check:
        return Marked(check, z_score(secret, await tokenizer.encode(check)))

    def choose(candidates: Candidates) -> int:
        before = candidates.context[-1]
        scores = [
            logprob + strength * is_green(secret, before, token)
            for token, logprob in zip(candidates.tokens, candidates.logprobs, strict=True)
        ]
        best = max(scores)
        return candidates.draw([math.exp((score - best) / temperature) for score in scores])

    async with Context() as ctx:
        sampler = CustomSampler.of(choose, k=128, seed=seed)
        tokens = await ctx.user(prompt).generate(sampler, max_tokens=max_tokens).collect_tokens()
    return Marked(await tokenizer.decode(tokens), z_score(secret, tokens))
