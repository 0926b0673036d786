"""Speculation through the SDK and the real session and engine: the same tokens in every way, and counts that add up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd import (
    Context,
    DraftTree,
    InvalidRequest,
    NotFound,
    Regex,
    Sampler,
    SpecConfig,
    SpeculationCycle,
    Speculator,
)
from inferd_runtime.engine.engine import EngineOptions
from inferd_runtime.testing.byte_tokenizer import END
from inferd_runtime.testing.served import null_model
from inferd_runtime.testing.transport import run_program

SEEDED = Sampler.multinomial(0.9, seed=11)
LENGTH = 40


async def plain(sampler: Sampler = SEEDED, length: int = LENGTH) -> list[int]:
    """What comes without speculation."""
    return await Context().append("abc").generate(sampler, max_tokens=length).collect_tokens()


class Knowing(Speculator):
    """Knows what comes, and hides it in a tree between wrong guesses; asks nobody in a hurry."""

    def __init__(self, expected: Sequence[int], right: int, wrong: int) -> None:
        self.expected = expected
        self.right = right
        self.wrong = wrong
        self.length = 0
        self.rejected = 0

    async def reset(self) -> None:
        await asyncio.sleep(0)
        self.length = 0

    async def accept(self, tokens: list[int]) -> None:
        await asyncio.sleep(0)
        self.length += len(tokens)

    async def draft(self) -> DraftTree:
        await asyncio.sleep(0)
        done = self.length - len(b"abc")
        known = list(self.expected[done : done + self.right])
        wrong = [(known[0] + 1 + i) % 256 for i in range(self.wrong)] if known else []
        parents = [-1] * len(wrong) + [len(wrong) + i - 1 if i else -1 for i in range(len(known))]
        return DraftTree([*wrong, *known], parents)

    def rollback(self, n: int) -> None:
        self.rejected += n


class Silent(Speculator):
    """Guesses nothing, and notes what it is told of."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []

    def accept(self, tokens: list[int]) -> None:
        self.told.append(tokens)


def test_one_that_guesses_nothing_is_told_of_several_steps_at_once_where_nobody_reads_each() -> None:
    async def program() -> None:
        expected, collected, read = await plain(), Silent(), Silent()
        at_once = Context().append("abc").generate(SEEDED, max_tokens=LENGTH, speculator=collected)
        assert await at_once.collect_tokens() == expected
        stepwise = Context().append("abc").generate(SEEDED, max_tokens=LENGTH, speculator=read)
        assert [token async for step in stepwise for token in step.tokens] == expected
        for speculator in (collected, read):
            assert [token for tokens in speculator.told for token in tokens] == [*b"abc", *expected]
        assert len(collected.told) <= len(expected) / 3 < len(expected) / 2 < len(read.told)

    run_program(program)


@settings(max_examples=examples(25), deadline=None)
@given(right=st.integers(0, 7), wrong=st.integers(0, 4), seed=st.integers(0, 5))
def test_an_asynchronous_tree_gives_the_same_tokens(right: int, wrong: int, seed: int) -> None:
    async def program() -> None:
        sampler = Sampler.multinomial(0.9, seed=seed)
        expected = await plain(sampler)
        speculator = Knowing(expected, right, wrong)
        ctx = Context().append("abc")
        generator = ctx.generate(sampler, max_tokens=LENGTH, speculator=speculator)
        assert await generator.collect_tokens() == expected
        assert (await ctx.tokens())[3 : 3 + len(expected)] == expected
        stats = generator.speculation
        assert stats.steps == generator.usage.steps
        assert stats.emitted == len(expected) + (generator.finish == "stop")
        assert set(stats.by_source) <= {"program"}
        assert stats.drafted - stats.accepted <= speculator.rejected
        if right:
            # At the end, a tree may hold no more tokens than may still come, wrong ones included.
            assert stats.steps <= -(-LENGTH // (right + 1)) + 1 + wrong

    run_program(program)


@settings(max_examples=examples(25), deadline=None)
@given(sizes=st.lists(st.integers(0, 6), min_size=1, max_size=6), seed=st.integers(0, 5), tree=st.booleans())
def test_a_verify_loop_brings_what_generate_brings(sizes: list[int], seed: int, tree: bool) -> None:
    async def program() -> None:
        sampler = Sampler.multinomial(0.9, seed=seed)
        expected = [*await plain(sampler), END]
        ctx, tokens, turn = Context().append("abc"), list[int](), 0
        while len(tokens) < LENGTH and tokens[-1:] != [END]:
            size = sizes[turn % len(sizes)]
            right = expected[len(tokens) : len(tokens) + size]
            draft = [255 - expected[len(tokens)] % 2, *right, 3]
            parents = [-1, *([-1, *range(1, len(right) + 1)])]
            done = await (ctx.verify(draft, parents, sampler) if tree else ctx.verify([*right, 3], sampler=sampler))
            assert done.accepted == [(draft if tree else [*right, 3])[node] for node in done.path]
            tokens += [*done.accepted, done.token]
            assert done.length == ctx.length == 3 + len(tokens)
            turn += 1
        assert tokens[:LENGTH] == expected[: min(LENGTH, len(tokens))]
        assert await ctx.tokens() == [*b"abc", *tokens]

    run_program(program)


def test_verify_is_one_step_and_leaves_a_context_as_any_other() -> None:
    async def program() -> None:
        expected = await plain()
        ctx = Context().append("abc")
        done = await ctx.verify(expected[:4], sampler=SEEDED)
        assert (done.accepted, done.token, done.path) == (expected[:4], expected[4], [0, 1, 2, 3])
        fork = await ctx.fork()
        rest = await ctx.generate(SEEDED, max_tokens=LENGTH - 5).collect_tokens()
        assert rest == expected[5:]
        again = await (await fork.truncate(3)).verify()
        assert (again.accepted, len(again.path), fork.length) == ([], 0, 4)
        with pytest.raises(InvalidRequest, match="vocabulary"):
            await fork.verify([9999])
        assert fork.length == 4
        with pytest.raises(InvalidRequest, match="empty"):
            await Context().verify([1])
        with pytest.raises(NotFound, match="adapter"):
            await fork.verify([1], adapter="nobody")

    run_program(program)


@pytest.mark.parametrize("speculation", [False, True])
def test_a_prediction_that_is_nearly_right_saves_steps_and_changes_nothing(speculation: bool) -> None:
    async def program() -> None:
        expected = await plain()
        nearly = [*expected[:9], 7, 7, *expected[9:20], *expected[22:]]
        generator = Context().append("abc").generate(
            SEEDED, max_tokens=LENGTH, predict=nearly, system_speculation=speculation
        )  # fmt: skip
        assert await generator.collect_tokens() == expected
        stats = generator.speculation
        assert stats.steps < LENGTH / 3
        assert stats.by_source["predicted"].accepted > LENGTH / 2
        assert (stats.emitted, stats.steps) == (LENGTH, LENGTH - stats.accepted + stats.truncated)

    run_program(program)


def test_what_a_constraint_forbids_is_filtered_and_never_verified() -> None:
    async def program() -> None:
        constraint = Regex("(abc|xyz){12}")
        expected = await Context().append("p").generate(SEEDED, constrain=constraint, max_tokens=99).collect_tokens()
        assert bytes(expected[:3]) in (b"abc", b"xyz")
        for predict in (bytes(expected).replace(b"c", b"c?"), bytes(expected)):
            generator = Context().append("p").generate(
                SEEDED, constrain=constraint, max_tokens=99, predict=list(predict), system_speculation=True
            )  # fmt: skip
            assert await generator.collect_tokens() == expected
            stats = generator.speculation
            assert stats.filtered == sum(part.filtered for part in stats.by_source.values())
            assert (stats.by_source["predicted"].filtered > 0) == (predict != bytes(expected))
            assert stats.by_source["grammar"].accepted == stats.by_source["grammar"].drafted > 0

    run_program(program)


@pytest.mark.parametrize("mode", [False, True, "auto", SpecConfig(["ngram"], max_draft=4), SpecConfig(tree=False)])
def test_every_mode_gives_the_same_tokens(mode: bool | SpecConfig) -> None:
    async def program() -> None:
        cycles: list[SpeculationCycle] = []
        expected = await plain(Sampler.argmax())
        generator = Context().append("abc").generate(
            Sampler.argmax(), max_tokens=LENGTH, system_speculation=mode, on_cycle=cycles.append
        )  # fmt: skip
        assert await generator.collect_tokens() == expected
        stats = generator.speculation
        assert [cycle.step for cycle in cycles] == list(range(1, stats.steps + 1))
        assert sum(cycle.emitted for cycle in cycles) == stats.emitted
        assert sum(cycle.drafted for cycle in cycles) == stats.drafted == generator.usage.drafted

    run_program(program)


def test_verify_tells_how_much_of_a_draft_there_was_room_for() -> None:
    async def program() -> None:
        expected, ctx = await plain(), await Context().append("abc").flush()
        done = await ctx.verify(expected[:8], sampler=SEEDED)
        assert (done.accepted, done.token, done.drafted) == (expected[:3], expected[3], 3)
        again = await ctx.verify([9, 9, expected[4]], [-1, -1, -1], SEEDED)
        assert (again.accepted, again.token, again.drafted) == (expected[4:5], expected[5], 2)
        assert (await ctx.verify(sampler=SEEDED)).drafted == 0

    run_program(program, null_model(options=EngineOptions(token_budget=4)))


def test_verify_accepts_nothing_behind_the_end_of_a_text() -> None:
    async def program() -> None:
        for seed in range(200):
            sampler = Sampler.multinomial(1.5, seed=seed)
            expected = await plain(sampler)
            if len(expected) < LENGTH:
                break
        ctx = Context().append("abc")
        done = await ctx.verify([*expected, END, 1, 2][-64:], sampler=sampler)
        assert (done.accepted, done.token) == (expected, END)
        assert await ctx.tokens() == [*b"abc", *expected, END]

    run_program(program)
