"""A program's own speculator: who calls what when, and that it can never change the text."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferd import Context, InvalidRequest, Sampler, Speculator
from inferd.protocol import NextSteps, StartGenerate
from inferd.testing import FakeRuntime

pytestmark = pytest.mark.anyio
GREEDY = Sampler.argmax()
TEXT = "the quick brown fox"


class Recorder(Speculator):
    """Notes every call, checks the contract, and drafts what ``guess`` says for the tokens so far."""

    def __init__(self, guess: Callable[[list[int]], list[int]]) -> None:
        self.guess = guess
        self.calls: list[str] = []
        self.history: list[int] = []
        self.last_draft: list[int] = []

    def reset(self) -> None:
        self.calls.append("reset")
        self.history = []

    def accept(self, tokens: list[int]) -> None:
        assert tokens
        self.calls.append("accept")
        self.history = self.history + tokens

    def draft(self) -> tuple[list[int], list[int]]:
        self.calls.append("draft")
        self.last_draft = self.guess(list(self.history))
        return self.last_draft, [len(self.history) + i for i in range(len(self.last_draft))]

    def rollback(self, n: int) -> None:
        assert self.calls[-1] == "draft"
        assert 1 <= n <= len(self.last_draft)
        self.calls.append(f"rollback {n}")


def oracle(prompt: list[int], right: int, wrong: int) -> Callable[[list[int]], list[int]]:
    """Guesses ``right`` tokens of TEXT that are right, then ``wrong`` ones that are not."""
    whole = list(TEXT.encode())

    def guess(history: list[int]) -> list[int]:
        done = len(history) - len(prompt)
        return whole[done : done + right] + [0] * wrong

    return guess


async def test_the_order_of_the_calls() -> None:
    with FakeRuntime([TEXT]) as runtime:
        recorder = Recorder(oracle([1, 2], 4, 2))
        generator = Context().append([1, 2]).generate(GREEDY, speculator=recorder)
        assert await generator.collect_text() == TEXT
    assert recorder.calls == [
        "reset", "accept",
        "draft", "rollback 2", "accept",
        "draft", "rollback 2", "accept",
        "draft", "rollback 2", "accept",
        "draft", "rollback 2", "accept",
    ]  # fmt: skip
    assert recorder.history == [1, 2, *TEXT.encode()]
    assert generator.usage.steps == 4
    assert (generator.usage.accepted, generator.usage.drafted) == (16, 24)
    start = runtime.of_kind(StartGenerate)[0]
    assert start.program_speculation
    assert not start.system_speculation
    assert runtime.of_kind(NextSteps)[0].positions == [2, 3, 4, 5, 6, 7]


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 255), min_size=1, max_size=4),
    drafts=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=8),
    max_tokens=st.integers(1, 25),
    leave_after=st.integers(1, 30),
)
def test_no_draft_changes_the_text_or_the_context(
    prompt: list[int], drafts: list[tuple[int, int]], max_tokens: int, leave_after: int
) -> None:
    turns = iter(drafts * 30)
    recorder = Recorder(lambda history: oracle(prompt, *next(turns))(history))
    runtime = FakeRuntime([TEXT])
    with runtime:
        tokens, kept = asyncio.run(_some_steps(prompt, recorder, max_tokens, leave_after))
    assert tokens == list(TEXT.encode())[: min(max_tokens, len(tokens))]
    assert kept == prompt + tokens == recorder.history
    sent = [len(request.draft) for request in runtime.of_kind(NextSteps)]
    assert all(length < max_tokens for length in sent)
    assert len(recorder.calls) >= len(sent)


async def _some_steps(
    prompt: list[int], speculator: Speculator, max_tokens: int, leave_after: int
) -> tuple[list[int], list[int]]:
    ctx, tokens = Context().append(prompt), list[int]()
    async for step in ctx.generate(GREEDY, max_tokens=max_tokens, speculator=speculator):
        tokens += step.tokens
        leave_after -= 1
        if leave_after == 0:
            break
    return tokens, await ctx.tokens()


async def test_one_object_serves_several_generations() -> None:
    with FakeRuntime([TEXT, TEXT]):
        recorder = Recorder(lambda history: [])
        ctx = Context().append([1])
        await ctx.generate(GREEDY, speculator=recorder).collect_text()
        await ctx.generate(GREEDY, speculator=recorder).collect_text()
    assert recorder.history == [1, *TEXT.encode(), *TEXT.encode()]
    assert recorder.calls.count("reset") == 2


async def test_the_base_class_drafts_nothing() -> None:
    with FakeRuntime([TEXT]) as runtime:
        assert await Context().append("p").generate(GREEDY, speculator=Speculator()).collect_text() == TEXT
    assert all(request.draft == [] for request in runtime.of_kind(NextSteps))


def _raises(*args: Any) -> Any:
    raise RuntimeError("my own bug")


@pytest.mark.parametrize(
    ("method", "replacement", "reason"),
    [
        ("reset", _raises, "my own bug"),
        ("accept", _raises, "my own bug"),
        ("draft", _raises, "my own bug"),
        ("rollback", _raises, "my own bug"),
        ("draft", lambda self: None, "TypeError"),
        ("draft", lambda self: ([1], [99]), "positions 1 to 1"),
        ("draft", lambda self: ([1], []), "positions 1 to 1"),
        ("draft", lambda self: ([], [1]), r"positions \[\]"),
        ("draft", lambda self: (["a"], [1]), "token ids"),
        ("draft", lambda self: ([-1], [1]), "token ids"),
        ("draft", lambda self: ([9999], [len(self.history)]), "vocabulary"),
    ],
)
async def test_a_broken_speculator_is_switched_off_and_reported_once(
    method: str, replacement: Any, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Recorder, method, replacement)
    recorder = Recorder(lambda history: [0])
    with FakeRuntime([TEXT]) as runtime:
        assert await Context().append([1]).generate(GREEDY, speculator=recorder).collect_text() == TEXT
    output = capsys.readouterr()
    assert output.err.count("Recorder failed; this generation goes on without it") == 1
    assert re.search(reason, output.err)
    drafts = [len(request.draft) for request in runtime.of_kind(NextSteps)]
    assert sum(drafts) <= 1


async def test_a_refusal_that_is_not_about_the_draft_is_raised() -> None:
    class Refusing(FakeRuntime):
        async def call(self, request: Any) -> Any:
            if isinstance(request, NextSteps):
                raise InvalidRequest("no more")
            return await super().call(request)

    with Refusing([TEXT]), pytest.raises(InvalidRequest, match="no more"):
        await Context().append([1]).generate(GREEDY, speculator=Recorder(lambda history: [0])).collect_text()
