"""Grammars, matchers and masks in a program's hands; constraints of its own; second attempts. On the fake runtime."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from session_runtime import PlainDriver, SessionRuntime, saying
from tiers import examples

from inferd import (
    AllOf,
    AnyJson,
    Choice,
    ConstraintError,
    ConstraintViolated,
    Context,
    Exact,
    Gbnf,
    Generator,
    Grammar,
    InvalidRequest,
    JsonSchema,
    JsonText,
    Lark,
    LimitExceeded,
    NotFound,
    Regex,
    Sampler,
    Speculator,
    Step,
    Tag,
    Tagged,
    TaggedSpan,
    TokenMask,
)
from inferd.protocol import (
    AcceptTokens,
    AppendContext,
    CompileGrammar,
    ConstraintSpec,
    ForkMatcher,
    Forward,
    NextSteps,
    OpenMatcher,
    ReleaseGrammar,
    StartGenerate,
    TagConstraint,
)
from inferd.testing import EOS, FakeRuntime
from inferd_runtime.testing.byte_tokenizer import END

GREEDY = Sampler.argmax()
YES = Choice(["yes", "yet", "no"])


@dataclass
class Person:
    name: str
    age: int


def held(runtime: SessionRuntime) -> int:
    """Return how many grammars and matchers were made and not given back."""
    made = sum(len(runtime.of_kind(kind)) for kind in (CompileGrammar, OpenMatcher, ForkMatcher))
    return made - len(runtime.of_kind(ReleaseGrammar))


async def take(generator: Generator[Any], into: list[Step]) -> None:
    async for step in generator:
        into.append(step)


# ---------------------------------------------------------------------------------------------------------------------
# Masks.
# ---------------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(one=st.sets(st.integers(0, 3000)), other=st.sets(st.integers(0, 3000)))
def test_a_mask_is_a_set_of_ids_and_crosses_the_wire(one: set[int], other: set[int]) -> None:
    mask = TokenMask(one)
    assert (set(mask), len(mask), list(mask)) == (one, len(one), sorted(one))
    assert TokenMask.from_wire(*mask.to_wire()) == mask
    assert set(mask & other) == one & other
    assert set(mask | TokenMask(other)) == one | other
    assert set(mask - other) == one - other
    assert all((token in mask) == (token in one) for token in range(-1, 3010, 7))
    assert (mask == TokenMask(other)) == (one == other)


def test_the_shorter_form_is_sent() -> None:
    assert TokenMask([100_000, 5]).to_wire() == ([5, 100_000], "")
    tokens, bits = TokenMask(range(100_000)).to_wire()
    assert tokens == []
    assert len(bits) < 17_000
    assert len(TokenMask(range(0, 100_000, 100)).to_wire()[0]) == 1000
    with pytest.raises(InvalidRequest, match="base64"):
        TokenMask.from_wire([], "?")
    with pytest.raises(InvalidRequest, match=r"tokens\[0\]"):
        TokenMask([-1])


async def test_forward_sends_a_mask_of_many_as_bits() -> None:
    with SessionRuntime(PlainDriver()) as runtime:
        ctx = Context()
        plain = await ctx.forward([1], mask=range(20, 220), top=3)
        assert set(plain.rows[0].top_tokens) <= set(range(20, 220))
        assert (await ctx.forward([1], mask=TokenMask([7]))).rows[0].token == 7
    many, one = runtime.of_kind(Forward)
    assert (many.mask, many.mask_bits != "") == ([], True)
    assert (one.mask, one.mask_bits) == ([7], "")


# ---------------------------------------------------------------------------------------------------------------------
# Grammar and Matcher.
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_matcher_walks_goes_back_and_forks() -> None:
    with SessionRuntime() as runtime:
        async with await Grammar.compile(YES) as grammar:
            matcher = grammar.matcher()
            assert len(runtime.requests) == 1  # nothing is asked before the first await
            assert (matcher.depth, matcher.may_end, matcher.ended) == (0, False, False)
            assert set(await matcher.mask()) == {ord("y"), ord("n")}
            assert await matcher.forced() == b""
            assert await matcher.accept(list(b"yx")) == 1
            assert (await matcher.forced(), await matcher.forced_tokens()) == (b"e", [ord("e")])
            fork = await matcher.fork()
            assert await fork.accept([*b"es", END, END]) == 3
            assert (fork.depth, fork.may_end, fork.ended) == (4, False, True)
            assert (matcher.depth, set(await matcher.mask())) == (1, {ord("e")})
            await fork.rollback(1)
            assert (fork.may_end, fork.ended, END in await fork.mask()) == (True, False, True)
            with pytest.raises(InvalidRequest, match="rollback"):
                await matcher.rollback(2)
            with pytest.raises(InvalidRequest, match=r"^n must"):
                await matcher.rollback(-1)
            await matcher.release()
            await matcher.release()
            with pytest.raises(InvalidRequest, match="released"):
                await matcher.mask()
            await fork.release()
        with pytest.raises(InvalidRequest, match="released"):
            await grammar.matcher().mask()
    assert held(runtime) == 0
    assert len(runtime.of_kind(ReleaseGrammar)) == 3


async def test_long_lists_are_accepted_in_pieces() -> None:
    with SessionRuntime() as runtime:
        matcher = (await Grammar.compile(AnyJson())).matcher()
        assert await matcher.accept([*b'"', *[65] * 598, *b'"', END, 65]) == 601
        assert matcher.ended
    assert [len(request.tokens) for request in runtime.of_kind(AcceptTokens)] == [32] * 18 + [26]


async def test_two_tasks_open_a_matcher_once() -> None:
    with SessionRuntime() as runtime:
        matcher = (await Grammar.compile(YES)).matcher()
        await asyncio.gather(matcher.mask(), matcher.mask(), matcher.forced())
    assert len(runtime.of_kind(OpenMatcher)) == 1


async def test_dropped_handles_are_given_back() -> None:
    with SessionRuntime() as runtime:
        for _ in range(5):
            matcher = (await Grammar.compile(YES)).matcher()
            await matcher.mask()
            await matcher.fork()
            del matcher
            gc.collect()
        await Grammar.compile(YES)
        assert held(runtime) <= 2


async def test_refusals_of_a_compile_come_as_they_are() -> None:
    with FakeRuntime() as runtime:
        runtime.failures["grammar.compile"] = deque([ConstraintError("bad", pointer="/type")])
        with pytest.raises(ConstraintError, match="bad"):
            await Grammar.compile(Regex("("))
        with pytest.raises(InvalidRequest, match=r"^constraint must"):
            await Grammar.compile({"type": "object"})  # type: ignore[arg-type]
    assert [request.constraint for request in runtime.of_kind(CompileGrammar)] == [ConstraintSpec("regex", "(")]
    with SessionRuntime() as session, pytest.raises(NotFound):
        await session.call(OpenMatcher(99))


# ---------------------------------------------------------------------------------------------------------------------
# Kinds of constraints.
# ---------------------------------------------------------------------------------------------------------------------


def test_what_each_kind_sends() -> None:
    schema = ConstraintSpec("json_schema", "{}", mode="best_effort")
    assert JsonSchema({}, mode="best_effort").constraint == schema
    assert Lark("start: /a/").constraint == ConstraintSpec("lark", "start: /a/")
    assert Lark('a: "x"', start="a").constraint == ConstraintSpec("lark", 'a: "x"\nstart: a\n')
    assert JsonText(Regex("a")).constraint == ConstraintSpec("json_text", members=[ConstraintSpec("regex", "a")])
    assert Gbnf('root ::= "a"').constraint == ConstraintSpec("gbnf", 'root ::= "a"')
    assert Exact(YES).constraint == ConstraintSpec("exact", members=[YES.constraint])
    both = AllOf([Regex("a*"), Exact(YES)])
    assert both.constraint == ConstraintSpec("all_of", members=[ConstraintSpec("regex", "a*"), Exact(YES).constraint])
    tagged = Tagged([Tag("<t>", AnyJson(), "</t>")])
    assert tagged.constraint == ConstraintSpec(
        "tagged", tags=[TagConstraint("<t>", ConstraintSpec("any_json"), "</t>")]
    )
    assert Exact(JsonSchema({}, mode="best_effort")).constraint.best_effort
    assert not both.constraint.best_effort


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: JsonSchema({}, mode="lenient"), "^mode must"),  # type: ignore[call-overload]
    (lambda: Lark(1), "^grammar must"),  # type: ignore[arg-type]
    (lambda: JsonText("a"), "^constraint must hold constraints"),  # type: ignore[arg-type]
    (lambda: Gbnf(None), "^grammar must"),  # type: ignore[arg-type]
    (lambda: AllOf([]), "^constraints must"),
    (lambda: AllOf(["a"]), "^constraints must hold"),  # type: ignore[list-item]
    (lambda: Exact("a"), "^constraint must hold"),  # type: ignore[arg-type]
    (lambda: Tagged([]), "^tags must"),
    (lambda: Tagged([Tag("", AnyJson(), "x")]), "^begin must not be empty"),
    (lambda: Tagged([Tag("a", "b", "x")]), "^content must"),  # type: ignore[arg-type]
    (lambda: Tagged([Tag("a", AnyJson(), 3)]), "^end must"),  # type: ignore[arg-type]
    (lambda: Context().generate(GREEDY, constrain="[a-z]"), "^constrain must"),  # type: ignore[call-overload]
    (lambda: Context().generate(GREEDY, constrain=Letters), "^constrain must"),  # type: ignore[call-overload]
]


@pytest.mark.parametrize(("make", "words"), WRONG)
def test_wrong_constraints_are_named(make: Callable[[], Any], words: str) -> None:
    with FakeRuntime(), pytest.raises(InvalidRequest, match=words):
        make()


def test_tagged_spans_are_read_back() -> None:
    call, note = Tag("<call>", JsonSchema(Person), "</call>"), Tag("[", Regex(".*"), "]")
    text = 'Hi <call>{"name":"</call>","age":3}</call> and [x] then'
    assert Tagged([call, note]).parse(text) == [TaggedSpan(call, Person("</call>", 3)), TaggedSpan(note, "x")]
    assert Tagged([call]).parse("nothing") == []
    for broken in ("<call>{}", "<call>{}</call>", '<call>{"name":"</call>'):
        with pytest.raises(ConstraintError, match="<call>"):
            Tagged([call]).parse(broken)


async def test_json_inside_wrappers_becomes_its_type() -> None:
    text = '{"name":"Ada","age":36}'
    person = JsonSchema(Person)
    with FakeRuntime([text] * 4):
        ctx = Context().append("p")
        for constraint in (Exact(person), AllOf([Regex(".*"), Exact(person)])):
            assert await ctx.generate(GREEDY, constrain=constraint).collect_json() == Person("Ada", 36)
            assert constraint.parse(text) in (Person("Ada", 36), text)
        for plain in (Lark("start: /a/"), AllOf([Regex(".*")])):
            assert await ctx.generate(GREEDY, constrain=plain).collect_json() == {"name": "Ada", "age": 36}
            assert plain.parse(text) == text


# ---------------------------------------------------------------------------------------------------------------------
# A program's own constraint.
# ---------------------------------------------------------------------------------------------------------------------


class Letters:
    """Lower-case letters, then the end; notes what it was told."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []

    def step(self, accepted: list[int]) -> set[int] | None:
        self.told.append(accepted)
        return {*range(ord("a"), ord("z") + 1), EOS} if len(self.told) != 2 else None


async def test_an_own_constraint_is_asked_before_every_step() -> None:
    with FakeRuntime(["abc"], steps=[3]) as runtime:
        letters = Letters()
        generator = Context().append("p").generate(GREEDY, constrain=letters)
        assert await generator.collect_text() == "abc"
        assert (generator.finish, generator.usage.tokens) == ("stop", 3)
    assert letters.told == [[], [ord("a")], [ord("b")], [ord("c")]]
    start = runtime.of_kind(StartGenerate)[0]
    assert (start.program_constraint, start.constraint) == (True, None)
    masks = [(request.mask, request.mask_bits != "") for request in runtime.of_kind(NextSteps)]
    assert masks == [([], True), (None, False), ([], True), ([], True)]


async def test_an_own_constraint_may_ask_a_matcher() -> None:
    class Shouted:
        """A choice, but never with the letter t."""

        def __init__(self, grammar: Grammar) -> None:
            self.matcher = grammar.matcher()

        async def step(self, accepted: list[int]) -> TokenMask:
            assert await self.matcher.accept(accepted) == len(accepted)
            return await self.matcher.mask() - [ord("t")]

    with saying("yes", "yet"):
        grammar = await Grammar.compile(YES)
        ctx = Context().user("u")
        assert await ctx.generate(GREEDY, constrain=Shouted(grammar)).collect_text() == "yes"
        assert await ctx.user("v").generate(GREEDY, constrain=Shouted(grammar)).collect_text() == "yes"


async def test_a_scripted_text_that_an_own_constraint_forbids_is_an_error() -> None:
    class NoT:
        def step(self, accepted: list[int]) -> set[int]:
            return {*range(ord("a"), ord("z") + 1), EOS} - {ord("t")}

    with FakeRuntime(["yes", "yet"]):
        ctx = Context().append("p")
        assert await ctx.generate(GREEDY, constrain=NoT()).collect_text() == "yes"
        with pytest.raises(ConstraintError, match=str(ord("t"))):
            await ctx.generate(GREEDY, constrain=NoT()).collect_text()


class Fails:
    """Goes on for two steps, then answers or raises ``last``."""

    def __init__(self, last: Any) -> None:
        self.last, self.steps = last, 0

    def step(self, accepted: list[int]) -> Any:
        self.steps += 1
        if self.steps < 3:
            return None
        if isinstance(self.last, Exception):
            raise self.last
        return self.last


@pytest.mark.parametrize(
    ("last", "error"),
    [(KeyError("mine"), KeyError), ([], ConstraintError), ([-1], InvalidRequest), ("abc", InvalidRequest), (3, InvalidRequest)],
)  # fmt: skip
async def test_an_own_constraint_that_fails_ends_the_generation_with_its_error(
    last: Any, error: type[Exception]
) -> None:
    with FakeRuntime(["abcdef", "xyz"]):
        ctx = Context().append("p")
        generator = ctx.generate(GREEDY, constrain=Fails(last))
        delivered: list[Step] = []
        with pytest.raises(error):
            await take(generator, delivered)
        with pytest.raises(InvalidRequest, match="ended the generation"):
            await anext(generator)
        assert await ctx.tokens() == list(b"pab")
        assert [step.tokens for step in delivered] == [[ord("a")], [ord("b")]]
        assert generator.finish == "closed"
        assert await ctx.generate(GREEDY).collect_text() == "xyz"


async def test_an_own_constraint_goes_with_no_speculation() -> None:
    with FakeRuntime() as runtime:
        ctx = Context().append("p")
        with pytest.raises(InvalidRequest, match="and system_speculation exclude"):
            ctx.generate(GREEDY, constrain=Letters(), system_speculation=True)
        with pytest.raises(InvalidRequest, match="speculator="):
            ctx.generate(GREEDY, constrain=Letters(), speculator=Speculator())
    assert runtime.requests == []


# ---------------------------------------------------------------------------------------------------------------------
# best_effort: a second attempt.
# ---------------------------------------------------------------------------------------------------------------------

BAD, GOOD = '{"name":"Ada","age":-36}', '{"name":"Ada","age":36}'
PERSON = JsonSchema(Person, mode="best_effort")


def negative(text: str) -> str | None:
    return "the age is negative" if "-" in text else None


@pytest.mark.parametrize("chat", [True, False])
async def test_the_second_answer_takes_the_place_of_the_first(chat: bool) -> None:
    outputs = [BAD, GOOD, "fine"]
    with FakeRuntime(outputs, steps=[5], problem=negative) as runtime:
        ctx = Context().user("who?") if chat else Context().append("who?")
        generator = ctx.generate(GREEDY, constrain=PERSON)
        assert await generator.collect_json() == Person("Ada", 36)
        assert (generator.finish, generator.usage.tokens) == ("stop", len(BAD) + len(GOOD))
        held = await ctx.tokens()
        assert len(runtime.contexts) == 1
    with FakeRuntime([GOOD]):
        clean = Context().user("who?") if chat else Context().append("who?")
        await clean.generate(GREEDY, constrain=PERSON).collect_json()
        assert held == await clean.tokens()  # as if the second answer had been the first
    said = [part for request in runtime.of_kind(AppendContext) for part in request.parts]
    feedback = next(part for part in said if "the age is negative" in part.text)
    assert (feedback.kind, feedback.role) == (("message", "user") if chat else ("text", ""))


async def test_after_two_failures_the_context_holds_neither() -> None:
    with FakeRuntime([BAD, BAD, "fine"], problem=negative) as runtime:
        ctx = Context().user("who?")
        with pytest.raises(ConstraintViolated, match="negative") as raised:
            await ctx.generate(GREEDY, constrain=PERSON).collect_json()
        assert raised.value.detail["problem"] == "the age is negative"
        assert bytes(token for token in await ctx.tokens() if token < 256) == b"who?"
        assert len(runtime.contexts) == 1
        assert await ctx.generate(GREEDY).collect_text() == "fine"
        cues = [part for request in runtime.of_kind(AppendContext) for part in request.parts if part.kind == "cue"]
        assert len(cues) == 2  # the first answer's, which the last one uses, and the second attempt's


async def test_a_second_attempt_that_cannot_be_made_leaves_no_failed_answer() -> None:
    with FakeRuntime([BAD, "fine"], problem=negative) as runtime:
        ctx = Context().user("who?")
        runtime.failures["context.fork"] = deque([LimitExceeded("no room", limit="handles")])
        with pytest.raises(LimitExceeded, match="no room"):
            await ctx.generate(GREEDY, constrain=PERSON).collect_json()
        assert bytes(token for token in await ctx.tokens() if token < 256) == b"who?"
        assert await ctx.generate(GREEDY).collect_text() == "fine"


async def test_a_text_that_does_not_fit_its_type_is_tried_again_too() -> None:
    with FakeRuntime(['{"name":"Ada"}', GOOD]):
        assert await Context().user("u").generate(GREEDY, constrain=PERSON).collect_json() == Person("Ada", 36)


async def test_strict_constraints_and_refused_ones_are_not_tried_again() -> None:
    with FakeRuntime(['{"name":"Ada"}', GOOD], problem=negative) as runtime:
        with pytest.raises(ConstraintError, match="missing key"):
            await Context().user("u").generate(GREEDY, constrain=JsonSchema(Person)).collect_json()
        runtime.failures["generate.start"] = deque([ConstraintError("refused")])
        with pytest.raises(ConstraintError, match="refused"):
            await Context().user("u").generate(GREEDY, constrain=PERSON).collect_json()
        assert len(runtime.of_kind(StartGenerate)) == 2


async def test_a_cut_answer_is_not_tried_again() -> None:
    with FakeRuntime([GOOD, GOOD]) as runtime:
        with pytest.raises(LimitExceeded, match="max_tokens=5"):
            await Context().user("u").generate(GREEDY, constrain=PERSON, max_tokens=5).collect_json()
        assert len(runtime.of_kind(StartGenerate)) == 1


async def test_iterating_a_text_that_fails_gives_all_steps_and_then_the_error() -> None:
    with FakeRuntime([BAD], steps=[4], problem=negative):
        ctx = Context().append("p")
        delivered: list[Step] = []
        with pytest.raises(ConstraintViolated):
            await take(ctx.generate(GREEDY, constrain=PERSON), delivered)
        assert "".join(step.text for step in delivered) == BAD
        assert await ctx.tokens() == list(f"p{BAD}".encode())
