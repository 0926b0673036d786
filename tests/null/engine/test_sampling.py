"""What top_p and min_p leave, and what a mask does, against the definitions written down plainly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferd.masks import pack_bits
from inferd.protocol import ConstraintError, InvalidRequest, Sampling
from inferd_grammar.tokens import bit_mask
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.sampling.device_sampling import (
    ABSENT,
    Rejecting,
    SampledTokens,
    merged,
    read_sampled,
    sampling_inputs,
)
from inferd_runtime.engine.sampling.host_sampling import RowSampler, allowed_tokens, candidates, draw, log_softmax
from inferd_runtime.engine.sampling.noise import GOLDEN, MASK, RARE, gumbel, gumbel_argmax, mix, uniform
from inferd_runtime.engine.sampling.penalties import Penalties
from inferd_runtime.engine.sampling.probes import most_likely, read_mask
from inferd_runtime.engine.sampling.rejection import distribution, reject
from inferd_runtime.engine.stages import Work
from inferd_runtime.engine.verification import verify_rows
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.speculation.drafts import Draft


def plainly(logits: np.ndarray, temperature: float, top_p: float, min_p: float) -> list[int]:
    """Sort everything, add up until top_p is reached, keep ties; then min_p of the most likely one."""
    scores = (logits.astype(np.float64) - logits.max()) / temperature
    probabilities = np.exp(scores)
    ordered = np.sort(probabilities)[::-1]
    reached = int(np.searchsorted(np.cumsum(ordered), top_p * probabilities.sum()))
    bound = ordered[min(reached, ordered.size - 1)] if top_p < 1 else 0.0
    with np.errstate(divide="ignore"):
        return np.flatnonzero((probabilities >= bound) & (scores >= np.log(min_p))).tolist()


@pytest.mark.parametrize("spread", [0.0, 0.1, 2.0, 30.0])
@pytest.mark.parametrize("top_p", [1e-20, 0.05, 0.5, 0.9, 0.999999, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 1e-30, 0.02, 1.0])
def test_the_nucleus_is_that_of_a_full_sort(spread: float, top_p: float, min_p: float) -> None:
    generator = np.random.default_rng(7)
    for size in (1, 2, 50, 3000):
        logits = (generator.standard_normal(size) * spread).astype(np.float32)
        logits[: size // 3] = np.round(logits[: size // 3])  # ties
        for temperature in (0.3, 1.0, 1.5):
            sampler = RowSampler.resolve(Sampling(temperature, 0, top_p, min_p), seed=0, lineage=0)
            tokens, scores = candidates(logits, sampler)
            assert tokens.tolist() == plainly(logits, temperature, top_p, min_p)
            assert scores.max() == 0


@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("size", [31, 32, 3001])
def test_a_mask_means_minus_infinity_elsewhere(size: int, share: float) -> None:
    generator = np.random.default_rng(11)
    for position in range(8):
        logits = np.round(generator.standard_normal(size).astype(np.float32), 1)  # ties
        allowed = np.unique(np.append(np.flatnonzero(generator.random(size) < share), generator.integers(size)))
        mask = bit_mask(allowed.tolist(), size)
        assert allowed_tokens(mask, size).tolist() == allowed.tolist()
        plain = np.full(size, -np.inf, np.float32)
        plain[allowed] = logits[allowed]
        for sampling in (
            Sampling(0),
            Sampling(1.0),
            Sampling(0.7, 5),
            Sampling(1.2, 0, 0.8),
            Sampling(1.0, 0, 1.0, 0.1),
        ):
            sampler = RowSampler.resolve(sampling, seed=position, lineage=0)
            assert draw(logits, sampler, position, mask) == draw(plain, sampler, position)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_that_allows_nothing_is_an_error(temperature: float) -> None:
    """Bits behind the vocabulary are nothing, too."""
    sampler = RowSampler.resolve(Sampling(temperature), seed=0, lineage=0)
    for mask in (bit_mask([], 40), bit_mask([50], 64)):
        with pytest.raises(ConstraintError):
            draw(np.zeros(40, np.float32), sampler, 0, mask)


@pytest.mark.parametrize("k", [0, 1, 2, 7, 500, 2999, 3000, 3001])
def test_the_most_likely_are_those_of_a_stable_sort(k: int) -> None:
    generator = np.random.default_rng(k)
    for scores in (generator.standard_normal(3000), generator.integers(0, 400, 3000).astype(float), np.zeros(3000)):
        assert most_likely(scores, k).tolist() == np.argsort(-scores, kind="stable")[:k].tolist()


@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0), Sampling(temperature=1.0, top_p=0.5)])
@pytest.mark.parametrize("masked", [False, True])
def test_logits_that_are_no_numbers_are_no_token(odd: float, sampling: Sampling, masked: bool) -> None:
    """An adapter whose products overflow was answered with token 0, and as an internal error where a share was drawn."""
    logits = np.linspace(0, 1, 64, dtype=np.float32)
    logits[5] = odd
    mask = bit_mask([5, 9], 64) if masked else None
    with pytest.raises(FloatingPointError, match="no finite numbers"):
        draw(logits, RowSampler.resolve(sampling, seed=1, lineage=0), 0, mask)


def test_log_probabilities_do_not_overflow() -> None:
    assert log_softmax(np.asarray([1000, 1000, -1000], np.float32)).tolist() == pytest.approx(
        [-np.log(2), -np.log(2), -2000 - np.log(2)]
    )


def test_a_mask_in_bits_may_be_shorter_than_the_vocabulary_but_name_nobody_outside() -> None:
    short = read_mask(None, pack_bits(b"\x05"), 10)
    assert short is not None
    assert short.tolist() == [True, False, True] + [False] * 7
    exact = read_mask(None, pack_bits(b"\x05\x02"), 10)
    assert exact is not None
    assert (np.flatnonzero(exact).tolist(), len(exact)) == ([0, 2, 9], 10)
    with pytest.raises(InvalidRequest, match="mask: token id 10 is outside the vocabulary of 10"):
        read_mask(None, pack_bits(b"\x05\x84"), 10)
    assert read_mask(None, "", 10) is None


def test_argmax_has_probability_one() -> None:
    greedy = RowSampler.resolve(Sampling(), seed=0, lineage=0)
    assert distribution(np.asarray([1, 3, 2], np.float32), greedy).tolist() == [0, 1, 0]
    assert distribution(np.asarray([1, 3, 2], np.float32), greedy, bit_mask([0, 2], 3)).tolist() == [0, 0, 1]


def test_a_draft_without_probabilities_is_certain() -> None:
    greedy = RowSampler.resolve(Sampling(), seed=0, lineage=0)
    logits = np.asarray([[0, 9, 0], [9, 0, 0]], np.float32)
    assert reject(logits, None, greedy, 5, [1], None) == [1, 0]
    assert reject(logits, None, greedy, 5, [2], None) == [1]
    warm, counts = [RowSampler.resolve(Sampling(1.0), seed=seed, lineage=0) for seed in range(400)], [0, 0, 0]
    for sampler in warm:
        counts[reject(np.zeros((2, 3), np.float32), None, sampler, 5, [1], None)[0]] += 1
    assert min(counts) > 100, "each a third, whatever is drafted"


def test_what_is_rejection_sampled_replaces_what_agreed() -> None:
    agreed = SampledTokens(np.asarray([1, 0]), np.asarray([[5, 6], [7, -1]]), np.asarray([[1], [-1]]))
    rejecting = Rejecting(np.asarray([1]), np.asarray([3]), np.asarray([2]), np.asarray([[8, 9]]), np.zeros((1, 2, 4)))
    found = merged(agreed, rejecting, np.asarray([2]), np.asarray([[8, 9, 3]]))
    assert found.accepted.tolist() == [1, 2]
    assert found.tokens.tolist() == [[5, 6, -1], [8, 9, 3]]
    assert found.path.tolist() == [[1, 1], [0, 1]]
    short = rejecting._replace(rows=np.asarray([2]))
    assert merged(agreed, short, np.asarray([2]), np.asarray([[8, 9, 3]])).accepted.tolist() == [1, 1], (
        "no row for a third"
    )
    wide = SampledTokens(np.asarray([0, 0]), np.full((2, 4), 4), np.full((2, 3), 2))
    assert merged(wide, rejecting, np.asarray([1]), np.asarray([[8, 9, 3]])).tokens.tolist() == [[4] * 4, [8, 9, 3, 4]]


def test_seeds_have_noise_of_their_own() -> None:
    keys = {
        RowSampler.resolve(Sampling(), seed=seed, lineage=lineage).key for seed in range(9) for lineage in (0, 1, 2)
    }
    assert len(keys) == 27


def test_noise_of_many_tokens_is_that_of_each() -> None:
    """The vectorised mixer against the plain one, which the kernels' noise is held against, too."""
    tokens = np.asarray([0, 1, 2, 255, 1 << 20], np.int64)
    row = mix(mix(7) ^ 3)
    plain = [((mix((row + token * GOLDEN) & MASK) >> 12) + 0.5) * 2.0**-52 for token in tokens.tolist()]
    assert uniform(7, 3, tokens).tolist() == plain
    assert gumbel(7, 3, tokens).tolist() == pytest.approx([-np.log(-np.log(number)) for number in plain])


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, RARE, 40.0])
@pytest.mark.parametrize("size", [1, 7, 5000])
def test_noise_that_cannot_win_is_left_out_and_the_same_token_wins(spread: float, size: int) -> None:
    """The draw against its plain twin, which takes the logarithms of all: flat rows, peaked ones, and ties."""
    generator = np.random.default_rng(size)
    for position in range(200):
        tokens = np.sort(generator.choice(1 << 20, size, replace=False))
        scores = np.round(generator.normal(size=size) * spread, position % 4)
        scores -= scores.max()
        assert gumbel_argmax(scores, 7, position, tokens) == np.argmax(scores + gumbel(7, position, tokens))


def rows_of(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.normal(size=(count, 16)).astype(np.float32)


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_each_row_of_a_rejection_draws_with_the_noise_of_its_own_position(taken: int) -> None:
    """Behind accepted tokens it goes on as if it had begun there. Otherwise draws of neighbouring steps would depend on each
    other.
    """
    generator = np.random.default_rng(4)
    for seed in range(40):
        sampler = RowSampler.resolve(Sampling(temperature=1.0), seed=seed, lineage=0)
        logits, draft = rows_of(generator, 5), generator.integers(0, 16, 4).tolist()
        q = np.asarray([distribution(row, sampler) for row in rows_of(generator, 4)], np.float32)
        q[:taken] *= 1e-6  # certain to be accepted
        whole = reject(logits, None, sampler, 9, draft, q)
        assert whole[:taken] == draft[:taken]
        assert whole[taken:] == reject(logits[taken:], None, sampler, 9 + taken, draft[taken:], q[taken:])


def test_a_token_whose_probability_was_rounded_to_nothing_is_accepted() -> None:
    sampler = RowSampler.resolve(Sampling(temperature=1.0), seed=1, lineage=0)
    logits, q = np.zeros((2, 4), np.float32), np.zeros((1, 4), np.float32)
    assert reject(logits, None, sampler, 3, [2], q)[0] == 2


@pytest.mark.parametrize("refused", [-1, 0, 3])
def test_a_refused_token_takes_part_in_the_rejection(refused: int) -> None:
    """Token 0 may be the one that a draft was cut at. Without it, the row would favour the tokens that drafts are cut at."""
    sampler = RowSampler.resolve(Sampling(temperature=1.0), seed=2, lineage=0)
    generator = np.random.default_rng(1)
    logits = rows_of(generator, 2)
    q = np.asarray([distribution(row, sampler) for row in rows_of(generator, 2)], np.float32)
    draft = Draft([5], [-1], ["draft_model"], [1.0], q, refused)
    job: Any = None
    planned = Planned(job, Work([1, 5], 2, draft, sampler=sampler), PageTable(PagePool(1, 4)))
    tokens = [5] if refused < 0 else [5, refused]
    done = verify_rows(planned, logits)
    assert done.tokens == reject(logits, None, sampler, 1, tokens, q[: len(tokens)])
    assert [*done.path] == [*range(len(done.tokens) - 1)]
    rejecting = sampling_inputs([planned], 16).rejecting
    assert rejecting is not None
    assert (rejecting.lengths.tolist(), rejecting.tokens.tolist()) == ([len(tokens)], [tokens])


def test_a_device_that_found_no_legal_token_ends_the_job_with_its_reason() -> None:
    sampled = SampledTokens(np.asarray([0]), np.asarray([[ABSENT]]), np.empty((1, 0), np.int64))
    with pytest.raises(ConstraintError, match="no token to go on with"):
        read_sampled(Work([1], 1), sampled, 0)


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_every_penalty_looks_at_what_was_written(field: str) -> None:
    for strength in (0.5, 1.0, 2.0):
        given: dict[str, Any] = {field: strength}
        penalties = Penalties.of(Sampling(**given))
        assert (penalties is not None and penalties.remembers) == (given != {"repetition_penalty": 1.0})
