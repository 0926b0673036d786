"""What each side refuses of what the other sends: it is none of its business who sent it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from inferd_runtime.draft_models.messages import AskDraft, DraftAnswer, DraftSpec
from inferd_runtime.draft_models.remote.checks import check_answer, check_ask, check_terms
from inferd_runtime.draft_models.remote.frames import MalformedFrame
from inferd_runtime.draft_models.remote.handshake import DraftTerms
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sampling.penalties import Penalties

TERMS = DraftTerms("small", "abc", 12, [3], 64, 32, 4096, 60.0)
SAMPLER = RowSampler(0.8, 0, 0.9, 0.0, (1 << 64) - 1, Penalties(1.5, bias_tokens=(3,), bias_values=(-2.0,)))
SPEC = DraftSpec("tenant", SAMPLER, 12)
ASK = AskDraft(1, 5, [1, 2, 3], 4, 0.5, SPEC, 0.1)
ANSWER = DraftAnswer(8, [4, 5], [0.5, 1.0], b"", 2, 0.01)


def test_what_is_sent_in_earnest_passes() -> None:
    check_terms(TERMS)
    check_ask(ASK, TERMS)
    check_ask(replace(ASK, tokens=[99], spec=None), TERMS)
    check_answer(ANSWER, ASK, TERMS)
    check_answer(DraftAnswer(lost=True), ASK, TERMS)
    check_answer(DraftAnswer(base=60, error="no room"), ASK, TERMS)


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": -1}, {"sequence": 1 << 63}, {"start": -1}, {"start": 65}, {"start": 62}, {"tokens": [-1]},
        {"tokens": [1 << 30]}, {"tokens": [1] * 65}, {"count": 0}, {"count": 33}, {"count": -5}, {"least": math.nan},
        {"least": 1.5}, {"within": -1.0}, {"within": math.nan}, {"within": math.inf},
    ],
)  # fmt: skip
def test_a_request_out_of_range_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        check_ask(replace(ASK, **change), TERMS)


@pytest.mark.parametrize(
    "change",
    [
        {"width": 0},
        {"width": 1 << 30},
        {"probabilities": True},
        {"prompt": -1},
        {"salt": "x" * 2000},
        {"tenant": "x" * 2000},
    ],
)
def test_a_sequence_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        check_ask(replace(ASK, spec=replace(SPEC, **change)), TERMS)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": math.nan}, {"temperature": -1.0}, {"temperature": math.inf}, {"top_k": -1}, {"top_p": 0.0},
        {"top_p": math.nan}, {"min_p": 2.0}, {"key": -1}, {"key": 1 << 64}, {"typical_p": 0.0}, {"typical_p": math.nan},
        {"xtc_probability": 1.5}, {"xtc_threshold": math.inf},
        {"penalties": Penalties(math.nan)}, {"penalties": Penalties(bias_tokens=(1,), bias_values=())},
        {"penalties": Penalties(bias_tokens=(1,), bias_values=(math.inf,))},
        {"penalties": Penalties(bias_tokens=(-1,), bias_values=(1.0,))},
        {"penalties": Penalties(bias_tokens=tuple(range(5000)), bias_values=(0.0,) * 5000)},
    ],
)  # fmt: skip
def test_a_sampler_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        check_ask(replace(ASK, spec=replace(SPEC, sampler=replace(SAMPLER, **change))), TERMS)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [4, 12]}, {"tokens": [-1, 4]}, {"tokens": [1] * 60, "confidence": [1.0] * 60}, {"base": 9}, {"base": -1},
        {"confidence": [1.0]}, {"confidence": [math.nan, 1.0]}, {"confidence": [2.0, 1.0]}, {"probabilities": b"1234"},
        {"drawn": -1}, {"drawn": 1000}, {"seconds": math.nan}, {"seconds": -1.0}, {"seconds": math.inf},
        {"error": "x" * 501}, {"error": "with tokens"}, {"lost": True},
    ],
)  # fmt: skip
def test_an_answer_that_was_not_asked_for_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        check_answer(replace(ANSWER, **change), ASK, TERMS)


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": 0}, {"vocab_size": 1 << 30}, {"max_context": 0}, {"most_tokens": 0}, {"most_bytes": 0},
        {"idle_seconds": math.nan}, {"idle_seconds": 0.0}, {"eos_tokens": [12]}, {"eos_tokens": [-1]},
    ],
)  # fmt: skip
def test_terms_that_cannot_be_kept_to_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        check_terms(replace(TERMS, **change))


@given(st.integers(-5, 80), st.lists(st.integers(-2, 14), max_size=50), st.integers(-5, 80), st.floats(), st.booleans())
def test_what_passes_is_within_the_vocabulary_and_what_was_asked(
    base: int, tokens: list[int], drawn: int, seconds: float, lost: bool
) -> None:
    answer = DraftAnswer(base, tokens, [1.0] * len(tokens), b"", drawn, seconds, False, lost)
    try:
        check_answer(answer, ASK, TERMS)
    except MalformedFrame:
        return
    assert all(0 <= token < TERMS.vocab_size for token in tokens)
    assert not tokens or 0 <= base <= 8
    assert len(tokens) <= 8 - base + TERMS.most_tokens if tokens else True
    assert math.isfinite(seconds)
