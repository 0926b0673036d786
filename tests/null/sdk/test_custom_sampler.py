"""``generate(my_sampler)`` against the real session: functions, ``async`` functions, their errors, and probes of each step."""

from __future__ import annotations

import asyncio
import traceback

import numpy as np
import pytest

from inferd import (
    Candidates,
    Context,
    CustomSampler,
    Distribution,
    Entropy,
    InvalidRequest,
    JsonSchema,
    Logprob,
    Regex,
    Sampler,
    SpeculationCycle,
)
from inferd.protocol import NextSteps
from inferd.transport import current_transport
from inferd_runtime.testing.transport import DirectTransport, run_program


def best(candidates: Candidates) -> int:
    return candidates.tokens[0]


async def best_later(candidates: Candidates) -> int:
    await asyncio.sleep(0)
    return candidates.tokens[0]


@pytest.mark.parametrize("sampler", [best, best_later, CustomSampler.of(best, k=1), CustomSampler.of(best_later, k=0)])
def test_a_function_that_takes_the_best_writes_what_argmax_writes(sampler: CustomSampler) -> None:
    async def program() -> None:
        plain = await Context().append("abc").generate(Sampler.argmax(), max_tokens=20).collect_tokens()
        generator = Context().append("abc").generate(sampler, max_tokens=20)
        assert await generator.collect_tokens() == plain
        assert (generator.finish, generator.usage.tokens, generator.usage.steps) == ("length", 20, 20)
        text = await Context().append("abc").generate(sampler, constrain=Regex("[xy]{4}z")).collect_text()
        assert (len(text), text[-1]) == (5, "z")

    run_program(program)


def test_whole_numbers_of_numpy_are_tokens_and_seeds() -> None:
    """What numpy.argmax returns is an np.int64, and no int: it was refused."""

    def chosen(candidates: Candidates) -> int:
        return np.array(candidates.tokens)[np.argmax(candidates.logprobs)]  # type: ignore[no-any-return]

    async def program() -> None:
        tokens, seed = np.array([*b"abc"]), np.int64(7)
        made = await Context().append(list(tokens)).generate(chosen, max_tokens=4).collect_tokens()
        assert made == await Context().append("abc").generate(Sampler.argmax(), max_tokens=4).collect_tokens()
        await Context().append(tokens).forward(tokens[:1], probes=[Logprob(tokens[0])])  # type: ignore[arg-type]
        assert Sampler.multinomial(seed=seed) == Sampler.multinomial(seed=7)  # type: ignore[arg-type]
        for odd in (np.float64(1), np.bool_(True), tokens):
            with pytest.raises(InvalidRequest, match="whole number"):
                Context().append([odd])

    run_program(program)


def test_each_token_is_one_round_trip() -> None:
    async def program() -> None:
        await Context().append("abc").generate(best, max_tokens=20).collect_text()
        transport = current_transport()
        assert isinstance(transport, DirectTransport)
        assert sum(isinstance(request, NextSteps) for request in transport.requests) == 20 + 1

    run_program(program)


def test_what_a_function_gets() -> None:
    seen: list[tuple[int, int, int, list[int]]] = []

    def look(candidates: Candidates) -> int:
        assert list(candidates.logprobs) == sorted(candidates.logprobs, reverse=True)
        assert len(candidates) == len(candidates.tokens) == 5
        seen.append((candidates.position, candidates.generated, len(candidates), list(candidates.context)))
        return candidates.tokens[2]

    async def program() -> None:
        ctx = Context().append("abc")
        tokens = await ctx.generate(CustomSampler.of(look, k=5), max_tokens=4).collect_tokens()
        assert [context for *_, context in seen] == [[*b"abc", *tokens[:at]] for at in range(4)]
        assert [each[:3] for each in seen] == [(3 + at, at, 5) for at in range(4)]

    run_program(program)


def test_seeds_repeat_and_weights_are_drawn_from() -> None:
    def by_weight(candidates: Candidates) -> int:
        assert candidates.random().random() == candidates.random().random()
        return candidates.draw([1.0] * len(candidates))

    async def program() -> None:
        async def draw(seed: int | None) -> list[int]:
            sampler = CustomSampler.of(by_weight, k=16, seed=seed)
            return await Context().append("abc").generate(sampler, max_tokens=20).collect_tokens()

        assert await draw(3) == await draw(3) != await draw(4)
        assert await draw(None) != await draw(None)

    run_program(program)


def test_an_exception_of_the_function_ends_the_generation_with_its_own_traceback() -> None:
    def fails(candidates: Candidates) -> int:
        if candidates.generated == 3:
            raise ZeroDivisionError("in the sampler")
        return ord("x")

    async def program() -> None:
        ctx, cycles = Context().append("abc"), list[SpeculationCycle]()
        with pytest.raises(ZeroDivisionError, match="in the sampler") as caught:
            await ctx.generate(fails, on_cycle=cycles.append).collect_text()
        assert "in fails" in "".join(traceback.format_tb(caught.value.__traceback__))
        assert len(cycles) == 3
        assert await ctx.tokens() == [*b"abcxxx"]
        assert await ctx.generate(Sampler.argmax(), max_tokens=2).collect_tokens()

    run_program(program)


@pytest.mark.parametrize("answer", [None, "x", True, 1.0, 10**9, -1])
def test_what_is_no_token_is_refused_by_name(answer: object) -> None:
    async def program() -> None:
        ctx = Context().append("abc")
        with pytest.raises(InvalidRequest, match=r"sampler (must return the id|chose token)"):
            await ctx.generate(lambda candidates: answer, max_tokens=2).collect_text()  # type: ignore[arg-type,return-value]
        assert await ctx.tokens() == [*b"abc"]

    run_program(program)


def test_what_is_no_sampler_is_refused_before_anything_is_sent() -> None:
    for wrong in (None, 5, "argmax", Sampler, Sampler.argmax, Sampler.top_p, CustomSampler.of):
        with pytest.raises(InvalidRequest, match="sampler must be a Sampler, such as"):
            Context().generate(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="whole number of at least 0"):
        CustomSampler.of(best, k=-1)
    with pytest.raises(InvalidRequest, match="exclude each other"):
        Context().generate(best, system_speculation=True)
    with pytest.raises(InvalidRequest, match="for each of the 1 tokens, not 2"):
        Candidates([1], [0.0], [], 0, 0.0, 0.5).draw([1.0, 2.0])
    with pytest.raises(InvalidRequest, match="above 0"):
        Candidates([1], [0.0], [], 0, 0.0, 0.5).draw([0.0])


def test_two_generations_of_one_sampler_have_a_state_each() -> None:
    def counting() -> object:
        made = iter(range(100))
        return lambda candidates: ord("a") + next(made)

    async def program() -> None:
        sampler = CustomSampler(counting)  # type: ignore[arg-type]
        running = [Context().append("x").generate(sampler, max_tokens=5).collect_text() for _ in range(3)]
        assert await asyncio.gather(*running) == ["abcde"] * 3

    run_program(program)


def test_json_and_penalties_go_with_it() -> None:
    async def program() -> None:
        schema = JsonSchema({"type": "array", "items": {"type": "integer"}, "maxItems": 3})
        sampler = CustomSampler.of(best).penalized(presence=0.5).biased({ord("7"): 20.0})
        value = await Context().user("u").generate(sampler, constrain=schema, max_tokens=24).collect_json()
        assert isinstance(value, list)
        ctx = Context().append("abc")
        plain = await (await ctx.fork()).generate(Sampler.argmax().penalized(presence=0.5), max_tokens=9).collect_text()
        assert plain == await ctx.generate(CustomSampler.of(best).penalized(presence=0.5), max_tokens=9).collect_text()

    run_program(program)


def test_probes_of_each_step() -> None:
    async def program() -> None:
        probes = [Entropy(), Distribution(k=2), Logprob(65)]
        generator = (
            Context()
            .append("tick tock tick tock ")
            .generate(Sampler.argmax(), max_tokens=12, probes=probes, system_speculation=True)
        )
        told = 0
        async for step in generator:
            for token, (entropy, likely, one) in zip(step.tokens, step.probes, strict=True):
                assert likely.tokens[0] == token
                assert entropy.value > 0 > one.value
                told += 1
        assert told == 12

    run_program(program)


def test_a_draw_unpacks_no_tokens_but_the_one_that_it_returns() -> None:
    drawn = []

    def last(candidates: Candidates) -> int:
        drawn.append(candidates.draw([0.0] * (len(candidates) - 1) + [1.0]))
        assert not {"tokens", "logprobs"} & vars(candidates).keys()
        assert len(candidates) == len(candidates.tokens) == len(candidates.logprobs)
        assert drawn[-1] == candidates.tokens[-1]
        return drawn[-1]

    async def program() -> None:
        for k in (1, 2, 5, 0):
            assert (
                await Context().append("abc").generate(CustomSampler.of(last, k), max_tokens=1).collect_tokens()
                == drawn[-1:]
            )

    run_program(program)
