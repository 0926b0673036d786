# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "custom-speculator"
# version = "0.1.0"
# ///
"""Draft tokens in the program itself: prompt lookup, with an index over the prompt and the output."""

from inferd import Context, Sampler, Speculator


class NgramSpeculator(Speculator):
    """Guesses that what followed the last few tokens before will follow them again.

    ``sizes`` are the lengths of the matches, tried from the longest down. Each maps a run of tokens to the place
    after its newest occurrence, so a draft costs one look-up per size whatever the length of the text. At most
    ``max_entries`` runs are remembered; the oldest ones are forgotten first.
    """

    def __init__(self, max_draft: int = 8, sizes: tuple[int, ...] = (4, 3, 2), max_entries: int = 200_000) -> None:
        self._max_draft = max_draft
        self._sizes = sizes
        self._max_entries = max_entries
        self._history: list[int] = []
        self._index: dict[tuple[int, ...], int] = {}

    def reset(self) -> None:
        self._history.clear()
        self._index.clear()

    def accept(self, tokens: list[int]) -> None:
        for token in tokens:
            self._remember_last()  # what came before this token is now followed by something
            self._history.append(token)

    def draft(self) -> tuple[list[int], list[int]]:
        start = len(self._history)
        for size in self._sizes:
            found = self._index.get(tuple(self._history[-size:])) if start >= size else None
            if found is not None:
                tokens = self._history[found : found + self._max_draft]
                return tokens, list(range(start, start + len(tokens)))
        return [], []

    def _remember_last(self) -> None:
        end = len(self._history)
        for size in self._sizes:
            if end >= size:
                key = tuple(self._history[-size:])
                self._index.pop(key, None)  # so that the newest entry stands last
                self._index[key] = end
        while len(self._index) > self._max_entries:
            del self._index[next(iter(self._index))]


async def main(
    prompt: str = "Repeat the text.\nThe ferry left the port at noon. The captain noted a light wind. "
    "The second engine was stopped for a while.",
    max_tokens: int = 128,
    max_draft: int = 8,
) -> str:
    """Return the model's answer to ``prompt``; the last line printed says how much of it was drafted.

    The text is the same as without a speculator: the model verifies every draft.
    """
    async with Context() as ctx:
        generator = ctx.user(prompt).generate(
            Sampler.argmax(), max_tokens=max_tokens, speculator=NgramSpeculator(max_draft)
        )
        text = await generator.collect_text()
    usage = generator.usage
    print(text)
    print(f"[{usage.tokens} tokens in {usage.steps} steps; accepted {usage.accepted} of {usage.drafted} drafted]")
    return text
