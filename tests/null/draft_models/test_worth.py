"""Whether a draft model is asked at all: what trials may cost, how soon the better way is found, and that it is kept."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from inferd_runtime.draft_models.worth import BLOCK, BUDGET, LONGEST_BLOCK, LONGEST_PAUSE, WARM_UP_BLOCKS, DraftWorth

STEP = 0.02


@dataclass
class Pair:
    """Generations on a target: a step takes STEP alone, and with drafts writes so many ``tokens`` in ``slow`` as long.

    A draft model has caught up ``warm`` steps after it was asked first. ``noise``: the deviation of a step's logarithm.
    """

    tokens: float
    slow: float
    noise: float = 0.0
    warm: int = 2
    generations: int = 1
    seed: int = 0
    worth: DraftWorth = field(default_factory=DraftWorth)
    asked: list[bool] = field(default_factory=list)
    seconds: float = 0.0
    written: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._since = [0] * self.generations
        self._planned = [self.worth.drafts] * self.generations
        for _ in range(self.generations):
            self.worth.opened()

    def run(self, tokens: int) -> float:
        """Write so many tokens; returns the time relative to no drafts."""
        seconds, written = self.seconds, self.written
        while self.written - written < tokens:
            for at in range(self.generations):
                self._step(at)
        return (self.seconds - seconds) / (STEP * (self.written - written))

    def _step(self, at: int) -> None:
        drafts, caught_up = self._planned[at], self._since[at] > self.warm
        count = 1
        if drafts and caught_up:
            count = int(self.tokens) + (self._random.random() < self.tokens % 1)
        seconds = (
            STEP
            * (self.slow if drafts else 1.0)
            * self._random.lognormvariate(-self.noise * self.noise / 2, self.noise)
        )
        self.seconds += seconds
        self.written += count
        self.asked.append(drafts)
        settled = self._since[at] > 0 and (caught_up or not drafts)
        self.worth.count_step(count, seconds, drafts=drafts, settled=settled)
        self._planned[at] = self.worth.drafts
        self._since[at] = self._since[at] + 1 if self._planned[at] == drafts else 0


def share_asked(pair: Pair, steps: int) -> float:
    return sum(pair.asked[-steps:]) / steps


@pytest.mark.parametrize("slow", [1.02, 1.25, 2.0, 5.0])
@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("generations", [1, 3])
def test_drafts_that_never_pay_cost_no_more_than_the_budget(slow: float, noise: float, generations: int) -> None:
    pair = Pair(1.0, slow, noise, generations=generations)
    assert pair.run(400 * generations) < 1.03 + noise * 0.1, "what was lost until it was known"
    assert pair.run(4000 * generations) <= 1 + BUDGET + noise * 0.02
    if slow > 1.1:
        assert share_asked(pair, 2000) < 0.02, "it is not even asked"


@pytest.mark.parametrize("tokens", [1.3, 2.2, 5.0])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_drafts_that_pay_are_asked_for_nearly_always(tokens: float, noise: float) -> None:
    pair = Pair(tokens, 1.1, noise)
    ideal = 1.1 / tokens
    assert pair.run(600) < ideal + 0.12 + noise * 0.2
    assert pair.run(4000) < ideal * (1.04 + noise * 0.1)


@pytest.mark.parametrize("before", [(1.0, 1.3), (2.0, 1.1)])
def test_a_change_is_found_either_way(before: tuple[float, float]) -> None:
    after = (2.0, 1.1) if before[0] == 1.0 else (1.0, 1.3)
    pair = Pair(*before, noise=0.1)
    pair.run(2000)
    pair.tokens, pair.slow = after
    pair.run(6000)
    assert pair.worth.pays == (after[0] > after[1])
    assert pair.run(2000) < min(1.02, after[1] / after[0] * 1.1)


def test_a_new_generation_begins_with_what_the_others_found() -> None:
    pair = Pair(1.0, 1.4)
    pair.run(2000)
    later = Pair(1.0, 1.4, worth=pair.worth)
    later.run(2 * BLOCK)
    assert not any(later.asked)


def test_a_draft_model_that_stalls_every_step_is_left_at_once() -> None:
    pair = Pair(2.0, 1.1)
    pair.run(3000)
    pair.tokens, pair.slow = 1.0, 50.0
    before = len(pair.asked)
    pair.run(100)
    assert sum(pair.asked[before:]) <= 3 * BLOCK


def test_one_that_never_catches_up_is_left() -> None:
    pair = Pair(2.0, 1.02, warm=10_000)
    pair.run(6000)
    assert not pair.worth.pays
    assert share_asked(pair, 3000) < 0.1


def test_a_stall_of_the_machine_decides_nothing() -> None:
    worth = DraftWorth()
    pair = Pair(2.0, 1.1, worth=worth)
    pair.run(3000)
    worth.count_step(1, 60.0, drafts=True, settled=True)
    pair.run(40)
    assert worth.pays


def test_steps_of_the_other_way_that_were_in_flight_are_left_out() -> None:
    pair = Pair(1.0, 2.0)
    pair.run(2000)
    gain = pair.worth.gain
    for _ in range(100):
        pair.worth.count_step(9, STEP, drafts=not pair.worth.drafts, settled=True)
    assert pair.worth.gain == gain


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.floats(1.0, 6.0), slow=st.floats(0.9, 6.0), noise=st.floats(0.0, 0.15),
    warm=st.integers(0, 20), generations=st.integers(1, 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_whatever_a_pair_is_like_it_is_never_much_slower_than_without(
    tokens: float, slow: float, noise: float, warm: int, generations: int, seed: int
) -> None:
    pair = Pair(tokens, slow, noise, warm, generations, seed)
    pair.run(600 * generations)
    assert pair.run(2000 * generations) <= 1.02 + noise * 0.1


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.floats(1e-6, 10.0), st.booleans(), st.booleans()), max_size=60))
def test_any_order_of_steps_leaves_it_able_to_go_on(steps: list[tuple[int, float, bool, bool]]) -> None:
    worth = DraftWorth()
    for tokens, seconds, drafts, settled in steps:
        worth.count_step(tokens, seconds, drafts=drafts, settled=settled)
        assert worth.trying == (worth.drafts != worth.pays)
        assert math.isfinite(worth.gain)
    trials, left = worth.trials, LONGEST_PAUSE + LONGEST_BLOCK * WARM_UP_BLOCKS
    while worth.trials == trials and left:
        worth.count_step(1, STEP, drafts=worth.drafts, settled=True)
        left -= 1
    assert left, "there is always another trial"
