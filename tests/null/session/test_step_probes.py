"""Probes of a generation: one list per token, of the row that it was drawn from, with and without drafts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sampling_driver import SamplingNullDriver

from inferd import protocol as p
from inferd_runtime.engine.jobs import step_probes
from inferd_runtime.engine.sampling import probes
from inferd_runtime.session import state
from inferd_runtime.testing.byte_tokenizer import VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.served import null_model

PROMPT = "tick tock tick tock "
HOT = p.Sampling(temperature=0.8, seed=7)
PENALIZED = p.Sampling(0.8, seed=7, repetition_penalty=1.2, presence_penalty=0.5, bias_tokens=(65,), bias_values=(4.0,))
ASKED = [p.Probe("logits"), p.Probe("distribution", k=3), p.Probe("logprobs", tokens=[65, 66]), p.Probe("entropy")]


@pytest.fixture(params=[NullDriver, SamplingNullDriver])
def caller(request: pytest.FixtureRequest) -> Iterator[DirectSession]:
    caller = DirectSession(null_model(driver=request.param(vocab_size=VOCAB_SIZE)))
    yield caller
    caller.engine.check_integrity()
    caller.close()


def probed(caller: DirectSession, **fields: Any) -> tuple[list[int], list[p.TokenProbes], int]:
    """Return the tokens of a generation, what its probes found, and how many guesses stood."""
    made = caller.generate(caller.text(PROMPT), **{"max_tokens": 24, "probes": ASKED, **fields})
    found = [each for step in made.steps for each in step.probes]
    assert [len(step.probes) for step in made.steps] == [len(step.tokens) for step in made.steps]
    return made.tokens, found, made.accepted


def test_each_token_has_the_row_that_it_was_drawn_from(caller: DirectSession) -> None:
    tokens, found, _ = probed(caller, sampling=HOT)
    driver = caller.engine.driver
    assert isinstance(driver, NullDriver)
    for at, row in enumerate(found):
        logits = driver.logits([*PROMPT.encode(), *tokens[:at]])
        assert row[0].values == logits.tolist()
        scores = logits.astype(np.float64)
        expected = scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())
        assert row[2].values == pytest.approx(expected[[65, 66]].tolist(), rel=1e-5)
        assert row[3].value == pytest.approx(-float((np.exp(expected) * expected).sum()), rel=1e-5)
        assert row[1].tokens == np.argsort(-logits, kind="stable")[:3].tolist()
        assert (len(row), len(list(row))) == (4, 4)


@pytest.mark.parametrize("sampling", [p.Sampling(), HOT, PENALIZED], ids=["argmax", "hot", "penalized"])
@pytest.mark.parametrize("constraint", [None, p.ConstraintSpec("regex", value="(tick|tock| |[A-F]){30}")])
def test_drafts_change_no_number(
    caller: DirectSession, sampling: p.Sampling, constraint: p.ConstraintSpec | None
) -> None:
    fields: dict[str, Any] = {"sampling": sampling, "constraint": constraint}
    tokens, plain, _ = probed(caller, **fields)
    drafted, found, accepted = probed(caller, **fields, system_speculation=True, predicted=tokens[:20])
    assert accepted >= min(8, len(tokens) - 2) > 1
    assert drafted == tokens
    assert found == plain


def test_numbers_are_behind_penalties_bias_and_mask_as_those_of_forward(caller: DirectSession) -> None:
    mask = [*b"ABCDEFG"]
    _, found, _ = probed(
        caller, max_tokens=1, sampling=p.Sampling(bias_tokens=(65,), bias_values=(4.0,)),
        constraint=p.ConstraintSpec("regex", value="[A-G]{9}"),
    )  # fmt: skip
    looked = p.Forward(caller.text(PROMPT), [], mask=mask, bias_tokens=[65], bias_values=[4.0], probes=ASKED)
    row = caller.call(looked).rows[0]
    assert found[0].results == row.probes
    assert sum(np.isfinite(found[0][0].values)) == len(mask)


def test_the_end_of_the_text_has_none(caller: DirectSession) -> None:
    made = caller.generate(
        caller.text("abc"), probes=[p.Probe("entropy")], constraint=p.ConstraintSpec("choice", options=["yes"])
    )
    assert made.text == "yes"
    assert sum(len(step.probes) for step in made.steps) == len(made.tokens)


def test_a_slow_reader_gets_all_of_them_in_bounded_replies(
    caller: DirectSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "MAX_NUMBERS", 3 * VOCAB_SIZE)
    monkeypatch.setattr(step_probes, "UNDELIVERED_NUMBERS", 3 * VOCAB_SIZE)
    generation = caller.call(p.StartGenerate(caller.text("abc"), max_tokens=10, probes=[p.Probe("logits")])).generation
    found, finish = 0, ""
    while not finish:
        while caller.engine.step():
            pass
        reply = caller.call(p.NextSteps(generation, least=32))
        assert sum(len(step.probes) for step in reply.steps) <= 3
        found, finish = found + sum(len(step.probes) for step in reply.steps), reply.finish
    assert found == 10
    with pytest.raises(p.LimitExceeded, match="numbers"):
        caller.call(p.StartGenerate(caller.text("abc"), probes=[p.Probe("logits")], system_speculation=True))
    with pytest.raises(p.LimitExceeded, match="numbers"):
        caller.call(p.StartGenerate(caller.text("abc"), probes=[p.Probe("logits")] * 4))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([p.Probe("attention")], "attention"),
        ([p.Probe("logprobs", tokens=[VOCAB_SIZE])], "token id"),
        ([p.Probe("distribution", k=VOCAB_SIZE + 1)], "k = "),
        ([p.Probe("entropy")] * 33, "33 probes"),
    ],
)
def test_bad_probes_are_refused_by_name(caller: DirectSession, asked: list[p.Probe], says: str) -> None:
    with pytest.raises((p.InvalidRequest, p.LimitExceeded), match=says):
        caller.call(p.StartGenerate(caller.text("abc"), probes=asked))


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"probes": [p.Probe("logits")]}, 3),
        ({"candidates": 1}, 8),
        ({"candidates": 0}, 3),
        ({"predicted": [5] * 40, "system_speculation": True}, 5),
        ({"predicted_text": "a" * 40, "system_speculation": True}, 5),
        ({"sampling": p.Sampling(bias_tokens=tuple(range(10)), bias_values=(0.5,) * 10)}, 4),
        ({"sampling": p.Sampling(allowed_tokens=tuple(range(40)))}, 5),
    ],
)
def test_what_waits_for_readers_and_what_requests_bring_is_bounded_over_a_session(
    caller: DirectSession, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], most: int
) -> None:
    """16,384 generations with 1,024 biases each took 3.3 GB, with predictions of a long context tens of them."""
    monkeypatch.setattr(step_probes, "UNDELIVERED_NUMBERS", 3 * VOCAB_SIZE)
    monkeypatch.setattr(state, "MAX_HELD_NUMBERS", 9 * VOCAB_SIZE)
    opened, refused = list[int](), 0
    for _ in range(12):
        try:
            opened.append(caller.call(p.StartGenerate(caller.text("abc"), **fields)).generation)
        except p.LimitExceeded as error:
            refused += error.detail["limit"] == "held_numbers"
    assert (len(opened), refused) == (most, 12 - most)
    assert caller.generate(caller.text("abc"), max_tokens=3).tokens
    caller.call(p.CloseGenerate(opened[0]))
    caller.call(p.StartGenerate(caller.text("abc"), **fields))
