"""Speculation as a program asks for it: its own speculator and who calls what when, the runtime's sources, the counts."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from session_runtime import saying
from tiers import examples

from inferd import (
    Context,
    DraftTree,
    InvalidRequest,
    Regex,
    Sampler,
    SourceStats,
    SpecConfig,
    SpeculationCycle,
    SpeculationStats,
    Speculator,
    Unavailable,
)
from inferd.calls.speculator_runner import CheckedDraft
from inferd.protocol import NextSteps, SourceCount, SpeculationSettings, StartGenerate, Step, VerifyDraft
from inferd.testing import FakeRuntime
from inferd_runtime.testing.byte_tokenizer import END, ByteTokenizer

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


@settings(max_examples=examples(150), deadline=None)
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
        ("draft", lambda self: (["a"], [1]), r"draft\[0\] must be a whole number"),
        ("draft", lambda self: ([-1], [1]), r"draft\[0\] must be a whole number"),
        ("draft", lambda self: ([9999], [len(self.history)]), "vocabulary"),
    ],
)
async def test_a_broken_speculator_is_switched_off_and_reported_once(
    method: str, replacement: Any, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Recorder, method, replacement)
    recorder = Recorder(lambda history: [0])
    with saying(TEXT, cue=[1]) as runtime:
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


# -- Trees and asynchronous speculators --------------------------------------------------------------------------------


class Forking(Recorder):
    """Drafts a tree: a wrong beginning beside the right one, whose last token is wrong, too. All methods are asynchronous."""

    async def reset(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().reset()

    async def accept(self, tokens: list[int]) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().accept(tokens)

    async def draft(self) -> DraftTree:  # type: ignore[override]
        await asyncio.sleep(0)
        self.calls.append("draft")
        right = self.guess(list(self.history))
        self.last_draft = [0, 1, *right, 0]
        return DraftTree(self.last_draft, [-1, 0, -1, *range(2, len(right) + 2)])

    async def rollback(self, n: int) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().rollback(n)


async def test_an_asynchronous_tree() -> None:
    with FakeRuntime([TEXT]) as runtime:
        recorder = Forking(oracle([7], 3, 0))
        generator = Context().append([7]).generate(GREEDY, max_tokens=9, speculator=recorder)
        assert await generator.collect_text() == TEXT[:9]
    assert recorder.history == [7, *TEXT[:9].encode()]
    assert recorder.calls == [
        "reset", "accept",
        "draft", "rollback 3", "accept",
        "draft", "rollback 3", "accept",
        "draft", "rollback 6", "accept",
    ]  # fmt: skip
    first, _, last = runtime.of_kind(NextSteps)
    assert first.draft == [0, 1, *TEXT[:3].encode(), 0]
    assert first.parents == [-1, 0, -1, 2, 3, 4]
    assert first.positions == [1, 2, 1, 2, 3, 4]
    assert last.draft == last.parents == []  # the model's own token is the ninth
    assert generator.speculation.accepted_per_position == (2, 2, 2)


async def test_a_chain_as_a_tree_goes_as_a_chain() -> None:
    class Chain(Speculator):
        def draft(self) -> DraftTree:
            return DraftTree((1, 2, 3), (-1, 0, 1))

    with FakeRuntime(["a"]) as runtime:
        await Context().append([7]).generate(GREEDY, speculator=Chain()).collect_text()
    (sent,) = runtime.of_kind(NextSteps)
    assert (sent.draft, sent.positions, sent.parents) == ([1, 2, 3], [1, 2, 3], [])


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), size=st.integers(0, 90), depth=st.integers(0, 9))
def test_what_is_cut_from_a_tree_leaves_whole_paths(data: st.DataObject, size: int, depth: int) -> None:
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(size)]
    positions: list[int] = []
    for parent in parents:
        positions.append(5 if parent < 0 else positions[parent] + 1)
    draft = CheckedDraft(list(range(size)), positions, parents, size).cut(depth)
    kept = set(draft.tokens)  # each token is its index
    assert len(kept) == min(64, sum(position < 5 + depth for position in positions))
    assert draft.whole == size
    for at, token in enumerate(draft.tokens):
        above = -1 if draft.parents[at] < 0 else draft.tokens[draft.parents[at]]
        assert (draft.positions[at], above) == (positions[token], parents[token])


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        (DraftTree([1, 2], [-1]), "one index for each of the 2 tokens"),
        (DraftTree([1, 2], [-1, 1]), r"parents\[1\] must be a whole number from -1 to 0"),
        (DraftTree([1], [-2]), r"parents\[0\]"),
        (DraftTree([1], [True]), r"parents\[0\]"),
        (DraftTree(["a"], [-1]), r"draft\[0\] must be a whole number"),  # type: ignore[list-item]
        (DraftTree([9999], [-1]), "vocabulary"),
    ],
)
async def test_a_broken_tree_switches_its_speculator_off(
    tree: DraftTree, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Speculator):
        async def draft(self) -> DraftTree:
            return tree

    with saying(TEXT, cue=[1]):
        assert await Context().append([1]).generate(GREEDY, speculator=Broken()).collect_text() == TEXT
    output = capsys.readouterr()
    assert output.err.count("Broken failed; this generation goes on without it") == 1
    assert re.search(reason, output.err)


async def test_a_speculator_that_is_cancelled_ends_the_generation() -> None:
    """Nobody knows what it had learnt: going on could tell it a step twice, or never."""
    drafting = asyncio.Event()

    class Slow(Speculator):
        async def draft(self) -> tuple[list[int], list[int]]:
            drafting.set()
            await asyncio.Event().wait()
            return [], []

    with FakeRuntime([TEXT]):
        ctx = Context().append([1])
        generator = ctx.generate(GREEDY, speculator=Slow())
        waiting = asyncio.ensure_future(anext(generator))
        await drafting.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(InvalidRequest, match="cancelled"):
            await anext(generator)
        assert await ctx.tokens() == [1]


# -- The runtime's own sources ------------------------------------------------------------------------------------------


async def started(**arguments: Any) -> StartGenerate:
    """What one call of generate asks the runtime for."""
    with FakeRuntime([TEXT]) as runtime:
        await Context().append([1]).generate(GREEDY, **arguments).collect_text()
    (request,) = runtime.of_kind(StartGenerate)
    assert isinstance(request, StartGenerate)
    return request


async def test_the_modes_of_system_speculation() -> None:
    off, on, auto = [await started(system_speculation=mode) for mode in (False, True, "auto")]
    assert (off.system_speculation, off.speculation) == (False, None)
    assert (on.system_speculation, on.speculation) == (True, None)
    assert (auto.system_speculation, auto.speculation) == (True, SpeculationSettings(auto=True))
    config = SpecConfig(["ngram", "draft_model"], max_draft=8, tree=False, draft_model="tiny-draft")
    asked = (await started(system_speculation=config)).speculation
    assert asked == SpeculationSettings(["ngram", "draft_model"], 8, False, "tiny-draft")
    exact = (await started(system_speculation=SpecConfig(["draft_model"], verifier="rejection"))).speculation
    assert exact is not None
    assert exact.verifier == "rejection"


async def test_a_prediction_is_text_or_tokens_with_or_without_other_sources() -> None:
    alone = await started(predict=TEXT)
    assert (alone.system_speculation, alone.predicted, alone.predicted_text) == (False, [], TEXT)
    among = await started(predict=[5, 6], system_speculation=True)
    assert (among.system_speculation, among.predicted, among.predicted_text) == (True, [5, 6], "")
    forced = SpecConfig(["grammar"])
    assert (await started(constrain=Regex(".*"), system_speculation=forced)).speculation == forced.to_wire()
    named = await started(predict="x", system_speculation=SpecConfig(["predicted"]))
    assert named.speculation == SpeculationSettings(["predicted"])
    assert (await started(predict="")).predicted_text == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"sources": "ngram"}, "sources"),
        ({"sources": ["oracle"]}, "'oracle'"),
        ({"sources": ["program"]}, "speculator="),
        ({"sources": ["ngram", "corpus", "ngram"]}, "'ngram' twice"),
        ({"max_draft": 0}, "max_draft"),
        ({"max_draft": 65}, "from 1 to 64"),
        ({"max_draft": True}, "max_draft"),
        ({"tree": 1}, "tree"),
        ({"draft_model": 3}, "draft_model"),
        ({"draft_model": "x", "sources": ["ngram"]}, "draft_model"),
        ({"verifier": "maybe"}, "agreement or rejection"),
        ({"verifier": "rejection"}, "draft_model"),
        ({"verifier": "rejection", "sources": ["draft_model", "ngram"]}, "draft_model"),
    ],
)
def test_a_config_names_what_is_wrong(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        SpecConfig(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"system_speculation": "on"}, InvalidRequest, "system_speculation"),
        ({"system_speculation": 1}, InvalidRequest, "system_speculation"),
        ({"system_speculation": SpecConfig(["predicted"])}, InvalidRequest, "predict="),
        ({"system_speculation": SpecConfig(["ngram"]), "predict": "x"}, InvalidRequest, "predict="),
        ({"system_speculation": SpecConfig(["grammar"])}, InvalidRequest, "constrain="),
        ({"system_speculation": SpecConfig(["ngram", "grammar"])}, InvalidRequest, "constrain="),
        ({"predict": 5}, InvalidRequest, "predict"),
        ({"predict": b"x"}, InvalidRequest, "not bytes"),
        ({"predict": bytearray(b"x")}, InvalidRequest, "not bytearray"),
        ({"predict": memoryview(b"x")}, InvalidRequest, "not memoryview"),
        ({"predict": [-1]}, InvalidRequest, r"predict\[0\]"),
        ({"predict": "x", "speculator": Speculator()}, ValueError, "predict="),
        ({"system_speculation": "auto", "speculator": Speculator()}, ValueError, "exclude each other"),
        ({"on_cycle": 5}, InvalidRequest, "on_cycle"),
        ({"on_cycle": asyncio.sleep}, InvalidRequest, "on_cycle"),
    ],
)
def test_generate_refuses_by_name(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with FakeRuntime([TEXT]) as runtime, pytest.raises(error, match=says):
        Context().append([1]).generate(GREEDY, **arguments)
    assert runtime.requests == []


async def test_a_prediction_goes_with_no_constraint_of_ones_own() -> None:
    class Free:
        def step(self, accepted: list[int]) -> None:
            return None

    with FakeRuntime([TEXT]), pytest.raises(InvalidRequest, match="predict="):
        Context().append([1]).generate(GREEDY, constrain=Free(), predict="x")


# -- Counts -------------------------------------------------------------------------------------------------------------


async def test_what_speculation_did() -> None:
    cycles: list[SpeculationCycle] = []
    with FakeRuntime([TEXT]):
        ctx = Context().append([1])
        generator = ctx.generate(GREEDY, predict=TEXT[:10] + "wrong", on_cycle=cycles.append)
        assert generator.speculation == SpeculationStats()
        assert await generator.collect_text() == TEXT
    stats = generator.speculation
    assert (stats.drafts, stats.drafted, stats.accepted) == (1, 15, 10)
    assert (stats.steps, stats.emitted, stats.truncated) == (9, len(TEXT), 0)
    assert stats.accepted_per_position == (1,) * 10
    assert stats.by_source == {"predicted": SourceStats(15, 0, 10)}
    assert stats.tokens_per_step == len(TEXT) / 9
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (10 / 15, 11.0)
    assert cycles[0] == SpeculationCycle(1, "predicted", 15, 10, 11)
    assert cycles[1] == SpeculationCycle(2, "", 0, 0, 1)
    assert sum(cycle.emitted for cycle in cycles) == len(TEXT)


SOURCE_STEPS = st.builds(
    lambda source, drafted, accepted, filtered, truncated: Step(
        [1], "", drafted, min(accepted, drafted), filtered, min(truncated, min(accepted, drafted)), 1000 * drafted,
        [SourceCount(source, drafted, filtered, min(accepted, drafted))] if drafted + filtered else [],
    ),
    st.sampled_from(["ngram", "predicted"]),
    st.integers(0, 5), st.integers(0, 5), st.integers(0, 3), st.integers(0, 5),
) | st.integers(1, 4).map(lambda count: Step([1] * count, joined=count))  # fmt: skip


@given(steps=st.lists(SOURCE_STEPS, max_size=12), split=st.integers(0, 12))
def test_counts_add_up(steps: list[Step], split: int) -> None:
    def total(some: list[Step]) -> SpeculationStats:
        return functools.reduce(SpeculationStats.plus, some, SpeculationStats())

    stats = total(steps)
    assert total(steps[:split]) + total(steps[split:]) == stats
    assert total(steps[:split]).plus_all(steps[split:]) == stats
    assert stats.emitted == stats.steps + stats.accepted - stats.truncated
    assert stats.truncated == sum(step.truncated for step in steps)
    assert stats.drafts == sum(step.drafted > 0 for step in steps)
    assert stats.filtered == sum(step.filtered for step in steps)
    assert sum(stats.accepted_per_position) == stats.accepted
    assert sum(source.drafted for source in stats.by_source.values()) == stats.drafted
    assert sum(source.accepted for source in stats.by_source.values()) == stats.accepted
    assert stats.time_saved == stats.drafted / 1000
    assert 0 <= stats.acceptance_rate <= 1 <= stats.mean_acceptance_length


async def test_no_speculation_counts_plain_steps() -> None:
    with FakeRuntime(["abc"]):
        generator = Context().append([1]).generate(GREEDY)
        await generator.collect_text()
    stats = generator.speculation
    assert (stats.steps, stats.drafts, stats.by_source) == (3, 0, {})
    assert stats.mean_acceptance_length == 1.0


async def test_what_on_cycle_raises_is_the_programs_own() -> None:
    """The context then holds what was delivered, as for an exception in the loop."""

    def stop(cycle: SpeculationCycle) -> None:
        if cycle.step == 3:
            raise Unavailable("enough")

    with FakeRuntime([TEXT]):
        ctx = Context().append([1])
        with pytest.raises(Unavailable, match="enough"):
            await ctx.generate(GREEDY, on_cycle=stop).collect_text()
        assert await ctx.tokens() == [1, *TEXT[:3].encode()]


# -- verify -------------------------------------------------------------------------------------------------------------


async def test_a_verify_loop() -> None:
    with saying("abcdef", "xyz") as runtime:
        ctx = Context().user("u")
        prompt = len(ByteTokenizer().encode("<turn>user:u<end><turn>assistant:", special=True))
        first = await ctx.verify(list(b"abx"))
        assert (first.accepted, first.token, first.path) == (list(b"ab"), ord("c"), [0, 1])
        assert ctx.length == first.length == prompt + 3
        tree = await ctx.verify([9, *b"de", 9], [-1, -1, 1, 2])
        assert (tree.accepted, tree.token, tree.path) == (list(b"de"), ord("f"), [1, 2])
        assert (await ctx.verify()).token == END
        assert (await ctx.user("v").verify(list(b"xyz"), sampler=Sampler.multinomial(seed=4))).token == END
        assert bytes((await ctx.tokens())[prompt : prompt + 6]) == b"abcdef"
    requests = runtime.of_kind(VerifyDraft)
    assert [request.parents for request in requests] == [[], [-1, -1, 1, 2], [], []]
    assert requests[3].sampling.seed == 4
    cues = [part for request in runtime.requests for part in getattr(request, "parts", []) if part.kind == "cue"]
    assert len(cues) == 2


@pytest.mark.parametrize(
    ("tokens", "parents", "says"),
    [
        ([-1], None, r"tokens\[0\]"),
        (list(range(65)), None, "at most 64"),
        ([1, 2], [-1], "each of the 2 tokens"),
        ([1, 2], [-1, 1], r"parents\[1\]"),
        ([1], [-2], r"parents\[0\]"),
        ([1], ["a"], r"parents\[0\]"),
    ],
)
async def test_verify_refuses_by_name(tokens: list[int], parents: Any, says: str) -> None:
    with FakeRuntime([TEXT]) as runtime:
        with pytest.raises(InvalidRequest, match=says):
            await Context().append([1]).verify(tokens, parents)
        assert runtime.requests == []
