# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "text-completion"
# version = "0.1.0"
# ///
"""Answer a prompt, printing the text while it comes."""

from inferd import Context, Sampler


async def main(
    prompt: str = "Hi",
    system: str = "",
    max_tokens: int = 256,
    temperature: float = 0.6,
    top_p: float = 0.95,
    seed: int | None = None,
    speculation: bool = True,
) -> str:
    """Return the model's answer to ``prompt``.

    ``temperature`` 0 takes the most likely token every time. The same ``seed`` gives the same text, with
    ``speculation`` or without it.
    """
    async with Context() as ctx:
        if system:
            ctx.system(system)
        ctx.user(prompt)
        sampler = Sampler.top_p(temperature, top_p, seed=seed)
        pieces = []
        async for step in ctx.generate(sampler, max_tokens=max_tokens, system_speculation=speculation):
            print(step.text, end="", flush=True)
            pieces.append(step.text)
        print()
        return "".join(pieces)
