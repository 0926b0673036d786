"""The verifiers and the processing in torch against the engine's own NumPy, row by row and token by token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from inferd.protocol import InvalidRequest, Sampling
from inferd_grammar.tokens import bit_mask
from inferd_runtime.engine.sampling import noise as engine_noise
from inferd_runtime.engine.sampling.host_sampling import RowSampler, allowed_tokens, candidates, draw
from inferd_runtime.engine.sampling.rejection import reject
from inferd_runtime.kernels import noise
from inferd_runtime.kernels.processing import process
from inferd_runtime.kernels.verify import ACCEPT, PAD, RESIDUAL, Drafts, Noise, Verdict, Verifier, agreement, rejection

SAMPLINGS = [
    Sampling(),
    Sampling(1.0),
    Sampling(0.3),
    Sampling(1.5, top_k=3),
    Sampling(0.8, top_p=0.7),
    Sampling(1.2, min_p=0.2),
    Sampling(0.9, top_k=5, top_p=0.9, min_p=0.05),
]
WORDS = [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15]


def resolved(seed: int = 0) -> list[RowSampler]:
    return [RowSampler.resolve(each, seed=seed, lineage=0) for each in SAMPLINGS]


def processed(logits: np.ndarray, samplers: Sequence[RowSampler], masks: np.ndarray | None = None) -> torch.Tensor:
    """Rows float32[N, V] with a sampler each."""
    return process(
        torch.from_numpy(logits),
        temperature=torch.tensor([each.temperature for each in samplers], dtype=torch.float64),
        top_k=torch.tensor([each.top_k for each in samplers]),
        top_p=torch.tensor([each.top_p for each in samplers], dtype=torch.float64),
        min_p=torch.tensor([each.min_p for each in samplers], dtype=torch.float64),
        masks=None if masks is None else torch.from_numpy(masks),
    )


def random_masks(generator: np.random.Generator, rows: int, vocab: int) -> np.ndarray:
    """At least one token each; some allow exactly one."""
    chosen = [generator.integers(vocab, size=generator.integers(1, vocab)) for _ in range(rows)]
    return np.stack([bit_mask(np.unique(tokens).tolist(), vocab) for tokens in chosen])


@pytest.mark.parametrize("key", WORDS)
def test_the_noise_is_the_engines_bit_for_bit(key: int) -> None:
    tokens = np.concatenate([np.arange(1000), [151_935, 2**31]])
    for position in (0, 1, 4095, 2**40):
        for tagged, mine in ((key, noise.key_tensor([key])), (engine_noise.stream(key, 77), None)):
            keys = noise.stream(noise.key_tensor([key]), 77) if mine is None else mine
            got = noise.uniform(keys, torch.tensor([position]), torch.from_numpy(tokens))
            assert np.array_equal(got.numpy(), engine_noise.uniform(tagged, position, tokens))
            drawn = noise.gumbel(keys, torch.tensor([position]), torch.from_numpy(tokens)).numpy()
            np.testing.assert_allclose(drawn, engine_noise.gumbel(tagged, position, tokens), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("vocab", [2, 5, 32, 33, 700])
def test_processing_is_the_engines_row_by_row(vocab: int) -> None:
    generator = np.random.default_rng(vocab)
    samplers = resolved() * 12
    rows = (generator.standard_normal((len(samplers), vocab)) * 3).astype(np.float32)
    rows[::3] = np.round(rows[::3])  # ties
    masks = random_masks(generator, len(rows), vocab)
    for given in (None, masks):
        scores = processed(rows, samplers, given).numpy()
        for at, (row, sampler) in enumerate(zip(rows, samplers, strict=True)):
            inside = np.arange(vocab) if given is None else allowed_tokens(given[at], vocab)
            if sampler.temperature == 0:
                places, expected = np.array([np.argmax(row[inside])]), np.zeros(1)
            else:
                places, expected = candidates(row[inside], sampler)
            assert np.flatnonzero(scores[at] > -np.inf).tolist() == inside[places].tolist()
            assert np.array_equal(scores[at][inside[places]], expected)


def test_a_row_whose_mask_allows_nothing_gives_no_token() -> None:
    samplers = resolved()
    scores = processed(np.zeros((len(samplers), 40), np.float32), samplers, np.zeros((len(samplers), 2), np.int32))
    assert bool((scores == -torch.inf).all())
    drafts = Drafts(torch.zeros(len(samplers), 1, dtype=torch.int64), torch.ones(len(samplers), dtype=torch.int64))
    where = Noise(torch.arange(len(samplers)), torch.zeros(len(samplers), dtype=torch.int64))
    for verifier in (agreement, rejection):
        done = verifier(scores[:, None].expand(-1, 2, -1), drafts, where)
        assert done.accepted.tolist() == [0] * len(samplers)
        assert set(done.tokens.flatten().tolist()) == {PAD}


class Case:
    """A ragged batch of drafts with random logits, masks, samplers and positions, most of them close to the target."""

    def __init__(self, seed: int, batch: int = 42, width: int = 4, vocab: int = 9) -> None:
        generator = np.random.default_rng(seed)
        self.samplers = [
            RowSampler.resolve(SAMPLINGS[at % len(SAMPLINGS)], seed=seed * 1000 + at, lineage=at % 3)
            for at in range(batch)
        ]
        self.logits = (generator.standard_normal((batch, width + 1, vocab)) * 1.5).astype(np.float32)
        self.masks = random_masks(generator, batch * (width + 1), vocab).reshape(batch, width + 1, -1)
        self.positions = generator.integers(0, 5000, size=batch)
        self.lengths = generator.integers(0, width + 1, size=batch)
        near = self.logits[:, :width] + generator.standard_normal((batch, width, vocab)).astype(np.float32) * 0.5
        q = np.exp(near.astype(np.float64))
        self.q = (q / q.sum(axis=2, keepdims=True)).astype(np.float32)
        self.tokens = np.array(
            [[generator.choice(vocab, p=r / r.sum()) for r in rows] for rows in self.q.astype(float)]
        )
        self.generator = generator

    def target(self) -> torch.Tensor:
        rows = self.logits.shape[1]
        samplers = [sampler for sampler in self.samplers for _ in range(rows)]
        flat = processed(self.logits.reshape(len(samplers), -1), samplers, self.masks.reshape(len(samplers), -1))
        return flat.reshape(self.logits.shape)

    def run(self, verifier: Verifier, parents: np.ndarray | None = None, q: np.ndarray | None = None) -> Verdict:
        drafts = Drafts(
            torch.from_numpy(self.tokens),
            torch.from_numpy(self.lengths),
            None if parents is None else torch.from_numpy(parents),
            None if q is None else torch.from_numpy(q),
        )
        keys = noise.key_tensor([sampler.key for sampler in self.samplers])
        return verifier(self.target(), drafts, Noise(keys, torch.from_numpy(self.positions)))

    def sample(self, at: int, row: int, depth: int) -> int:
        return draw(self.logits[at, row], self.samplers[at], int(self.positions[at]) + depth, self.masks[at, row])


def emitted(done: Verdict, at: int) -> list[int]:
    tokens = done.tokens[at].tolist()
    count = int(done.accepted[at]) + 1
    assert tokens[count:] == [PAD] * (len(tokens) - count)
    return tokens[:count]


@pytest.mark.parametrize("seed", range(6))
def test_agreement_on_chains_is_the_engines_sampler_row_after_row(seed: int) -> None:
    case = Case(seed)
    # Half of the drafts are the answer up to some point.
    for at in range(0, len(case.tokens), 2):
        for row in range(case.tokens.shape[1] - at % 3):
            case.tokens[at, row] = case.sample(at, row, row)
    done = case.run(agreement)
    for at, length in enumerate(case.lengths):
        expected: list[int] = []
        for row in range(length + 1):
            expected.append(case.sample(at, row, row))
            if row == length or expected[-1] != case.tokens[at, row]:
                break
        assert emitted(done, at) == expected
        assert done.path[at].tolist() == [*range(len(expected) - 1), *[PAD] * (4 - len(expected) + 1)]
    assert 0 < int(done.accepted.sum()) < case.lengths.sum()


def random_trees(generator: np.random.Generator, batch: int, width: int) -> np.ndarray:
    return np.stack([[generator.integers(-1, node) if node else -1 for node in range(width)] for _ in range(batch)])


@pytest.mark.parametrize("seed", range(6))
def test_agreement_on_trees_walks_from_child_to_child(seed: int) -> None:
    case = Case(seed, width=7, vocab=4)
    parents = random_trees(case.generator, *case.tokens.shape)
    done = case.run(agreement, parents)
    for at, length in enumerate(case.lengths):
        node, path, expected = -1, [], []
        while True:
            expected.append(case.sample(at, node + 1, len(path)))
            below = [n for n in range(length) if parents[at, n] == node and case.tokens[at, n] == expected[-1]]
            if not below:
                break
            node = below[0]
            path.append(node)
        assert emitted(done, at) == expected
        assert done.path[at].tolist() == path + [PAD] * (7 - len(path))
    assert done.accepted.sum() > 10


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("certain", [False, True], ids=["q", "one-hot"])
def test_rejection_emits_the_engines_tokens(seed: int, certain: bool) -> None:
    case = Case(seed)
    done = case.run(rejection, q=None if certain else case.q)
    for at, length in enumerate(case.lengths):
        expected = reject(
            case.logits[at, : length + 1], case.masks[at, : length + 1], case.samplers[at], int(case.positions[at]),
            case.tokens[at, :length].tolist(), None if certain else case.q[at, :length],
        )  # fmt: skip
        assert emitted(done, at) == expected
    assert 0 < int(done.accepted.sum()) < case.lengths.sum()


def test_rejection_refuses_trees_by_name() -> None:
    case = Case(0)
    with pytest.raises(InvalidRequest, match=r"rejection verifier takes chains.*agreement"):
        case.run(rejection, np.zeros_like(case.tokens) - 1)


@pytest.mark.parametrize("verifier", [agreement, rejection])
def test_what_stands_behind_the_length_is_not_looked_at(verifier: Verifier) -> None:
    one, other = Case(3), Case(3)
    other.tokens[np.arange(4) >= other.lengths[:, None]] = PAD
    q = None if verifier is agreement else one.q
    first, second = one.run(verifier, q=q), other.run(verifier, q=q)
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.accepted, second.accepted)
    alone = Case(3)
    alone.lengths[:] = 0
    done = alone.run(verifier, q=q)
    assert done.accepted.tolist() == [0] * len(alone.lengths)
    assert bool((done.tokens[:, 1:] == PAD).all())


def test_equal_distributions_are_always_accepted_and_disjoint_ones_never() -> None:
    """float64 probabilities as q, so that p == q to the bit."""
    batch, width, vocab = 500, 3, 6
    keys, start = torch.arange(batch) * 7919, torch.zeros(batch, dtype=torch.int64)
    tokens = torch.randint(0, 3, (batch, width), generator=torch.Generator().manual_seed(1))
    lengths = torch.full((batch,), width)
    p = torch.full((batch, width + 1, vocab), -torch.inf, dtype=torch.float64)
    p[:, :, :3] = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    same = rejection(p, Drafts(tokens, lengths, None, p[:, :-1].softmax(dim=2)), Noise(keys, start))
    assert same.accepted.tolist() == [width] * batch
    assert same.tokens.max() == 2
    elsewhere = p.flip(2)
    apart = rejection(elsewhere, Drafts(tokens, lengths, None, p[:, :-1].softmax(dim=2)), Noise(keys, start))
    assert apart.accepted.tolist() == [0] * batch
    assert apart.tokens[:, 0].min() == 3


def test_a_probability_of_zero_never_stands_and_never_comes_out() -> None:
    """Whatever q says, even 0 for the token that was drawn: float32 may have rounded it away."""
    batch, vocab = 300, 5
    target = torch.zeros(batch, 2, vocab, dtype=torch.float64)
    target[:, :, 2] = -torch.inf
    tokens = torch.tensor([[2], [1]]).repeat(batch // 2, 1)
    q = torch.zeros(batch, 1, vocab)
    q[:, :, 0] = 1.0
    drafts = Drafts(tokens, torch.ones(batch, dtype=torch.int64), None, q)
    done = rejection(target, drafts, Noise(torch.arange(batch), torch.zeros(batch, dtype=torch.int64)))
    assert done.accepted.tolist() == [0, 1] * (batch // 2)
    assert 2 not in done.tokens.flatten().tolist()


def test_the_streams_of_the_verifier_and_of_the_sampler_are_independent() -> None:
    """Correlations of 20,000 numbers each are within four standard errors of zero."""
    keys, places = torch.arange(20_000), torch.zeros(1, dtype=torch.int64)
    rows = [
        noise.uniform(each, places, places) for each in (keys, noise.stream(keys, ACCEPT), noise.stream(keys, RESIDUAL))
    ]
    for one, other in itertools.combinations(rows, 2):
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 4 / 20_000**0.5
