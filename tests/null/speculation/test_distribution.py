"""The joint distribution of what the engine brings with drafts is the model's, through the step loop: every verifier.

Sequences of three tokens in one chi-square test. ``tests/cpu/kernels`` has the same for the verifiers alone with a million
sequences per case, and shows that they bring the engine's tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from distribution import ToyTarget, p_value, plain_distribution, sequence_counts, total_variation

from inferd.protocol import Sampling
from inferd_grammar import Compiled, GrammarCompiler, RegexGrammar, TokenTable
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.sampling.host_sampling import LogitRows, RowSampler
from inferd_runtime.engine.sampling.noise import gumbel, stream
from inferd_runtime.engine.sampling.penalties import History, Penalties
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import ROOT, Proposal
from inferd_runtime.speculation.times import Profile, StepTimes
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE, ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.speculation import GenerationUnderTest, Request, penalised

LENGTH = 3
SIGNIFICANCE = 0.001 / 20
FREE_ROWS = StepTimes.linear(1.0, 0.0)
Q = Callable[[NullDriver, Sampling, int], np.ndarray]
"""float64[V]: what a draft token behind the last one is drawn from."""


def near(driver: NullDriver, sampling: Sampling, last: int) -> np.ndarray:
    """A model that is related to the target, with the same sampler."""
    other = np.random.default_rng(last).standard_normal(driver.vocab_size).astype(np.float32)
    everything = np.ones(driver.vocab_size, bool)
    return plain_distribution(driver.logits([last]) + other, sampling, everything)


def uneven(driver: NullDriver, sampling: Sampling, last: int) -> np.ndarray:
    """Most of it on token 3, a little on 1, whatever the target thinks."""
    q = np.zeros(driver.vocab_size)
    q[[1, 3]] = 0.3, 0.7
    return q


def itself(driver: NullDriver, sampling: Sampling, last: int) -> np.ndarray:
    """The target."""
    return plain_distribution(driver.logits([last]), sampling, np.ones(driver.vocab_size, bool))


class Sampled(Drafter):
    """A draft model that samples: with noise of its own and with the probabilities, or with the target's noise and without."""

    source = "draft_model"

    def __init__(
        self, driver: NullDriver, sampling: Sampling, q: Q, key: int, *, shared: bool = False, beside: int = 0
    ) -> None:
        self.driver, self.sampling, self.q = driver, sampling, q
        self.key = key if shared else stream(key, 12345)
        self.shared, self.beside = shared, beside
        self.tokens: list[int] = []

    def observe(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        path = [*self.tokens, *ahead]
        start, rows = len(path), []
        for _ in range(limit):
            rows.append(self.q(self.driver, self.sampling, path[-1]))
            likely = np.flatnonzero(rows[-1])
            path.append(int(likely[np.argmax(np.log(rows[-1][likely]) + gumbel(self.key, len(path), likely))]))
        if self.shared:
            # Other tokens stand beside the first.
            wrong = [(path[start] + 1 + at) % self.driver.vocab_size for at in range(self.beside)]
            parents = [*range(ROOT, limit - 1), *[ROOT] * len(wrong)]
            return Proposal(
                [*path[start:], *wrong][: 2 * limit], parents[: 2 * limit], confidence=[1.0] * len(parents[: 2 * limit])
            )
        return Proposal(path[start:], probabilities=np.array(rows, np.float32))


def brought(
    driver: NullDriver,
    sampling: Sampling,
    runs: int,
    make: Callable[[int], Drafter],
    eos: int,
    grammar: Compiled | None = None,
    times: StepTimes = FREE_ROWS,
    together: int = 100,
) -> np.ndarray:
    """int64[runs, LENGTH]: what generations bring, so many at a time in one engine; the end of text fills up what it ends."""
    engine = Engine(driver, EngineOptions(token_budget=2000, times=times))
    found = []
    for first in range(0, runs, together):
        running = []
        for seed in range(first, first + together):
            sampler = RowSampler.resolve(sampling, seed=seed, lineage=0)
            context = engine.create_context()
            context.append([0])
            request = Request((0,), sampler, LENGTH, eos, "", grammar)
            running.append(GenerationUnderTest.submit(engine, context, request, [make(sampler.key)]))
        while engine.step():
            pass
        for one in running:
            one.take()
            found.append([*one.tokens, *[eos] * (LENGTH - len(one.tokens))])
            assert one.generation.error is None
            one.generation.close()
            one.generation.context.release()
    return np.array(found)


def check(found: np.ndarray, alphabet: Sequence[int], exact: ToyTarget, first: int) -> None:
    letters = np.searchsorted(alphabet, found)
    assert np.array_equal(np.asarray(alphabet)[letters], found)
    counts, joint = sequence_counts(letters, len(alphabet)), exact.joint(first)
    assert p_value(counts, joint) > SIGNIFICANCE, f"total variation {total_variation(counts, joint):.4f}"


def free_target(driver: NullDriver, sampling: Sampling, eos: int) -> ToyTarget:
    """Of all tokens; behind the end of text nothing else comes."""
    rows = [
        plain_distribution(driver.logits([last]), sampling, np.ones(driver.vocab_size, bool))
        for last in range(driver.vocab_size)
    ]
    if eos < driver.vocab_size:
        rows[eos] = np.eye(driver.vocab_size)[eos]
    return ToyTarget(np.array([rows] * LENGTH))


def driver_of(vocab: int) -> NullDriver:
    return NullDriver(vocab_size=vocab, scale=1.0, seed=3, order=1, pages=1000)


WARM = Sampling(1.0)
CASES = {
    "shared noise": (near, WARM, {"shared": True}, END),
    "shared noise in a tree": (near, WARM, {"shared": True, "beside": 2}, END),
    "rejection": (near, WARM, {}, END),
    "rejection, filtered": (near, Sampling(1.3, top_k=4, top_p=0.95), {}, END),
    "rejection, p == q": (itself, WARM, {}, END),
    "rejection, uneven": (uneven, WARM, {}, END),
    "shared noise and the end of text": (near, WARM, {"shared": True}, 3),
}


@pytest.mark.parametrize("runs", [800, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", CASES)
def test_the_engine_brings_the_models_distribution(name: str, runs: int) -> None:
    q, sampling, how, eos = CASES[name]
    driver = driver_of(5)
    found = brought(driver, sampling, runs, lambda key: Sampled(driver, sampling, q, key, **how), eos, None)
    check(found, range(5), free_target(driver, sampling, eos), 0)


PENALISED = Sampling(1.0, repetition_penalty=1.4, frequency_penalty=1.0, bias_tokens=(2,), bias_values=(0.7,))


def penalised_joint(driver: NullDriver, sampling: Sampling) -> np.ndarray:
    """float64[V ** LENGTH]: the probability of every sequence behind the prompt [0], in lexical order."""
    penalties, vocab = Penalties.of(sampling), driver.vocab_size
    assert penalties is not None
    joint = []
    for sequence in itertools.product(range(vocab), repeat=LENGTH):
        chance = 1.0
        for at, token in enumerate(sequence):
            row = driver.logits([0, *sequence[:at]])
            row = penalised(row, penalties, [0], sequence[:at])
            chance *= plain_distribution(row, sampling, np.ones(vocab, bool))[token]
        joint.append(chance)
    return np.array(joint)


def penalised_p_value(name: str, runs: int) -> float:
    q, _, how, _ = CASES[name]
    driver = driver_of(5)
    found = brought(driver, PENALISED, runs, lambda key: Sampled(driver, WARM, q, key, **how), END)
    return p_value(sequence_counts(found, 5), penalised_joint(driver, PENALISED))


@pytest.mark.parametrize("runs", [800, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["shared noise in a tree", "rejection", "rejection, uneven"])
def test_penalties_are_part_of_the_distribution(name: str, runs: int) -> None:
    """The draft model knows nothing of them."""
    assert penalised_p_value(name, runs) > SIGNIFICANCE


def test_penalties_of_the_first_row_on_all_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(History, "rows", lambda history, draft: [history.entries()] * (len(draft) + 1))
    assert penalised_p_value("rejection", 800) < SIGNIFICANCE


def test_a_rejection_sampled_draft_with_the_end_of_text_in_it() -> None:
    """The draft ends there because of what was drawn; that it was drawn has to be told to the verifier."""
    driver = driver_of(5)
    found = brought(driver, WARM, 2000, lambda key: Sampled(driver, WARM, uneven, key), 3, None)
    check(found, range(5), free_target(driver, WARM, 3), 0)


class TableDriver(NullDriver):
    """Tokens of known probabilities."""

    TABLE = np.array(
        [[0.35, 0.13, 0.12, 0.05, 0.35], [0.2] * 5, [0.05, 0.05, 0.8, 0.05, 0.05], [0.2] * 5, [0.2] * 5], np.float32
    )

    def logits(self, history: list[int]) -> LogitRows:
        return np.asarray(np.log(self.TABLE[history[-1] % 5]))


def test_a_rejection_sampled_draft_where_only_long_drafts_pay() -> None:
    """Behind 1 the draft model ends the text, behind 2 it goes on: whether 1 or 2 is verified must not depend on that."""
    driver = TableDriver(vocab_size=5, order=1)

    def q(driver: NullDriver, sampling: Sampling, last: int) -> np.ndarray:
        rows = np.eye(5)[[1, 3, 2, 1, 1]]
        rows[0, 2] = 1.0
        return np.asarray(rows[last] / rows[last].sum())

    seconds = np.array([[1.0, 1.27, 1.27, 1.27], [2.0, 2.54, 2.54, 2.54]])
    times = StepTimes(Profile((1, 2), (1, 2, 3, 4), seconds), learns=False)
    found = brought(driver, WARM, 2000, lambda key: Sampled(driver, WARM, q, key), 3, None, times, together=1)
    check(found, range(5), free_target(driver, WARM, 3), 0)


@pytest.mark.parametrize("runs", [1500, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_rejection_sampled_draft_under_a_grammar(runs: int) -> None:
    """Most drafts are cut at an illegal token."""
    places, alphabet = ("abc", "abd", "acd"), [*b"abcd"]
    table = TokenTable.from_tokenizer_json(ByteTokenizer.tokenizer_json(), vocab_size=VOCAB_SIZE, eos_ids=[END])
    compiled = GrammarCompiler(table).compile(RegexGrammar("".join(f"[{place}]" for place in places)))
    driver = driver_of(VOCAB_SIZE)

    def q(driver: NullDriver, sampling: Sampling, last: int) -> np.ndarray:
        row = np.zeros(VOCAB_SIZE)
        row[[*alphabet, 200]] = 0.1, 0.4, 0.2, 0.2, 0.1
        return row

    def legal(place: str, last: int) -> np.ndarray:
        allowed = np.isin(np.arange(VOCAB_SIZE), [*place.encode()])
        return plain_distribution(driver.logits([last]), WARM, allowed)[alphabet]

    exact = ToyTarget(np.array([[legal(place, last) for last in alphabet] for place in places]))
    exact.table[0, 0] = legal(places[0], 0)
    found = brought(driver, WARM, runs, lambda key: Sampled(driver, WARM, q, key), END, compiled)
    check(found, alphabet, exact, 0)
