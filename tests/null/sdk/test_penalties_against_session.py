"""Penalties, biases and log-probabilities through the SDK and the real session and engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from inferd import Context, DraftTree, InvalidRequest, Model, Regex, Sampler, SpecConfig, Speculator
from inferd_runtime.testing.transport import run_program

PLAIN = Sampler.multinomial(0.9, seed=11)
PENALIZED = PLAIN.penalized(repetition=1.2, presence=0.4, frequency=0.8).biased({97: 2.0, 98: -100.0})
LENGTH = 40


class Knowing(Speculator):
    """Knows what comes: a chain with a wrong end, or a tree in which the right token is the second of two siblings."""

    def __init__(self, expected: Sequence[int], *, tree: bool) -> None:
        self.expected = expected
        self.tree = tree
        self.length = 0

    def reset(self) -> None:
        self.length = 0

    def accept(self, tokens: list[int]) -> None:
        self.length += len(tokens)

    def draft(self) -> Any:
        known = list(self.expected[self.length - 3 :][:5])
        if not known:
            return [], []
        if self.tree:
            return DraftTree([(known[0] + 1) % 256, *known], [-1, -1, *range(1, len(known))])
        tokens = [*known, (known[-1] + 1) % 256]
        return tokens, list(range(self.length, self.length + len(tokens)))


async def tokens_of(sampler: Sampler, **how: Any) -> list[int]:
    return await Context().append("abc").generate(sampler, max_tokens=LENGTH, **how).collect_tokens()


def test_every_way_to_draft_gives_the_same_tokens() -> None:
    async def program() -> None:
        for sampler in (PENALIZED, Sampler.argmax().penalized(repetition=1.3)):
            expected = await tokens_of(sampler)
            assert expected != await tokens_of(Sampler.argmax() if sampler is not PENALIZED else PLAIN)
            for how in (
                {"system_speculation": True}, {"system_speculation": SpecConfig(["ngram"], tree=False)},
                {"predict": expected[5:]}, {"speculator": Knowing(expected, tree=False)},
                {"speculator": Knowing(expected, tree=True)},
            ):  # fmt: skip
                generator = Context().append("abc").generate(sampler, max_tokens=LENGTH, **how)
                assert await generator.collect_tokens() == expected
                assert generator.usage.accepted >= (20 if "system_speculation" not in how else 0)

    run_program(program)


def test_a_loop_of_ones_own_brings_the_tokens_of_a_generation() -> None:
    async def program() -> None:
        expected = await tokens_of(PENALIZED)
        ctx, made, accepted = Context().append("abc"), 0, 0
        while made < len(expected):
            done = await ctx.verify(expected[made : made + 4], sampler=PENALIZED, generated=made)
            made += len(done.accepted) + 1
            accepted += len(done.accepted)
        assert (await ctx.tokens())[3 : 3 + len(expected)] == expected
        assert accepted >= len(expected) // 2 >= 10

    run_program(program)


def test_a_constraint_comes_behind_penalties_and_bias() -> None:
    async def program() -> None:
        for mode in (False, True):
            generator = Context().append("x").generate(
                PENALIZED.biased({ord("b"): -100.0}), constrain=Regex("[ab]{12}"), max_tokens=20, system_speculation=mode
            )  # fmt: skip
            assert await generator.collect_text() == "a" * 12
            forced = Context().append("x").generate(PENALIZED.biased({ord("c"): -100.0}), constrain=Regex("c{9}"))
            assert await forced.collect_text() == "c" * 9

    run_program(program)


def test_what_stands_before_the_generation_is_prompt() -> None:
    """To frequency and presence; to repetition all is one."""

    async def program() -> None:
        for sampler, same in (
            (Sampler.argmax().penalized(frequency=2.0), False),
            (Sampler.argmax().penalized(repetition=1.5), True),
        ):
            straight = await tokens_of(sampler)
            ctx = Context().append("abc")
            first = await ctx.generate(sampler, max_tokens=LENGTH // 2).collect_tokens()
            assert first == straight[: LENGTH // 2]
            fork = await ctx.fork()
            more = await ctx.generate(sampler, max_tokens=LENGTH // 2).collect_tokens()
            assert (first + more == straight) == same
            assert await fork.generate(sampler, max_tokens=LENGTH // 2).collect_tokens() == more

    run_program(program)


@pytest.mark.parametrize("how", [{}, {"system_speculation": True}, {"predict": "half"}, {"tree": True}])
def test_log_probabilities_are_those_of_the_same_text_as_a_prompt(how: dict[str, Any]) -> None:
    async def program() -> None:
        expected = await tokens_of(PENALIZED)
        speculation = dict(how)
        if speculation.pop("tree", False):
            speculation["speculator"] = Knowing(expected, tree=True)
        if "predict" in speculation:
            speculation["predict"] = expected[:-3]
        generator = Context().append("abc").generate(PENALIZED, max_tokens=LENGTH, logprobs=3, **speculation)
        steps = [step async for step in generator]
        assert [token for step in steps for token in step.tokens] == expected
        told = [score for step in steps for score in step.logprobs]
        scored = await Context().append("abc").prompt_logprobs(expected, top=3)
        for one, other in zip(told, scored, strict=True):
            assert (one.token, one.rank, one.top_tokens) == (other.token, other.rank, other.top_tokens)
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert one.top_logprobs == pytest.approx(other.top_logprobs, abs=1e-5)

    run_program(program)


def test_a_bias_outside_the_vocabulary_is_refused_by_name() -> None:
    async def program() -> None:
        size = (await Model.load()).vocab_size
        with pytest.raises(InvalidRequest, match=f"logit_bias: token id {size} is outside the vocabulary"):
            await Context().append("x").generate(PLAIN.biased({size: 1.0})).collect_text()

    run_program(program)
