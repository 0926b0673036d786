"""Bandits over draft models: little regret while nothing changes, and soon over it when something does."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import mean

import pytest
from hypothesis import given, strategies as st

from inferd_runtime.speculation.bandit import Bandit, Thompson, UcbTuned

ROUNDS = 10_000
ARMS = [0.3, 0.7, 0.5]
SWITCHED = [0.7, 0.3, 0.5]
MAKE: dict[str, Callable[[int], Bandit]] = {"ucb": lambda _: UcbTuned(3), "thompson": lambda seed: Thompson(3, seed)}


def regret(bandit: Bandit, chances: list[float], rounds: int, rng: random.Random) -> float:
    lost = 0.0
    for _ in range(rounds):
        arm = bandit.choose()
        bandit.learn(arm, float(rng.random() < chances[arm]))
        lost += max(chances) - chances[arm]
    return lost


@pytest.mark.parametrize(("name", "bound"), [("ucb", 100.2), ("thompson", 18.9)])
def test_regret_stays_below_what_flashspec_reports(name: str, bound: float) -> None:
    bandits = [MAKE[name](seed) for seed in range(20)]
    lost = [regret(bandit, ARMS, ROUNDS, random.Random(1000 + seed)) for seed, bandit in enumerate(bandits)]
    assert mean(lost) < bound
    assert sum(bandit.restarts for bandit in bandits) <= 1, "alarms where nothing changed"


@pytest.mark.parametrize("name", MAKE)
def test_it_recovers_when_the_best_arm_becomes_the_worst(name: str) -> None:
    lost = []
    for seed in range(8):
        bandit, rng = MAKE[name](seed), random.Random(1000 + seed)
        regret(bandit, ARMS, ROUNDS // 2, rng)
        lost.append(regret(bandit, SWITCHED, ROUNDS // 2, rng))
    # Whoever never notices loses 0.2 or 0.4 in each of the 5,000 rounds.
    assert mean(lost) < 60
    assert max(lost) < 120


@pytest.mark.parametrize("name", MAKE)
@given(rewards=st.lists(st.floats(0, 1), min_size=1, max_size=200), seed=st.integers(0, 99))
def test_it_names_an_arm_whatever_the_rewards(name: str, rewards: list[float], seed: int) -> None:
    bandit = MAKE[name](seed)
    for reward in rewards:
        arm = bandit.choose()
        assert 0 <= arm < bandit.arms
        bandit.learn(arm, reward)
    assert 1 <= sum(bandit.counts) <= len(rewards)


@pytest.mark.parametrize("reward", [-0.01, 1.01, float("nan")])
def test_a_reward_outside_of_its_range_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        UcbTuned(2).learn(0, reward)


def test_a_bandit_without_arms_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an arm"):
        Thompson(0)


def test_two_thompsons_of_one_seed_agree() -> None:
    pulls = []
    for _ in range(2):
        bandit, rng, arms = Thompson(3, 5), random.Random(1), []
        for _ in range(300):
            arms.append(bandit.choose())
            bandit.learn(arms[-1], float(rng.random() < ARMS[arms[-1]]))
        pulls.append(arms)
    assert pulls[0] == pulls[1]
