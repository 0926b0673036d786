"""Seed identity: with drafts of any source, in any company and under any pressure, a seed brings the same tokens.

What is compared with is no engine at all: one row after the other, straight from the model's logits. Then the same for
random schedules of everything that can happen to a generation.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tiers import examples

from inferd.protocol import Sampling
from inferd_grammar import Compiled, GrammarCompiler, RegexGrammar, TokenTable
from inferd_runtime.draft_models.direct import DirectDrafts
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.drafter import DraftModelDrafter, DraftModelLink
from inferd_runtime.draft_models.lengths import DraftLength
from inferd_runtime.draft_models.messages import DraftSpec
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.speculation.bridge import SharedVocabulary
from inferd_runtime.speculation.corpus import Corpus, CorpusDrafter
from inferd_runtime.speculation.drafter import Drafter, OfferedDraft
from inferd_runtime.speculation.ngram import NgramDrafter
from inferd_runtime.speculation.predicted import PredictedText
from inferd_runtime.speculation.times import StepTimes
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE, ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.speculation import (
    Blind,
    BlindTree,
    Broken,
    GenerationUnderTest,
    Guesser,
    NearDriver,
    Oracle,
    OracleTree,
    Request,
    Wrong,
    WrongTree,
)

Settings = dict[str, Any]
Make = Callable[[Request], list[Drafter]]
SAMPLERS = [
    Sampling(),
    Sampling(1.0),
    Sampling(0.3),
    Sampling(0.8, top_p=0.9),
    Sampling(0.8, top_k=5),
    Sampling(1.5, min_p=0.05),
    Sampling(0.9, top_k=12, top_p=0.9, min_p=0.02),
    Sampling(0.0, repetition_penalty=1.3, frequency_penalty=0.4),
    Sampling(1.0, presence_penalty=1.5, frequency_penalty=0.7, bias_tokens=(3, 5, 0), bias_values=(1.5, -100.0, -0.5)),
    Sampling(
        0.9, top_k=9, top_p=0.95, repetition_penalty=0.6, presence_penalty=-0.8, bias_tokens=(1,), bias_values=(2.5,)
    ),
]
FREE_ROWS = StepTimes.linear(1.0, 0.0)
"""A device where rows cost nothing, so that the controller grants whatever is proposed."""


class AlwaysSix(DraftLength):
    """Does not look at the clock."""

    measured = False

    def choose(self) -> tuple[int, bool]:
        return 6, False


def draft_model(model: Settings) -> Make:
    """A draft model with an engine of its own, for all generations of a batch."""
    driver = NearDriver(**model, pages=400)
    transport = DirectDrafts(DraftHost(Engine(driver, EngineOptions(token_budget=64)), [END]))
    line, numbers = DraftModelLink(transport, driver.max_context), itertools.count()

    def make(request: Request) -> list[Drafter]:
        spec = DraftSpec("", request.sampler, driver.vocab_size, prompt=len(request.prompt))
        length = AlwaysSix(line.experience, most=6, overlaps=False)
        return [DraftModelDrafter(line, next(numbers), SharedVocabulary(driver.vocab_size), spec, length=length)]

    return make


def edited(request: Request, vocab: int) -> list[int]:
    """The answer with a token replaced, one left out, and one too many."""
    tokens = list(request.tokens)
    for at in range(6, len(tokens), 9):
        tokens[at : at + 1] = [[(tokens[at] + 1) % vocab], [], [0, tokens[at]]][at % 3]
    return tokens


def corpus(model: Settings) -> Make:
    """What others of a tenant wrote, all generations of a batch among them."""
    shared = Corpus()

    def make(request: Request) -> list[Drafter]:
        shared.add(edited(request, model["vocab_size"]))
        return [CorpusDrafter(shared)]

    return make


def each(
    *makers: Callable[[Request, int, int], Drafter],
) -> Callable[[NullDriver, int], Callable[[Request], list[Drafter]]]:
    return lambda model, seed: lambda request: [make(request, model["vocab_size"], seed) for make in makers]


SOURCES: dict[str, Callable[[Settings, int], Make]] = {
    "none": each(),
    "ngram": each(lambda request, vocab, seed: NgramDrafter()),
    "oracle": each(Oracle),
    "oracle tree": each(OracleTree),
    "wrong": each(Wrong),
    "wrong tree": each(WrongTree),
    "blind": each(Blind),
    "blind tree": each(BlindTree),
    "several": each(lambda request, vocab, seed: NgramDrafter(), BlindTree, Oracle, OracleTree),
    "broken": each(Broken, lambda request, vocab, seed: NgramDrafter()),
    "predicted": each(lambda request, vocab, seed: PredictedText(edited(request, vocab))),
    "corpus": lambda model, seed: corpus(model),
    "draft model": lambda model, seed: draft_model(model),
}


def free_requests(driver: NullDriver, seed: int) -> list[Request]:
    """One per sampler, with prompts that share beginnings, and every way to end."""
    chance = random.Random(seed)
    start = chance.choices(range(driver.vocab_size), k=14)
    requests = []
    for at, sampling in enumerate(SAMPLERS):
        more = chance.choices(range(driver.vocab_size), k=chance.randint(0, 9))
        prompt = (*start[: chance.randint(1, 14)], *more)
        sampler = RowSampler.resolve(sampling, seed=seed + at, lineage=at % 2)
        limit, eos = chance.choice((12, 25, 40)), (END, 7, END)[at % 3]
        stop = "".join(map(chr, chance.choices(range(driver.vocab_size), k=2))) if at % 2 else ""
        requests.append(Request(prompt, sampler, limit, eos, stop).answered(driver))
    return requests


@pytest.fixture(scope="module")
def grammar() -> Compiled:
    table = TokenTable.from_tokenizer_json(ByteTokenizer.tokenizer_json(), vocab_size=VOCAB_SIZE, eos_ids=[END])
    return GrammarCompiler(table).compile(
        RegexGrammar(r'\{"name":"[a-e]{2,9}","tags":\[("x"|"yy")(,("x"|"yy")){0,3}\]\}')
    )


def constrained_requests(driver: NullDriver, seed: int, grammar: Compiled) -> list[Request]:
    chance = random.Random(seed)
    requests = []
    for at, sampling in enumerate([*SAMPLERS[:5], *SAMPLERS[-3:-1]]):
        prompt = tuple(b'{"name":"abc","tags":["x","yy"]}'[: chance.randint(1, 31)])
        sampler, limit = RowSampler.resolve(sampling, seed=seed + at, lineage=0), chance.choice((15, 60))
        requests.append(Request(prompt, sampler, limit, grammar=grammar).answered(driver))
    return requests


def start(engine: Engine, request: Request, drafters: Sequence[Drafter], **how: bool) -> GenerationUnderTest:
    context = engine.create_context()
    context.append(request.prompt)
    return GenerationUnderTest.submit(engine, context, request, drafters, **how)


def run(engine: Engine, requests: Sequence[Request], make: Make, seed: int, *, tree: bool) -> tuple[int, bool]:
    """All at once, in an order of the seed's, some joining later. Tokens accepted, and whether anybody left the cache."""
    chance = random.Random(seed)
    waiting = chance.sample(list(requests), len(requests))
    running: list[GenerationUnderTest] = []
    parked = False
    while waiting or any(not one.generation.finished() for one in running):
        while waiting and (chance.random() < 0.5 or not running):
            request = waiting.pop()
            running.append(start(engine, request, make(request), tree=tree))
        engine.step()
        parked = parked or any(context.parked is not None for context in engine.contexts)
        for one in running:
            one.take()
    counters = engine.draft_budget.counters
    assert counters.emitted == counters.steps + counters.accepted - counters.truncated
    for one in running:
        one.check()
        one.generation.close()
        one.generation.context.release()
    return sum(one.accepted for one in running), parked


def sweep(name: str, seeds: Sequence[int], grammar: Compiled) -> int:
    """Free and constrained requests in a roomy and in a tiny cache, with trees and without. How much was accepted."""
    total = 0
    for seed, vocab in itertools.product(seeds, (12, VOCAB_SIZE)):
        model = {"vocab_size": vocab, "scale": 1.5, "seed": seed, "order": 1 + 2 * (seed % 3), "max_context": 100}
        driver = NullDriver(**model)
        requests = free_requests(driver, seed) if vocab == 12 else constrained_requests(driver, seed, grammar)
        for pages, budget, tree in ((256, 64, True), (26, 24, True), (26, 9, False)):
            engine = Engine(NullDriver(**model, pages=pages), EngineOptions(token_budget=budget, times=FREE_ROWS))
            accepted, parked = run(engine, requests, SOURCES[name](model, seed), seed, tree=tree)
            total += accepted
            assert parked == (pages < 256)
    return total


LEAST = {
    "none": 0, "oracle": 70, "oracle tree": 70, "ngram": 1, "blind": 1, "blind tree": 1, "several": 70, "broken": 10,
    "draft model": 50, "predicted": 50, "corpus": 25,
}  # fmt: skip


@pytest.mark.parametrize("seeds", [range(1, 2), pytest.param(range(2, 30), marks=pytest.mark.long)])
@pytest.mark.parametrize("name", SOURCES)
def test_a_seed_brings_the_same_tokens_with_any_source(name: str, seeds: range, grammar: Compiled) -> None:
    assert sweep(name, seeds, grammar) >= LEAST.get(name, 0)


@pytest.mark.parametrize("guesser", [Oracle, OracleTree, BlindTree, Wrong])
def test_a_program_that_offers_a_draft_with_every_step_changes_nothing(guesser: type[Guesser]) -> None:
    accepted = 0
    for pages in (256, 24):
        driver = NullDriver(vocab_size=12, scale=1.5, seed=3, max_context=100, pages=pages)
        engine = Engine(driver, EngineOptions(token_budget=24))
        programs: list[tuple[GenerationUnderTest, OfferedDraft, Guesser]] = []
        for request in free_requests(driver, 3):
            offered, program = OfferedDraft(), guesser(request, 12, 3)
            programs.append((start(engine, request, [offered], paced=True), offered, program))
            program.observe(request.prompt)
            offered.offer((first := program.propose(9)).tokens, first.parents)
            programs[-1][0].generation.allow()
        while any(not one.generation.finished() for one, _, _ in programs):
            engine.step()
            for one, offered, program in programs:
                fresh = one.take()
                if fresh:
                    program.observe(fresh)
                    offered.offer((guess := program.propose(9)).tokens, guess.parents)
                    one.generation.allow()
        for one, _, _ in programs:
            one.check()
            one.generation.close()
            accepted += one.accepted
    assert accepted >= {Oracle: 70, OracleTree: 70, BlindTree: 3, Wrong: 0}[guesser]


MODEL: Settings = {"vocab_size": 6, "scale": 1.2, "seed": 1, "order": 4, "max_context": 60}
MAKERS = [NgramDrafter, Oracle, OracleTree, Wrong, Blind, BlindTree]


class Schedule(RuleBasedStateMachine):
    """Generations come, go on, are forked, cut, closed in mid draft and pushed out of a cache that holds a quarter of them."""

    def __init__(self) -> None:
        super().__init__()
        self.model = NullDriver(**MODEL)
        self.engine = Engine(NullDriver(**MODEL, pages=22), EngineOptions(token_budget=20, times=FREE_ROWS))
        self.contexts: list[CachedSequence] = []
        self.running: list[GenerationUnderTest] = []

    def start(self, context: CachedSequence, data: st.DataObject) -> None:
        seed, sampling = data.draw(st.integers(0, 5)), data.draw(st.sampled_from(SAMPLERS))
        sampler = RowSampler.resolve(sampling, seed=seed, lineage=context.lineage)
        stop = "".join(map(chr, data.draw(st.lists(st.integers(0, 5), max_size=2))))
        limit, eos = data.draw(st.sampled_from([1, 2, 7, 30])), data.draw(st.sampled_from([END, END, 4]))
        request = Request(tuple(context.tokens), sampler, limit, eos, stop).answered(self.model)
        makers = data.draw(st.lists(st.sampled_from(MAKERS), max_size=2))
        drafters = [make() if make is NgramDrafter else make(request, 6, seed) for make in makers]
        self.running.append(
            GenerationUnderTest.submit(self.engine, context, request, drafters, tree=data.draw(st.booleans()))
        )

    def idle(self) -> list[CachedSequence]:
        return [context for context in self.contexts if context.user is None]

    @precondition(lambda self: len(self.contexts) < 7)
    @rule(prompt=st.lists(st.integers(0, 2), min_size=1, max_size=20), data=st.data())
    def begin(self, prompt: list[int], data: st.DataObject) -> None:
        context = self.engine.create_context()
        self.contexts.append(context)
        context.append(prompt)
        self.start(context, data)

    @precondition(lambda self: 0 < len(self.contexts) < 7)
    @rule(data=st.data())
    def begin_where_another_was(self, data: st.DataObject) -> None:
        """Its pages may be found by prefix, those that rejected drafts were written to among them."""
        other = data.draw(st.sampled_from(self.contexts)).tokens
        context = self.engine.create_context()
        self.contexts.append(context)
        context.append(other[: data.draw(st.integers(1, max(1, min(50, len(other)))))] or [0])
        self.start(context, data)

    @precondition(lambda self: any(0 < len(context.tokens) < 55 for context in self.idle()))
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        self.start(data.draw(st.sampled_from([c for c in self.idle() if 0 < len(c.tokens) < 55])), data)

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        context = data.draw(st.sampled_from(self.idle()))
        context.truncate(data.draw(st.integers(0, len(context.tokens))))

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        context = data.draw(st.sampled_from(self.idle()))
        self.contexts.remove(context)
        context.release()

    @precondition(lambda self: self.running)
    @rule(count=st.integers(1, 8))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.running)).take()

    @precondition(lambda self: self.running and len(self.contexts) < 7)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """In mid generation: the copy holds what was delivered, draws other noise, and the generation goes on."""
        one = data.draw(st.sampled_from(self.running))
        child = one.generation.context.fork(one.generation.delivered_length)
        assert child.tokens == [*one.request.prompt, *one.tokens]
        self.contexts.append(child)
        if len(child.tokens) < 55:
            self.start(child, data)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        one = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        keep = data.draw(st.integers(0, len(one.tokens)))
        goes_on = not one.generation.finished()
        one.generation.close(keep)
        assert one.generation.error is None
        if goes_on or keep < len(one.tokens):
            assert one.generation.context.tokens == [*one.request.prompt, *one.tokens[:keep]]

    @invariant()
    def nothing_is_lost(self) -> None:
        self.engine.check_integrity()
        counters = self.engine.draft_budget.counters
        assert counters.emitted == counters.steps + counters.accepted - counters.truncated
        for one in self.running:
            assert one.generation.error is None
            assert tuple(one.tokens) == one.request.tokens[: len(one.tokens)]

    def teardown(self) -> None:
        while any(not one.generation.finished() for one in self.running):
            self.engine.step()
            for one in self.running:
                one.take()
        for one in self.running:
            one.take()
            one.check()


Schedule.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
TestAnySchedule = Schedule.TestCase
