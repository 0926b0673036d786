"""The SDK against the real session and engine, with a driver that does no maths: both sides mean the same protocol."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd import (
    Adapter,
    Choice,
    ConstraintError,
    Context,
    Distribution,
    Entropy,
    InvalidRequest,
    JsonSchema,
    LimitExceeded,
    Logprob,
    Model,
    NotFound,
    ReasoningSpec,
    Regex,
    Sampler,
    Speculator,
)
from inferd.protocol import RowResult
from inferd.transport import current_transport
from inferd_runtime.testing.byte_tokenizer import TURN
from inferd_runtime.testing.transport import DirectTransport, run_program

SEEDED = Sampler.multinomial(1.0, seed=3)


@dataclass
class Answer:
    kind: Literal["yes", "no"]
    flags: list[bool]


class Parrot(Speculator):
    """Drafts the next tokens of a text that it was told, wrong at every fifth place."""

    def __init__(self, expected: list[int]) -> None:
        self.expected = expected
        self.history: list[int] = []

    def reset(self) -> None:
        self.history = []

    def accept(self, tokens: list[int]) -> None:
        self.history += tokens

    def draft(self) -> tuple[list[int], list[int]]:
        start = len(self.history)
        known = self.expected[start : start + 6]
        tokens = [token if (start + i) % 5 else (token + 1) % 256 for i, token in enumerate(known)]
        return tokens, list(range(start, start + len(tokens)))


def test_every_kind_of_speculation_gives_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    async def program() -> None:
        ctx = Context().system("s").user("u")
        twins = [await ctx.fork() for _ in range(2)]
        await ctx.flush()
        plain = ctx.generate(SEEDED, max_tokens=40)
        tokens = await plain.collect_tokens()
        assert (plain.finish, plain.usage.tokens, plain.usage.drafted) == ("length", 40, 0)
        whole = await ctx.tokens()
        # A fork draws other noise, so argmax is what all three have in common.
        texts = []
        for twin, speculation in zip(twins, (True, False), strict=True):
            generator = twin.generate(Sampler.argmax(), max_tokens=30, system_speculation=speculation)
            texts.append(await generator.collect_tokens())
        assert texts[0] == texts[1]
        assert whole[-40:] == tokens
        fresh = Context().system("s").user("u")
        drafted = fresh.generate(SEEDED, max_tokens=40, speculator=Parrot(whole))
        assert await drafted.collect_tokens() == tokens
        assert drafted.usage.accepted > 10
        assert drafted.usage.steps < 30
        assert await fresh.tokens() == whole

    run_program(program)
    assert capsys.readouterr().err == ""


@settings(max_examples=examples(25), deadline=None)
@given(leave_after=st.integers(1, 12), speculation=st.sampled_from(["none", "system", "program"]))
def test_leaving_early_keeps_what_was_delivered(leave_after: int, speculation: str) -> None:
    async def program() -> None:
        ctx = Context().append("abc")
        speculator = Parrot(list(range(50))) if speculation == "program" else None
        generator = ctx.generate(
            SEEDED, max_tokens=30, speculator=speculator, system_speculation=speculation == "system"
        )  # fmt: skip
        before, left, delivered = await ctx.tokens(), leave_after, list[int]()
        async for step in generator:
            delivered += step.tokens
            left -= 1
            if left == 0:
                break
        assert ctx.length == len(before) + len(delivered)
        assert await ctx.tokens() == before + delivered
        again = await ctx.truncate(len(before))
        assert await again.generate(SEEDED, max_tokens=30).collect_tokens() == await _fresh("abc", 30)

    run_program(program)


@pytest.mark.parametrize("speculation", [False, True])
def test_a_fork_in_the_loop_holds_what_was_delivered_and_the_loop_goes_on(speculation: bool) -> None:
    async def program() -> None:
        whole = await Context().append("abc").generate(Sampler.argmax(), max_tokens=24).collect_tokens()
        ctx = Context().append("abc")
        delivered, forks = list[int](), list[tuple[int, Context]]()
        async for step in ctx.generate(Sampler.argmax(), max_tokens=24, system_speculation=speculation):
            delivered += step.tokens
            forks.append((len(delivered), await ctx.fork()))
        assert delivered == whole
        for length, fork in forks:
            assert await fork.tokens() == [*b"abc", *whole[:length]]
            if length < 24:
                rest = fork.generate(Sampler.argmax(), max_tokens=24 - length)
                assert await rest.collect_tokens() == whole[length:]
            await fork.release()

    run_program(program)


async def _fresh(text: str, count: int) -> list[int]:
    return await Context().append(text).generate(SEEDED, max_tokens=count).collect_tokens()


def test_a_generation_tells_how_much_of_its_prompt_it_did_not_compute() -> None:
    """It told of 0 tokens, whatever was found in the cache."""

    async def used(ctx: Context) -> tuple[int, int]:
        generator = ctx.generate(SEEDED, max_tokens=3)
        assert generator.usage.cached_tokens == 0
        await generator.collect_text()
        return generator.usage.prompt_tokens, generator.usage.cached_tokens

    async def program() -> None:
        text, page = "a" * 50, (await Model.load()).page_size
        assert await used(Context().append(text)) == (50, 0)
        assert await used(Context().append(text)) == (50, 49 // page * page)  # found by prefix
        flushed = await Context(cache_salt="other").append(text).flush()
        assert await used(await flushed.fork()) == (50, 49)
        assert await used(flushed.append("b")) == (51, 49)

    run_program(program)


def test_constraints_hold_and_become_types() -> None:
    async def program() -> None:
        ctx = Context().user("u")
        answer = await ctx.generate(Sampler.multinomial(seed=1), constrain=JsonSchema(Answer)).collect_json()
        assert isinstance(answer, Answer)
        assert answer.kind in ("yes", "no")
        assert await ctx.user("x").generate(SEEDED, constrain=Choice(["left", "right"])).collect_text() in (
            "left",
            "right",
        )
        digits = await ctx.user("x").generate(SEEDED, constrain=Regex("[0-9]{3}")).collect_text()
        assert re.fullmatch("[0-9]{3}", digits)
        with pytest.raises(LimitExceeded, match="max_tokens=5"):
            await ctx.user("x").generate(SEEDED, max_tokens=5, constrain=JsonSchema(Answer)).collect_json()
        with pytest.raises(ConstraintError):
            await ctx.user("x").generate(SEEDED, constrain=Regex("(")).collect_text()
        assert await ctx.generate(SEEDED, max_tokens=3).collect_tokens()

    run_program(program)


@pytest.mark.parametrize("end", ["<turn>", "/t"], ids=["a special token", "text"])
@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_json_is_read_behind_what_the_model_thought_first(end: str, opened: bool, seed: int) -> None:
    """It was refused as no JSON, though the constraint had held."""

    async def program() -> None:
        sampler = Sampler.multinomial(0.7, seed=seed).biased({TURN: 9.0, ord("<"): 6.0})
        marks = ReasoningSpec("<", end, opened, budget=9)
        for streamed in (False, True):
            generator = (
                Context()
                .append("tick tock")
                .generate(sampler, constrain=JsonSchema(Answer), reasoning=marks, max_tokens=80)
            )
            if streamed:
                parts = [part async for part in generator.stream_json()]
                assert isinstance(parts[-1].result, Answer)
                assert all(part.value is None or isinstance(part.value, dict) for part in parts)
            else:
                assert isinstance(await generator.collect_json(), Answer)

    run_program(program)


def test_forks_truncation_forward_and_release() -> None:
    async def program() -> None:
        async with Context().append("hello") as ctx:
            fork = await ctx.fork()
            rows = await fork.forward(list(b" you"), at=[0, 3], top=3)
            assert [row.index for row in rows.rows] == [0, 3]
            assert [len(row.top_tokens) for row in rows.rows] == [3, 3]
            assert fork.length == rows.length == 9
            await fork.truncate(2)
            assert await fork.tokens() == list(b"he")
            with pytest.raises(InvalidRequest):
                await fork.truncate(50)
            forks = await asyncio.gather(*(ctx.fork() for _ in range(4)))
            texts = await asyncio.gather(*(f.generate(Sampler.argmax(), max_tokens=9).collect_tokens() for f in forks))
            assert all(text == texts[0] for text in texts)
        with pytest.raises(InvalidRequest, match="released"):
            await ctx.fork()

    run_program(program)


def test_chat_turns_follow_each_other() -> None:
    async def program() -> None:
        ctx = Context().system("s").user("u")
        first = await ctx.generate(SEEDED, max_tokens=4).collect_tokens()
        await ctx.user("v").generate(SEEDED, max_tokens=4).collect_tokens()
        model = await Model.load()
        text = await model.tokenizer.decode(await ctx.tokens(), special=True)
        opening = "<turn>system:s<end><turn>user:u<end><turn>assistant:"
        assert text.startswith(opening + await model.tokenizer.decode(first))
        assert "<turn>user:v<end><turn>assistant:" in text

    run_program(program)


def test_refusals_come_as_their_types() -> None:
    async def program() -> None:
        with pytest.raises(NotFound):
            await Context("nobody").flush()
        with pytest.raises(NotFound, match="null"):
            await Model.load("nobody")
        ctx = Context().append([5000])
        with pytest.raises(InvalidRequest):
            await ctx.flush()
        assert await ctx.append("a").tokens() == list(b"a")
        with pytest.raises(LimitExceeded):
            await ctx.append("x" * 600).flush()
        assert await ctx.tokens() == list(b"a")

    run_program(program)


def test_contexts_that_were_dropped_do_not_pile_up() -> None:
    async def program() -> None:
        transport = current_transport()
        assert isinstance(transport, DirectTransport)
        for _ in range(30):
            async for _step in Context().append("abcdefgh").generate(SEEDED, max_tokens=9):
                break
            assert len(transport.direct.session.owned_tables()) <= 2

    run_program(program)


def test_truncating_to_a_user_message_cues_the_next_answer_again() -> None:
    """A retry gets the same prompt as the first try did."""

    async def program() -> None:
        ctx = Context().user("hello")
        await ctx.flush()
        length = ctx.length
        first = await ctx.generate(Sampler.argmax(), max_tokens=4).collect_tokens()
        prompt = (await ctx.tokens())[: -len(first)]
        await ctx.truncate(length)
        again = await ctx.generate(Sampler.argmax(), max_tokens=4).collect_tokens()
        assert (await ctx.tokens())[: -len(again)] == prompt
        assert again == first

    run_program(program)


def test_adapters_are_loaded_and_chosen_per_generation() -> None:
    async def program() -> None:
        texts = []
        config = '{"peft_type": "LORA", "target_modules": ["q_proj"]}'
        for weights in (b"one", bytes(range(256)) * 5000):
            adapter = await Adapter.load_bytes(config, weights, name="mine")
            assert [(each.name, each.bytes, each.rank) for each in await Adapter.list()] == [("mine", len(weights), 8)]
            texts.append(await Context().user("u").generate(SEEDED, adapter=adapter, max_tokens=20).collect_tokens())
        await adapter.drop()
        texts.append(await Context().user("u").generate(SEEDED, max_tokens=20).collect_tokens())
        assert len({tuple(text) for text in texts}) == 3
        with pytest.raises(NotFound, match="no adapter 'mine'"):
            await Context().user("u").generate(SEEDED, adapter="mine").collect_text()

    run_program(program)


def test_a_programs_own_passes() -> None:
    """Choosing between continuations, a tree of drafts, and vectors: the answers of both sides' arithmetic agree."""

    async def program() -> None:
        async with Context().append("say ") as ctx:
            await ctx.flush()
            fork = await ctx.fork()
            scores = await fork.prompt_logprobs(list(b"yes"), top=2)
            rows = (await ctx.forward(list(b"ye"), at=[0, 1], probes=[Logprob(ord("e")), Entropy()])).rows
            assert scores[1].logprob == pytest.approx(rows[0].probes[0].value, abs=1e-5)
            assert rows[1].probes[1].value == pytest.approx(rows[1].entropy, abs=1e-5)
            seen = [[True] * 6 + tail for tail in ([True, False, False], [False, True, False], [True, False, True])]
            tree = (await ctx.forward(list(b"sab"), at=[0, 1, 2], attention_mask=seen, positions=[6, 6, 7])).rows
            masked = (await fork.forward(list(b"b"), top=3, probes=[Distribution(k=3)], mask=range(10))).rows[0]
            assert masked.probes[0].tokens == masked.top_tokens
            assert max(masked.top_tokens) < 10
            assert tree[2].entropy == (await branch(b"say yesb")).entropy
            assert tree[1].entropy == (await branch(b"say yea")).entropy
            assert ctx.length == 9
        one, other = await (await Model.load()).embed(["alike", "alike"])
        assert one == other
        assert sum(value * value for value in one) == pytest.approx(1)

    async def branch(text: bytes) -> RowResult:
        return (await Context().forward(list(text))).rows[0]

    run_program(program)
