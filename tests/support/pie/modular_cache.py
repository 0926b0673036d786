"""Opens the longest saved prefix of its modules, and saves after each module that was not there."""

import hashlib

from inferlet import Context, Model, Sampler, runtime

MODULES = [("system", "You are brief."), ("user", "Explain simply."), ("user", "What is a cache?")]


def key(count: int) -> str:
    return f"modular cache/{hashlib.sha256(repr(MODULES[:count]).encode()).hexdigest()}"


async def main(input: dict) -> dict:
    model = Model.load(runtime.models()[0])
    ctx, found = None, 0
    for count in range(len(MODULES), 0, -1):
        ctx = Context.open(model, key(count))
        if ctx is not None:
            found = count
            break
    ctx = Context(model) if ctx is None else ctx.fork()
    for count in range(found, len(MODULES)):
        role, text = MODULES[count]
        (ctx.system if role == "system" else ctx.user)(text)
        await ctx.flush()
        ctx.save(key(count + 1))
    text = await ctx.cue().generate(Sampler.argmax(), max_tokens=4, auto_flush=False).collect_text()
    return {"found": found, "text": text}
