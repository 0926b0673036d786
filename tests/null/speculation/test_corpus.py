"""The corpus: what is found in it, who fills it, who never sees it, how much it holds."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tiers import examples

from inferd_runtime.speculation.corpus import CAPACITY, CONTRIBUTION, ORDERS, Corpora, CorpusDrafter
from inferd_runtime.speculation.counters import SpeculationCounters
from inferd_runtime.speculation.drafts import NOTHING, Proposal
from inferd_runtime.speculation.ngram_index import BATCH, CANDIDATES, END, REACH
from inferd_runtime.speculation.sources import SourceSet
from inferd_runtime.speculation.survival import Survival

OUTPUTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=30), max_size=6)


def generation(corpora: Corpora, tenant: str, prompt: Sequence[int], *output: int) -> CorpusDrafter:
    """A generation's source, after a prompt and some output."""
    drafter = corpora.drafter(tenant)
    drafter.observe(prompt)
    if output:
        drafter.observe(output)
    return drafter


def agreement(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens agree at the end, at most REACH."""
    count = 0
    while count < min(len(left), len(right), REACH) and left[-1 - count] == right[-1 - count]:
        count += 1
    return count


def expected(outputs: Sequence[list[int]], tail: list[int], limit: int) -> Proposal:
    """The plain twin of a chain: of the newest places that agree longest, the one with the most frequent next token."""
    texts = [token for output in outputs for token in (*output, END)]
    for order in sorted(ORDERS, reverse=True):
        known = [at for at in range(len(texts) - 1, order - 1, -1) if texts[at - order : at] == tail[-order:]]
        places = known[:CANDIDATES] if order <= len(tail) else []
        if places:
            best = max(agreement(texts[:at], tail) for at in places)
            places = [at for at in places if agreement(texts[:at], tail) == best]
            following = [texts[at] for at in places]
            at = places[following.index(max(following, key=following.count))]
            return Proposal(texts[at : texts.index(END, at)][:limit], match=best)
    return NOTHING


@given(OUTPUTS, st.lists(st.integers(0, 1), max_size=12), st.lists(st.integers(0, 1), max_size=4), st.integers(1, 9))
def test_a_proposal_is_how_another_output_went_on(
    outputs: list[list[int]], prompt: list[int], ahead: list[int], limit: int
) -> None:
    corpora = Corpora()
    for output in outputs:
        generation(corpora, "one", [9], *output).drop()
    drafter = corpora.drafter("one", tree=False)
    drafter.observe(prompt)
    assert drafter.propose(limit) == expected(outputs, prompt, limit)
    assert drafter.propose(limit, ahead) == expected(outputs, prompt + ahead, limit)
    assert drafter.propose(limit) == expected(outputs, prompt, limit)


def test_two_continuations_are_proposed_side_by_side() -> None:
    corpora = Corpora()
    for last in (7, 7, 8):
        generation(corpora, "one", [9], 1, 2, 3, 4, last, 6).drop()
    drafter = generation(corpora, "one", [1, 2, 3, 4])
    assert drafter.propose(8) == Proposal([8, 6, 7, 6], [-1, 0, -1, 2], 4)
    assert drafter.propose(2) == Proposal([7, 6], match=4)


def test_where_an_output_ended_nothing_is_proposed() -> None:
    corpora = Corpora()
    generation(corpora, "one", [9], 1, 2, 3, 4).drop()
    generation(corpora, "one", [9], 5, 6).drop()
    assert generation(corpora, "one", [1, 2, 3, 4]).propose(8).tokens == []


def test_prompts_are_not_contributed_and_outputs_only_at_the_end() -> None:
    corpora = Corpora()
    writing = generation(corpora, "one", [1, 2, 3, 4, 5, 6], 11, 12, 13, 14, 15, 16)
    assert generation(corpora, "one", [11, 12, 13, 14]).propose(4) == NOTHING
    writing.drop()
    assert generation(corpora, "one", [11, 12, 13, 14]).propose(4) == Proposal([15, 16], match=4)
    assert generation(corpora, "one", [1, 2, 3, 4]).propose(4) == NOTHING
    assert generation(corpora, "one", [3, 4, 5, 6]).propose(4) == NOTHING


class Tenants(RuleBasedStateMachine):
    """Generations of several tenants, whose tokens tell whose they are, and the same ones of each tenant alone on a server."""

    @initialize()
    def start(self) -> None:
        self.corpora = Corpora(capacity=120)
        self.alone = {tenant: Corpora(capacity=120) for tenant in range(5)}
        self.running: list[tuple[int, CorpusDrafter, CorpusDrafter]] = []

    @rule(tenant=st.integers(0, 4))
    def begin(self, tenant: int) -> None:
        together, alone = (generation(one, str(tenant), [0, 0, 0, 0]) for one in (self.corpora, self.alone[tenant]))
        self.running.append((tenant, together, alone))

    @rule(which=st.integers(0, 99), tokens=st.lists(st.integers(0, 1), max_size=30))
    def write(self, which: int, tokens: list[int]) -> None:
        if self.running:
            tenant, *drafters = self.running[which % len(self.running)]
            for drafter in drafters:
                drafter.observe([0, 0, 0, 0, *(10 * tenant + 10 + token for token in tokens)])

    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        if self.running:
            _, *drafters = self.running.pop(which % len(self.running))
            for drafter in drafters:
                drafter.drop()

    @rule(which=st.integers(0, 99), ahead=st.sampled_from([[], [0, 0, 0, 0]]))
    def propose(self, which: int, ahead: list[int]) -> None:
        if self.running:
            tenant, together, alone = self.running[which % len(self.running)]
            proposal = together.propose(16, ahead)
            assert set(proposal.tokens) <= {0, 10 * tenant + 10, 10 * tenant + 11}
            assert proposal == alone.propose(16, ahead), "what others do can be told from how quick a guess is"

    @invariant()
    def memory_is_bounded(self) -> None:
        assert all(corpus.index.remembered <= 120 + 4096 for corpus in self.corpora._corpora.values())


TestTenants = Tenants.TestCase
TestTenants.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)


def test_a_corpus_never_crosses_tenants() -> None:
    corpora = Corpora()
    generation(corpora, "one", [9], 1, 2, 3, 4, 5, 6).drop()
    assert generation(corpora, "two", [1, 2, 3, 4]).propose(4) == NOTHING
    assert list(generation(corpora, "one", [1, 2, 3, 4]).propose(4).tokens) == [5, 6]


def test_no_number_of_other_tenants_takes_a_corpus_away() -> None:
    corpora = Corpora(capacity=200)
    generation(corpora, "one", [9], 1, 2, 3, 4, 5).drop()
    for tenant in range(300):
        for _ in range(3):
            generation(corpora, f"other {tenant}", [9], *range(200)).drop()
    assert generation(corpora, "one", [1, 2, 3, 4]).propose(1) == Proposal([5], match=4)
    late = corpora.of("late")
    late.add([1, 2, 3, 4, 6])
    assert generation(corpora, "late", [1, 2, 3, 4]).propose(1) == Proposal([6], match=4)


def test_the_full_corpus_of_a_tenant_takes_eight_megabytes() -> None:
    text = array("i", range(CONTRIBUTION))
    tracemalloc.start()
    try:
        corpus = Corpora().of("one")
        for _ in range(2 * CAPACITY // CONTRIBUTION):
            corpus.add(text)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert CAPACITY <= corpus.index.remembered <= CAPACITY + BATCH
    assert held < 8e6


def test_a_corpus_drafter_does_not_stay_with_its_context() -> None:
    sources = SourceSet([Corpora().drafter("one")], Survival().request(), SpeculationCounters())
    sources.begin([1, 2, 3])
    assert sources.memory() is None


def test_the_oldest_outputs_are_forgotten() -> None:
    corpora = Corpora(capacity=5000)
    for start in range(0, 40_000, 1000):
        generation(corpora, "one", [9], *range(start, start + 1000)).drop()
        assert corpora.of("one").index.remembered <= 5000 + 4096
    assert generation(corpora, "one", range(500, 504)).propose(4) == NOTHING
    assert list(generation(corpora, "one", range(39_500, 39_504)).propose(2).tokens) == [39_504, 39_505]


def test_one_generation_leaves_its_first_tokens_behind() -> None:
    corpora = Corpora()
    drafter = generation(corpora, "one", [9])
    for start in range(0, 2 * CONTRIBUTION, 5000):
        drafter.observe(range(start, start + 5000))
    drafter.drop()
    assert corpora.of("one").index.size == CONTRIBUTION + 1


def test_a_thread_indexes_what_many_wrote() -> None:
    with ThreadPoolExecutor(1) as threads:
        corpora = Corpora(threads)
        for start in range(0, 60_000, 20_000):
            generation(corpora, "one", [9], *range(start, start + 20_000)).drop()
        corpora.of("one").index.wait_until_indexed()
        for start in (0, 20_000, 59_990):
            assert list(generation(corpora, "one", range(start, start + 4)).propose(1).tokens) == [start + 4]
