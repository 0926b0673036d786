"""Bandits that choose among several draft models, and start over when the rewards change."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from math import log, sqrt

DRIFT = 0.2
ALARM = 8.0
SETTLED = 30


class ChangeDetector:
    """Detects that the mean of an arm's rewards has changed: Page's two-sided cumulative sum (Page 1954).

    It tolerates DRIFT, and signals a change when the sum of what exceeds it reaches ALARM, after SETTLED rewards at least.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._up = self._down = 0.0

    def add(self, reward: float) -> bool:
        """Take in a reward. Returns True if the mean has changed."""
        self._count += 1
        self._mean += (reward - self._mean) / self._count
        if self._count <= SETTLED:
            return False
        self._up = max(0.0, self._up + reward - self._mean - DRIFT)
        self._down = max(0.0, self._down + self._mean - reward - DRIFT)
        return max(self._up, self._down) > ALARM


class Bandit(ABC):
    """Arms with rewards in [0, 1]. When one of them changes, all are forgotten (CUSUM-UCB: Liu, Lee, Shroff 2018).

    So an arm that became worse while it was pulled is left within some tens of pulls. An arm that became better while it was
    not pulled is noticed only when it is tried again. ``restarts`` counts the changes.
    """

    def __init__(self, arms: int) -> None:
        if arms < 1:
            raise ValueError("a bandit needs an arm")
        self.arms = arms
        self.restarts = 0
        self._begin()

    def _begin(self) -> None:
        self.counts = [0] * self.arms
        self.sums = [0.0] * self.arms
        self.squares = [0.0] * self.arms
        self._changes = [ChangeDetector() for _ in range(self.arms)]

    @abstractmethod
    def choose(self) -> int:
        """Return the arm to pull."""

    def learn(self, arm: int, reward: float) -> None:
        """Take in the reward of a pull. Raises ValueError outside [0, 1], where no bound holds."""
        if not 0 <= reward <= 1:
            raise ValueError(f"a reward lies in [0, 1], not {reward}")
        if self._changes[arm].add(reward):
            self.restarts += 1
            self._begin()
        self.counts[arm] += 1
        self.sums[arm] += reward
        self.squares[arm] += reward * reward


class UcbTuned(Bandit):
    """UCB1-Tuned (Auer, Cesa-Bianchi, Fischer 2002, section 4): UCB1 with the arm's own variance in its bound."""

    def choose(self) -> int:
        """Return the arm with the highest upper bound, any that was never pulled first."""
        if 0 in self.counts:
            return self.counts.index(0)
        time = log(sum(self.counts))
        bounds = [self._bound(arm, time) for arm in range(self.arms)]
        return bounds.index(max(bounds))

    def _bound(self, arm: int, time: float) -> float:
        count = self.counts[arm]
        mean = self.sums[arm] / count
        variance = self.squares[arm] / count - mean * mean + sqrt(2 * time / count)
        return mean + sqrt(time / count * min(0.25, variance))


class Thompson(Bandit):
    """Thompson sampling with a Beta(1, 1) prior for each arm (Agrawal, Goyal 2012).

    A reward counts as that part of a success. No sample is below the posterior's mean (optimistic Bayesian sampling: May,
    Korda, Lee, Leslie 2012).
    """

    def __init__(self, arms: int, seed: int = 0) -> None:
        super().__init__(arms)
        self._random = random.Random(seed)

    def choose(self) -> int:
        """Return the arm with the highest sample."""
        samples = [self._sample(won, count) for won, count in zip(self.sums, self.counts, strict=True)]
        return samples.index(max(samples))

    def _sample(self, won: float, count: int) -> float:
        return max((1 + won) / (2 + count), self._random.betavariate(1 + won, 1 + count - won))
