"""A decode loop whose tokens see the beginning, the heads of chunks, one whole chunk, and the last tokens."""

from inferlet import Context, Model, Sampler, chat, runtime


def runs(total: int, ranges: list[tuple[int, int]]) -> list[int]:
    out, at = [], 0
    for start, end in sorted((max(0, start), min(total, end)) for start, end in ranges):
        start = max(start, at)
        if start < end:
            out += [start - at, end - start]
            at = end
    return [*out, total - at] if at < total else out


async def main(input: dict) -> str:
    model = Model.load(runtime.models()[0])
    prompt, heads, bodies = list(chat.system(model, "Be brief.")), [], []
    for number, chunk in enumerate(["the sea is wide", "a pump keeps a boat dry", "wind fills a sail"]):
        tokens = chat.user(model, f"Part {number}: {chunk}")
        heads.append((len(prompt), len(prompt) + 6))
        bodies.append((len(prompt), len(prompt) + len(tokens)))
        prompt += tokens
    prompt += chat.cue(model)
    ctx, pending, made = Context(model), prompt, []
    for _ in range(int(input.get("max_tokens", 6))):
        fwd = ctx.forward()
        total = fwd.start_position() + len(pending)
        mask = runs(total, [(0, 8), *heads, bodies[1], (total - 16, total)])
        fwd.input(pending)
        fwd.attention_mask([list(mask) for _ in pending])
        handle = fwd.sample([len(pending) - 1], Sampler.argmax())
        token = (await fwd.execute()).token(handle)
        if token is None or token in chat.stop_tokens(model):
            break
        made.append(token)
        pending = [token]
    return model.tokenizer().decode(made)
