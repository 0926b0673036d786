"""Contexts: buffering, cues, forks, release, and who may use them when."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from session_runtime import SessionRuntime
from tiers import examples

from inferd import Context, InvalidRequest, LimitExceeded, Model, NotFound, Sampler, Speculator, Unavailable, session
from inferd.protocol import (
    AppendContext,
    CloseGenerate,
    CreateContext,
    Forward,
    ForwardResult,
    Part,
    ReleaseContext,
    StartGenerate,
)
from inferd.testing import FakeRuntime, render

GREEDY = Sampler.argmax()


@pytest.fixture
def without_gc() -> Iterator[None]:
    """Reference counts have to be enough: what a program drops leaves no cycle behind."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def sent_parts(runtime: FakeRuntime) -> list[Part]:
    return [part for request in runtime.of_kind(AppendContext) for part in request.parts]


async def test_filling_is_synchronous_and_sent_in_one_request() -> None:
    with FakeRuntime() as runtime:
        ctx = Context().system("s").user("u").assistant("a").cue().append("raw").append([1, 2])
        assert runtime.requests == []
        await ctx.flush()
    kinds = [part.kind for part in sent_parts(runtime)]
    assert kinds == ["message", "message", "message", "cue", "text", "tokens"]
    assert len(runtime.of_kind(AppendContext)) == 1
    assert ctx.length == len(runtime.contexts[1])


@pytest.mark.parametrize(
    ("fill", "cued"),
    [
        (lambda ctx: ctx.user("u"), True),
        (lambda ctx: ctx.system("s"), True),
        (lambda ctx: ctx.user("u").assistant("a"), False),
        (lambda ctx: ctx.user("u").cue(), False),
        (lambda ctx: ctx.user("u").append("raw"), False),
        (lambda ctx: ctx.user("u").append([1]), False),
        (lambda ctx: ctx.append("raw"), False),
        (lambda ctx: ctx.append("raw").user("u"), True),
    ],
)
@pytest.mark.parametrize("flushed", [False, True])
async def test_generate_cues_an_open_turn_and_nothing_else(
    fill: Callable[[Context], Context], cued: bool, flushed: bool
) -> None:
    with FakeRuntime(["x", "y"]) as runtime:
        ctx = fill(Context())
        before = sum(part.kind == "cue" for part in ctx._handle._parts)
        if flushed:
            await ctx.flush()
        await ctx.generate(GREEDY).collect_text()
        assert sum(part.kind == "cue" for part in sent_parts(runtime)) - before == cued
        await ctx.generate(GREEDY).collect_text()  # goes on where it stands: no second cue
        assert sum(part.kind == "cue" for part in sent_parts(runtime)) - before == cued


async def test_an_open_turn_survives_reading_forking_and_an_empty_truncate() -> None:
    with FakeRuntime(["x", "y"]) as runtime:
        ctx = Context().user("u")
        await ctx.truncate(len(await ctx.tokens()))
        twin = await ctx.fork()
        await twin.generate(GREEDY).collect_text()
        assert sent_parts(runtime)[-1].kind == "cue"
        await ctx.truncate(1)
        await ctx.generate(GREEDY).collect_text()
        assert sum(part.kind == "cue" for part in sent_parts(runtime)) == 1


async def test_a_look_at_the_end_leaves_the_turn_open() -> None:
    with FakeRuntime(["x"]) as runtime:
        runtime.answers["forward"] = lambda request: ForwardResult([], len(runtime.contexts[request.context]))
        ctx = Context().user("u")
        await ctx.forward([])
        await ctx.generate(GREEDY).collect_text()
        assert sent_parts(runtime)[-1].kind == "cue"


async def test_a_fork_is_independent() -> None:
    with FakeRuntime() as runtime:
        ctx = Context().append("ab")
        twin = (await ctx.fork()).append("c")
        assert await ctx.append("d").tokens() == list(b"abd")
        assert await twin.tokens(1) == list(b"bc")
        await ctx.release()
        assert await twin.tokens() == list(b"abc")
    assert len(runtime.contexts) == 1


async def test_concurrent_first_uses_make_one_context() -> None:
    with FakeRuntime() as runtime:
        ctx = Context().user("u")
        forks = await asyncio.gather(*(ctx.fork() for _ in range(5)))
        assert len({tuple(await fork.tokens()) for fork in forks}) == 1
    assert len(runtime.of_kind(CreateContext)) == 1
    assert len(runtime.of_kind(AppendContext)) == 1
    assert len(runtime.contexts) == 6


async def test_release_and_use_after_it() -> None:
    with FakeRuntime() as runtime:
        async with Context().user("u") as ctx:
            await ctx.flush()
        await ctx.release()
        assert ctx.released
        assert runtime.contexts == {}
        assert len(runtime.of_kind(ReleaseContext)) == 1
        uses: list[Callable[[], Any]] = [
            lambda: ctx.user("x"),
            lambda: ctx.generate(GREEDY),
            ctx.flush,
            ctx.fork,
            ctx.tokens,
            lambda: ctx.truncate(0),
            lambda: ctx.forward([1]),
        ]
        for use in uses:
            with pytest.raises(InvalidRequest, match="released"):
                await use()


async def test_a_context_that_was_never_used_is_released_without_a_word() -> None:
    with FakeRuntime() as runtime:
        await Context().user("u").release()
    assert runtime.requests == []


async def test_a_generator_made_before_release_cannot_start() -> None:
    with FakeRuntime(["x"]):
        ctx = Context().user("u")
        generator = ctx.generate(GREEDY)
        await ctx.release()
        with pytest.raises(InvalidRequest, match="released"):
            await generator.collect_text()


async def test_dropped_contexts_are_released_before_the_next_one_is_made(without_gc: None) -> None:
    with FakeRuntime(["abc"]) as runtime:
        ctx = Context().append("p")
        fork = await ctx.fork()
        async for _ in ctx.generate(GREEDY):
            break
        del ctx, fork, _
        assert len(runtime.contexts) == 2
        kept = await Context().flush()
        assert list(runtime.contexts) == [kept._handle._id]
        assert runtime.of_kind(CloseGenerate)[0].keep == 1
        twin = await kept.fork()
        del kept
        await twin.fork()
        assert len(runtime.contexts) == 3 - 1


async def test_refused_parts_are_dropped_and_the_context_goes_on() -> None:
    with FakeRuntime() as runtime:
        ctx = Context().append("a")
        await ctx.flush()
        runtime.failures["context.append"] = deque([LimitExceeded("too long", limit="max_context")])
        with pytest.raises(LimitExceeded):
            await ctx.user("far too long").flush()
        assert await ctx.append("b").tokens() == list(b"ab")


async def test_the_transport_is_the_one_in_force_at_construction() -> None:
    early = Context()
    with FakeRuntime() as first, FakeRuntime() as second:
        inner = Context()
        with FakeRuntime() as third:
            await inner.append("x").flush()
        await early.append("y").flush()
    assert (len(first.requests), len(second.requests), len(third.requests)) == (0, 6, 0)
    lonely = Context().user("u")
    with pytest.raises(Unavailable, match=r"inferd\.connect"):
        await lonely.flush()
    with pytest.raises(Unavailable):
        await Model.list()


async def test_forward_validates_and_reports_the_length() -> None:
    with SessionRuntime() as runtime:
        ctx = Context().append("ab")
        rows = await ctx.forward([1, 2, 3], at=[0, 2], sampler=Sampler.top_k(1.0, 5, seed=1), top=4)
        assert [row.index for row in rows.rows] == [0, 2]
        assert ctx.length == rows.length == 5
        assert runtime.of_kind(Forward) == [Forward(1, [1, 2, 3], [0, 2], Sampler.top_k(1.0, 5, seed=1).sampling, 4)]
        bad: list[tuple[dict[str, Any], str]] = [
            ({"tokens": [1], "at": [1]}, "^at must"),
            ({"tokens": [1], "at": [-1]}, r"^at\[0\]"),
            ({"tokens": [1, -1]}, r"^tokens\[1\]"),
            ({"tokens": "ab"}, "^tokens must"),
            ({"tokens": [True]}, r"^tokens\[0\]"),
            ({"tokens": [1], "top": -1}, "^top must"),
            ({"tokens": [1], "sampler": "argmax"}, "^sampler must"),
        ]
        for arguments, message in bad:
            with pytest.raises(InvalidRequest, match=message):
                await ctx.forward(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_tokens": 0}, "^max_tokens must"),
        ({"max_tokens": 1.5}, "^max_tokens must"),
        ({"max_tokens": True}, "^max_tokens must"),
        ({"stop": "x"}, "^stop must"),
        ({"stop": [""]}, "^stop must"),
        ({"stop": [1]}, "^stop must"),
        ({"stop": 5}, "^stop must"),
        ({"constrain": {"type": "object"}}, "^constrain must"),
        ({"constrain": int}, "^constrain must"),
        ({"speculator": Speculator}, "^speculator must"),
        ({"system_speculation": 1}, "^system_speculation must"),
        ({"sampler": "argmax"}, "^sampler must"),
        ({"priority": 4}, "^priority must"),
        ({"priority": True}, "^priority must"),
    ],
)
async def test_generate_refuses_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Context().generate(**{"sampler": GREEDY, **arguments})


async def test_two_kinds_of_speculation_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"speculator= and system_speculation=True"):
        Context().generate(GREEDY, speculator=Speculator(), system_speculation=True)


async def test_arguments_of_filling_and_truncating_are_checked() -> None:
    ctx = Context()
    uses: list[tuple[Callable[[], Any], str]] = [
        (lambda: ctx.user(1), "^text must"),  # type: ignore[arg-type]
        (lambda: ctx.append([1, "a"]), r"^content\[1\]"),  # type: ignore[list-item]
        (lambda: ctx.append(None), "^content must"),  # type: ignore[arg-type]
        (lambda: Context(5), "^model must"),  # type: ignore[arg-type]
    ]
    for use, message in uses:
        with pytest.raises(InvalidRequest, match=message):
            use()
    for length in (-1, True, 1.0):
        with pytest.raises(InvalidRequest, match=r"^length must"):
            await ctx.truncate(length)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"^start must"):
        await ctx.tokens(-1)


async def test_models_and_tokenizers() -> None:
    with FakeRuntime() as runtime:
        model = await Model.load()
        assert (model.name, model.page_size, model.eos_tokens) == ("fake", 16, (256,))
        assert (model.vocab_size, model.max_context, len(model.fingerprint)) == (261, 65536, 16)
        assert [entry.name for entry in await Model.list()] == ["fake"]
        assert await model.tokenizer.encode("é") == [0xC3, 0xA9]
        assert await model.tokenizer.decode([0xC3, 0xA9]) == "é"
        await Context(model).flush()
        await Context("fake").flush()
        assert [request.model for request in runtime.of_kind(CreateContext)] == ["fake", "fake"]
        with pytest.raises(NotFound, match="'other'; served: fake"):
            await Model.load("other")
        with pytest.raises(NotFound):
            await Context("other").flush()
        with pytest.raises(InvalidRequest, match=r"^text must"):
            await model.tokenizer.encode(b"x")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"^tokens\[0\]"):
            await model.tokenizer.decode([-1])


async def test_session_messages() -> None:
    with FakeRuntime() as runtime:
        runtime.inbox.append({"go": True})
        await session.send({"n": (1, 2)})
        assert runtime.outbox == [{"n": [1, 2]}]
        assert await session.receive() == {"go": True}


async def test_the_request_of_a_generation() -> None:
    with FakeRuntime(["x"]) as runtime:
        sampler = Sampler.top_p(0.7, 0.9, seed=5)
        await Context().user("u").generate(sampler, max_tokens=3, stop=["\n"], system_speculation=True).collect_text()
    request = runtime.of_kind(StartGenerate)[0]
    assert request == StartGenerate(1, sampler.sampling, 3, ["\n"], None, True, False)


OPERATIONS = st.one_of(
    st.tuples(st.just("user"), st.text(max_size=3)),
    st.tuples(st.just("append"), st.binary(max_size=3)),
    st.tuples(st.just("generate"), st.tuples(st.text(max_size=6), st.integers(0, 8))),
    st.tuples(st.just("truncate"), st.floats(0, 1)),
    st.tuples(st.just("fork"), st.none()),
    st.tuples(st.just("flush"), st.none()),
)


@example([("user", ""), ("fork", None), ("append", b""), ("truncate", 1.0), ("generate", ("", 0))], [1], 1)
@example([("user", ""), ("fork", None), ("user", "00"), ("truncate", 0.25), ("generate", ("", 0))], [1], 1)
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(OPERATIONS, max_size=12), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 3))
def test_any_run_of_operations_leaves_the_tokens_that_the_program_saw(
    operations: list[tuple[str, Any]], steps: list[int], replies: int
) -> None:
    """A plain list of tokens is the model of a context; every operation is done to both.

    A cut back to a length that the program saw leaves the last turn as open as it was there.
    """
    outputs: deque[str] = deque()
    with FakeRuntime(lambda _: outputs.popleft(), steps=steps, replies=[replies]):
        asyncio.run(_compare_with_a_list(operations, outputs))


async def _compare_with_a_list(operations: list[tuple[str, Any]], outputs: deque[str]) -> None:
    ctx, model, open_turn = Context(), list[int](), False
    sent: dict[int, bool] = {}  # the lengths that the program saw, and whether a turn was open there
    for name, value in operations:
        if name == "user":
            ctx.user(value)
            model += render(Part("message", "user", value))
            open_turn = True
        elif name == "append":
            ctx.append(list(value))
            model += value
            open_turn = False
        elif name == "generate":
            outputs.append(value[0])
            model += render(Part("cue")) if open_turn else []
            model += await _generate(ctx, value[1])
            open_turn = False
        elif name == "truncate":
            await ctx.flush()
            assert ctx.length == len(model)
            sent[len(model)] = open_turn
            length = round(value * len(model))
            await ctx.truncate(length)
            del model[length:]
            sent = {at: was_open for at, was_open in sent.items() if at <= length}
            open_turn = sent.get(length, False)
        else:
            ctx = await (ctx.fork() if name == "fork" else ctx.flush())
            sent[len(model)] = open_turn
    assert await ctx.tokens() == model
    assert ctx.length == len(model)


async def _generate(ctx: Context, leave_after: int) -> list[int]:
    tokens: list[int] = []
    left = leave_after
    async for step in ctx.generate(GREEDY):
        tokens += step.tokens
        if left == 0:
            break
        left -= 1
    assert ctx.length >= len(tokens)
    return tokens


async def test_healing_is_asked_for_by_a_flag() -> None:
    with FakeRuntime(["//x", "y"]) as runtime:
        assert await Context().append("http:").generate(GREEDY, heal=True).collect_text() == "//x"
        await Context().append("a").generate(GREEDY).collect_text()
        with pytest.raises(InvalidRequest, match="heal"):
            Context().append("a").generate(GREEDY, heal="yes")  # type: ignore[call-overload]
    assert [request.heal for request in runtime.of_kind(StartGenerate)] == [True, False]


async def test_a_context_that_is_refused_leaves_its_finalizer_nothing_to_fail_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", failed.append)
    with FakeRuntime(), pytest.raises(LimitExceeded, match="cache_salt"):
        Context(cache_salt="x" * 257)
    gc.collect()
    assert failed == []
