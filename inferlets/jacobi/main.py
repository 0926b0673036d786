# /// script
# [tool.inferd]
# name = "jacobi"
# version = "0.1.0"
# ///
"""Jacobi decoding: guesses the next tokens, computes all in one pass, and takes the model's own answers as the next guess.

A guess that the model agrees with stands, so the text is that of greedy decoding (Santilli et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

from inferd import Context, Model, Sampler


@dataclass
class Answer:
    """``passes`` of the model for ``tokens`` of text."""

    text: str
    tokens: int
    passes: int


def agreed(guess: list[int], drawn: list[int]) -> int:
    """Return how many tokens of a guess the model writes, too."""
    return next((at for at, token in enumerate(guess) if drawn[at] != token), len(guess))


async def decoded(ctx: Context, width: int, max_tokens: int, ends: tuple[int, ...]) -> tuple[list[int], int]:
    """Return the tokens behind a context, and the passes that they took."""
    first = (await ctx.forward([])).rows[0].token
    made, guess, passes = [first], [first] * width, 1
    while len(made) < max_tokens and made[-1] not in ends:
        rows = list(range(width + 1))
        result = await ctx.forward([made[-1], *guess], rows, Sampler.argmax())
        drawn = [row.token for row in result.rows]
        held = agreed(guess, drawn)
        await ctx.truncate(result.length - width + held)
        made += drawn[: held + 1]
        guess = [*drawn[held + 1 :], *[made[-1]] * width][:width]
        passes += 1
    end = next((at for at, token in enumerate(made) if token in ends), len(made))
    return made[: min(end, max_tokens)], passes


async def main(prompt: str = "Count from one to ten.", max_tokens: int = 48, width: int = 4) -> Answer:
    """Answer a prompt with Jacobi decoding."""
    model = await Model.load()
    async with Context(model) as ctx:
        await ctx.user(prompt).cue().flush()
        tokens, passes = await decoded(ctx, width, max_tokens, model.eos_tokens)
    return Answer(await model.tokenizer.decode(tokens), len(tokens), passes)
