"""The length of a draft model's drafts, chosen by its acceptance rate and its measured speed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from inferd_runtime.draft_models.worth import DraftWorth

MARGIN = 1.03
"""A draft has to promise at least this much more speed than none."""
DECAY, SLOW_DECAY = 0.95, 0.99
PRIOR_WEIGHT = 6.0
FIRST_ACCEPTANCE = 0.7
FIRST_COST = 0.25
LARGEST = 8.0
"""A measured time counts as this many steps at most, so that a stall of the machine does not count against drafts."""
LEAST_SURVIVAL = 0.1
SETTLED_STEPS = 4
"""A decision for no draft holds for so many steps, as weighing all lengths takes time in each."""
FIRST_PROBE, LAST_PROBE = 8, 256
PROBE_TOKENS = 3
SECOND_LOOK = 2
TENTHS = 10
LEAST_FLOW = 0.01
"""The chance that a draft is still right when it arrives below which none is asked for."""
FIRST_CONTROL, CONTROL = 4, 32
"""One step in so many (the first sooner) goes without a draft, to measure what the others cost."""


class Average:
    """An exponential moving average. Without a ``start`` it begins with the first value."""

    def __init__(self, share: float, start: float | None = None) -> None:
        self._share = share
        self.value = start

    def add(self, value: float) -> None:
        """Add a value."""
        self.value = value if self.value is None else self.value + self._share * (value - self.value)


class Calibration:
    """How often tokens of some confidence are right, by tenths. The prior is ``general``, or the confidence itself."""

    def __init__(self, general: Calibration | None = None) -> None:
        self._general = general
        self._right = [0.0] * TENTHS
        self._tried = [0.0] * TENTHS

    def chance(self, confidence: float) -> float:
        """Return the chance that a token of this confidence is right."""
        tenth = _tenth(confidence)
        claimed = confidence if self._general is None else self._general.chance(confidence)
        return (PRIOR_WEIGHT * claimed + self._right[tenth]) / (PRIOR_WEIGHT + self._tried[tenth])

    def learn(self, confidence: float, right: bool) -> None:
        """Count a token that was right or not."""
        tenth = _tenth(confidence)
        self._right[tenth] = self._right[tenth] * SLOW_DECAY + right
        self._tried[tenth] = self._tried[tenth] * SLOW_DECAY + 1
        if self._general is not None:
            self._general.learn(confidence, right)


def _tenth(confidence: float) -> int:
    return min(TENTHS - 1, int(confidence * TENTHS))


class DraftExperience:
    """Measurements shared by all generations of one draft model.

    Times are in steps of the target alone, as long as those take at that moment: a machine that gets slower slows both down.
    ``round_trip``: seconds that a request and its answer usually travel; 0 on one machine.
    """

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.worth = DraftWorth()
        self.acceptance = Average(0.02, FIRST_ACCEPTANCE)
        self.confidence = Average(0.02, FIRST_ACCEPTANCE)
        self.round_trip = 0.0
        self._alone = Average(0.2)
        self._cost = Average(0.1, FIRST_COST)
        self._slowdown = Average(0.1, 1.0)

    @property
    def cost(self) -> float:
        """The time to draw a draft token, in steps."""
        return self._cost.value or 0.0

    @property
    def travel(self) -> float:
        """The round trip in steps; 0 as long as it is not known how long those take."""
        return self.round_trip / self.step_seconds if self.step_seconds else 0.0

    @property
    def slowdown(self) -> float:
        """The time of a step with a draft to verify, or beside a draft model at work, in steps; without what it waits."""
        return max(1.0, self._slowdown.value or 1.0)

    @property
    def step_seconds(self) -> float:
        """Seconds of a step without a draft; 0 before the first."""
        return self._alone.value or 0.0

    def count_tokens(self, tokens: int, seconds: float) -> None:
        """Take in that so many tokens were drawn."""
        if self._alone.value:
            self._cost.add(min(LARGEST, seconds / tokens / self._alone.value))

    def count_step(self, seconds: float, *, beside: bool) -> None:
        """Take in a step of the target. ``beside``: it had a draft, or the draft model was at work."""
        if not beside:
            self._alone.add(seconds)
        elif self._alone.value:
            self._slowdown.add(min(LARGEST, seconds / self._alone.value))


class DraftLength:
    """Chooses one generation's draft lengths: 0 to ``most`` tokens, for most tokens per time.

    With ``n`` drafted tokens, each accepted with the chance a if the one before is, a step emits (1 - a^(n+1)) / (1 - a) tokens
    (Leviathan et al. 2023, arXiv 2211.17192, equation 1) and takes 1 + n c steps of the target's time. If the draft model
    ``overlaps``, only a wrong guess makes a step wait for it. Drafted tokens that are not verified gain nothing. No draft is
    always a candidate: a model that does not help is asked for a probe now and then, ever more rarely.

    A draft from another machine is waited for only if it is likely to come while that still pays; else the draft model works
    further ahead, and no step waits.
    """

    measured = True
    """False: drafts are asked for whatever they were measured to cost."""

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
        self._settled = 0

    @property
    def acceptance(self) -> float:
        """The chance that a drafted token is accepted if the one before it is."""
        return self._right / self._tried

    @property
    def asks(self) -> bool:
        """False while the draft model is not to be asked at all, as tokens take longer with it (:class:`DraftWorth`)."""
        return self._experience.worth.drafts or not self.measured

    def choose(self) -> tuple[int, bool]:
        """Count a step, and return how many tokens to ask for after it, and True if that is only a probe."""
        best = self._best()
        if best:
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

    def least_survival(self, lead: int = 0) -> float:
        """Return the chance of a whole draft below which it ends. It is lower where most tokens are right.

        The first ``lead`` tokens do not count: the target will have written them itself when the draft arrives.
        """
        return float(LEAST_SURVIVAL * (1 - self.acceptance) * (self._experience.confidence.value or 0.0) ** lead)

    def learn(self, confidence: Sequence[float], right: int) -> None:
        """Count the first ``right`` tokens as what the target wrote, and the next one, if there is one, as wrong.

        ``confidence``: of those and the next.
        """
        for at, claimed in enumerate(confidence):
            self.calibration.learn(claimed, at < right)
        tried = len(confidence)
        if tried and tried == right:
            # All were right, so the next probe comes soon.
            self._probe = FIRST_PROBE
            self._until_probe = min(self._until_probe, SECOND_LOOK)
        if tried:
            self._right = self._right * DECAY**tried + right
            self._tried = self._tried * DECAY**tried + tried
            self._experience.acceptance.add(right / tried)
            self._settled = 0

    def count_verified(self, proposed: int, verified: int) -> None:
        """Count how many of the proposed tokens were verified."""
        self._used.add(min(1.0, verified / proposed))

    def _best(self) -> int:
        """Return the length that promises most; 0 if none promises enough, which holds for some steps or until more is learnt."""
        if self._settled:
            self._settled -= 1
            return 0
        outlook = self._outlook()
        best = max(range(1, self._most + 1), key=outlook.speed)
        if outlook.speed(best) >= MARGIN:
            return best
        self._settled = SETTLED_STEPS
        return 0

    def patience(self, count: int) -> float:
        """Return the seconds that a step may wait for a draft of ``count`` tokens: as long as the draft still pays after that.

        0 if it is not likely to come in time, or if steps are faster that never wait. On one machine there is no such deadline.
        """
        experience = self._experience
        if not experience.round_trip:
            return math.inf
        outlook = self._outlook()
        pays = outlook.tokens(count) / MARGIN - experience.slowdown
        likely = experience.travel + count * experience.cost
        if likely > pays or outlook.flowing(count) >= outlook.waiting(count):
            return 0.0
        return pays * experience.step_seconds

    def lead(self, tokens: int) -> int:
        """Return by how much the target goes on while a request and its answer travel, at so many tokens a step."""
        return math.ceil(self._experience.travel) * tokens

    def _outlook(self) -> _Outlook:
        experience = self._experience
        return _Outlook(
            min(self.acceptance, 0.999), experience.cost, experience.slowdown, experience.travel,
            1.0 if self._used.value is None else self._used.value, self._overlaps,
        )  # fmt: skip


class _Outlook:
    """The expected speed of drafts, at one moment: tokens per time relative to no draft.

    ``chance``: of a token to be accepted if the one before it is; ``cost``: of drawing one, ``step``: of a step with a draft,
    ``travel``: of a request and its answer, all in steps; ``used``: the share of drafted tokens that are verified.
    """

    __slots__ = ("_alone", "_chance", "_cost", "_overlaps", "_step", "_travel", "_used")

    def __init__(self, chance: float, cost: float, step: float, travel: float, used: float, overlaps: bool) -> None:
        self._chance, self._cost, self._step, self._travel, self._used = chance, cost, step, travel, used
        self._overlaps = overlaps
        away = math.ceil(travel + cost)
        survives = chance**away
        self._alone = away / survives if travel and survives >= LEAST_FLOW else math.inf

    def tokens(self, count: int) -> float:
        """Return the tokens of a step that verifies ``count`` drafted ones."""
        chance = self._chance
        return 1 + ((1 - chance ** (count + 1)) / (1 - chance) - 1) * self._used

    def speed(self, count: int) -> float:
        """Return the speed of drafts of ``count`` tokens, waited for or not, whichever is faster."""
        waiting = self.waiting(count)
        return waiting if self._alone == math.inf else max(waiting, self.flowing(count))

    def waiting(self, count: int) -> float:
        """Return the speed if a step waits for a draft that is not there."""
        step, cost = self._step, self._cost
        wait = self._travel + count * cost
        if not self._overlaps:
            return self.tokens(count) / (step + wait)
        whole = self._chance ** (count + 1)
        late = min(wait, max(0.0, wait + cost - step))
        return self.tokens(count) / (step + (1 - whole) * wait + whole * late)

    def flowing(self, count: int) -> float:
        """Return the speed if no step ever waits; 0 where that is not tried.

        After a wrong guess the target goes on alone until an answer is there, and once more if that is wrong about these steps.
        """
        if self._alone == math.inf:
            return 0.0
        step = self._step
        hits = 1 / (1 - self._chance ** (count + 1))
        late = max(0.0, (count + 1) * self._cost - step)
        return (self._alone + hits * (self.tokens(count) + late)) / (self._alone + hits * (step + late))
