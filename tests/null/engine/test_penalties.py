"""Penalties and biases against their definitions, what of a draft they count, and each token's own log-probability."""

from __future__ import annotations

import itertools
import math
import random
import time
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from inferd.protocol import MAX_BIASES, InvalidRequest, LimitExceeded, Sampling
from inferd_grammar.tokens import bit_mask
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.draft_verification import DraftVerification
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling import penalties
from inferd_runtime.engine.sampling.host_sampling import RowSampler, draw, log_softmax
from inferd_runtime.engine.sampling.penalties import History, Penalties, adjust
from inferd_runtime.engine.sampling.rejection import distribution, reject
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft
from inferd_runtime.speculation.times import StepTimes
from inferd_runtime.testing.byte_tokenizer import ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.speculation import Blind, BlindTree, Guesser, Oracle, OracleTree, Request, penalised

SAMPLINGS = {
    "repetition": Sampling(repetition_penalty=1.3),
    "encouraged": Sampling(repetition_penalty=0.1, presence_penalty=-2.0),
    "presence": Sampling(presence_penalty=0.7),
    "frequency": Sampling(frequency_penalty=1.1),
    "bias": Sampling(bias_tokens=(9, 2, 7), bias_values=(-100.0, 0.1, 100.0)),
    "all": Sampling(1.0, 0, 1.0, 0.0, None, 1.7, 0.3, 0.1, (19, 0, 4), (-1.3, 2.0, 0.8)),
}
VOCAB = 20


def penalties_of(name: str) -> Penalties:
    penalties = Penalties.of(SAMPLINGS[name])
    assert penalties is not None
    return penalties


def tree(chance: random.Random, count: int) -> Draft:
    tokens = chance.choices(range(VOCAB), k=count)
    parents = [chance.randint(-1, node - 1) for node in range(count)]
    return Draft(tokens, parents, ["program"] * count, [1.0] * count)


def path_to(draft: Draft, node: int) -> list[int]:
    return [] if node < 0 else [*path_to(draft, draft.parents[node]), draft.tokens[node]]


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 300), marks=pytest.mark.long)])
@pytest.mark.parametrize("many", [penalties.MANY, 3])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_row_of_a_draft_is_adjusted_as_the_definition_says(
    name: str, many: int, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, with the tokens on its own path counted, and nothing of a draft kept. However many come at once."""
    monkeypatch.setattr(penalties, "MANY", many)
    for seed in seeds:
        chance, generator = random.Random(seed), np.random.default_rng(seed)
        prompt, output = chance.choices(range(VOCAB), k=chance.randint(0, 12)), list[int]()
        history = History(penalties_of(name), prompt)
        for _ in range(6):
            draft = tree(chance, chance.randint(0, 9))
            rows = history.rows(draft)
            assert len(rows) == len(draft) + 1
            for node, entries in enumerate(rows, start=-1):
                assert len(set(entries.tokens.tolist())) == len(entries.tokens)
                logits = generator.standard_normal(VOCAB).astype(np.float32) * np.float32(5)
                logits[chance.randrange(VOCAB)] = -np.inf
                before = logits.copy()
                said = [*output, *path_to(draft, node)]
                expected = penalised(logits, penalties_of(name), prompt, said)
                assert adjust(logits, entries).tobytes() == expected.tobytes()
                assert logits.tobytes() == before.tobytes()
            more = chance.choices(range(VOCAB), k=chance.randint(1, 4))
            history.advance(more)
            output += more


def test_the_order_is_penalties_then_bias_then_mask() -> None:
    sampler = RowSampler.resolve(Sampling(0.0, 0, 1.0, 0.0, 1, 2.0, 0.5, 0.25, (1, 3), (1.0, 5.0)), seed=1, lineage=0)
    assert sampler.penalties is not None
    history = History(sampler.penalties, [0, 2])
    history.advance([1, 1])
    entries = history.entries()
    logits = np.array([4.0, 8.0, -1.0, 0.0], np.float32)
    assert adjust(logits, entries).tolist() == [2.0, 8 / 2 + 1 - 0.25 * 2 - 0.5, -2.0, 5.0]
    assert draw(logits, sampler, 0, None, entries) == 3
    assert draw(logits, sampler, 0, bit_mask([0, 1, 2], 4), entries) == 1


def test_a_bias_of_minus_a_hundred_practically_forbids() -> None:
    sampler = RowSampler.resolve(Sampling(1.0, bias_tokens=(1,), bias_values=(-100.0,)), seed=0, lineage=0)
    assert sampler.penalties is not None
    p = distribution(adjust(np.array([0.0, 20.0, 1.0], np.float32), History(sampler.penalties).entries()), sampler)
    assert p[1] < 1e-34
    assert p[0] + p[2] == 1


def test_nothing_to_adjust_copies_nothing() -> None:
    logits = np.zeros(4, np.float32)
    assert adjust(logits, History(penalties_of("presence"), [1, 2]).entries()) is logits
    assert Penalties.of(Sampling(1.0, repetition_penalty=1.0)) is None
    assert RowSampler.resolve(Sampling(1.0), seed=0, lineage=0).penalties is None


def test_a_row_is_made_before_its_history_goes_on() -> None:
    """Whoever holds the entries of a step keeps them while the next step is counted."""
    history = History(penalties_of("all"), [1])
    draft = Draft([4, 1, 5, 5], [-1, 0, 0, 2], ["program"] * 4, [1.0] * 4)
    rows, twin = history.rows(draft), history.rows(draft)
    kept = [[array.copy() for array in entries] for entries in twin]
    history.advance([0, 1, 5])
    for entries, copies in zip(rows, kept, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(entries, copies, strict=True))


def test_a_row_that_nobody_looks_at_is_not_made() -> None:
    """An entry for every token of a vocabulary, times the rows of a draft, would be copied in each step."""
    history = History(penalties_of("all"), range(100_000))
    draft = Draft(list(range(64)), list(range(-1, 63)), ["program"] * 64, [1.0] * 64)
    tracemalloc.start()
    rows = history.rows(draft)
    assert len(rows[0].tokens) == len(rows[63].tokens) == 100_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * sum(array.nbytes for array in rows[0])


def test_a_draft_reads_its_rows_like_a_list() -> None:
    history = History(penalties_of("all"), [1, 2])
    rows = history.rows(Draft([4, 6, 7], [-1, 0, 0], ["program"] * 3, [1.0] * 3))
    for row, path in ((0, []), (1, [4]), (2, [4, 6]), (3, [4, 7]), (-1, [4, 7])):
        assert all(map(np.array_equal, rows[row], history.entries(path)))
    assert len(rows[1:]) == 3
    for row in (4, -5):
        with pytest.raises(IndexError):
            rows[row]


def test_a_long_text_is_not_counted_token_by_token() -> None:
    """It is counted on the engine's thread, and everybody waits."""
    tokens = random.Random(0).choices(range(150_000), k=60_000)

    def seconds(size: int) -> float:
        history, before = History(penalties_of("all")), time.thread_time()
        for first in range(0, len(tokens), size):
            history.advance(tokens[first : first + size])
        return time.thread_time() - before

    at_once, singly = (min(seconds(size) for _ in range(3)) for size in (len(tokens), 1))
    assert 3 * at_once < singly


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty must be a number from 0.01 to 100, not 0.0"),
        ({"repetition_penalty": 101.0}, "repetition_penalty"),
        ({"repetition_penalty": math.nan}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty must be a number from -2 to 2, not 2.1"),
        ({"frequency_penalty": -math.inf}, "frequency_penalty"),
        ({"bias_tokens": (1, 1), "bias_values": (1.0, 2.0)}, "logit_bias names a token twice"),
        ({"bias_tokens": (1,)}, "logit_bias has 1 tokens but 0 values"),
        (
            {"bias_tokens": (1,), "bias_values": (-math.inf,)},
            r"logit_bias\[1\] must be a number from -100 to 100, not -inf",
        ),
        (
            {"bias_tokens": (7,), "bias_values": (100.5,)},
            r"logit_bias\[7\] must be a number from -100 to 100, not 100.5",
        ),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(fields: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        RowSampler.resolve(Sampling(**fields), seed=0, lineage=0)  # type: ignore[arg-type]


def test_too_many_biases_are_refused() -> None:
    tokens = tuple(range(MAX_BIASES + 1))
    with pytest.raises(LimitExceeded, match="logit_bias names 1025 tokens; 1024"):
        RowSampler.resolve(Sampling(bias_tokens=tokens, bias_values=(1.0,) * len(tokens)), seed=0, lineage=0)


def test_rejection_judges_each_token_by_its_own_row() -> None:
    """Where q is exactly what the adjusted rows are drawn from, p / q is 1 and everything stands; else it does not."""
    sampler = RowSampler.resolve(SAMPLINGS["all"], seed=3, lineage=0)
    generator = np.random.default_rng(3)
    parted = 0
    for seed in range(40):
        history = History(penalties_of("all"), random.Random(seed).choices(range(VOCAB), k=5))
        logits = generator.standard_normal((5, VOCAB)).astype(np.float32)
        draft, q = list[int](), []
        for row in logits[:4]:
            q.append(distribution(adjust(row, history.entries(draft)), sampler))
            draft.append(int(q[-1].argmax()))
        rows = [history.entries(draft[:count]) for count in range(5)]
        drawn_from = np.array(q, np.float32)
        assert reject(logits, None, sampler, 9, draft, drawn_from, rows)[:4] == draft
        parted += reject(logits, None, sampler, 9, draft, drawn_from, rows[::-1])[:4] != draft
    assert parted > 0


# -- In the engine ----------------------------------------------------------------------------------------------------


def generate(
    request: Request, drafters: Sequence[Drafter], driver: NullDriver, top: int, named: tuple[int, ...] = ()
) -> Generation:
    engine = Engine(driver, EngineOptions(token_budget=32, times=StepTimes.linear(1.0, 0.0)))
    context = engine.create_context()
    context.append(request.prompt)
    sources = engine.draft_budget.sources(drafters) if drafters else None
    ends = [request.eos]
    spec = GenerationSpec(request.sampler, request.max_tokens, ends, None, sources, logprobs=top, logprob_tokens=named)
    generation = Generation(context, spec, TextAssembler(ByteTokenizer().stream(), ()))
    engine.submit(generation)
    while not generation.finished():
        engine.step()
    assert generation.error is None
    return generation


@pytest.mark.parametrize("guesser", [None, Oracle, OracleTree, Blind, BlindTree])
def test_every_token_tells_its_own_raw_log_probability(guesser: type[Guesser] | None) -> None:
    """Straight from the model's logits behind all that stands before it, whichever row of a draft it was drawn from."""
    accepted = ended = 0
    for seed, (top, named) in itertools.product(range(4), ((0, ()), (3, ()), (3, (7, 1, 0, 5)))):
        model, driver = (NullDriver(vocab_size=9, scale=1.5, seed=seed, order=5) for _ in range(2))
        sampling = Sampling(1.0, 5, 1.0, 0.0, None, 1.4, 0.5, 0.5, (3,), (2.0,))
        sampler = RowSampler.resolve(sampling, seed=seed, lineage=0)
        request = Request((1, 2, 3), sampler, 14, eos=8).answered(model)
        generation = generate(request, [guesser(request, 9, seed)] if guesser else [], driver, top, named)
        steps = generation.take()
        told = [score for step in steps for score in step.logprobs]
        assert all(len(step.logprobs) == len(step.tokens) for step in steps)
        assert tuple(score.token for score in told) == request.tokens
        for at, score in enumerate(told):
            expected = log_softmax(model.logits([*request.prompt, *request.tokens[:at]]))
            best = np.argsort(-expected)
            assert score.logprob == pytest.approx(expected[score.token], abs=1e-5)
            assert score.rank == 1 + best.tolist().index(score.token)
            others = list(named) or best[:top].tolist()
            assert score.top_tokens == others
            assert score.top_logprobs == pytest.approx(expected[others].tolist(), abs=1e-5)
        accepted += generation.counters.accepted
        ended += request.finish == "stop"
    assert accepted >= {None: 0, Oracle: 30, OracleTree: 30}.get(guesser, 1)
    assert ended


def test_verify_by_hand_brings_the_tokens_of_a_generation() -> None:
    """Each step is told how much of the context is output."""
    accepted = 0
    for name, seed in itertools.product(("all", "frequency", "repetition"), range(4)):
        model, driver = (NullDriver(vocab_size=VOCAB, scale=1.5, seed=seed) for _ in range(2))
        sampler = RowSampler.resolve(SAMPLINGS[name], seed=seed, lineage=0)
        request = Request((1, 2, 1), sampler, 30).answered(model)
        engine = Engine(driver, EngineOptions())
        context = engine.create_context()
        context.append(request.prompt)
        while (made := len(context.tokens) - 3) < 30:
            right = [*request.tokens[made : made + 4]]
            draft = [*right[:2], (right[-1] + 1) % VOCAB, *right[:3]] if seed % 2 else right
            parents = [-1, *range(len(right[:2])), -1, *range(len(right[:2]) + 1, len(draft) - 1)] if seed % 2 else []
            job = DraftVerification(context, draft, parents[: len(draft)], sampler, generated=made)
            engine.submit(job)
            while not job.finished():
                engine.step()
            assert job.error is None
            accepted += len(job.accepted)
        assert tuple(context.tokens[3:33]) == request.tokens
    assert accepted > 100


def test_verify_refuses_more_output_than_the_context_holds() -> None:
    context = Engine(NullDriver(), EngineOptions()).create_context()
    context.append([1, 2])
    sampler = RowSampler.resolve(SAMPLINGS["all"], seed=0, lineage=0)
    for generated in (-1, 3):
        with pytest.raises(InvalidRequest, match=f"generated = {generated}"):
            DraftVerification(context, [], [], sampler, generated=generated)


def test_a_generation_without_penalties_keeps_the_short_way() -> None:
    context = Engine(NullDriver(), EngineOptions()).create_context()
    context.append([1, 2])
    plain = GenerationSpec(RowSampler.resolve(Sampling(1.0), seed=0, lineage=0), 5, ())
    work = Generation(context, plain, TextAssembler(ByteTokenizer().stream(), ())).work(8, NO_DRAFT)
    assert work.adjustments is None
    assert not work.scored
