"""Lookup in the context against a plain search; what the index holds, forgets and shares."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tiers import examples

from inferd_runtime.speculation.drafts import NOTHING, ROOT, Proposal
from inferd_runtime.speculation.grams import MAX_TOKENS, POWERS, FrozenGrams
from inferd_runtime.speculation.ngram import BRANCH_SHARE, MAX_DRAFT, NgramDrafter, look_up
from inferd_runtime.speculation.ngram_index import (
    BATCH as BATCH_OF_A_CONTEXT,
    CANDIDATES,
    COPIED_SHARE,
    ORDERS,
    REACH,
    SHARED,
    NgramIndex,
)

BATCH = 24
"""Small, so that short texts go through all parts of the index."""
CHUNKS = st.lists(st.lists(st.integers(0, 2), max_size=40), max_size=8)


class LateBuilder(Executor):
    """Builds nothing until it is told to."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def work(self) -> int:
        """Build what was ordered; returns how many builds that were."""
        waiting, self._waiting = self._waiting, []
        for future, build in waiting:
            future.set_result(build())
        return len(waiting)


def agreement(text: Sequence[int], left: int, right: int) -> int:
    """How many tokens agree before two positions, at most REACH."""
    count = 0
    while count < min(left, right, REACH) and text[left - 1 - count] == text[right - 1 - count]:
        count += 1
    return count


def search(observed: Sequence[int], ahead: Sequence[int], orders: Sequence[int] = ORDERS) -> tuple[int, int, int]:
    """The plain twin of a lookup: newest place, place of the most frequent token, agreement; (-1, -1, 0) where none is."""
    text = [*observed, *ahead]
    for order in sorted(orders, reverse=True):
        places = [
            at
            for at in range(len(observed) - 1, order - 1, -1)
            if order <= len(text) and text[at - order : at] == text[-order:]
        ][:CANDIDATES]
        if places:
            best = max(agreement(text, at, len(text)) for at in places)
            places = [at for at in places if agreement(text, at, len(text)) == best]
            following = [text[at] for at in places]
            return places[0], places[following.index(max(following, key=following.count))], best
    return -1, -1, 0


def expected(observed: Sequence[int], limit: int, ahead: Sequence[int] = ()) -> Proposal:
    """What the plain twin proposes."""
    newest, frequent, match = search(observed, ahead)
    if newest < 0 or limit <= 0:
        return NOTHING
    branch = limit // BRANCH_SHARE if newest != frequent else 0
    if not branch:
        return Proposal(go_on([*observed, *ahead], frequent, limit), match=match)
    stem = limit - branch
    tokens = go_on([*observed, *ahead], newest, stem) + go_on([*observed, *ahead], frequent, branch)
    return Proposal(tokens, [*range(-1, stem - 1), ROOT, *range(stem, limit - 1)], match)


def go_on(text: list[int], at: int, limit: int) -> list[int]:
    """The text from a position on, repeated where it ends."""
    end = len(text)
    for _ in range(limit):
        text.append(text[len(text) - (end - at)])
    return text[end:]


def small(builder: Executor | None = None, capacity: int = 1 << 18) -> NgramDrafter:
    """A drafter whose index freezes early."""
    drafter = NgramDrafter()
    drafter._index = NgramIndex(capacity=capacity, builder=builder, batch=BATCH)
    return drafter


def check_places(index: NgramIndex) -> None:
    """However the parts overlap, every place is found once, newest first."""
    tail = index.tail()
    for order in ORDERS:
        places = index._places(order, tail.tobytes(), tail[::-1]) if order <= len(tail) else []
        assert places == sorted(set(places), reverse=True)
        assert len(places) <= CANDIDATES


def check_dictionaries(index: NgramIndex) -> None:
    """However a context was forked, few dictionaries hold few tokens, each once."""
    assert len(index._shared) <= SHARED
    parts = [*index._shared[::-1], index._recent]
    assert sum(map(len, parts)) <= index._batch
    assert [part.start + len(part) for part in parts] == [*(part.start for part in parts[1:]), index.size]
    assert parts[0].start == max([0, *(part.end for part in index._frozen)])


@given(CHUNKS, st.integers(0, 2 * MAX_DRAFT), st.lists(st.integers(0, 2), max_size=6))
def test_a_proposal_is_what_a_plain_search_finds(chunks: list[list[int]], limit: int, ahead: list[int]) -> None:
    drafter, observed = small(), []
    for chunk in chunks:
        drafter.observe(chunk)
        observed += chunk
        assert drafter.propose(limit) == expected(observed, min(limit, MAX_DRAFT))
    assert drafter.propose(limit, ahead) == expected(observed, min(limit, MAX_DRAFT), ahead)


@given(st.lists(st.integers(0, 1), max_size=300), st.integers(1, 40))
def test_long_agreements_are_counted_to_the_reach(text: list[int], split: int) -> None:
    text = text + text[:split]
    drafter = small()
    drafter.observe(text)
    assert drafter.propose(8) == expected(text, 8)


@given(CHUNKS, st.data())
def test_a_late_builder_changes_nothing_once_it_is_done(chunks: list[list[int]], data: st.DataObject) -> None:
    builder = LateBuilder()
    drafter, observed = small(builder), []
    for chunk in chunks:
        drafter.observe(chunk)
        observed += chunk
        drafter.propose(4)
        check_places(drafter._index)
        if data.draw(st.booleans()):
            builder.work()
    while builder.work():
        drafter.propose(1)
    assert drafter.propose(MAX_DRAFT) == expected(observed, MAX_DRAFT)


def test_until_a_long_prompt_is_indexed_its_end_is() -> None:
    builder = LateBuilder()
    drafter = small(builder)
    drafter.observe([*range(1000), 3, 4, 5])
    assert drafter.propose(4) == NOTHING
    drafter.observe([990, 991])
    assert list(drafter.propose(4).tokens) == [992, 993, 994, 995]
    drafter.observe([3, 4, 5])
    builder.work()
    assert drafter.propose(4) == expected([*range(1000), 3, 4, 5, 990, 991, 3, 4, 5], 4)


def test_a_thread_builds_what_was_observed() -> None:
    with ThreadPoolExecutor(1) as threads:
        drafter = small(threads)
        drafter.observe([*range(500), 7, 8])
        drafter.wait_until_indexed()
        assert list(drafter.propose(3).tokens) == [9, 10, 11]


def test_a_build_that_fails_is_an_error_of_the_source() -> None:
    builder = LateBuilder()
    drafter = small(builder)
    drafter.observe(list(range(500)))
    (future, _), *_ = builder._waiting
    future.set_exception(MemoryError())
    with pytest.raises(MemoryError):
        drafter.propose(4)


@given(CHUNKS, CHUNKS, CHUNKS)
def test_a_fork_and_its_original_go_their_own_ways(
    before: list[list[int]], left: list[list[int]], right: list[list[int]]
) -> None:
    original = small()
    for chunk in before:
        original.observe(chunk)
    twin = original.fork()
    for chunk in left:
        original.observe(chunk)
    for chunk in right:
        twin.observe(chunk)
    for drafter, chunks in ((original, before + left), (twin, before + right)):
        text = [token for chunk in chunks for token in chunk]
        assert drafter.observed == len(text)
        assert drafter.propose(MAX_DRAFT) == expected(text, MAX_DRAFT)


class Family(RuleBasedStateMachine):
    """A context, its forks and theirs, in any order."""

    @initialize(late=st.booleans(), text=st.lists(st.integers(0, 1), max_size=60))
    def start(self, late: bool, text: list[int]) -> None:
        self.builder = LateBuilder()
        drafter = small(self.builder if late else None)
        drafter.observe(text)
        self.members: list[tuple[NgramDrafter, list[int]]] = [(drafter, text)]

    @rule(which=st.integers(0, 99), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=4))
    def observe(self, which: int, tokens: list[int]) -> None:
        drafter, text = self.members[which % len(self.members)]
        drafter.observe(tokens)
        text.extend(tokens)

    @rule(which=st.integers(0, 99))
    def fork(self, which: int) -> None:
        drafter, text = self.members[which % len(self.members)]
        self.members.append((drafter.fork(), text[:]))

    @rule()
    def build(self) -> None:
        self.builder.work()

    @invariant()
    def lookups_are_short(self) -> None:
        for drafter, text in self.members:
            assert drafter.observed == len(text)
            check_places(drafter._index)
            check_dictionaries(drafter._index)

    def teardown(self) -> None:
        for drafter, _ in self.members:
            while drafter._index._pending is not None:
                self.builder.work()
                drafter.propose(1)
        for drafter, text in self.members:
            assert drafter.propose(4) == expected(text, 4), "each finds what stands in its own text"


TestFamily = Family.TestCase
TestFamily.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)


def held_by(call: Callable[[], object]) -> float:
    """Bytes that what the call returns holds."""
    tracemalloc.start()
    try:
        result = call()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del result
    return held


@pytest.mark.parametrize("length", [0, 70, BATCH_OF_A_CONTEXT - 100])
def test_forks_copy_no_dictionary(length: int) -> None:
    """A hundred forks of a context of 3,900 tokens once took 68 MB, and a millisecond each."""
    original = NgramDrafter()
    for token in range(length):
        original.observe([token])
    assert held_by(lambda: [original.fork() for _ in range(100)]) < 100 * 2_000 + 10_000


def test_forks_that_go_on_hold_what_is_their_own() -> None:
    """The fork's text since the last freeze is copied, 4 bytes a token; no dictionary is."""
    original = NgramDrafter()
    for token in range(BATCH_OF_A_CONTEXT - 100):
        original.observe([token])

    def go_on() -> list[NgramDrafter]:
        forks = [original.fork() for _ in range(50)]
        for fork in forks:
            fork.observe([1])
        return forks

    assert held_by(go_on) < 50 * (4 * BATCH_OF_A_CONTEXT + 8_000) + 10_000
    fork = go_on()[0]
    assert list(fork.propose(2).tokens) == []
    fork.observe([2])
    assert list(fork.propose(2).tokens) == [3, 4]
    for drafter in (fork, original):
        for token in range(200):
            drafter.observe([token])
        check_dictionaries(drafter._index)


def test_an_original_that_was_forked_copies_no_dictionary() -> None:
    original = NgramDrafter()
    for token in range(BATCH_OF_A_CONTEXT - 100):
        original.observe([token])
    fork = original.fork()
    assert held_by(lambda: original.observe([1])) < 4 * BATCH_OF_A_CONTEXT + 8_000
    assert fork.observed == original.observed - 1


def test_forks_of_forks_of_forks_look_into_few_dictionaries() -> None:
    drafter = NgramDrafter()
    for start in range(0, 40 * 100, 100):
        for token in range(start, start + 100):
            drafter.observe([token])
        drafter = drafter.fork()
        check_dictionaries(drafter._index)
    drafter.observe([50, 51])
    assert list(drafter.propose(2).tokens) == [52, 53]


@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(0, 2), max_size=6))
def test_proposing_leaves_no_trace(text: list[int], ahead: list[int]) -> None:
    drafter = small()
    drafter.observe(text)
    first = drafter.propose(8)
    drafter.propose(8, ahead)
    assert drafter.propose(8) == first


def test_the_newest_continuation_and_beside_it_the_most_frequent() -> None:
    drafter = NgramDrafter()
    drafter.observe([1, 2, 3, 10, 1, 2, 3, 11, 1, 2, 4, 12, 1, 2])
    assert drafter.propose(8) == Proposal([4, 12, 1, 2, 4, 12, 3, 11], [-1, 0, 1, 2, 3, 4, -1, 6], 2)
    chain = NgramDrafter(tree=False)
    chain.observe([1, 2, 3, 10, 1, 2, 3, 11, 1, 2, 4, 12, 1, 2])
    assert chain.propose(8) == Proposal([3, 11, 1, 2, 4, 12, 1, 2], match=2)


@pytest.mark.parametrize("make", [NgramDrafter, small])
def test_only_the_newest_occurrences_are_looked_at(make: Callable[[], NgramDrafter]) -> None:
    drafter = make()
    text = [9, 1, 2, 50, *(token for at in range(CANDIDATES) for token in (10 + at, 1, 2, 20 + at)), 9, 1, 2]
    drafter.observe(text)
    assert drafter.propose(1) == Proposal([20 + CANDIDATES - 1], match=2)
    assert drafter.propose(1) == expected(text, 1)


def test_in_all_dictionaries_together_only_the_newest_occurrences_are_looked_at() -> None:
    drafter, text = NgramDrafter(), []
    for part in range(SHARED + 1):
        for at in range(3 * BATCH_OF_A_CONTEXT // COPIED_SHARE):
            for token in (1, 2, 20 + part if at % 2 else 10):
                drafter.observe([token])
                text.append(token)
            drafter.observe([1, 2])
            text += [1, 2]
            if at < CANDIDATES:
                check_places(drafter._index)
                assert drafter.propose(4) == expected(text, 4)
        drafter = drafter.fork()
        check_dictionaries(drafter._index)


def test_an_ngram_across_two_dictionaries_is_known() -> None:
    drafter = NgramDrafter()
    text = [*range(1000, 1100), *range(1, 9), 50]
    for token in text[:-2]:
        drafter.observe([token])
    drafter = drafter.fork()
    assert len(drafter._index._recent) == 0
    again = [*text[-2:], *(token for _ in range(CANDIDATES) for token in (5, 6, 7, 8, 60)), *range(1, 9)]
    for token in again:
        drafter.observe([token])
    assert drafter.propose(1) == Proposal([50], match=8)


def test_nothing_is_proposed_beyond_the_limit_or_for_none() -> None:
    drafter = NgramDrafter(4)
    drafter.observe([1, 2, 3] * 20)
    assert drafter.propose(0) == NOTHING
    assert list(drafter.propose(9).tokens) == [1, 2, 3, 1]


def test_memory_is_bounded_and_the_oldest_is_forgotten() -> None:
    capacity = 200
    drafter = small(capacity=capacity)
    for start in range(0, 20_000, 40):
        drafter.observe(range(start, start + 40))
        index = drafter._index
        assert index.remembered <= capacity + BATCH + 40
        assert sum(part.end - part.start for part in index._frozen) <= 1.5 * capacity
        assert len(index._recent) <= BATCH
    assert drafter.observed == 20_000
    drafter.observe([5, 6, 7, 8])
    assert drafter.propose(4) == NOTHING
    drafter.observe([19_950, 19_951])
    assert list(drafter.propose(2).tokens) == [19_952, 19_953]


def test_a_builder_that_never_builds_costs_no_memory() -> None:
    drafter = small(LateBuilder(), capacity=200)
    for start in range(0, 20_000, 20):
        drafter.observe(range(start, start + 20))
        assert len(drafter._index._frozen) <= 3
        assert drafter._index.remembered <= 200 + BATCH + 20
    drafter.observe([19_990, 19_991])
    assert list(drafter.propose(2).tokens) == [19_992, 19_993]


def test_what_is_no_token_is_refused() -> None:
    with pytest.raises(OverflowError):
        NgramDrafter().observe([1 << 40])
    with pytest.raises(ValueError, match="1048576"):
        NgramIndex(capacity=MAX_TOKENS + 1)
    assert NgramIndex(capacity=MAX_TOKENS).size == 0


@given(
    st.lists(st.integers(0, 2), max_size=80), st.sampled_from(ORDERS), st.integers(0, 90), st.integers(0, 40),
    st.integers(0, 9), st.integers(0, CANDIDATES),
)  # fmt: skip
def test_frozen_places(text: list[int], order: int, before: int, first: int, inside: int, most: int) -> None:
    first = min(first, len(text))
    start = min(first + inside, len(text))
    grams = FrozenGrams(array("i", text[first:]), first, start, ORDERS)
    gram = text[-order:]
    hashed = sum(token * power for token, power in zip(reversed(gram), POWERS, strict=False))
    places = [at for at in range(max(start, first + order), len(text)) if text[at - order : at] == gram]
    if len(gram) == order:
        assert grams.places(order, hashed, before, most) == [at for at in places[::-1] if at < before][:most]
        after = [at for at in places if at >= before]
        assert grams.nearest(order, hashed, before) == (after[0] if after else places[-1] if places else -1)


def test_a_lookup_in_another_text() -> None:
    index = NgramIndex((4, 8))
    index.extend([1, 2, 3, 4, 5, 6])
    query = NgramIndex()
    query.extend([9, 1, 2, 3, 4])
    assert look_up(index, query.tail(), 2) == Proposal([5, 6], match=4)
    query.extend([3])
    assert look_up(index, query.tail(), 2) == NOTHING
