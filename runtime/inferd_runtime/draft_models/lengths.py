"""How many tokens to ask a draft model for: what its acceptance and its measured speed make of it."""

from __future__ import annotations

from collections.abc import Sequence

MARGIN = 1.03
"""A draft has to promise at least this much more speed than none."""
DECAY, SLOW_DECAY = 0.95, 0.99
PRIOR_WEIGHT = 6.0
FIRST_ACCEPTANCE = 0.7
FIRST_COST = 0.25
LARGEST = 8.0
"""A measured time counts as this many steps at most: once a machine stalls, that says nothing about drafts."""
LEAST_SURVIVAL = 0.1
FIRST_PROBE, LAST_PROBE = 8, 256
PROBE_TOKENS = 3
SECOND_LOOK = 2
TENTHS = 10
FIRST_CONTROL, CONTROL = 4, 32
"""One step in so many (the first sooner) goes without a draft, to see what the others cost."""


class Average:
    """A running average; without a ``start`` the first value counts whole."""

    def __init__(self, share: float, start: float | None = None) -> None:
        self._share = share
        self.value = start

    def add(self, value: float) -> None:
        """Take one more value."""
        self.value = value if self.value is None else self.value + self._share * (value - self.value)


class Calibration:
    """How often a token of some confidence is right, by tenths; where little is known, as ``general`` says or as it claims."""

    def __init__(self, general: Calibration | None = None) -> None:
        self._general = general
        self._right = [0.0] * TENTHS
        self._tried = [0.0] * TENTHS

    def chance(self, confidence: float) -> float:
        """The chance that the token is right."""
        tenth = _tenth(confidence)
        claimed = confidence if self._general is None else self._general.chance(confidence)
        return (PRIOR_WEIGHT * claimed + self._right[tenth]) / (PRIOR_WEIGHT + self._tried[tenth])

    def learn(self, confidence: float, right: bool) -> None:
        """A token was right or not."""
        tenth = _tenth(confidence)
        self._right[tenth] = self._right[tenth] * SLOW_DECAY + right
        self._tried[tenth] = self._tried[tenth] * SLOW_DECAY + 1
        if self._general is not None:
            self._general.learn(confidence, right)


def _tenth(confidence: float) -> int:
    return min(TENTHS - 1, int(confidence * TENTHS))


class DraftExperience:
    """What all generations of one draft model have measured together.

    Times count in steps of the target alone, as they take at that moment: a machine that gets slower slows both down.
    ``cost``: drawing a token. ``slowdown``: a step with a draft to verify, or with the draft model at work beside it where both
    share processors.
    """

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.acceptance = Average(0.02, FIRST_ACCEPTANCE)
        self._alone = Average(0.2)
        self._cost = Average(0.1, FIRST_COST)
        self._slowdown = Average(0.1, 1.0)

    @property
    def cost(self) -> float:
        """Steps for a draft token."""
        return self._cost.value or 0.0

    @property
    def slowdown(self) -> float:
        """How much longer a step takes for its draft, not counting what it waits."""
        return max(1.0, self._slowdown.value or 1.0)

    @property
    def step_seconds(self) -> float:
        """Seconds of a step without a draft; 0 where none has been seen."""
        return self._alone.value or 0.0

    def count_tokens(self, tokens: int, seconds: float) -> None:
        """So many tokens were drawn."""
        if self._alone.value:
            self._cost.add(min(LARGEST, seconds / tokens / self._alone.value))

    def count_step(self, seconds: float, *, beside: bool) -> None:
        """A step of the target, with a draft or ``beside`` the draft model, or without."""
        if not beside:
            self._alone.add(seconds)
        elif self._alone.value:
            self._slowdown.add(min(LARGEST, seconds / self._alone.value))


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
        self.calibration = Calibration(experience.calibration)
        self._used = Average(0.1)
        self._until_probe = self._probe = FIRST_PROBE
        self._until_control = FIRST_CONTROL

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

    @property
    def least_survival(self) -> float:
        """A draft that is less likely than this is not worth going on with. Where most is right, doubts count less."""
        return LEAST_SURVIVAL * (1 - self.acceptance)

    def learn(self, confidence: Sequence[float], right: int) -> None:
        """The first ``right`` tokens were what the target wrote, verified or not, and the next one, if there is one, was not.

        ``confidence``: of those and the next.
        """
        for at, claimed in enumerate(confidence):
            self.calibration.learn(claimed, at < right)
        tried = len(confidence)
        if tried and tried == right:
            # What was right is worth another look soon.
            self._probe = FIRST_PROBE
            self._until_probe = min(self._until_probe, SECOND_LOOK)
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
