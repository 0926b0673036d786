"""A drafter with a table of what followed pairs of tokens before."""

from inferlet import Context, Model, Sampler, Speculator, runtime


class Cacheback:
    def __init__(self, known: list[int]) -> None:
        self.history, self.table, self.held = [], {}, 0
        self.accept(known)
        self.start = len(known)

    def draft(self) -> tuple[list[int], list[int]]:
        tokens = list(self.table.get(tuple(self.history[-2:]), []))
        return tokens, list(range(len(self.history), len(self.history) + len(tokens)))

    def accept(self, tokens: list[int]) -> None:
        for token in tokens:
            self.history.append(token)
            if len(self.history) > 4:
                first, second, *rest = self.history[-5:]
                self.table[first, second] = rest

    def rollback(self, n: int) -> None:
        self.held -= n

    def reset(self) -> None:
        self.history.clear()


async def main(input: dict) -> dict:
    model = Model.load(runtime.models()[0])
    ctx = Context(model).user("Repeat: a b c d a b c d a b c d a b c d").cue()
    plain = await ctx.fork().generate(Sampler.argmax(), max_tokens=16, auto_flush=False).collect_tokens()
    drafter = Cacheback([*ctx.buffer(), *plain])
    assert isinstance(drafter, Speculator)
    generator = ctx.generate(Sampler.argmax(), max_tokens=16, auto_flush=False, speculator=drafter)
    made, steps = [], 0
    async for step in generator:
        made += (await step.execute()).tokens
        steps += 1
    return {"same": made == plain, "steps": steps, "tokens": len(made)}
