"""Draft trees: where their tokens stand, which grammar masks they get, what is left of them in the cache."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from inferd.protocol import InvalidRequest, LimitExceeded, Sampling
from inferd_grammar import GrammarCompiler, RegexGrammar, TokenTable
from inferd_runtime.engine import verification
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.draft_verification import DraftVerification
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.grammar_masks import GrammarCursor
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler, allowed_tokens
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.sequences.positions import tree_placement
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import ROOT, Draft, DraftBuilder, Proposal
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE, ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver

Tree = tuple[list[int], list[int]]
GREEDY = RowSampler.resolve(Sampling(), seed=0, lineage=0)
HOT = RowSampler.resolve(Sampling(temperature=1.0), seed=5, lineage=0)
VOCAB = 6


def random_tree(choose: random.Random, vocab: int, count: int) -> Tree:
    """Tokens and parents of a tree without twins."""
    tokens: list[int] = []
    parents: list[int] = []
    while len(tokens) < count:
        parent, token = choose.randint(-1, len(tokens) - 1), choose.randrange(vocab)
        if (parent, token) not in zip(parents, tokens, strict=True):
            parents.append(parent)
            tokens.append(token)
    return tokens, parents


def path_to(parents: Sequence[int], node: int) -> list[int]:
    return [] if node == ROOT else [*path_to(parents, parents[node]), node]


def draft_of(tree: Tree) -> Draft:
    builder = DraftBuilder()
    builder.add("custom", Proposal(*tree), [1.0] * len(tree[0]))
    return builder.build()[0]


@given(st.integers(0, 9), st.integers(0, 3), st.integers(0, 1 << 20), st.integers(1, 7))
def test_a_node_stands_at_its_depth_and_sees_its_ancestors(start: int, count: int, seed: int, nodes: int) -> None:
    _, parents = random_tree(random.Random(seed), VOCAB, nodes)
    count = max(count, 1)
    placement = tree_placement(start, count, parents)
    root = start + count
    assert placement.positions[:root].tolist() == list(range(root))
    for at in range(count):
        assert np.flatnonzero(placement.visible[at]).tolist() == list(range(start + at + 1))
    for node in range(nodes):
        path = path_to(parents, node)
        assert placement.positions[root + node] == root + len(path) - 1
        seen = [*range(root), *(root + ancestor for ancestor in path)]
        assert np.flatnonzero(placement.visible[count + node]).tolist() == seen


@pytest.fixture(scope="module")
def table() -> TokenTable:
    return TokenTable.from_tokenizer_json(ByteTokenizer.tokenizer_json(), vocab_size=VOCAB_SIZE, eos_ids=[END])


@given(st.integers(0, 1 << 30), st.integers(1, 12))
def test_the_masks_of_a_tree_are_those_of_each_path_alone(table: TokenTable, seed: int, nodes: int) -> None:
    """And whatever was accepted, the matcher goes on from there as if nothing else had been tried."""
    choose = random.Random(seed)
    compiled = GrammarCompiler(table).compile(RegexGrammar("(ab|abc|ba){1,4}c?d*"))
    tokens, parents = random_tree(choose, 5, nodes)
    draft = draft_of(([ord("a") + token for token in tokens], parents))
    cursor = GrammarCursor(compiled.matcher(), table.words, [END])
    legal, masks = cursor.masks(draft)
    kept = {tuple(draft.tokens[at] for at in path_to(draft.parents, node)) for node in range(nodes)}
    alone = compiled.matcher()
    legal_paths = {path for path in kept if _accepted(alone, path)}
    found = [tuple(legal.tokens[at] for at in path_to(legal.parents, node)) for node in range(len(legal))]
    assert set(found) == legal_paths
    assert len(found) == len(legal_paths)
    for node, path in enumerate([(), *found]):
        assert allowed_tokens(masks[node], VOCAB_SIZE).tolist() == _mask_after(compiled.matcher(), path, table.words)
    path = choose.choice([(), *found])
    token = choose.choice(_mask_after(compiled.matcher(), path, table.words))
    cursor.advance([*path, token])
    if token != END:
        _, after = cursor.masks(draft_of(([], [])))
        assert allowed_tokens(after[0], VOCAB_SIZE).tolist() == _mask_after(
            compiled.matcher(), (*path, token), table.words
        )


def _accepted(matcher: object, path: tuple[int, ...]) -> bool:
    taken = matcher.accept(list(path))  # type: ignore[attr-defined]
    matcher.rollback(taken)  # type: ignore[attr-defined]
    return bool(taken == len(path))


def _mask_after(matcher: object, path: tuple[int, ...], words: int) -> list[int]:
    row = np.empty(words, np.int32)
    assert matcher.accept(list(path)) == len(path)  # type: ignore[attr-defined]
    matcher.fill(row)  # type: ignore[attr-defined]
    return allowed_tokens(row, VOCAB_SIZE).tolist()


def test_what_a_grammar_leaves_no_choice_about_is_drafted_behind_a_guess(table: TokenTable) -> None:
    compiled = GrammarCompiler(table).compile(RegexGrammar("(x|yy)abc(1|2)de"))
    cursor = GrammarCursor(compiled.matcher(), table.words, [END])

    def completed(text: bytes, limit: int) -> tuple[bytes, list[str]]:
        draft = cursor.completed(draft_of((list(text), list(range(-1, len(text) - 1)))), limit)
        assert draft.is_chain
        assert list(draft.survival) == [1.0] * len(draft)
        return bytes(draft.tokens), list(draft.sources)

    assert completed(b"x", 16) == (b"xabc", ["custom"] + ["grammar"] * 3)
    assert completed(b"x", 3) == (b"xab", ["custom"] + ["grammar"] * 2)
    assert completed(b"xabc2", 16) == (b"xabc2de", ["custom"] * 5 + ["grammar"] * 2)
    assert completed(b"xq", 16) == (b"xq", ["custom"] * 2), "behind what is illegal nothing is certain"
    _, masks = cursor.masks(draft_of(([], [])))
    assert bytes(allowed_tokens(masks[0], VOCAB_SIZE).tolist()) == b"xy", "it stands where it stood"


class Bushy(Drafter):
    """The answer as one path of a tree full of wrong turns, so that the right nodes never stand behind each other."""

    def __init__(self, answer: list[int], seed: int) -> None:
        self._answer, self._seen, self._random = answer, 0, random.Random(seed)

    def observe(self, tokens: Sequence[int]) -> None:
        self._seen += len(tokens)

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        right = self._answer[self._seen :][: min(4, limit // 3)]
        tokens: list[int] = []
        parents: list[int] = []
        above = ROOT
        for token in right:
            wrong = [other for other in range(VOCAB) if other != token]
            siblings = [*self._random.sample(wrong, 2), token]
            tokens += siblings
            parents += [above] * 3
            above = len(tokens) - 1
        return Proposal(tokens, parents, confidence=[1.0] * len(tokens))


def run(
    engine: Engine, context: CachedSequence, sampler: RowSampler, count: int, drafter: Drafter | None
) -> Generation:
    sources = None if drafter is None else engine.draft_budget.sources([drafter], max_draft=12)
    generation = Generation(context, GenerationSpec(sampler, count, (), None, sources), TextAssembler(str, ()))
    engine.submit(generation)
    while not generation.finished() or generation.outbox:
        generation.take()
        engine.step()
    assert generation.error is None
    generation.close()
    return generation


@pytest.mark.parametrize(("seed", "sampler"), list(itertools.product(range(6), (GREEDY, HOT))))
def test_an_accepted_path_is_compacted_and_leaves_the_cache_of_a_chain(seed: int, sampler: RowSampler) -> None:
    driver = NullDriver(vocab_size=VOCAB, seed=seed, order=7)
    prompt = [1, 2, 3]
    engine = Engine(driver, EngineOptions(token_budget=32))
    plain = engine.create_context()
    plain.append(prompt)
    run(engine, plain, sampler, 30, None)
    context = engine.create_context()
    context.append(prompt)
    steps = engine.steps
    generation = run(engine, context, sampler, 30, Bushy(plain.tokens, seed))
    assert context.tokens == plain.tokens
    assert engine.steps - steps < 15, "hardly anything was accepted"
    assert generation.counters.accepted > 15
    held = [driver._memory.reshape(-1, 2)[context.table.slot(at), 0] for at in range(context.table.length)]
    assert held == context.tokens[: context.table.length]


def test_two_trees_and_a_chain_share_a_step() -> None:
    driver = NullDriver(vocab_size=VOCAB, seed=3, order=5)
    engine = Engine(driver, EngineOptions(token_budget=64))
    answers = []
    for first in range(3):
        context = engine.create_context()
        context.append([first, 1])
        run(engine, context, HOT, 20, None)
        answers.append(context.tokens)
    generations = []
    for first in range(3):
        context = engine.create_context()
        context.append([first, 1])
        drafter = Bushy(answers[first], first) if first else None
        sources = None if drafter is None else engine.draft_budget.sources([drafter])
        generations.append(Generation(context, GenerationSpec(HOT, 20, (), None, sources), TextAssembler(str, ())))
        engine.submit(generations[-1])
    while not all(generation.finished() for generation in generations):
        engine.step()
        for generation in generations:
            generation.take()
    assert [generation.context.tokens for generation in generations] == answers


class Counting(NullDriver):
    """Notes how many tokens each call moves, and fails the calls that it is told to."""

    def __init__(self, seed: int) -> None:
        super().__init__(vocab_size=VOCAB, seed=seed, order=5)
        self.moved: list[int] = []
        self.broken = False

    def move_tokens(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.moved.append(len(sources))
        if self.broken:
            raise RuntimeError("no device")
        super().move_tokens(sources, targets)


class Two:
    """Two jobs beside each other, of which each verifies a tree whose second branch is right: nodes 1 and 2 go to 0 and 1."""

    def __init__(self) -> None:
        self.driver = Counting(seed=3)
        self.engine = Engine(self.driver)
        self.contexts, self.answers, self.jobs = [], [], []
        for first in range(2):
            plain = self.engine.create_context()
            plain.append([first, 1, 2])
            run(self.engine, plain, GREEDY, 6, None)
            self.answers.append(plain.tokens)
            context = self.engine.create_context()
            context.append([first, 1, 2])
            right, after = plain.tokens[3:5]
            self.contexts.append(context)
            self.jobs.append(DraftVerification(context, [(right + 1) % VOCAB, right, after], [-1, -1, 1], GREEDY))

    def run(self) -> None:
        for job in self.jobs:
            self.engine.submit(job)
        while not all(job.finished() for job in self.jobs):
            self.engine.step()

    def goes_on_well(self, at: int) -> bool:
        """Whether the context's cache holds what its tokens say."""
        context = self.contexts[at]
        held = [
            self.driver._memory.reshape(-1, 2)[context.table.slot(index), 0] for index in range(context.table.length)
        ]
        return (
            held == context.tokens[: context.table.length] and context.tokens == self.answers[at][: len(context.tokens)]
        )


def test_a_step_does_not_call_the_device_once_for_every_tree() -> None:
    both = Two()
    both.run()
    assert [job.path for job in both.jobs] == [[1, 2], [1, 2]]
    assert both.driver.moved == [4]
    assert all(both.goes_on_well(at) for at in range(2))


@pytest.mark.parametrize("method", ["outcome", "commit"])
def test_a_job_that_fails_over_its_outcome_does_not_leave_another_ones_tokens_unmoved(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Two()

    def fail(*_: object) -> None:
        raise RuntimeError("not this one")

    if method == "commit":
        monkeypatch.setattr(both.jobs[0], "commit", fail)
    else:
        honest = verification.verify_job
        first = both.jobs[0]
        monkeypatch.setattr(verification, "verify_job", lambda part: fail() if part.item.job is first else honest(part))
    both.run()
    assert "not this one" in str(both.jobs[0].error)
    assert both.jobs[1].error is None
    assert both.driver.moved == ([4] if method == "commit" else [2])
    assert both.goes_on_well(1)


def test_tokens_that_the_device_did_not_move_are_counted_and_found_by_nobody() -> None:
    both = Two()
    both.driver.broken = True
    both.run()
    assert all("moving accepted tokens failed" in str(job.error) for job in both.jobs)
    assert [context.table.length for context in both.contexts] == [0, 0]
    both.driver.broken = False
    both.engine.check_integrity()
    again = both.engine.create_context()
    again.append([1, 1, 2])
    run(both.engine, again, GREEDY, 6, None)
    assert again.tokens == both.answers[1]


@pytest.mark.parametrize("seed", range(8))
def test_verifying_by_hand_gives_what_a_generation_gives(seed: int) -> None:
    choose = random.Random(seed)
    driver = NullDriver(vocab_size=VOCAB, seed=seed)
    engine = Engine(driver, EngineOptions(token_budget=16))
    plain = engine.create_context()
    plain.append([1, 2, 3])
    run(engine, plain, HOT, 40, None)
    context = engine.create_context()
    context.append([1, 2, 3])
    accepted = 0
    while len(context.tokens) < 40:
        tokens, parents = random_tree(choose, VOCAB, choose.randint(0, 9))
        before = len(context.tokens)
        job = DraftVerification(context, tokens, parents, HOT)
        engine.submit(job)
        while not job.finished():
            engine.step()
        assert job.error is None
        assert [tokens[node] for node in job.path] == job.accepted
        assert path_to(parents, job.path[-1] if job.path else ROOT) == job.path
        assert context.tokens[before:] == [*job.accepted, job.token]
        assert context.user is None
        accepted += len(job.accepted)
    assert context.tokens == plain.tokens[: len(context.tokens)]
    assert accepted > 2


def test_a_token_that_is_named_twice_at_its_place_is_one_node() -> None:
    """Else what follows the second of the twins was never reached."""
    engine = Engine(NullDriver(vocab_size=VOCAB, seed=4))
    plain = engine.create_context()
    plain.append([1, 2, 3])
    run(engine, plain, GREEDY, 4, None)
    one, two, three, last = plain.tokens[3:]
    context = engine.create_context()
    context.append([1, 2, 3])
    job = DraftVerification(context, [one, one, two, three], [-1, -1, 1, 2], GREEDY)
    engine.submit(job)
    while not job.finished():
        engine.step()
    assert (job.accepted, job.path, job.token) == ([one, two, three], [0, 2, 3], last)
    assert job.drafted == 3


def test_a_draft_that_cannot_be_verified_is_refused_by_name() -> None:
    engine = Engine(NullDriver(vocab_size=VOCAB, max_context=8))
    context = engine.create_context()
    with pytest.raises(InvalidRequest, match="empty"):
        DraftVerification(context, [1], [], GREEDY)
    context.append([1, 2, 3])
    with pytest.raises(InvalidRequest, match="outside the vocabulary"):
        DraftVerification(context, [VOCAB], [], GREEDY)
    assert context.user is None
    context.append([1] * 5)
    with pytest.raises(LimitExceeded, match="full"):
        DraftVerification(context, [1], [], GREEDY)


def test_a_tree_near_the_end_of_the_context_is_cut_to_what_fits() -> None:
    engine = Engine(NullDriver(vocab_size=VOCAB, max_context=8))
    context = engine.create_context()
    context.append([1, 2, 3, 1, 2, 3])
    job = DraftVerification(context, [1, 2, 3, 4], [-1, -1, 0, 1], GREEDY)
    engine.submit(job)
    while not job.finished():
        engine.step()
    assert job.error is None
    assert len(context.tokens) <= 8


def test_a_draft_has_no_more_masks_than_others_can_wait_for(table: TokenTable) -> None:
    """Each of a text of an ambiguous grammar takes longer: a draft of some hundred tokens held the step loop for 7 s."""
    compiled, none = GrammarCompiler(table).compile(RegexGrammar("[ab]+")), draft_of(([], []))
    long = draft_of((list(b"abababab"), [-1, 0, 1, 2, 3, 4, 5, 6]))
    now = iter([0.0, 0.02, 1.0, 1.02, 1.04, 1.04, 2.0, 2.001, 3.0, *[3.0005] * 8, 3.001])
    cursor = GrammarCursor(compiled.matcher(), table.words, [END], clock=lambda: next(now))
    cursor.masks(none)
    assert len(cursor.completed(long, 100)) == 2
    assert len(cursor.masks(long)[0]) == 2
    cursor.masks(none)
    assert len(cursor.masks(long)[0]) == 8, "masks are quick again"


@pytest.mark.parametrize("parents", [[-1, 0, 1, 2, 3, 4], [-1, 0, -1, 2, -1, 4]], ids=["chain", "tree"])
def test_a_draft_is_cut_where_its_masks_turn_out_to_be_slow(table: TokenTable, parents: list[int]) -> None:
    """Nothing was known of the first draft: beside a schema with one name of 20,000 characters others waited for a second."""
    compiled, draft = GrammarCompiler(table).compile(RegexGrammar("[ab]+")), draft_of((list(b"abbaab"), parents))
    seconds = itertools.count(0.0, 0.02)
    cursor = GrammarCursor(compiled.matcher(), table.words, [END], clock=lambda: next(seconds))
    legal, masks = cursor.masks(draft)
    assert len(legal) == len(masks) - 1 == 2
    cursor.advance([*legal.tokens[:1]])
    assert not cursor.completed(draft_of((list(b"abbaab"), [-1, 0, 1, 2, 3, 4])), 100).tokens[6:]


def test_a_token_that_takes_too_long_counts_with_the_mask_behind_it(table: TokenTable) -> None:
    """A text of an ambiguous grammar took as long for each token as for its mask, and others waited for both."""
    compiled, draft = GrammarCompiler(table).compile(RegexGrammar("[ab]+")), draft_of(([], []))
    now = iter([0.0, 0.1, 1.0, 1.08, 2.0, 2.1])
    cursor = GrammarCursor(compiled.matcher(), table.words, [END], clock=lambda: next(now))
    cursor.masks(draft)
    cursor.advance(b"a")
    with pytest.raises(LimitExceeded):
        cursor.masks(draft)


def test_a_collection_of_what_others_hold_is_no_part_of_a_masks_time(table: TokenTable) -> None:
    """It took 0.2 s, more than a mask may, and ended a text whose masks take a millisecond."""
    compiled, draft, collects = GrammarCompiler(table).compile(RegexGrammar("[ab]+")), draft_of(([], [])), list[bool]()

    def clock() -> float:
        collects.append(gc.isenabled())
        return 0.0

    cursor = GrammarCursor(compiled.matcher(), table.words, [END], clock=clock)
    cursor.masks(draft)
    cursor.advance(b"a")
    assert collects == [False] * 4
    assert gc.isenabled()


def test_a_mask_that_takes_too_long_ends_its_generation_by_name(table: TokenTable) -> None:
    """All streams wait for it, and the next one would take as long."""
    compiled, draft = GrammarCompiler(table).compile(RegexGrammar("[ab]+")), draft_of(([], []))
    now = iter([0.0, 0.1, 1.0, 1.2])
    cursor = GrammarCursor(compiled.matcher(), table.words, [END], clock=lambda: next(now))
    cursor.masks(draft)
    with pytest.raises(LimitExceeded) as caught:
        cursor.masks(draft)
    assert caught.value.detail["limit"] == "mask_seconds"
