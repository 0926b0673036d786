"""All probes of one row, and the same values from each other."""

import math
import struct

from inferlet import Context, Distribution, Entropy, Logits, Logprob, Logprobs, Model, Sampler, runtime


async def main(input: dict) -> dict:
    model = Model.load(runtime.models()[0])
    ctx = Context(model)
    fwd = ctx.forward().input(model.tokenizer().encode("The boat is"))
    last = ctx.seq_len + len(model.tokenizer().encode("The boat is")) - 1
    token = fwd.sample([last], Sampler.argmax())
    whole, some, entropy, logits = (
        fwd.probe(last, probe) for probe in (Distribution(), Logprobs([1, 2]), Entropy(), Logits())
    )
    one = fwd.probe(last, Logprob(1))
    out = await fwd.execute()
    ids, chances = out.distribution(whole)
    values = struct.unpack(f"<{len(out.logits(logits)) // 4}f", out.logits(logits))
    assert out.logprobs(token) is None
    assert max(range(len(values)), key=values.__getitem__) == ids[0] == out.token(token)
    assert math.isclose(sum(chances), 1.0, abs_tol=1e-3)
    assert math.isclose(-sum(p * math.log(p) for p in chances if p), out.entropy(entropy), abs_tol=1e-2)
    assert out.logprobs(one) == out.logprobs(some)[:1]
    return {"ids": len(ids), "vocabulary": len(model.tokenizer().vocabs()[0])}
