"""How many tokens to ask a draft model for: what its acceptance and its measured speed make of it."""

from __future__ import annotations

from dataclasses import dataclass, field

MARGIN = 1.03
"""A draft has to promise at least this much more speed than none."""
DECAY = 0.95
PRIOR_WEIGHT = 6.0
FIRST_ACCEPTANCE = 0.7
FIRST_PROBE, LAST_PROBE = 8, 256
PROBE_TOKENS = 2
CONTROL = 32
"""One step in so many goes without a draft, to see what the others cost."""


class Average:
    """A running average; without a ``start`` the first value counts whole."""

    def __init__(self, share: float, start: float | None = None) -> None:
        self._share = share
        self.value = start

    def add(self, value: float) -> None:
        """Take one more value."""
        self.value = value if self.value is None else self.value + self._share * (value - self.value)


@dataclass
class DraftExperience:
    """What all generations of one draft model have measured together; times in seconds.

    ``token``: drawing one. ``alone``: a step of the target without a draft, ``beside``: one with a draft to verify or the draft
    model at work, where both share processors.
    """

    token: Average = field(default_factory=lambda: Average(0.1))
    alone: Average = field(default_factory=lambda: Average(0.1))
    beside: Average = field(default_factory=lambda: Average(0.1))
    acceptance: Average = field(default_factory=lambda: Average(0.02, FIRST_ACCEPTANCE))

    @property
    def cost(self) -> float:
        """A draft token's time, in steps of the target alone."""
        step = self.alone.value or self.beside.value
        return 0.25 if self.token.value is None or not step else self.token.value / step

    @property
    def slowdown(self) -> float:
        """How much longer a step takes for its draft, not counting what it waits."""
        if not self.alone.value or not self.beside.value:
            return 1.0
        return max(1.0, self.beside.value / self.alone.value)


class DraftLength:
    """One generation's draft lengths: 0 to ``most`` tokens, whatever brings most tokens per time.

    Of ``n`` drafted tokens, each accepted with the chance a when the one before is, (1 - a^(n+1)) / (1 - a) tokens come out
    of a step (Leviathan et al. 2023, arXiv 2211.17192, equation 1) that takes 1 + n c of the target's. Where the draft model
    ``overlaps``, its work is waited for after a wrong guess alone. Guesses that nobody verifies bring nothing either. No draft
    is always a candidate: a model that does not help is asked for a probe now and then, ever more rarely.
    """

    def __init__(self, experience: DraftExperience, *, most: int, overlaps: bool) -> None:
        self._experience = experience
        self._most = most
        self._overlaps = overlaps
        self._right = PRIOR_WEIGHT * (experience.acceptance.value or 0.0)
        self._tried = PRIOR_WEIGHT
        self._used = Average(0.25)
        self._until_probe = self._probe = FIRST_PROBE
        self._until_control = CONTROL

    @property
    def acceptance(self) -> float:
        """The chance that a drafted token is accepted when the one before it is."""
        return self._right / self._tried

    def choose(self) -> tuple[int, bool]:
        """How many tokens to ask for behind a step, and whether that is only a probe."""
        best = max(range(self._most + 1), key=self._speed)
        if best and self._speed(best) >= MARGIN:
            self._until_probe = self._probe = FIRST_PROBE
            self._until_control -= 1
            if self._until_control > 0:
                return best, False
            self._until_control = CONTROL
            return 0, False
        self._until_probe -= 1
        if self._until_probe > 0:
            return 0, False
        self._probe = min(LAST_PROBE, 2 * self._probe)
        self._until_probe = self._probe
        return min(PROBE_TOKENS, self._most), True

    def learn(self, right: int, wrong: bool) -> None:
        """So many tokens in a row were what the target wrote, verified or not, and the next one was not."""
        tried = right + wrong
        if tried:
            self._right = self._right * DECAY**tried + right
            self._tried = self._tried * DECAY**tried + tried
            self._experience.acceptance.add(right / tried)

    def count_verified(self, proposed: int, verified: int) -> None:
        """So many of the proposed tokens were thought worth their rows."""
        self._used.add(min(1.0, verified / proposed))

    def _speed(self, count: int) -> float:
        """Tokens per time, where no draft is 1."""
        chance, cost = min(self.acceptance, 0.999), self._experience.cost
        tokens = (1 - chance ** (count + 1)) / (1 - chance)
        if self._used.value is not None:
            tokens = 1 + (tokens - 1) * self._used.value
        if count == 0:
            return 1.0
        step = self._experience.slowdown
        if not self._overlaps:
            return tokens / (step + count * cost)
        whole = chance ** (count + 1)
        late = max(0.0, (count + 1) * cost - step)
        return float(tokens / (step + (1 - whole) * count * cost + whole * min(late, count * cost)))
