# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "edit"
# version = "0.1.0"
# ///
"""Edit a text: most of the answer is a copy of the input, and the runtime is told so."""

from inferd import Context, Sampler


async def main(
    text: str = "The meeting is on Monday at 10:00 in room 4. Please bring the report and the list of open questions.",
    instruction: str = "Repeat this text, but write Tuesday instead of Monday:",
    max_tokens: int = 256,
) -> str:
    """Return the edited text; the last line printed says what the prediction brought.

    ``predict=`` never changes the answer: the model verifies what it predicts, and behind every edit the answer is found again in
    the input.
    """
    async with Context() as ctx:
        generator = ctx.user(f"{instruction}\n{text}").generate(
            Sampler.argmax(), max_tokens=max_tokens, predict=text, system_speculation="auto"
        )
        answer = await generator.collect_text()
    stats = generator.speculation
    print(answer)
    print(
        f"[{stats.emitted} tokens in {stats.steps} steps; {stats.acceptance_rate:.0%} of {stats.drafted} guesses stood]"
    )
    return answer
