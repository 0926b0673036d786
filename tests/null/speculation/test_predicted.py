"""Predicted text against a plain twin, through edits, and from forced tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, strategies as st

from inferd.protocol.errors import LimitExceeded
from inferd_runtime.speculation.counters import SpeculationCounters
from inferd_runtime.speculation.drafts import NOTHING, Proposal
from inferd_runtime.speculation.grams import MAX_TOKENS
from inferd_runtime.speculation.ngram import NgramDrafter
from inferd_runtime.speculation.predicted import BESIDE, CONFIRMED, NEAR, ORDERS, REACH, PredictedText
from inferd_runtime.speculation.sources import SourceSet
from inferd_runtime.speculation.survival import Survival

TOKENS = st.lists(st.integers(0, 3), max_size=40)
LONG = st.lists(st.integers(0, 9), max_size=200)


class NeverBuilds(Executor):
    """An executor that never comes to it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return Future()


class Twin:
    """The rules, written down plainly."""

    def __init__(self, prediction: Sequence[int]) -> None:
        self.prediction = list(prediction)
        self.output: list[int] = []
        self.at, self.agreed, self.reached = 0, REACH, 0

    def write(self, token: int) -> None:
        self.output.append(token)
        if self.at >= 0 and self.prediction[self.at : self.at + 1] == [token]:
            self.at, self.agreed = self.at + 1, self.agreed + 1
        else:
            self.at, self.agreed = self.search()
        if self.agreed >= CONFIRMED:
            self.reached = self.at

    def search(self) -> tuple[int, int]:
        at, agreed = self.longest()
        if agreed < CONFIRMED and not self.reached <= at <= self.reached + NEAR:
            for near in range(self.reached, min(self.reached + BESIDE, len(self.prediction))):
                if self.prediction[near] == self.output[-1]:
                    return near + 1, self.agreement(near + 1)
        return at, agreed

    def longest(self) -> tuple[int, int]:
        for order in sorted(ORDERS, reverse=True):
            ends = [
                at
                for at in range(order, len(self.prediction))
                if order <= len(self.output) and self.prediction[at - order : at] == self.output[-order:]
            ]
            if ends:
                at = next((end for end in ends if end >= self.reached), ends[-1])
                return at, self.agreement(at)
        return -1, 0

    def agreement(self, at: int) -> int:
        count = 0
        while count < min(REACH, at, len(self.output)) and self.prediction[at - 1 - count] == self.output[-1 - count]:
            count += 1
        return count

    def propose(self, limit: int) -> Proposal:
        tokens = self.prediction[self.at : self.at + limit] if self.at >= 0 else []
        return Proposal(tokens, match=self.agreed) if tokens else NOTHING


def begun(prediction: Sequence[int], output: Sequence[int] = ()) -> PredictedText:
    """A drafter behind a prompt and some output."""
    drafter = PredictedText(prediction)
    drafter.observe([7, 7, 7])
    drafter.observe(output)
    return drafter


def steps(prediction: Sequence[int], output: Sequence[int], limit: int = 16) -> int:
    """How many steps it takes to write the output when the drafts are verified against it."""
    drafter, written, count = begun(prediction), 0, 0
    while written < len(output):
        draft = drafter.propose(limit).tokens
        accepted = 0
        while (
            accepted < len(draft)
            and list(draft[accepted : accepted + 1]) == list(output[written:])[accepted : accepted + 1]
        ):
            accepted += 1
        drafter.observe(output[written : written + accepted + 1])
        written, count = written + accepted + 1, count + 1
    return count


@given(TOKENS | LONG, TOKENS, st.integers(0, 9), st.lists(st.integers(0, 3), max_size=5))
def test_a_proposal_follows_the_rules(prediction: list[int], output: list[int], limit: int, ahead: list[int]) -> None:
    drafter, twin = begun(prediction), Twin(prediction)
    for token in output:
        assert drafter.propose(limit) == twin.propose(limit)
        drafter.observe([token])
        twin.write(token)
    before = drafter.propose(limit)
    for token in ahead:
        twin.write(token)
    assert drafter.propose(limit, ahead) == twin.propose(limit)
    assert drafter.propose(limit) == before


def test_a_prediction_does_not_stay_with_its_context_but_the_ngram_index_beside_it_does() -> None:
    ngram = NgramDrafter()
    sources = SourceSet([PredictedText([1, 2, 3]), ngram], Survival().request(), SpeculationCounters())
    sources.begin([1, 2])
    memory = sources.memory()
    assert memory is not None
    assert memory.drafter is ngram


def test_the_prompt_says_nothing_and_the_start_is_trusted() -> None:
    drafter = PredictedText([1, 2, 3])
    drafter.observe([3, 1, 2])
    assert drafter.propose(8) == Proposal([1, 2, 3], match=REACH)
    drafter.observe([1, 2])
    assert drafter.propose(8) == Proposal([3], match=REACH + 2)
    drafter.observe([3])
    assert drafter.propose(8) == NOTHING


FILE = list(range(100, 300))


@pytest.mark.parametrize(
    ("output", "most"),
    [
        pytest.param(FILE, 12, id="as it was"),
        pytest.param([*FILE[:80], 1, 2, 3, *FILE[80:]], 19, id="insertion"),
        pytest.param(FILE[:80] + FILE[90:], 15, id="deletion"),
        pytest.param([*FILE[:80], 1, 2, 3, 4, 5, *FILE[85:]], 19, id="replacement"),
        pytest.param(FILE[100:] + FILE[:100], 18, id="halves exchanged"),
        pytest.param(FILE[:50] + FILE[20:], 16, id="a part twice"),
    ],
)
def test_an_edit_costs_few_steps(output: list[int], most: int) -> None:
    assert steps(FILE, output) <= most


def test_after_an_insertion_it_goes_on_at_the_first_place_behind() -> None:
    line = [1, 2, 3, 4]
    drafter = begun([*line, 10, *line, 11, *line, 12], [*line, 10, *line, 11, 99, 98])
    assert drafter.propose(2) == NOTHING
    drafter.observe(line)
    assert drafter.propose(4) == Proposal([12], match=4)


def test_one_replaced_token_costs_one_guess() -> None:
    drafter = begun(FILE, [*FILE[:50], 1])
    assert drafter.propose(3) == NOTHING
    drafter.observe([FILE[51]])
    assert drafter.propose(3) == Proposal(FILE[52:55], match=1)


@pytest.mark.parametrize(("distance", "match"), [(NEAR, 2), (NEAR + 1, 1)])
def test_two_tokens_far_away_count_less_than_one_beside(distance: int, match: int) -> None:
    prediction = [*range(10, 30), 6, *range(100, 300)]
    prediction[20 + distance - 2 : 20 + distance] = [5, 6]
    prediction[20] = 6
    drafter = begun(prediction, [*range(10, 30), 5, 6])
    assert drafter.propose(1).match == match


def test_without_its_index_it_still_follows_the_prediction() -> None:
    drafter = PredictedText(range(10_000), NeverBuilds())
    drafter.observe([5])
    drafter.observe(range(20))
    assert list(drafter.propose(3).tokens) == [20, 21, 22]
    drafter.observe([1, 2])
    assert drafter.propose(3) == NOTHING


def test_a_thread_indexes_a_long_prediction() -> None:
    with ThreadPoolExecutor(1) as threads:
        drafter = PredictedText(range(10_000), threads)
        drafter.wait_until_indexed()
        drafter.observe([5])
        drafter.observe([5000, 5001])
        assert list(drafter.propose(3).tokens) == [5002, 5003, 5004]


def test_what_is_no_prediction_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="1048577"):
        PredictedText(range(MAX_TOKENS + 1))
    assert begun([]).propose(5) == NOTHING
