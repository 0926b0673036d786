"""Samplers of the literature, compared with plain twins written from their sources, and run on a real session."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from inferd import Candidates, Context, InvalidRequest, Regex, samplers
from inferd.samplers import Contrastive, Dry, Guided, Mirostat, Stage, Typical, Xtc, chain
from inferd.transport import current_transport
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.transport import DirectTransport, run_program


def offered(
    shares: Sequence[float], context: Sequence[int] = (), *, uniform: float = 0.5, generated: int = 0
) -> Candidates:
    """Candidates of these probabilities, whose ids count from 0."""
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    return Candidates(range(len(shares)), [math.log(share) for share in shares], context, generated, entropy, uniform)


def left(stage: Stage, candidates: Candidates) -> list[int]:
    """The tokens that a stage leaves."""
    scores: Any = stage.start()(candidates, candidates.logprobs)
    return [token for token, score in zip(candidates.tokens, scores, strict=True) if score > -math.inf]


def shares_of(count: int, seed: int) -> list[float]:
    weights = sorted((random.Random(seed + at).expovariate(1.0) for at in range(count)), reverse=True)
    return [weight / sum(weights) for weight in weights]


def test_typical_keeps_what_is_nearest_to_the_entropy() -> None:
    for seed in range(20):
        shares = shares_of(30, seed)
        entropy = -sum(share * math.log(share) for share in shares)
        order = sorted(range(30), key=lambda at: abs(-math.log(shares[at]) - entropy))
        kept, reached = set[int](), 0.0
        while reached < 0.7:
            at = order[len(kept)]
            kept, reached = kept | {at}, reached + shares[at]
        assert set(left(Typical(0.7), offered(shares))) == kept
    assert left(Typical(1.0), offered([0.5, 0.3, 0.2])) == [0, 1, 2]
    assert left(Typical(0.0), offered([0.5, 0.3, 0.2])) == [1]


def test_typical_behind_another_stage_takes_the_entropy_of_what_that_left() -> None:
    candidates = offered([0.5, 0.25, 0.125, 0.125])
    halved: Any = Typical(0.4).start()(candidates, [2 * score for score in candidates.logprobs])
    twin = offered([16 / 22, 4 / 22, 1 / 22, 1 / 22])
    assert [score > -math.inf for score in halved] == [token in left(Typical(0.4), twin) for token in range(4)]


def test_xtc_takes_the_top_out_but_for_the_last_of_it() -> None:
    candidates = offered([0.4, 0.3, 0.2, 0.06, 0.04])
    assert left(Xtc(1.0, 0.1), candidates) == [2, 3, 4]
    assert left(Xtc(1.0, 0.35), candidates) == [0, 1, 2, 3, 4]  # one alone stays
    assert left(Xtc(0.0, 0.1), candidates) == [0, 1, 2, 3, 4]
    happened = [len(left(Xtc(0.3, 0.1), offered([0.5, 0.5], uniform=(at + 0.5) / 2000))) == 1 for at in range(2000)]
    assert 0.27 < sum(happened) / 2000 < 0.33


def mirostat_twin(shares: Sequence[float], tau: float, eta: float, draws: Sequence[float]) -> list[int]:
    """The algorithm as llama.cpp has it, over one distribution again and again."""
    bound, drawn = 2 * tau, list[int]()
    for draw in draws:
        kept = [at for at, share in enumerate(shares) if -math.log2(share) <= bound] or [0]
        total = sum(shares[at] for at in kept)
        goal, reached = draw * total, 0.0
        for at in kept:
            reached += shares[at]
            if reached > goal:
                break
        drawn.append(at)
        bound -= eta * (-math.log2(shares[at] / total) - tau)
    return drawn


@pytest.mark.parametrize("tau", [0.5, 2.0, 4.0])
def test_mirostat_follows_its_target(tau: float) -> None:
    shares, numbers = shares_of(40, 5), random.Random(1)
    draws = [numbers.random() for _ in range(400)]
    choose, context = chain(Mirostat(tau, 0.2), seed=1).start(), [0]
    for at, draw in enumerate(draws):
        candidates = offered(shares, context, uniform=draw, generated=at)
        token: Any = asyncio.run(choose(candidates))  # type: ignore[arg-type]
        context = [*context, token]
    assert context[1:] == mirostat_twin(shares, tau, 0.2, draws)


def dry_twin(context: Sequence[int], token: int, breakers: set[int]) -> int:
    """The length of the longest end of the context that stands earlier with the token behind it, by trying all."""
    longest = 0
    for at in range(len(context) - 1):
        if context[at + 1] != token:
            continue
        length = 0
        while length <= at and context[at - length] == context[-1 - length] and context[at - length] not in breakers:
            length += 1
        longest = max(longest, length)
    return longest


def test_dry_takes_away_from_what_would_go_on_with_a_repetition() -> None:
    numbers = random.Random(3)
    stage, breakers = Dry(0.8, 1.75, allowed=2, breakers=[3], longest=256), {3}
    apply = stage.start()
    context: list[int] = []
    for _ in range(150):
        context.append(numbers.choice([0, 1, 1, 2, 3]))
        candidates = offered([0.25] * 4, context)
        scores: Any = apply(candidates, candidates.logprobs)
        for token in range(4):
            length = dry_twin(context, token, breakers)
            penalty = 0.8 * 1.75 ** (length - 2) if length >= 2 else 0.0
            assert scores[token] == pytest.approx(candidates.logprobs[token] - penalty)


def test_stages_go_one_after_the_other_and_a_seed_repeats_them() -> None:
    async def program() -> None:
        async def write(seed: int) -> str:
            sampler = chain(Dry(), Typical(0.9), Xtc(0.5, 0.01), temperature=0.8, k=0, seed=seed)
            generator = Context().append("tick tock ").generate(sampler, max_tokens=24, constrain=Regex("[a-f ]*"))
            return await generator.collect_text()

        assert await write(5) == await write(5) != await write(6)
        assert set(await write(5)) <= set("abcdef ")
        sampler = chain(Mirostat(3.0), seed=1)
        assert len(await Context().append("x").generate(sampler, max_tokens=16).collect_tokens()) == 16
        plain = chain(temperature=0)
        assert await Context().append("abc").generate(plain, max_tokens=8).collect_tokens()

    run_program(program)


def logprobs_behind(tokens: Sequence[int]) -> list[float]:
    transport = current_transport()
    assert isinstance(transport, DirectTransport)
    driver = transport.direct.engine.driver
    assert isinstance(driver, NullDriver)
    logits = [float(value) for value in driver.logits(list(tokens))]
    best = max(logits)
    total = best + math.log(math.fsum(math.exp(value - best) for value in logits))
    return [value - total for value in logits]


@pytest.mark.parametrize("scale", [0.0, 1.0, 1.5, 3.0])
def test_guidance_moves_away_from_the_other_context(scale: float) -> None:
    async def program() -> None:
        own, other = Context().append("with a prompt: "), Context().append("without: ")
        sampler = chain(Guided(other, scale), temperature=0, k=0)
        tokens = await own.generate(sampler, max_tokens=12).collect_tokens()
        for at, token in enumerate(tokens):
            high = logprobs_behind([*b"with a prompt: ", *tokens[:at]])
            low = logprobs_behind([*b"without: ", *tokens[:at]])
            scores = [weak + scale * (strong - weak) for strong, weak in zip(high, low, strict=True)]
            assert scores[token] == pytest.approx(max(scores), abs=1e-4)
        assert await other.tokens() == [*b"without: ", *tokens[:-1]]

    run_program(program)


def test_contrast_is_taken_of_what_is_plausible() -> None:
    async def program() -> None:
        own, amateur = Context().append("expert: "), Context().append("amateur: ")
        sampler = chain(Contrastive(amateur, alpha=0.2, beta=0.7), temperature=0, k=0)
        tokens = await own.generate(sampler, max_tokens=12).collect_tokens()
        for at, token in enumerate(tokens):
            strong, weak = (logprobs_behind([*text, *tokens[:at]]) for text in (b"expert: ", b"amateur: "))
            least = max(strong) + math.log(0.2)
            scores = [1.7 * s - 0.7 * w if s >= least else -math.inf for s, w in zip(strong, weak, strict=True)]
            assert scores[token] == pytest.approx(max(scores), abs=1e-4)

    run_program(program)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Typical(1.5), lambda: Typical(-0.1), lambda: Typical(math.nan), lambda: Xtc(2.0), lambda: Xtc(0.5, -1.0),
        lambda: Mirostat(-1.0), lambda: Mirostat(5.0, -0.1), lambda: Dry(-1.0), lambda: Dry(0.8, 0.5), lambda: Dry(allowed=0),
        lambda: Dry(window=0), lambda: chain(temperature=-1.0), lambda: chain(k=-1), lambda: chain(seed=-1),
        lambda: Guided("a context"), lambda: Contrastive(None), lambda: Guided(Context(), math.inf),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(make: Any) -> None:
    with pytest.raises(InvalidRequest):
        make()


def test_every_public_name_exists() -> None:
    assert all(hasattr(samplers, name) for name in samplers.__all__)
