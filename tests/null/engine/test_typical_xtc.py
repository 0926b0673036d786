"""Locally typical sampling and XTC: against plain twins, with and without drafts, on the host and on drivers that sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sampling_driver import SamplingNullDriver
from tiers import examples

from inferd import InvalidRequest, Sampler, protocol as p
from inferd_runtime.engine.sampling.host_sampling import RowSampler, candidates, draw
from inferd_runtime.engine.sampling.noise import stream, uniform
from inferd_runtime.engine.sampling.rejection import distribution
from inferd_runtime.testing.byte_tokenizer import VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.served import null_model

LOGITS = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=30)
TYPICAL, XTC = Sampler.typical(0.9, 0.7, seed=7), Sampler.multinomial(0.9, seed=7).excluding_top(0.6, 0.02)
BOTH = Sampler.typical(1.2, 0.9, seed=7).excluding_top(0.5, 0.05).penalized(presence=0.4, repetition=1.1)


def shares_of(logits: list[float], temperature: float = 1.0) -> list[float]:
    best = max(logits)
    weights = [math.exp((logit - best) / temperature) for logit in logits]
    return [weight / math.fsum(weights) for weight in weights]


def typical_twin(shares: list[float], mass: float) -> set[int]:
    """As TypicalLogitsWarper of transformers: in the order of the distance from the entropy, until the mass is reached."""
    entropy = -math.fsum(share * math.log(share) for share in shares)
    away = [abs(-math.log(share) - entropy) for share in shares]
    order, reached, kept = sorted(range(len(shares)), key=away.__getitem__), 0.0, 0
    while kept < len(order):
        reached, kept = reached + shares[order[kept]], kept + 1
        if reached >= mass - 1e-12:
            break
    return {at for at, distance in enumerate(away) if distance <= away[order[kept - 1]] + 1e-9}


@settings(max_examples=examples(200))
@given(LOGITS, st.sampled_from([0.1, 0.35, 0.62, 0.9, 0.99]), st.sampled_from([0.5, 1.0, 1.7]))
def test_typical_keeps_what_the_twin_keeps(logits: list[float], mass: float, temperature: float) -> None:
    sampler = RowSampler.resolve(Sampler.typical(temperature, mass).sampling, seed=0, lineage=0)
    kept = set(candidates(np.asarray(logits, np.float32), sampler)[0].tolist())
    shares = shares_of(logits, temperature)
    least, most = (typical_twin(shares, mass * factor) for factor in (1 - 1e-9, 1 + 1e-9))
    assert least <= kept <= most or most <= kept <= least


@settings(max_examples=examples(200))
@given(LOGITS, st.sampled_from([0.02, 0.1, 0.3, 0.6]), st.integers(0, 50))
def test_xtc_takes_out_what_the_twin_takes_out(logits: list[float], threshold: float, position: int) -> None:
    sampler = RowSampler.resolve(Sampler.multinomial().excluding_top(0.5, threshold).sampling, seed=3, lineage=0)
    happens = uniform(stream(sampler.key, 0x87C0), position, np.zeros(1, np.int64))[0] < 0.5
    shares = shares_of(logits)
    top = [at for at, share in enumerate(shares) if share >= threshold * (1 - 1e-12)]
    out = (
        {at for at in top if shares[at] > min(shares[one] for one in top) + 1e-12}
        if len(top) > 1 and happens
        else set()
    )
    kept = set(candidates(np.asarray(logits, np.float32), sampler, position)[0].tolist())
    assert kept == set(range(len(logits))) - out


def test_xtc_happens_as_often_as_it_is_asked_to_and_the_draw_is_from_what_is_left() -> None:
    logits = np.log(np.asarray([0.4, 0.3, 0.2, 0.06, 0.04], np.float32))
    sampler = RowSampler.resolve(Sampler.multinomial().excluding_top(0.3, 0.1).sampling, seed=3, lineage=0)
    drawn = [draw(logits, sampler, position) for position in range(4000)]
    expected = 0.7 * np.asarray([0.4, 0.3, 0.2, 0.06, 0.04]) + 0.3 * np.asarray([0, 0, 0.2, 0.06, 0.04]) / 0.3
    assert np.abs(np.bincount(drawn, minlength=5) / 4000 - expected).max() < 0.035
    for position in range(50):
        support = np.flatnonzero(distribution(logits, sampler, None, position)).tolist()
        assert support == candidates(logits, sampler, position)[0].tolist()
        assert drawn[position] in support


@pytest.mark.parametrize("driver", [NullDriver, SamplingNullDriver])
@pytest.mark.parametrize("sampler", [TYPICAL, XTC, BOTH], ids=["typical", "xtc", "both"])
@pytest.mark.parametrize("constraint", [None, p.ConstraintSpec("regex", value="[a-z ]{40}")], ids=["free", "regex"])
def test_drafts_and_devices_change_no_token(driver: Any, sampler: Sampler, constraint: p.ConstraintSpec | None) -> None:
    fields: dict[str, Any] = {"sampling": sampler.sampling, "max_tokens": 30, "constraint": constraint}
    plain = DirectSession(null_model())
    expected = plain.generate(plain.text("tick tock"), **fields).tokens
    caller = DirectSession(null_model(driver=driver(vocab_size=VOCAB_SIZE)))
    contexts = [caller.text("tick tock") for _ in range(4)]
    assert caller.generate(contexts[0], **fields).tokens == expected
    drafted = caller.generate(contexts[1], **fields, system_speculation=True, predicted=expected[:20])
    assert drafted.tokens == expected
    assert drafted.accepted >= min(10, len(expected) - 2)
    assert caller.together(contexts[2:], **fields) == [expected, expected]
    caller.engine.check_integrity()
    caller.close()
    plain.close()


def test_a_pass_and_a_verification_draw_the_same() -> None:
    caller = DirectSession(null_model())
    expected = caller.generate(caller.text("abc"), sampling=BOTH.penalized().sampling, max_tokens=3).tokens
    context, sampling = caller.text("abc"), BOTH.penalized().sampling
    assert caller.call(p.Forward(context, [], sampling=sampling)).rows[0].token == expected[0]
    done = caller.call(p.VerifyDraft(context, expected[:2], sampling=sampling))
    assert [*done.accepted, done.token] == expected
    caller.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sampler.typical(1.0, 0.0), lambda: Sampler.typical(1.0, 1.1), lambda: Sampler.typical(0.0, 0.9),
        lambda: Sampler.typical(1.0, math.nan), lambda: Sampler.argmax().excluding_top(),
        lambda: Sampler.multinomial().excluding_top(1.5), lambda: Sampler.multinomial().excluding_top(0.5, -0.1),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_by_name(make: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"typical_p|xtc_"):
        make()
