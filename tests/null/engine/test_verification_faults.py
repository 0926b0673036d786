"""Do the proofs bite? Faults that verifiers in the field have had, built into this one: each must be found.

A check passes on the engine as it is and fails with the fault. Faults of the verifiers alone (independent siblings by
u < p, residuals of whole batches) are in ``tests/cpu/kernels/test_distribution.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from distribution import ToyTarget, p_value, plain_distribution, sequence_counts

from inferd.protocol import Sampling, TokenLogprob
from inferd_grammar import GrammarCompiler, RegexGrammar, TokenTable
from inferd_runtime.engine import verification
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.jobs.generation import Generation
from inferd_runtime.engine.jobs.grammar_masks import GrammarCursor
from inferd_runtime.engine.sampling import rejection
from inferd_runtime.engine.sampling.host_sampling import LogitRows, Masks, RowSampler, draw, log_softmax
from inferd_runtime.engine.sampling.noise import gumbel, stream
from inferd_runtime.engine.sampling.penalties import Entries, History, Penalties, adjust
from inferd_runtime.engine.sampling.probes import token_logprob
from inferd_runtime.engine.scheduling import scheduler
from inferd_runtime.engine.sequences.positions import tree_placement
from inferd_runtime.engine.stages import Verified
from inferd_runtime.models.batch import Placement
from inferd_runtime.speculation.drafts import ROOT, Draft
from inferd_runtime.speculation.times import StepTimes
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE, ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.speculation import (
    Blind,
    BlindTree,
    GenerationUnderTest,
    Guesser,
    Oracle,
    OracleTree,
    Request,
)

WARM = Sampling(1.0)
FREE_ROWS = StepTimes.linear(1.0, 0.0)
MANY_STEPS = 400
Patch = pytest.MonkeyPatch


# -- Checks -----------------------------------------------------------------------------------------------------------


def finish(engine: Engine, running: Sequence[GenerationUnderTest]) -> None:
    for _ in range(MANY_STEPS):
        engine.step()
        for one in running:
            one.take()
        if all(one.generation.finished() for one in running):
            break
    for one in running:
        one.check()
    engine.check_integrity()
    counters = engine.draft_budget.counters
    assert counters.emitted == counters.steps + counters.accepted - counters.truncated
    assert counters.truncated == sum(one.truncated for one in running)


PLAIN = (Sampling(), Sampling(1.0), Sampling(0.8, top_p=0.9))
PENALISED = (
    Sampling(repetition_penalty=1.5),
    Sampling(1.0, presence_penalty=1.0, frequency_penalty=0.5),
    Sampling(0.8, frequency_penalty=1.5, bias_tokens=(2,), bias_values=(1.0,)),
)


def same_tokens(*guessers: type[Guesser], samplings: Sequence[Sampling] = PLAIN) -> None:
    """A seed's tokens, whatever is drafted; the model notices a token that it reads from the wrong place."""
    for seed, guesser in enumerate(guessers):
        model, driver = (NullDriver(vocab_size=8, scale=1.5, seed=seed, order=5) for _ in range(2))
        engine = Engine(driver, EngineOptions(times=FREE_ROWS))
        running = []
        for at, sampling in enumerate(samplings):
            prompt = tuple(random.Random(at).choices(range(8), k=5))
            request = Request(prompt, RowSampler.resolve(sampling, seed=at, lineage=0), 30).answered(model)
            stop = "".join(map(chr, request.tokens[25:27]))
            request = replace(request, stop=stop).answered(model)
            context = engine.create_context()
            context.append(prompt)
            running.append(GenerationUnderTest.submit(engine, context, request, [guesser(request, 8, seed)]))
        finish(engine, running)


def same_constrained_tokens() -> None:
    table = TokenTable.from_tokenizer_json(ByteTokenizer.tokenizer_json(), vocab_size=VOCAB_SIZE, eos_ids=[END])
    grammar = GrammarCompiler(table).compile(RegexGrammar(r"(a[0-4]{3}|b[5-9]{3}|[x-z]{4}){4}"))
    model = NullDriver(vocab_size=VOCAB_SIZE, scale=1.0)
    for guesser in (Oracle, OracleTree):
        engine = Engine(NullDriver(vocab_size=VOCAB_SIZE, scale=1.0), EngineOptions(times=FREE_ROWS))
        running = []
        for seed in range(3):
            sampler = RowSampler.resolve(Sampling(1.0), seed=seed, lineage=0)
            request = Request((65,), sampler, 30, grammar=grammar).answered(model)
            context = engine.create_context()
            context.append([65])
            running.append(GenerationUnderTest.submit(engine, context, request, [guesser(request, VOCAB_SIZE, seed)]))
        finish(engine, running)


def own_log_probabilities(*guessers: type[Guesser]) -> None:
    """Every token tells its log-probability by the model's logits behind all that stands before it."""
    for seed, guesser in enumerate(guessers):
        model, driver = (NullDriver(vocab_size=8, scale=1.5, seed=seed, order=5) for _ in range(2))
        engine = Engine(driver, EngineOptions(times=FREE_ROWS))
        sampler = RowSampler.resolve(PENALISED[1], seed=seed, lineage=0)
        request = Request((1, 2, 3), sampler, 30).answered(model)
        context = engine.create_context()
        context.append(request.prompt)
        one = GenerationUnderTest.submit(engine, context, request, [guesser(request, 8, seed)], logprobs=2)
        finish(engine, [one])
        assert [score.token for score in one.scores] == one.tokens
        for at, score in enumerate(one.scores):
            expected = log_softmax(model.logits([*request.prompt, *request.tokens[:at]]))
            assert score.logprob == pytest.approx(expected[score.token], abs=1e-5)
            assert score.top_tokens == np.argsort(-expected)[:2].tolist()


@dataclass(frozen=True)
class Toy:
    """Rejection sampling of two drafted tokens and a bonus, over and over, against the enumerated target.

    ``drawn_at``: the temperature at which the draft is drawn, where its distribution claims the sampler's. ``tag`` None: it
    is drawn with the sampler's own noise. ``cut``: no more than what stands before token 1 is told to the verifier.
    """

    sampling: Sampling = WARM
    drawn_at: float | None = None
    tag: int | None = 99
    cut: bool = False
    runs: int = 2000

    def __call__(self) -> None:
        generator = np.random.default_rng(4)
        logits = generator.standard_normal((4, 4)).astype(np.float32)
        guesses = logits + generator.standard_normal((4, 4)).astype(np.float32)
        drawn = replace(self.sampling, temperature=self.drawn_at or self.sampling.temperature)
        everything = np.ones(4, bool)
        q = np.array([plain_distribution(row, self.sampling, everything) for row in guesses], np.float32)
        drawn_from = np.array([plain_distribution(row, drawn, everything) for row in guesses])
        exact = ToyTarget.of(logits, self.sampling, np.ones((3, 4, 4), bool))
        found = np.array([self.sequence(logits, q, drawn_from, seed) for seed in range(self.runs)])
        assert p_value(sequence_counts(found, 4), exact.joint(0)) > 1e-4

    def sequence(self, logits: LogitRows, q: np.ndarray, drawn_from: np.ndarray, seed: int) -> list[int]:
        sampler = RowSampler.resolve(self.sampling, seed=seed, lineage=0)
        key = sampler.key if self.tag is None else stream(sampler.key, self.tag)
        tokens = [0]
        while len(tokens) < 4:
            path = tokens[-1:]
            for ahead in range(2):
                likely = np.flatnonzero(drawn_from[path[-1]])
                noise = gumbel(key, len(tokens) + ahead, likely)
                path.append(int(likely[np.argmax(np.log(drawn_from[path[-1]][likely]) + noise)]))
            draft = path[1:]
            if self.cut and 1 in draft:
                draft = draft[: draft.index(1)]
            rows = [*path[: len(draft) + 1]]
            tokens += rejection.reject(logits[rows], None, sampler, len(tokens), draft, q[path[: len(draft)]])
        return tokens[1:4]


CHAINS = partial(same_tokens, Oracle, Blind, Oracle)
TREES = partial(same_tokens, OracleTree, BlindTree, OracleTree)
PENALISED_CHAINS = partial(same_tokens, Oracle, Blind, Oracle, samplings=PENALISED)
PENALISED_TREES = partial(same_tokens, OracleTree, BlindTree, OracleTree, samplings=PENALISED)
SCORES = partial(own_log_probabilities, Oracle, OracleTree, Oracle)
CHECKS: dict[str, Callable[[], None]] = {
    "chains": CHAINS, "trees": TREES, "penalties, chains": PENALISED_CHAINS, "penalties, trees": PENALISED_TREES,
    "log-probabilities": SCORES, "constrained": same_constrained_tokens, "rejection": Toy(),
    "rejection, cold": Toy(Sampling(0.4)), "rejection with the sampler's noise": Toy(tag=None),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_the_engine_as_it_is_passes(name: str) -> None:
    CHECKS[name]()


# -- Faults -----------------------------------------------------------------------------------------------------------


def verify_with(choose: Callable[[Planned, LogitRows], tuple[list[int], list[int]]]) -> Callable[[Patch], None]:
    """Another rule of acceptance: the tokens to emit, and the accepted nodes."""

    def verify(item: Planned, logits: LogitRows) -> Verified:
        if item.work.sampler is None:
            return Verified(item.work, (), (), logits)
        return Verified(item.work, *choose(item, logits), logits)

    return lambda patch: patch.setattr(verification, "verify_rows", verify)


def sample(item: Planned, logits: LogitRows, row: int, depth: int) -> int:
    work = item.work
    assert work.sampler is not None
    position = item.table.length + len(work.tokens) - len(work.draft) + depth
    return draw(logits[row], work.sampler, position, None if work.masks is None else work.masks[row])


def walk(
    item: Planned, logits: LogitRows, row_of: Callable[[int], int] = lambda node: node + 1
) -> tuple[list[int], list[int]]:
    """The rule as it should be, except the row that each node's token is sampled from."""
    tokens, path, node = [], [], ROOT
    while True:
        tokens.append(sample(item, logits, row_of(node), len(path)))
        node = item.work.draft.children().get((node, tokens[-1]), ROOT)
        if node == ROOT:
            return tokens, path
        path.append(node)


def kept_behind_a_rejected_token(item: Planned, logits: LogitRows) -> tuple[list[int], list[int]]:
    samples = [sample(item, logits, row, row) for row in range(item.work.rows)]
    stands = [node for node, token in enumerate(item.work.draft.tokens) if samples[node] == token]
    last = stands[-1] + 1 if stands else 0
    return samples[: last + 1], [*range(last)]


def bonus_over_the_last_accepted(item: Planned, logits: LogitRows) -> tuple[list[int], list[int]]:
    tokens, path = walk(item, logits)
    return ([*tokens[:-2], tokens[-1]], path[:-1]) if path and len(path) == len(item.work.draft) else (tokens, path)


def first_unverified(item: Planned, logits: LogitRows) -> tuple[list[int], list[int]]:
    if not item.work.draft.tokens:
        return walk(item, logits)
    return [item.work.draft.tokens[0], sample(item, logits, 1, 1)], [0]


def the_row_before(item: Planned, logits: LogitRows) -> tuple[list[int], list[int]]:
    return walk(item, logits, lambda node: max(0, node))


def siblings_sampled_apart(item: Planned, logits: LogitRows) -> tuple[list[int], list[int]]:
    """Every child is compared with a sample of its own, the last that fits wins."""
    tokens, path, node = [], [], ROOT
    while True:
        tokens.append(sample(item, logits, node + 1, len(path)))
        fits = [
            at
            for at, parent in enumerate(item.work.draft.parents)
            if parent == node and sample(item, logits, node + 1, len(path) + 1000 * at) == item.work.draft.tokens[at]
        ]
        if not fits:
            return tokens, path
        node = fits[-1]
        tokens[-1] = item.work.draft.tokens[node]
        path.append(node)


def advance_by(count: Callable[[Planned, Verified], int]) -> Callable[[Patch], None]:
    """Another number of computed tokens behind the committed ones."""

    def advance(item: Planned, done: Verified) -> None:
        fed = len(item.work.tokens) - len(item.work.draft)
        item.table.advance(min(len(item.work.tokens), fed + count(item, done)))

    return lambda patch: patch.setattr(verification, "advance_table", advance)


def never_moved(patch: Patch) -> None:
    patch.setattr(NullDriver, "move_tokens", lambda driver, sources, targets: None)


def moved_in_turn(patch: Patch) -> None:
    """Backwards, one token after the other, so that what is moved first is overwritten."""

    def move(driver: NullDriver, sources: Sequence[int], targets: Sequence[int]) -> None:
        flat = driver._memory.reshape(-1, 2)
        for source, target in [*zip(sources, targets, strict=True)][::-1]:
            flat[target] = flat[source]

    patch.setattr(NullDriver, "move_tokens", move)


def tree_positions_in_order(patch: Patch) -> None:
    def placement(start: int, count: int, parents: Sequence[int]) -> Placement:
        right = tree_placement(start, count, parents)
        return right._replace(positions=np.arange(len(right.positions)))

    patch.setattr(scheduler, "tree_placement", placement)


def siblings_see_each_other(patch: Patch) -> None:
    def placement(start: int, count: int, parents: Sequence[int]) -> Placement:
        right = tree_placement(start, count, parents)
        rows, width = right.visible.shape
        return right._replace(visible=np.tri(rows, width, width - rows, dtype=bool))

    patch.setattr(scheduler, "tree_placement", placement)


def masks_with(change: Callable[[Masks], None]) -> Callable[[Patch], None]:
    honest = GrammarCursor.masks

    def masks(cursor: GrammarCursor, draft: Draft) -> tuple[Draft, Masks]:
        legal, rows = honest(cursor, draft)
        change(rows)
        return legal, rows

    return lambda patch: patch.setattr(GrammarCursor, "masks", masks)


def no_bonus_mask(rows: Masks) -> None:
    if len(rows) > 1:
        rows[-1] = -1


def first_mask_everywhere(rows: Masks) -> None:
    rows[1:] = rows[0]


def matcher_stays_where_it_walked(patch: Patch) -> None:
    def advance(cursor: GrammarCursor, tokens: Sequence[int]) -> None:
        cursor._walked.clear()
        cursor._matcher.accept(tokens[-1:])

    patch.setattr(GrammarCursor, "advance", advance)


def truncated_uncounted(patch: Patch) -> None:
    honest = Generation._step

    def step(generation: Generation, done: Verified, content: list[int], text: str, kept: int) -> object:
        return replace(honest(generation, done, content, text, kept), truncated=0)

    patch.setattr(Generation, "_step", step)


def rows_with(paths: Callable[[Draft, int], list[int]]) -> Callable[[Patch], None]:
    """Another history of the penalties: the tokens that count for the row behind a node (ROOT: the first row)."""

    def rows(history: History, draft: Draft) -> list[Entries]:
        return [history.entries(paths(draft, node)) for node in range(ROOT, len(draft))]

    return lambda patch: patch.setattr(History, "rows", rows)


def own_path(draft: Draft, node: int) -> list[int]:
    return [] if node == ROOT else [*own_path(draft, draft.parents[node]), draft.tokens[node]]


def history_keeps_the_draft(patch: Patch) -> None:
    honest = History.rows

    def rows(history: History, draft: Draft) -> list[Entries]:
        found = honest(history, draft)
        history.advance(draft.tokens)
        return found

    patch.setattr(History, "rows", rows)


def advance_with(change: Callable[[Sequence[int]], Sequence[int]]) -> Callable[[Patch], None]:
    honest = History.advance
    return lambda patch: patch.setattr(History, "advance", lambda history, tokens: honest(history, change(tokens)))


def prompt_counts_as_output(patch: Patch) -> None:
    honest = History.__init__

    def begin(history: History, penalties: Penalties, prompt: Sequence[int]) -> None:
        honest(history, penalties)
        history.advance(prompt)

    patch.setattr(History, "__init__", begin)


def scores_from(row_of: Callable[[Verified, int], int]) -> Callable[[Patch], None]:
    """The row that the log-probability of emitted token number ``at`` is read from."""

    def scores(generation: Generation, done: Verified, count: int) -> list[TokenLogprob]:
        assert done.logits is not None
        return [token_logprob(done.logits[row_of(done, at)], done.tokens[at], 2) for at in range(count)]

    return lambda patch: patch.setattr(Generation, "_scores", scores)


def scored_behind_the_penalties(patch: Patch) -> None:
    def scores(generation: Generation, done: Verified, count: int) -> list[TokenLogprob]:
        rows, entries = [0, *(node + 1 for node in done.path)], done.work.adjustments
        assert done.logits is not None
        assert entries is not None
        return [
            token_logprob(adjust(done.logits[rows[at]], entries[rows[at]]), done.tokens[at], 2) for at in range(count)
        ]

    patch.setattr(Generation, "_scores", scores)


def reject_with(change: Callable[..., list[int]]) -> Callable[[Patch], None]:
    honest = rejection.reject

    def reject(
        logits: LogitRows, masks: None, sampler: RowSampler, at: int, draft: Sequence[int], q: np.ndarray
    ) -> list[int]:
        return change(honest, logits, sampler, at, draft, q)

    return lambda patch: patch.setattr(rejection, "reject", reject)


def residual_for_the_bonus(
    honest: Callable[..., list[int]],
    logits: LogitRows,
    sampler: RowSampler,
    at: int,
    draft: Sequence[int],
    q: np.ndarray,
) -> list[int]:
    tokens = honest(logits, None, sampler, at, draft, q)
    if len(tokens) == len(draft) + 1 and len(draft):
        p = rejection.distribution(logits[len(draft) - 1], sampler)
        tokens[-1] = rejection._draw(rejection._residual(p, q[-1].astype(float)), sampler.key, at + len(draft))
    return tokens


def p_edited_in_place(patch: Patch) -> None:
    """The residual is taken before the test, in the array that the test reads."""
    honest = rejection._accepts

    def accepts(likely: float, drawn: float, key: int, position: int) -> bool:
        return honest(max(0.0, likely - drawn), drawn, key, position)

    patch.setattr(rejection, "_accepts", accepts)


def u_from_the_drafts_noise(patch: Patch) -> None:
    patch.setattr(rejection, "stream", lambda key, tag: key)


def nothing(patch: Patch) -> None:
    """The fault is the caller's: in the check."""


FAULTS: dict[str, tuple[Callable[[Patch], None], Callable[[], None]]] = {
    "a token is kept behind a rejected one": (verify_with(kept_behind_a_rejected_token), CHAINS),
    "the bonus overwrites the last accepted token": (verify_with(bonus_over_the_last_accepted), CHAINS),
    "the first draft token is not verified": (verify_with(first_unverified), CHAINS),
    "tokens are sampled from the row before": (verify_with(the_row_before), CHAINS),
    "siblings are sampled apart": (verify_with(siblings_sampled_apart), TREES),
    "K and V of all drafted tokens count": (advance_by(lambda item, done: len(item.work.draft)), CHAINS),
    "K and V of a rejected token stay": (advance_by(lambda item, done: len(done.path) + 1), CHAINS),
    "the accepted path is not moved": (never_moved, TREES),
    "the accepted path is moved over itself": (moved_in_turn, TREES),
    "tree nodes have the positions of a chain": (tree_positions_in_order, TREES),
    "siblings see each other": (siblings_see_each_other, TREES),
    "the bonus row has no mask": (masks_with(no_bonus_mask), same_constrained_tokens),
    "all rows have the first row's mask": (masks_with(first_mask_everywhere), same_constrained_tokens),
    "the matcher is not taken back": (matcher_stays_where_it_walked, same_constrained_tokens),
    "penalties: history short of the draft's path": (rows_with(lambda draft, node: []), PENALISED_CHAINS),
    "penalties: history short by the newest draft token": (
        rows_with(lambda draft, node: own_path(draft, node)[:-1]),
        PENALISED_CHAINS,
    ),
    "penalties: each row counts its own token only": (
        rows_with(lambda draft, node: own_path(draft, node)[-1:]),
        PENALISED_CHAINS,
    ),
    "penalties: siblings count": (rows_with(lambda draft, node: list(draft.tokens[: node + 1])), PENALISED_TREES),
    "penalties: rejected tokens stay counted": (history_keeps_the_draft, PENALISED_CHAINS),
    "penalties: accepted tokens are not counted": (advance_with(lambda tokens: tokens[-1:]), PENALISED_CHAINS),
    "penalties: the model's own token is not counted": (
        advance_with(lambda tokens: tokens[:-1] or tokens),
        PENALISED_CHAINS,
    ),
    "penalties: the prompt counts as output": (prompt_counts_as_output, PENALISED_CHAINS),
    "log-probability from the row behind": (
        scores_from(lambda done, at: [*(node + 1 for node in done.path), done.work.rows - 1][at]),
        SCORES,
    ),
    "log-probability from the first row": (scores_from(lambda done, at: 0), SCORES),
    "log-probability by number, not by node": (scores_from(lambda done, at: at), SCORES),
    "log-probability behind the penalties": (scored_behind_the_penalties, SCORES),
    "what is cut off at the end is not counted": (truncated_uncounted, CHAINS),
    "the bonus is drawn from a residual": (reject_with(residual_for_the_bonus), Toy()),
    "p is edited in place": (p_edited_in_place, Toy()),
    "the draft's noise decides and draws the residual": (u_from_the_drafts_noise, Toy(tag=None)),
    "q is taken at another temperature than it was drawn": (nothing, Toy(Sampling(0.4), drawn_at=1.0)),
    "a draft is cut at what was drawn": (nothing, Toy(cut=True)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, monkeypatch: Patch, engines_alive: MutableMapping[Engine, int]) -> None:
    build_in, check = FAULTS[fault]
    build_in(monkeypatch)
    monkeypatch.setattr(
        NullDriver, "checked", property(lambda driver: False, lambda driver, value: None), raising=False
    )
    with pytest.raises((AssertionError, ValueError)):
        check()
    engines_alive.clear()  # what a fault leaves behind holds nothing that could be checked
