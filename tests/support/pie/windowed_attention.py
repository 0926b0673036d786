"""A decode loop with a sliding window over a raw prompt."""

from inferlet import Context, Model, Sampler, runtime


async def main(input: dict) -> dict:
    model = Model.load(runtime.models()[0])
    tokenizer = model.tokenizer()
    window = int(input.get("window", 8))
    ctx, pending, made = Context(model), tokenizer.encode("The boat left the harbour before the storm came, and"), []
    for _ in range(6):
        fwd, start = ctx.forward(), ctx.seq_len
        fwd.input(pending)
        rows = [start + at + 1 for at in range(len(pending))]
        fwd.attention_mask([[max(0, end - window), min(window, end)] for end in rows])
        handle = fwd.sample([len(pending) - 1], Sampler.argmax())
        pending = [(await fwd.execute()).token(handle)]
        made += pending
    return {"tokens": len(made), "held": ctx.seq_len}
