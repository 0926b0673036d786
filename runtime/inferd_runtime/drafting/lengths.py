"""How many tokens to ask a draft model for: what its acceptance and its measured speed make of it."""

from __future__ import annotations

from dataclasses import dataclass, field

MARGIN = 1.03
"""A draft has to promise at least this much more speed than none."""
DECAY = 0.95
PRIOR_WEIGHT = 6.0
FIRST_PROBE, LAST_PROBE = 8, 256
PROBE_TOKENS = 2


class Average:
    """A running average; the first value counts whole."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.value: float | None = None

    def add(self, value: float) -> None:
        """Take one more value."""
        self.value = value if self.value is None else self.value + self._share * (value - self.value)


@dataclass
class DraftExperience:
    """What all generations of one draft model have measured together; times in seconds."""

    token: Average = field(default_factory=lambda: Average(0.1))
    step: Average = field(default_factory=lambda: Average(0.1))
    acceptance: Average = field(default_factory=lambda: Average(0.05))

    @property
    def cost(self) -> float:
        """A draft token's time, in steps of the target."""
        if self.token.value is None or not self.step.value:
            return 0.25
        return self.token.value / self.step.value


class DraftLength:
    """One generation's draft lengths: 0 to ``most`` tokens, whatever brings most tokens per time.

    Of ``n`` drafted tokens, each accepted with the chance a when the one before is, (1 - a^(n+1)) / (1 - a) tokens come out
    of a step (Leviathan et al. 2023, arXiv 2211.17192, equation 1) that takes 1 + n c of the target's. Where the draft model
    ``overlaps``, its work is waited for after a wrong guess alone. No draft is always a candidate: a model that is never
    right is asked for a probe now and then, ever more rarely.
    """

    def __init__(self, experience: DraftExperience, *, most: int, overlaps: bool) -> None:
        self._experience = experience
        self._most = most
        self._overlaps = overlaps
        acceptance = experience.acceptance.value
        self._right = PRIOR_WEIGHT * (0.7 if acceptance is None else acceptance)
        self._tried = PRIOR_WEIGHT
        self._until_probe = self._probe = FIRST_PROBE

    @property
    def acceptance(self) -> float:
        """The chance that a drafted token is accepted when the one before it is."""
        return self._right / self._tried

    def choose(self) -> tuple[int, bool]:
        """How many tokens to ask for behind a step, and whether that is only a probe."""
        best = max(range(self._most + 1), key=self._speed)
        if best and self._speed(best) >= MARGIN:
            self._until_probe = self._probe = FIRST_PROBE
            return best, False
        self._until_probe -= 1
        if self._until_probe > 0:
            return 0, False
        self._probe = min(LAST_PROBE, 2 * self._probe)
        self._until_probe = self._probe
        return min(PROBE_TOKENS, self._most), True

    def feedback(self, proposed: int, accepted: int) -> None:
        """Of ``proposed`` tokens in a row, ``accepted`` were right."""
        tried = min(proposed, accepted + 1)
        self._right = self._right * DECAY**tried + accepted
        self._tried = self._tried * DECAY**tried + tried
        self._experience.acceptance.add(accepted / tried)

    def _speed(self, count: int) -> float:
        """Tokens per time, where no draft is 1."""
        chance, cost = min(self.acceptance, 0.999), self._experience.cost
        tokens = (1 - chance ** (count + 1)) / (1 - chance)
        if not self._overlaps:
            return tokens / (1 + count * cost)
        whole = chance ** (count + 1)
        late = max(0.0, (count + 1) * cost - 1)
        return float(tokens / (1 + (1 - whole) * count * cost + whole * min(late, count * cost)))
