"""Generators: what is delivered, what the context keeps, and how they end."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from session_runtime import SessionRuntime
from tiers import examples

from inferd import (
    AnyJson,
    Cancelled,
    Choice,
    ConstraintError,
    Context,
    Generator,
    InternalError,
    InvalidRequest,
    JsonSchema,
    LimitExceeded,
    Regex,
    Sampler,
    Step,
    Truncated,
)
from inferd.program.interface import to_result
from inferd.protocol import (
    CloseGenerate,
    ConstraintSpec,
    NextSteps,
    NotFound,
    ProgramError,
    ReleaseContext,
    StartGenerate,
    Steps,
    Unavailable,
    Usage,
)
from inferd.testing import FakeRuntime

GREEDY = Sampler.argmax()


@dataclass
class Person:
    name: str
    age: int


class GatedRuntime(FakeRuntime):
    """Holds requests of one operation until ``gate`` opens; ``reached`` says that one is being held."""

    def __init__(self, operation: str, outputs: list[str]) -> None:
        super().__init__(outputs)
        self.operation = operation
        self.gate = asyncio.Event()
        self.reached = asyncio.Event()

    async def call(self, request: Any) -> Any:
        if request.op == self.operation and not self.gate.is_set():
            self.reached.set()
            await self.gate.wait()
        return await super().call(request)


async def cancel_in(runtime: GatedRuntime, generator: Generator[Any]) -> None:
    """Ask for a step, and cancel the task while the runtime holds its request."""
    task = asyncio.ensure_future(anext(generator))
    await runtime.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class LosingRuntime(FakeRuntime):
    """Answers to ``generate.next`` are lost; ``lost`` says that one was."""

    def __init__(self, outputs: list[str]) -> None:
        super().__init__(outputs, replies=[9])
        self.lost = asyncio.Event()

    async def call(self, request: Any) -> Any:
        reply = await super().call(request)
        if isinstance(request, NextSteps):
            self.lost.set()
            await asyncio.Event().wait()
        return reply


async def test_steps_are_delivered_one_by_one_and_counted() -> None:
    with FakeRuntime(["abcdef"], steps=[1, 2], replies=[2]) as runtime:
        generator = Context().user("u").generate(GREEDY)
        assert (generator.finish, generator.usage) == ("", Usage())
        steps = [step async for step in generator]
    assert [step.text for step in steps] == ["a", "bc", "d", "ef"]
    assert all(isinstance(step, Step) for step in steps)
    assert generator.finish == "stop"
    assert generator.usage == Usage(prompt_tokens=4, tokens=6, steps=4, drafted=2, accepted=2)
    assert len(runtime.of_kind(NextSteps)) == 2  # a reply with several steps is kept, not asked for again
    assert [request.keep for request in runtime.of_kind(CloseGenerate)] == [-1]


async def test_nothing_is_sent_before_the_first_step_is_asked_for() -> None:
    with FakeRuntime(["x"]) as runtime:
        generator = Context().user("u").generate(GREEDY)
        assert runtime.requests == []
        await generator.aclose()
        assert runtime.requests == []
        assert [step async for step in generator] == []
        assert generator.finish == "closed"


async def test_collecting() -> None:
    with FakeRuntime(["héllo", "ab", ""], steps=[1]):
        ctx = Context()
        assert await ctx.append("p").generate(GREEDY).collect_text() == "héllo"
        assert await ctx.generate(GREEDY).collect_tokens() == list(b"ab")
        empty = ctx.generate(GREEDY)
        assert (await empty.collect_text(), empty.finish) == ("", "stop")


async def test_a_cut_output_says_length() -> None:
    with FakeRuntime(["abcdef"]):
        generator = Context().append("p").generate(GREEDY, max_tokens=4)
        assert await generator.collect_text() == "abcd"
        assert generator.finish == "length"


async def test_a_cut_that_is_to_be_an_error_is_one_in_every_way_of_reading() -> None:
    async def steps(generator: Generator[Any]) -> list[Step]:
        return [step async for step in generator]

    ways = (steps, Generator.collect_text, Generator.collect_tokens, Generator.collect_json)
    with FakeRuntime(["[1, 2]"] * 2 * len(ways)):
        for read in ways:
            ctx = Context().append("p")
            with pytest.raises(
                Truncated, match=r"max_tokens=4 ended the generation before the (text|JSON) was complete"
            ):
                await read(ctx.generate(GREEDY, max_tokens=4, on_length="error"))
            assert bytes(await ctx.tokens())[1:] == b"[1, "
            assert await read(Context().append("p").generate(GREEDY, max_tokens=9, on_length="error"))


async def test_single_use() -> None:
    with FakeRuntime(["ab", "cd"]):
        generator = Context().append("p").generate(GREEDY)
        await generator.collect_text()
        for use in (generator.collect_text, generator.collect_tokens, generator.collect_json):
            with pytest.raises(InvalidRequest, match="used once"):
                await use()
        with pytest.raises(InvalidRequest, match="used once"):
            aiter(generator)
        with pytest.raises(StopAsyncIteration):
            await anext(generator)


async def test_a_loop_goes_on_where_another_or_anext_has_left_it_and_only_what_promises_all_is_refused() -> None:
    with FakeRuntime(["abcde"]):
        generator = Context().append("p").generate(GREEDY)
        steps = aiter(generator)
        read = (await anext(steps)).text
        async for step in steps:
            read += step.text
            break
        for use in (generator.collect_text, generator.collect_json, generator.stream_json().__anext__):
            with pytest.raises(InvalidRequest, match="used once"):
                await use()
        assert read + "".join([step.text async for step in generator]) == "abcde"
        assert len(read) == 2


async def test_a_loop_that_goes_on_tells_what_ended_the_generation_meanwhile_and_ends_behind_the_last_step() -> None:
    with FakeRuntime(["abc"] * 2):
        ctx = Context().append("p")
        used, whole = ctx.generate(GREEDY), Context().append("p").generate(GREEDY)
        async for _ in used:
            break
        await ctx.append("q").flush()
        with pytest.raises(InvalidRequest, match="the context was used"):
            _ = [step async for step in used]
        async for _ in whole:
            if whole.finish:
                break
        assert whole.finish == "stop"
        assert [step async for step in whole] == []
        with pytest.raises(InvalidRequest, match="used once"):
            _ = [step async for step in whole]


async def test_one_that_is_awaited_or_in_an_ordinary_loop_says_what_to_do_and_can_still_be_used() -> None:
    with FakeRuntime(["ab"]):
        generator = Context().append("p").generate(GREEDY)
        with pytest.raises(TypeError, match=r"cannot be awaited: await its collect_text\(\)"):
            await generator  # type: ignore[misc]
        with pytest.raises(TypeError, match=r"with `for`: .* or iterate it with `async for`"):
            list(generator)  # type: ignore[call-overload]
        with pytest.raises(ProgramError, match=r"^result is of type Generator.*: await its collect_text\(\)"):
            to_result(generator)
        assert await generator.collect_text() == "ab"


@settings(max_examples=examples(200), deadline=None)
@given(
    output=st.text(max_size=12),
    steps=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    replies=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    leave_after=st.integers(0, 30),
    how=st.sampled_from(["break", "raise", "aclose", "async with"]),
)
def test_the_context_keeps_what_was_delivered(
    output: str, steps: list[int], replies: list[int], leave_after: int, how: str
) -> None:
    runtime = FakeRuntime([output], steps=steps, replies=replies)
    with runtime:
        delivered, generator, kept = asyncio.run(_leave(leave_after, how))
    assert kept == [1, 2, 3, *delivered]
    whole = list(output.encode())
    # Whoever asked for more at the end keeps what ended it, too; whoever left before keeps exactly what was seen.
    (close,) = runtime.of_kind(CloseGenerate)
    assert close.keep == len(delivered) or (close.keep == -1 and delivered == whole)
    assert delivered == whole[: len(delivered)]
    assert generator.usage.tokens == len(delivered)
    assert generator.finish == ("stop" if delivered == whole else "closed")


async def _leave(leave_after: int, how: str) -> tuple[list[int], Generator[Any], list[int]]:
    ctx, delivered = Context().append([1, 2, 3]), list[int]()
    generator = ctx.generate(GREEDY)

    async def loop() -> None:
        count = 0
        async for step in generator:
            delivered.extend(step.tokens)
            count += 1
            if count > leave_after:
                if how == "raise":
                    raise KeyError("the program's own")
                break

    if how == "async with":
        async with generator:
            await loop()
    else:
        try:
            await loop()
        except KeyError:
            assert how == "raise"
    if how == "aclose":
        await generator.aclose()
        await generator.aclose()
    return delivered, generator, await ctx.tokens()


async def test_changing_the_context_in_the_loop_ends_the_generation() -> None:
    with FakeRuntime(["abc", "xyz"]):
        ctx = Context().append("p")
        generator = ctx.generate(GREEDY)
        async for _ in generator:
            ctx.append("q")
            with pytest.raises(InvalidRequest, match="ended the generation"):
                await anext(generator)
            break
        assert await ctx.tokens() == list(b"paq")
        generator = ctx.generate(GREEDY)
        async for _ in generator:
            await ctx.truncate(2)
            with pytest.raises(InvalidRequest, match="ended the generation"):
                await anext(generator)
            break
        assert await ctx.tokens() == list(b"pa")


async def test_forking_in_the_loop_copies_what_was_delivered_and_ends_nothing() -> None:
    with FakeRuntime(["abcdef"], steps=[2], replies=[3]) as runtime:
        ctx = Context().user("u")
        text, lengths = "", []
        async for step in ctx.generate(GREEDY):
            text += step.text
            lengths.append((await ctx.fork()).length)
        assert text == "abcdef"
        assert lengths == [6, 8, 10], "steps that came but were not delivered yet are not in the copy"
        assert len(runtime.of_kind(StartGenerate)) == 1


async def test_a_new_generation_ends_the_one_that_was_left() -> None:
    with FakeRuntime(["abc", "xyz"]) as runtime:
        ctx = Context().append("p")
        first = ctx.generate(GREEDY)
        assert (await anext(first)).text == "a"
        assert await ctx.generate(GREEDY).collect_text() == "xyz"
        assert await ctx.tokens() == list(b"paxyz")
        with pytest.raises(InvalidRequest, match="ended the generation"):
            await anext(first)
    assert [request.keep for request in runtime.of_kind(CloseGenerate)] == [1]


async def test_a_generation_that_reached_its_end_is_not_cut_by_what_comes_after() -> None:
    with FakeRuntime(["a"]):
        ctx = Context().append("p")
        generator = ctx.generate(GREEDY)
        await anext(generator)
        await ctx.append("q").flush()
        assert generator.finish == "stop"
        with pytest.raises(StopAsyncIteration):
            await anext(generator)


async def test_other_tasks_are_refused_while_a_step_is_awaited() -> None:
    with GatedRuntime("generate.next", ["abc"]) as runtime:
        ctx = Context().append("p")
        generator = ctx.generate(GREEDY)
        waiting = asyncio.create_task(generator.collect_text())
        await runtime.reached.wait()
        for use in (ctx.fork, ctx.flush, ctx.tokens, generator.aclose, lambda: anext(generator)):
            with pytest.raises(InvalidRequest):
                await use()
        with pytest.raises(InvalidRequest):
            ctx.user("x")
        runtime.gate.set()
        assert await waiting == "abc"
        assert await ctx.tokens() == list(b"pabc")


@pytest.mark.parametrize("operation", ["generate.start", "generate.next"])
async def test_a_release_ends_the_generation_that_another_task_waits_for(operation: str) -> None:
    with GatedRuntime(operation, ["abc"]) as runtime:
        ctx = Context().append("p")
        generator = ctx.generate(GREEDY)
        waiting = asyncio.create_task(generator.collect_text())
        await runtime.reached.wait()
        releasing = asyncio.create_task(ctx.release())
        await asyncio.sleep(0)
        runtime.gate.set()
        await releasing
        with pytest.raises(InvalidRequest, match="released"):
            await waiting
        assert generator.finish == "closed"
        with pytest.raises(InvalidRequest, match="released"):
            await ctx.tokens()
    assert len(runtime.of_kind(CloseGenerate)) == len(runtime.of_kind(ReleaseContext)) == 1


@pytest.mark.parametrize("operation", ["generate.start", "generate.next"])
async def test_a_block_ends_with_its_own_error_while_a_cancelled_task_still_waits_for_a_step(operation: str) -> None:
    waiting: list[asyncio.Task[str]] = []

    async def block() -> None:
        async with Context().append("p") as ctx:
            waiting.append(asyncio.create_task(ctx.generate(GREEDY).collect_text()))
            await runtime.reached.wait()
            waiting[0].cancel()
            runtime.gate.set()
            raise KeyError("body")

    with GatedRuntime(operation, ["abc"]) as runtime:
        with pytest.raises(KeyError, match="body"):
            await block()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
    assert len(runtime.of_kind(CloseGenerate)) == len(runtime.of_kind(ReleaseContext)) == 1


async def test_a_block_ends_with_its_own_error_where_the_runtime_is_gone() -> None:
    class Gone(FakeRuntime):
        async def call(self, request: Any) -> Any:
            if isinstance(request, ReleaseContext):
                raise Unavailable("gone")
            return await super().call(request)

    async def block(*fails: str) -> None:
        async with Context().append("p") as ctx:
            await ctx.flush()
            for text in fails:
                raise KeyError(text)

    with Gone(["abc"]):
        with pytest.raises(KeyError, match="body"):
            await block("body")
        with pytest.raises(Unavailable):
            await block()


@pytest.mark.parametrize("operation", ["generate.start", "generate.next"])
async def test_cancelling_a_waiting_task_leaves_the_context_usable(operation: str) -> None:
    with GatedRuntime(operation, ["abc", "xyz"]) as runtime:
        ctx = Context().append("p")
        generator = ctx.generate(GREEDY)
        await cancel_in(runtime, generator)
        runtime.gate.set()
        assert await ctx.tokens() == list(b"p")
        assert generator.finish == "closed"
        assert await ctx.generate(GREEDY).collect_text() == "xyz"
    assert len(runtime.of_kind(CloseGenerate)) == 1


@pytest.mark.parametrize("operation", ["generate.start", "generate.next"])
async def test_a_cancelled_wait_is_not_resumed_with_a_gap(operation: str) -> None:
    with GatedRuntime(operation, ["abc"]) as runtime:
        generator = Context().append("p").generate(GREEDY)
        await cancel_in(runtime, generator)
        runtime.gate.set()
        with pytest.raises(InvalidRequest, match="cancelled"):
            await anext(generator)


async def test_a_context_holds_none_of_an_answer_that_was_lost_with_the_end() -> None:
    with LosingRuntime(["abc"]) as runtime:
        ctx = Context().append("p")
        reading = asyncio.ensure_future(ctx.generate(GREEDY).collect_text())
        await runtime.lost.wait()
        assert not runtime._generations, "the end closed it"
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await ctx.tokens() == list(b"p")
        assert ctx.length == 1


async def test_what_is_read_to_its_end_at_once_is_closed_by_it() -> None:
    with FakeRuntime(["abc", "xyz"]) as runtime:
        async with Context().append("p") as ctx:
            generator = ctx.generate(GREEDY)
            assert await generator.collect_text() == "abc"
            assert (generator.finish, ctx.length) == ("stop", 4)
            assert await ctx.generate(GREEDY).collect_text() == "xyz"
    assert not runtime.of_kind(CloseGenerate)


async def test_a_failed_step_raises_and_the_context_goes_on() -> None:
    with FakeRuntime(["abc", "xyz"]) as runtime:
        ctx = Context().append("p")
        generator = ctx.generate(GREEDY)
        await anext(generator)
        runtime.failures["generate.next"] = deque([Cancelled("stopped")])
        with pytest.raises(Cancelled):
            await anext(generator)
        assert await ctx.tokens() == list(b"pa")
        # The runtime may have closed a failed generation by itself; then there is nothing left to close.
        second = ctx.generate(GREEDY)
        await anext(second)
        runtime.failures["generate.next"] = deque([Cancelled("stopped")])
        runtime.failures["generate.close"] = deque([NotFound("gone")])
        with pytest.raises(Cancelled):
            await anext(second)
        await second.aclose()
        assert second.finish == "closed"


async def test_not_found_of_a_healthy_generation_is_not_hidden() -> None:
    with FakeRuntime(["abc"]) as runtime:
        generator = Context().append("p").generate(GREEDY)
        await anext(generator)
        runtime.failures["generate.close"] = deque([NotFound("gone")])
        with pytest.raises(NotFound):
            await generator.aclose()
        await generator.aclose()  # nothing was lost: closing again works
        assert [request.keep for request in runtime.of_kind(CloseGenerate)] == [1, 1]


async def test_a_refused_start_leaves_the_context_usable() -> None:
    with FakeRuntime(["abc"]) as runtime:
        ctx = Context().user("u")
        runtime.failures["generate.start"] = deque([ConstraintError("bad pattern")])
        generator = ctx.generate(GREEDY, constrain=Regex("("))
        with pytest.raises(ConstraintError, match="bad pattern"):
            await generator.collect_text()
        assert generator.finish == "closed"
        assert await ctx.generate(GREEDY).collect_text() == "abc"
    assert not runtime.of_kind(CloseGenerate)


async def test_a_reply_that_brings_nothing_is_an_error_not_a_spin() -> None:
    class Empty(FakeRuntime):
        async def call(self, request: Any) -> Any:
            return Steps([]) if isinstance(request, NextSteps) else await super().call(request)

    with Empty(["abc"]), pytest.raises(InternalError, match="neither"):
        await Context().append("p").generate(GREEDY).collect_text()


async def test_constraints_are_sent() -> None:
    with FakeRuntime(['{"a":1}', "x", "yes"]) as runtime:
        ctx = Context().append("p")
        assert await ctx.generate(GREEDY, constrain=AnyJson()).collect_json() == {"a": 1}
        await ctx.generate(GREEDY, constrain=Regex("[a-z]")).collect_text()
        await ctx.generate(GREEDY, constrain=Choice(["yes", "no"])).collect_text()
    sent = [request.constraint for request in runtime.of_kind(StartGenerate)]
    assert sent == [
        ConstraintSpec("any_json"),
        ConstraintSpec("regex", "[a-z]"),
        ConstraintSpec("choice", options=["yes", "no"]),
    ]


async def test_json_becomes_the_type_of_the_constraint() -> None:
    text = '{"name":"Ada","age":36}'
    with FakeRuntime([text] * 3):
        ctx = Context().append("p")
        assert await ctx.generate(GREEDY, constrain=JsonSchema(Person)).collect_json() == Person("Ada", 36)
        assert await ctx.generate(GREEDY, constrain=JsonSchema({})).collect_json() == {"name": "Ada", "age": 36}
        assert await ctx.generate(GREEDY).collect_json() == {"name": "Ada", "age": 36}


@pytest.mark.parametrize("size", range(len('{"name":"Ada","age":36}')))
async def test_a_cut_object_is_never_returned(size: int) -> None:
    with FakeRuntime(['{"name":"Ada","age":36}']):
        generator = Context().append("p").generate(GREEDY, max_tokens=size + 1, constrain=JsonSchema(Person))
        if size + 1 == len('{"name":"Ada","age":36}'):
            assert await generator.collect_json() == Person("Ada", 36)
        else:
            with pytest.raises(LimitExceeded, match=f"max_tokens={size + 1} ") as raised:
                await generator.collect_json()
            assert raised.value.detail == {"limit": "max_tokens", "value": size + 1, "raise_with": "max_tokens=..."}


async def test_a_cut_number_is_not_a_number() -> None:
    with FakeRuntime(["1234", "1234"]):
        ctx = Context().append("p")
        with pytest.raises(LimitExceeded):
            await ctx.generate(GREEDY, max_tokens=2, constrain=JsonSchema(int)).collect_json()
        assert await ctx.generate(GREEDY, max_tokens=4, constrain=JsonSchema(int)).collect_json() == 1234


async def test_a_full_context_is_named() -> None:
    class Full(FakeRuntime):
        async def call(self, request: Any) -> Any:
            reply = await super().call(request)
            return Steps(reply.steps, "length") if isinstance(request, NextSteps) else reply

    with Full(['{"a":1}'], steps=[3]), pytest.raises(LimitExceeded, match="context was full after 3 tokens") as raised:
        await Context().append("p").generate(GREEDY, constrain=AnyJson()).collect_json()
    assert raised.value.detail["limit"] == "max_context"


@pytest.mark.parametrize(
    "text", ['{"name":"A","age":1,"age":2}', '{"name":"A"', "nothing", '{"name":"A","age":"1"}', ""]
)
async def test_output_that_does_not_fit_is_refused(text: str) -> None:
    with FakeRuntime([text]), pytest.raises(ConstraintError):
        await Context().append("p").generate(GREEDY, constrain=JsonSchema(Person)).collect_json()


async def test_json_of_a_constraint_that_is_not_about_json_says_what_to_use() -> None:
    with FakeRuntime(["yes", '{"a":1}']):
        ctx = Context().append("p")
        with pytest.raises(ConstraintError, match=r"Choice allows texts that are no JSON: collect_text\(\)"):
            await ctx.generate(GREEDY, constrain=Choice(["yes", "no"])).collect_json()
        assert await ctx.generate(GREEDY, constrain=Regex(r'\{"a":\d\}')).collect_json() == {"a": 1}


async def test_log_probabilities_come_with_every_token() -> None:
    with SessionRuntime() as runtime:
        steps = [step async for step in Context().append("x").generate(GREEDY, logprobs=2, max_tokens=8)]
        assert runtime.of_kind(StartGenerate)[0].logprobs == 2
    assert [[score.token for score in step.logprobs] for step in steps] == [step.tokens for step in steps]
    assert all(len(score.top_tokens) == len(score.top_logprobs) == 2 for step in steps for score in step.logprobs)


async def test_log_probabilities_are_left_out_unless_asked_for() -> None:
    with SessionRuntime():
        async for step in Context().append("x").generate(GREEDY, max_tokens=3):
            assert step.logprobs == []
        async for step in Context().append("x").generate(GREEDY, logprobs=0, max_tokens=3):
            assert all(score.logprob is not None and not score.top_tokens for score in step.logprobs)
            assert len(step.logprobs) == len(step.tokens)


@pytest.mark.parametrize("logprobs", [-1, 21, True, 1.0, "1"])
async def test_log_probabilities_out_of_range_are_refused(logprobs: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^logprobs must be a whole number from 0 to 20"):
        Context().append("x").generate(GREEDY, logprobs=logprobs)


async def test_a_pass_refuses_penalties_and_a_second_bias() -> None:
    with FakeRuntime(), pytest.raises(InvalidRequest, match="forward has bias="):
        await Context().forward([1], sampler=GREEDY.biased({1: 1.0}))
