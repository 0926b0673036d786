"""Jacobi decoding: guesses several tokens, computes them in one pass, and keeps what the model agrees with."""

from inferlet import Context, Model, Sampler, chat, runtime


async def main(input: dict) -> dict:
    model = Model.load(runtime.models()[0])
    width, most = int(input.get("width", 4)), int(input.get("max_tokens", 10))
    ctx = Context(model).user("Name three boats.")
    plain = await ctx.fork().generate(Sampler.argmax(), max_tokens=most).collect_tokens()
    *prompt, last = ctx.cue().buffer()
    ctx = Context(model).append(prompt)
    await ctx.flush()
    guess, made, passes = [last] * width, [], 0
    while len(made) < most:
        fwd = ctx.forward()
        fwd.input([last, *guess])
        handle = fwd.sample(list(range(width + 1)), Sampler.argmax())
        drawn = (await fwd.execute()).tokens_at(handle)
        passes += 1
        agreed = next((at for at in range(width) if guess[at] != drawn[at]), width)
        new = drawn[: agreed + 1]
        ctx.truncate(width - agreed)
        end = next((at for at, token in enumerate(new) if token in chat.stop_tokens(model)), None)
        made += new if end is None else new[:end]
        if end is not None:
            break
        last, guess = new[-1], (drawn[agreed + 1 :] + [new[-1]] * width)[:width]
    return {"same": made[:most] == plain, "passes": passes}
