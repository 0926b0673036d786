"""Contexts against plain lists of tokens, driven at random: whatever happens to pages, the tokens and the K and V are right."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from tiers import examples

from inferd.protocol import LimitExceeded, ModelInfo, Sampling
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.forward_pass import ForwardPass, Prefill, RowSpec
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.scheduling.tenants import Tenancy, TenantLimits
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.sequences.snapshots import export_kv, ready, restore
from inferd_runtime.kv.snapshot_format import decode
from inferd_runtime.speculation.ngram import NgramDrafter
from inferd_runtime.testing.null_driver import NullDriver

VOCAB = 6
MODEL = ModelInfo("null", VOCAB, 60, 4, [], "null")
ADAPTERS = {"": 0, "x": 1000}
GREEDY = RowSampler.resolve(Sampling(), seed=0, lineage=0)


def start(
    engine: Engine, context: CachedSequence, max_tokens: int, *, drafts: bool = False, priority: int = 0
) -> Generation:
    """A greedy generation in the batch."""
    sources = engine.draft_budget.sources([NgramDrafter()]) if drafts else None
    spec = GenerationSpec(GREEDY, max_tokens, (), None, sources, priority=priority)
    generation = Generation(context, spec, TextAssembler(str, ()))
    engine.submit(generation)
    return generation


def finish(engine: Engine, generation: Generation) -> list[int]:
    """Run it to its end; its tokens."""
    tokens: list[int] = []
    while not generation.finished() or generation.outbox:
        tokens += [token for step in generation.take() for token in step.tokens]
        engine.step()
    generation.close()
    return tokens


def greedy(driver: NullDriver, tokens: list[int], count: int, adapter: str = "") -> list[int]:
    """What a model without any cache would write. An adapter shifts what the cache holds."""
    text, shift = list(tokens), ADAPTERS[adapter]
    for _ in range(count):
        text.append(int(np.argmax(driver.logits([token + shift for token in text]))))
    return text[len(tokens) :]


def computed_tokens(driver: NullDriver, context: CachedSequence) -> list[int]:
    """What the cache (or the host memory of a parked context) holds for it."""
    data = driver.read_pages(context.table.pages)
    if context.parked is not None and context.parked.buffer is not None:
        data = context.parked.buffer.data
    return data.reshape(-1).view(np.int64)[: 2 * context.computed : 2].tolist()


class Contexts(RuleBasedStateMachine):
    """Two tenants, a cache that is too small for what they want, and every event that a context can meet."""

    contexts = Bundle("contexts")
    snapshots = Bundle("snapshots")
    swap_bytes = 1 << 20

    def __init__(self) -> None:
        super().__init__()
        self.driver = NullDriver(vocab_size=VOCAB, pages=20, page_size=4, max_context=60, order=3)
        self.driver.adapters = {"x": ADAPTERS["x"]}
        tenancy = Tenancy(named={"small": TenantLimits(kv_pages=30)})
        self.engine = Engine(self.driver, EngineOptions(12, self.swap_bytes, tenancy))
        self.models: dict[int, tuple[CachedSequence, list[int]]] = {}
        self.running: dict[int, Generation] = {}

    @rule(target=contexts, tenant=st.sampled_from(["small", "large"]), tokens=st.lists(st.integers(0, 2), max_size=20))
    def create(self, tenant: str, tokens: list[int]) -> CachedSequence:
        context = self.engine.create_context(tenant)
        context.append(tokens)
        self.models[id(context)] = (context, list(tokens))
        return context

    @rule(context=contexts, tokens=st.lists(st.integers(0, 2), max_size=20))
    def append(self, context: CachedSequence, tokens: list[int]) -> None:
        if context.user is not None:
            return
        if len(context.tokens) + len(tokens) > 60:
            with pytest.raises(LimitExceeded, match="context holds 60"):
                context.append(tokens)
            return
        context.append(tokens)
        self.models[id(context)][1].extend(tokens)

    @rule(context=contexts)
    def prefill(self, context: CachedSequence) -> None:
        if context.user is not None:
            return
        job = Prefill(context)
        job.end_if_done()
        self.engine.submit(job)
        while not job.finished():
            assert self.engine.step() or job.finished()
        assert job.error is None or isinstance(job.error, LimitExceeded)
        assert job.error is not None or context.pending <= 1

    @rule(context=contexts, tokens=st.lists(st.integers(0, 2), min_size=1, max_size=9))
    def forward(self, context: CachedSequence, tokens: list[int]) -> None:
        if context.user is not None or len(context.tokens) + len(tokens) > 60:
            return
        model = self.models[id(context)][1]
        job = ForwardPass(context, tokens, [], RowSpec(GREEDY))
        self.engine.submit(job)
        while not job.finished():
            assert self.engine.step() or job.finished()
        if job.error is None:
            model.extend(tokens)
            assert [row.token for row in job.rows()] == greedy(self.driver, model, 1, context.adapter)

    @rule(context=contexts, max_tokens=st.integers(1, 12), drafts=st.booleans(), priority=st.integers(-1, 1))
    def generate(self, context: CachedSequence, max_tokens: int, drafts: bool, priority: int) -> None:
        if context.user is None and 0 < len(context.tokens) < 60:
            self.running[id(context)] = start(self.engine, context, max_tokens, drafts=drafts, priority=priority)

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    @rule(context=contexts, take=st.booleans())
    def close(self, context: CachedSequence, take: bool) -> None:
        """It continues exactly as if it had never run ahead of what was taken."""
        generation = self.running.pop(id(context), None)
        if generation is None:
            return
        model = self.models[id(context)][1]
        tokens = [token for step in generation.take() for token in step.tokens] if take else []
        assert tokens == greedy(self.driver, model, len(tokens), context.adapter)
        generation.close()
        model.extend(tokens)
        assert context.tokens == model

    @rule(target=contexts, context=contexts, share=st.floats(0, 1))
    def fork(self, context: CachedSequence, share: float) -> CachedSequence:
        """Also in the middle of a generation."""
        length = int(len(self.models[id(context)][1]) * share)
        child = self.engine.create_context(context.tenant)
        try:
            child = context.fork(length)
        except LimitExceeded:
            length = 0
        self.models[id(child)] = (child, self.models[id(context)][1][:length])
        return child

    @rule(context=contexts, share=st.floats(0, 1))
    def truncate(self, context: CachedSequence, share: float) -> None:
        if context.user is None:
            length = int(len(context.tokens) * share)
            context.truncate(length)
            del self.models[id(context)][1][length:]

    @rule(context=contexts)
    def preempt(self, context: CachedSequence) -> None:
        """Its pages are taken away, in the middle of a generation, too."""
        if context.table.pages:
            context.park()

    @rule(context=contexts, adapter=st.sampled_from(["", "x"]))
    def switch_adapter(self, context: CachedSequence, adapter: str) -> None:
        if context.user is None and context.irregular_from is None:
            context.use_adapter(adapter)

    @rule(target=snapshots, context=contexts)
    def save(self, context: CachedSequence) -> bytes:
        """Also in the middle of a generation: what it ran ahead belongs to the copy like any other token."""
        return export_kv(self.engine, MODEL, context)

    @rule(target=contexts, data=snapshots, tenant=st.sampled_from(["small", "large"]), trusted=st.booleans())
    def open(self, data: bytes, tenant: str, trusted: bool) -> CachedSequence:
        """Room is made for it as far as there is any; the rest is computed again."""
        snapshot = decode(data)
        try:
            context, restored = restore(self.engine, tenant, ready(snapshot), trusted=trusted)
        except LimitExceeded:
            assert snapshot.facts.irregular_from is not None
            context, restored = self.engine.create_context(tenant), 0
            context.append(snapshot.tokens)
        assert context.computed == restored <= snapshot.facts.computed
        self.models[id(context)] = (context, list(snapshot.tokens))
        return context

    @rule(context=consumes(contexts))
    def release(self, context: CachedSequence) -> None:
        generation = self.running.pop(id(context), None)
        if generation is not None:
            generation.close()
        context.release()
        del self.models[id(context)]

    @invariant()
    def tokens_are_right(self) -> None:
        for context, model in self.models.values():
            assert context.tokens[: len(model)] == model
            if id(context) not in self.running:
                assert context.tokens == model

    @invariant()
    def cache_holds_what_is_computed(self) -> None:
        for context, _ in self.models.values():
            shift = ADAPTERS[context.adapter]
            held = [token + shift for token in context.tokens[: context.computed]]
            assert computed_tokens(self.driver, context) == held

    @invariant()
    def nothing_leaks(self) -> None:
        self.engine.check_integrity()

    def teardown(self) -> None:
        for generation in self.running.values():
            generation.close()
        for context, _ in self.models.values():
            context.release()
        self.engine.check_integrity()
        assert self.engine.pool.available == self.engine.pool.size
        assert self.engine.parking.used == 0


class RecomputedContexts(Contexts):
    """The same without room to swap: whoever leaves the cache is computed again."""

    swap_bytes = 0


TestSwapped: Any = Contexts.TestCase
TestSwapped.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)
TestRecomputed: Any = RecomputedContexts.TestCase
TestRecomputed.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)


def test_a_prompt_that_another_context_computed_is_not_computed_again() -> None:
    driver = NullDriver(pages=64, page_size=4)
    engine = Engine(driver)
    prompt = random.Random(0).choices(range(9), k=90)
    fed = []
    for tenant in ("a", "a", "b"):
        context = engine.create_context(tenant)
        context.append(prompt)
        before = driver.tokens_fed
        assert finish(engine, start(engine, context, 5)) == greedy(driver, prompt, 5)
        fed.append(driver.tokens_fed - before)
        context.release()
    assert fed == [94, 94 - 88, 94]


def test_a_prefix_counts_for_one_adapter_only() -> None:
    driver = NullDriver(pages=64, page_size=4)
    driver.adapters = {"x": ADAPTERS["x"]}
    engine = Engine(driver)
    for adapter, reused in (("", 0), ("x", 0), ("x", 36), ("", 36)):
        context = engine.create_context()
        context.use_adapter(adapter)
        context.append([1] * 40)
        assert finish(engine, start(engine, context, 3)) == greedy(driver, [1] * 40, 3, adapter)
        assert context.reused == reused
        context.release()


def test_a_stopped_generation_leaves_no_trace_of_running_ahead() -> None:
    driver = NullDriver(pages=64, page_size=4, order=3)
    engine = Engine(driver)
    context = engine.create_context()
    context.append([1, 2, 3])
    generation = start(engine, context, 50)
    for _ in range(12):
        engine.step()
    generation.close(keep=-1)
    assert context.tokens == [1, 2, 3]
    assert finish(engine, start(engine, context, 9)) == greedy(driver, [1, 2, 3], 9)


@pytest.mark.parametrize("swap_bytes", [0, 1 << 20])
def test_a_preempted_generation_resumes_with_the_same_bits(swap_bytes: int) -> None:
    driver = NullDriver(pages=16, page_size=4)
    engine = Engine(driver, EngineOptions(swap_bytes=swap_bytes))
    contexts = [engine.create_context(str(number)) for number in range(3)]
    for number, context in enumerate(contexts):
        context.append([number] * 20)
    generations = [start(engine, context, 20) for context in contexts]
    for number, generation in enumerate(generations):
        assert finish(engine, generation) == greedy(driver, [number] * 20, 20)
    assert (engine.parking.swapped > 0) == (swap_bytes > 0)
    assert engine.parking.swapped + engine.parking.dropped > 0


def test_a_tenant_at_its_quota_is_refused_and_others_notice_nothing() -> None:
    driver = NullDriver(pages=64, page_size=4)
    engine = Engine(driver, EngineOptions(tenancy=Tenancy(named={"small": TenantLimits(kv_pages=6)})))
    small, other = (engine.create_context(tenant) for tenant in ("small", "other"))
    small.append([1] * 20)
    other.append([2] * 20)
    generations = start(engine, small, 30), start(engine, other, 30)
    assert finish(engine, generations[1]) == greedy(driver, [2] * 20, 30)
    error = generations[0].error
    assert isinstance(error, LimitExceeded)
    assert error.detail == {
        "limit": "tenant_kv_pages", "value": 6, "raise_with": "releasing contexts, or a higher quota of the tenant",
    }  # fmt: skip
    assert [token for step in generations[0].take() for token in step.tokens] == greedy(driver, [1] * 20, 5)
    generations[0].close()
    small.release()
    engine.check_integrity()


def test_pressure_by_others_cannot_make_room_in_a_quota() -> None:
    engine = Engine(NullDriver(pages=8, page_size=4), EngineOptions(tenancy=Tenancy(TenantLimits(kv_pages=6))))
    first, second = engine.create_context("t"), engine.create_context("t")
    first.append([1] * 17)
    finish(engine, start(engine, first, 1))
    first.park()
    second.append([2] * 17)
    generation = start(engine, second, 1)
    while not generation.finished():
        engine.step()
    assert isinstance(generation.error, LimitExceeded)


def test_the_victim_is_the_youngest_idle_context_of_the_largest_tenant() -> None:
    engine = Engine(NullDriver(pages=40, page_size=4))
    contexts = [engine.create_context(tenant) for tenant in ("a", "b", "b", "b")]
    for number, context in enumerate(contexts):
        context.append([number] * 17)
        finish(engine, start(engine, context, 1))
    contexts[3].user = object()
    needy = engine.create_context("a")
    order = []
    while engine.contexts.park_another(needy, idle=False):
        order.append(next(i for i, c in enumerate(contexts) if c.parked is not None and i not in order))
    assert order == [2, 1, 3, 0]
    contexts[3].user = None
    engine.check_integrity()


def test_what_is_irregular_is_not_shared_by_prefix() -> None:
    engine = Engine(NullDriver(pages=40, page_size=4), EngineOptions(swap_bytes=0))
    context = engine.create_context()
    context.append([1] * 9)
    context.mark_irregular(9)
    context.append([2] * 9)
    finish(engine, start(engine, context, 1))
    child = context.fork(9)
    assert child.irregular_from is None
    assert context.fork().irregular_from == 9
    context.truncate(9)
    assert context.irregular_from is None
    other = engine.create_context()
    other.append([1] * 9 + [2] * 9)
    assert other.reuse_prefix() == 8


def test_a_drafter_stays_with_its_context_as_far_as_that_stands() -> None:
    """A conversation's second turn must not index the first again."""
    engine = Engine(NullDriver(vocab_size=VOCAB, pages=64))
    context = engine.create_context()
    context.append([1, 2, 3, 1, 2])

    def generate(drafter: NgramDrafter) -> None:
        spec = GenerationSpec(GREEDY, 6, (), None, engine.draft_budget.sources([drafter]))
        generation = Generation(context, spec, TextAssembler(str, ()))
        engine.submit(generation)
        finish(engine, generation)

    first = NgramDrafter()
    generate(first)
    assert context.memory is not None
    assert context.memory.drafter is first
    learnt = context.memory.length
    assert learnt == first.observed > 5
    copy, shorter = context.fork(), context.fork(learnt - 1)
    assert shorter.memory is None
    assert copy.memory is not None
    assert copy.memory.drafter is not first
    context.append([4, 4])
    before = len(context.tokens)
    generate(first)
    assert first.observed > before
    assert isinstance(copy.memory.drafter, NgramDrafter)
    assert copy.memory.drafter.observed == learnt
    context.truncate(before)
    assert context.memory is None, "what was cut off would still be proposed"
