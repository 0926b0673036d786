"""Which of several draft models drafts: bandits that start over when what they learnt has stopped being true."""

from __future__ import annotations

import random
from math import log, sqrt

FORGET_AFTER = 12.0
DRIFT = 0.1
SETTLED = 30


class Change:
    """Notices that an arm's rewards are no longer what they were: Page's two-sided cumulative sum (Page 1954; as a bandit's
    restart: Liu, Lee, Shroff 2018, CUSUM-UCB).
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._up = self._down = 0.0

    def seen(self, reward: float) -> bool:
        """Take in a reward; True when the arm is to be learnt anew."""
        if self._count < SETTLED:
            self._count += 1
            self._mean += (reward - self._mean) / self._count
            return False
        self._up = max(0.0, self._up + reward - self._mean - DRIFT)
        self._down = max(0.0, self._down + self._mean - reward - DRIFT)
        return max(self._up, self._down) > FORGET_AFTER


class Bandit:
    """Arms with rewards in [0, 1], all forgotten at once when one of them changes."""

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
        self._changes = [Change() for _ in range(self.arms)]

    def choose(self) -> int:
        """The arm to pull."""
        raise NotImplementedError

    def learn(self, arm: int, reward: float) -> None:
        """What pulling the arm brought. Raises ValueError outside [0, 1], where no bound holds."""
        if not 0 <= reward <= 1:
            raise ValueError(f"a reward lies in [0, 1], not {reward}")
        if self._changes[arm].seen(reward):
            self.restarts += 1
            self._begin()
        self.counts[arm] += 1
        self.sums[arm] += reward
        self.squares[arm] += reward * reward


class UcbTuned(Bandit):
    """UCB1-Tuned (Auer, Cesa-Bianchi, Fischer 2002, section 4): UCB1 with the arm's own variance in its bound."""

    def choose(self) -> int:
        """The arm with the highest upper bound, any that was never pulled first."""
        if 0 in self.counts:
            return self.counts.index(0)
        time = log(sum(self.counts))
        return max(range(self.arms), key=lambda arm: self._bound(arm, time))

    def _bound(self, arm: int, time: float) -> float:
        count = self.counts[arm]
        mean = self.sums[arm] / count
        variance = self.squares[arm] / count - mean * mean + sqrt(2 * time / count)
        return mean + sqrt(time / count * min(0.25, variance))


class Thompson(Bandit):
    """Thompson sampling with a Beta(1, 1) for each arm (Agrawal and Goyal 2012); a reward counts as that part of a success."""

    def __init__(self, arms: int, seed: int = 0) -> None:
        super().__init__(arms)
        self._random = random.Random(seed)

    def choose(self) -> int:
        """The arm with the highest of one sample from each posterior."""
        draw = self._random.betavariate
        samples = [draw(1 + won, 1 + count - won) for won, count in zip(self.sums, self.counts, strict=True)]
        return samples.index(max(samples))
