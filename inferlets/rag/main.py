# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "rag"
# version = "0.1.0"
# ///
"""Answer a question from the passage that makes it most likely. What the model computed of a passage is kept for later runs.

Ponte, Croft: "A Language Modeling Approach to Information Retrieval" (SIGIR 1998).
"""

import asyncio
import hashlib
from dataclasses import dataclass

from inferd import Context, Model, NotFound, Sampler

PASSAGES = [
    "The ferry to Varnes leaves pier 4 at noon, and at six in the evening from May to September.",
    "The pump in the cellar is checked every Monday by the caretaker, who writes the pressure into the blue book.",
    "Letters that come without a stamp are kept in the office for two weeks and then sent back.",
]
INSTRUCTION = "Answer the question from this text, in one sentence.\n\n"


@dataclass
class Answer:
    """``reused``: how many tokens of the passages were not computed, since earlier runs had saved them."""

    text: str
    passage: int
    reused: int


async def prepared(model: Model, passage: str) -> Context:
    """Return a context that has read a passage: as it was saved, else computed, and saved."""
    name = f"rag/{hashlib.sha256(f'{model.fingerprint} {INSTRUCTION}{passage}'.encode()).hexdigest()}"
    try:
        return await Context.open(name, model)
    except NotFound:
        ctx = await Context(model).system(INSTRUCTION + passage).flush()
        await ctx.save(name, overwrite=True)
        return ctx


async def likelihood(ctx: Context, question: list[int]) -> float:
    """Return the log-probability of a question behind a passage."""
    async with await ctx.fork() as fork:
        scores = await fork.prompt_logprobs(question)
    return sum(score.logprob or 0.0 for score in scores)


async def main(
    question: str = "When does the ferry leave?", passages: list[str] = PASSAGES, max_tokens: int = 64
) -> Answer:
    """Answer ``question`` from one of ``passages``."""
    model = await Model.load()
    tokens = await model.tokenizer.encode(question)
    contexts = await asyncio.gather(*(prepared(model, passage) for passage in passages))
    scores = await asyncio.gather(*(likelihood(ctx, tokens) for ctx in contexts))
    chosen = scores.index(max(scores))
    text = await contexts[chosen].user(question).generate(Sampler.argmax(), max_tokens=max_tokens).collect_text()
    return Answer(text, chosen, sum(ctx.restored for ctx in contexts))
