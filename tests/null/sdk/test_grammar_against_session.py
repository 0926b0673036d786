"""Grammars, own constraints, streams and second attempts against the real session and engine; the driver does no maths."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from inferd import (
    AllOf,
    Choice,
    ConstraintError,
    ConstraintViolated,
    Context,
    Exact,
    Gbnf,
    Grammar,
    InvalidRequest,
    JsonSchema,
    JsonText,
    Lark,
    LimitExceeded,
    Model,
    Partial,
    Regex,
    Sampler,
    Tag,
    Tagged,
    TaggedSpan,
    TokenMask,
)
from inferd.transport import current_transport
from inferd_runtime.testing.transport import DirectTransport, run_program

SEEDED = Sampler.multinomial(1.0, seed=3)
DISTINCT: dict[str, Any] = {
    "type": "array", "items": {"type": "string", "pattern": "^[a-d]$"}, "minItems": 3, "maxItems": 3, "uniqueItems": True,
}  # fmt: skip


@dataclass
class Answer:
    kind: Literal["yes", "no"]
    flags: list[bool] = field(default_factory=list)


async def decode(constraint: Any, sampler: Sampler, limit: int) -> list[int]:
    """What ``generate`` does, written with ``forward`` and a matcher."""
    eos = set((await Model.load()).eos_tokens)
    async with Context() as ctx, await Grammar.compile(constraint) as grammar:
        matcher, tokens, feed = grammar.matcher(), list[int](), [*b"prompt"]
        while len(tokens) < limit:
            row = (await ctx.forward(feed, sampler=sampler, mask=await matcher.mask())).rows[0]
            assert await matcher.accept([row.token]) == 1
            if row.token in eos:
                break
            tokens.append(row.token)
            feed = [row.token]
        await matcher.release()
        return tokens


@pytest.mark.parametrize("sampler", [Sampler.argmax(), SEEDED])
@pytest.mark.parametrize("constraint", [JsonSchema(Answer), Exact(JsonSchema(Answer)), Choice(["left", "right"])])
def test_an_own_decode_loop_gives_what_generate_gives(constraint: Any, sampler: Sampler) -> None:
    async def program() -> None:
        own = await decode(constraint, sampler, 60)
        generator = Context().append("prompt").generate(sampler, max_tokens=60, constrain=constraint)
        assert await generator.collect_tokens() == own
        assert own

    run_program(program)


class Without:
    """Asks a matcher, and takes away a letter where it has a choice."""

    def __init__(self, grammar: Grammar, without: str) -> None:
        self.matcher, self.without = grammar.matcher(), TokenMask(list(without.encode()))

    async def step(self, accepted: list[int]) -> Iterable[int]:
        assert await self.matcher.accept(accepted) == len(accepted)
        mask = await self.matcher.mask()
        return mask - self.without or mask


def test_an_own_constraint_narrows_a_grammar() -> None:
    async def program() -> None:
        grammar = await Grammar.compile(JsonSchema(Answer))
        plain = await Context().append("p").generate(SEEDED, constrain=JsonSchema(Answer)).collect_text()
        same = Context().append("p").generate(SEEDED, constrain=Without(grammar, ""))
        assert await same.collect_text() == plain
        assert same.usage.steps == len(plain) + 1  # end-of-text is a step of its own: its mask is the program's
        for seed in range(4):
            generator = Context().append("p").generate(Sampler.multinomial(seed=seed), constrain=Without(grammar, "y"))
            assert JsonSchema(Answer).parse(await generator.collect_text()).kind == "no"

    run_program(program)


def test_an_empty_mask_and_a_bad_token_end_an_own_constraint() -> None:
    class Bad:
        def __init__(self, last: list[int]) -> None:
            self.last = last

        def step(self, accepted: list[int]) -> list[int] | None:
            return self.last if accepted else None

    async def program() -> None:
        ctx = Context().append("p")
        with pytest.raises(ConstraintError, match="no token"):
            await ctx.generate(SEEDED, constrain=Bad([])).collect_text()
        with pytest.raises(InvalidRequest, match="vocabulary"):
            await ctx.generate(SEEDED, constrain=Bad([5000])).collect_text()
        assert len(await ctx.tokens()) == 3
        assert await ctx.generate(SEEDED, max_tokens=3).collect_tokens()

    run_program(program)


def distinct(text: str) -> bool:
    return len(set(json.loads(text))) == 3


def test_best_effort_tries_twice_and_leaves_a_clean_context() -> None:
    outcomes: set[Any] = set()

    async def program(seed: int) -> None:
        ctx = Context().user("three letters")
        await ctx.flush()
        generator = ctx.generate(Sampler.multinomial(seed=seed), constrain=JsonSchema(DISTINCT, mode="best_effort"))
        before, answer = await ctx.tokens(), None
        try:
            answer = await generator.collect_json()
        except ConstraintViolated as error:
            outcomes.add(error.detail["keyword"])
        held = (await ctx.tokens())[len(before) :]
        text = bytes(token for token in held if token < 256).decode()
        shown = text.removeprefix("assistant:")
        if answer is None:
            assert shown == ""
        else:
            assert json.loads(shown) == answer
            assert distinct(shown)
            assert [(each.keyword, each.pointer) for each in generator.checked] == [("uniqueItems", "/uniqueItems")]
        transport = current_transport()
        assert isinstance(transport, DirectTransport)
        outcomes.add((generator.usage.tokens > 20, answer is not None))
        assert len(transport.direct.session.owned_tables()) == 1
        await ctx.user("go on").generate(SEEDED, max_tokens=3).collect_tokens()

    for seed in range(16):
        run_program(lambda seed=seed: program(seed))  # type: ignore[misc]
    assert outcomes == {"uniqueItems", (False, True), (True, True), (True, False)}


def test_a_strict_schema_that_cannot_be_enforced_says_where() -> None:
    async def program() -> None:
        with pytest.raises(ConstraintError) as raised:
            await Grammar.compile(JsonSchema({"properties": {"a": {"const": 2**53 + 1}}, "type": "object"}))
        assert raised.value.detail["pointer"] == "/properties/a/const"
        grammar = await Grammar.compile(JsonSchema(DISTINCT, mode="best_effort"))
        assert [each.pointer for each in grammar.checked] == ["/uniqueItems"]

    run_program(program)


@pytest.mark.parametrize("speculation", [False, True])
def test_streamed_json_grows_into_the_answer(speculation: bool) -> None:
    async def program() -> None:
        for seed in range(5):
            ctx = Context().append("p")
            generator = ctx.generate(
                Sampler.multinomial(seed=seed), constrain=JsonSchema(Answer), system_speculation=speculation
            )
            parts: list[Partial[Answer]] = [part async for part in generator.stream_json()]
            assert parts[0].value == {}
            assert [part.complete for part in parts] == [False] * (len(parts) - 1) + [True]
            last = parts[-1]
            assert isinstance(last.result, Answer)
            text = bytes(token for token in (await ctx.tokens())[1:] if token < 256).decode()
            assert last.value == json.loads(text)
            kinds = {part.value["kind"] for part in parts if "kind" in part.value}
            assert kinds == {last.result.kind}

    run_program(program)


def test_every_kind_goes_through() -> None:
    async def program() -> None:
        async def said(constraint: Any) -> str:
            return await Context().append("p").generate(SEEDED, max_tokens=40, constrain=constraint).collect_text()

        assert (await said(Lark('start: "a" "b"'))) == "ab"
        assert (await said(Lark('first.2: "a" "b"', start="first"))) == "ab"
        assert (await said(JsonText(Lark('start: "a\\n" "\\""')))) == r'"a\n\""'
        assert (await said(JsonText(Regex(r"\\")))) == r'"\\"'
        assert JsonText(Choice(['"'])).parse(await said(JsonText(Choice(['"'])))) == '"'
        assert (await said(Gbnf('root ::= "c" "d"'))) == "cd"
        assert (await said(AllOf([Regex("[a-m]{3}"), Regex("[m-z]{3}")]))) == "mmm"
        tagged = Tagged([Tag("<call>", JsonSchema(Answer), "</call>")])
        grammar = await Grammar.compile(tagged)
        matcher, text = grammar.matcher(), 'so <call>{"kind":"yes","flags":[true]}</call>.'
        assert await matcher.accept(list(text.encode())) == len(text)
        assert matcher.may_end
        assert tagged.parse(text) == [TaggedSpan(tagged.tags[0], Answer("yes", [True]))]

    run_program(program)


def test_a_program_holds_a_bounded_number_of_grammars_and_dropped_ones_do_not_count() -> None:
    async def program() -> None:
        for _ in range(80):
            await (await Grammar.compile(Choice(["a", "b"]))).matcher().mask()
        held = [await Grammar.compile(Choice(["a", "b"])) for _ in range(63)]
        with pytest.raises(LimitExceeded, match="64 grammars"):
            held += [await Grammar.compile(Choice(["a", "b"])) for _ in range(2)]

    run_program(program)
