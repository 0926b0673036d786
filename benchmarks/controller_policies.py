"""The policies that the controller is compared with, each over the same batch of requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import log, sqrt

from controller_traces import LENGTH, Place

from inferd_runtime.speculation.breaker import SourceBreaker
from inferd_runtime.speculation.controller import Controller
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft
from inferd_runtime.speculation.survival import MATCHES, RequestSurvival
from inferd_runtime.speculation.times import StepShape, StepTimes

SOURCE = "ngram"


class Policy:
    """How many tokens of each request's draft a step verifies. ``lane`` is a place in the batch."""

    def begin(self, lane: int, tokens: int) -> None:
        """Another request, of so many tokens, takes the place."""

    def lengths(self, places: Sequence[Place]) -> list[int]:
        """The tokens to verify for each lane, whose n-gram source is at these places."""
        raise NotImplementedError

    def learn(self, places: Sequence[Place], lengths: Sequence[int], seconds: float) -> None:
        """What the step brought and took."""


class Fixed(Policy):
    """The same length always, wherever there is a draft."""

    def __init__(self, length: int) -> None:
        self._length = length

    def lengths(self, places: Sequence[Place]) -> list[int]:
        return [self._length if place.match else 0 for place in places]


class EmaTiers(Policy):
    """SGLang's adaptive length: 1, 3 or 7 by an average of what was accepted, with its constants."""

    TIERS = (1, 3, 7)

    def __init__(self, lanes: int) -> None:
        self._average = [3.0] * lanes
        self._tier = [1] * lanes

    def begin(self, lane: int, tokens: int) -> None:
        self._average[lane], self._tier[lane] = 3.0, 1

    def lengths(self, places: Sequence[Place]) -> list[int]:
        return [self.TIERS[tier] if place.match else 0 for tier, place in zip(self._tier, places, strict=True)]

    def learn(self, places: Sequence[Place], lengths: Sequence[int], seconds: float) -> None:
        for lane, (place, length) in enumerate(zip(places, lengths, strict=True)):
            if length:
                self._average[lane] += 0.2 * (min(place.held, length) - self._average[lane])
                self._tier[lane] = self._next(self._tier[lane], self._average[lane])

    def _next(self, tier: int, average: float) -> int:
        if tier + 1 < len(self.TIERS) and average >= self.TIERS[tier] - 0.25:
            return tier + 1
        return tier - 1 if tier and average < self.TIERS[tier - 1] - 0.25 else tier


class AcceptanceUcb(Policy):
    """UCB1 over lengths, rewarded by accepted tokens and blind to what rows cost."""

    ARMS = (1, 2, 4, 8, 16)

    def __init__(self, lanes: int) -> None:
        self._counts = [[0] * len(self.ARMS) for _ in range(lanes)]
        self._sums = [[0.0] * len(self.ARMS) for _ in range(lanes)]

    def begin(self, lane: int, tokens: int) -> None:
        self._counts[lane], self._sums[lane] = [0] * len(self.ARMS), [0.0] * len(self.ARMS)

    def lengths(self, places: Sequence[Place]) -> list[int]:
        return [self.ARMS[self._arm(lane)] if place.match else 0 for lane, place in enumerate(places)]

    def learn(self, places: Sequence[Place], lengths: Sequence[int], seconds: float) -> None:
        for lane, (place, length) in enumerate(zip(places, lengths, strict=True)):
            if length:
                arm = self.ARMS.index(length)
                self._counts[lane][arm] += 1
                self._sums[lane][arm] += min(place.held, length) / LENGTH

    def _arm(self, lane: int) -> int:
        counts, sums = self._counts[lane], self._sums[lane]
        if 0 in counts:
            return counts.index(0)
        time = 2 * log(sum(counts))
        bounds = [won / count + sqrt(time / count) for won, count in zip(sums, counts, strict=True)]
        return bounds.index(max(bounds))


class CostModel(Policy):
    """The engine's own: survival, the source's breaker, the controller."""

    def __init__(self, lanes: int, times: StepTimes) -> None:
        self.controller = Controller(times)
        self._survival: list[RequestSurvival] = []
        self._breakers: list[SourceBreaker] = []
        for _ in range(lanes):
            self._survival.append(self.controller.survival.request())
            self._breakers.append(SourceBreaker())

    def begin(self, lane: int, tokens: int) -> None:
        self._survival[lane], self._breakers[lane] = self.controller.survival.request(), SourceBreaker(tokens)

    def lengths(self, places: Sequence[Place]) -> list[int]:
        shape = StepShape(len(places), len(places), 0)
        seconds = self.controller.times.times(shape, LENGTH * len(places))[:: len(places)]
        costs = [each / seconds[0] - 1 for each in seconds]
        drafts = [self._draft(lane, place, costs) for lane, place in enumerate(places)]
        if all(draft is NO_DRAFT for draft in drafts):
            return [0] * len(places)
        return [len(draft.tokens) for draft in self.controller.allocate(drafts, shape, LENGTH * len(places))]

    def _draft(self, lane: int, place: Place, costs: Sequence[float]) -> Draft:
        breaker = self._breakers[lane]
        if not place.match:
            return NO_DRAFT
        most = breaker.affords(costs)
        if not most:
            breaker.guessed(place.held > 0)
            return NO_DRAFT
        self._survival[lane].fade(SOURCE, place.match)
        return draft_of(self._survival[lane].chances(SOURCE, place.match, most))

    def learn(self, places: Sequence[Place], lengths: Sequence[int], seconds: float) -> None:
        lanes, rows = len(places), sum(lengths)
        plain = StepShape(lanes, lanes, 0)
        shape = StepShape(lanes, lanes + rows, 0)
        step = self.controller.times.time(plain)
        row = (self.controller.times.time(shape) - step) / max(1, rows) * lanes / step
        emitted = lanes
        for lane, (place, length) in enumerate(zip(places, lengths, strict=True)):
            if length:
                held = min(place.held, length)
                emitted += held
                self._survival[lane].learn(SOURCE, place.match, length, held)
                self._breakers[lane].report((1 + held) / (1 + row * length))
        self.controller.learn(shape, plain, emitted, seconds)


class Clairvoyant(Policy):
    """Knows what each single draft will come to, so that it never verifies a token in vain. Nobody can: a bound, not a goal."""

    def __init__(self, times: StepTimes) -> None:
        self._controller = Controller(times)

    def lengths(self, places: Sequence[Place]) -> list[int]:
        lanes = len(places)
        drafts = [draft_of([1.0] * place.held) if place.held else NO_DRAFT for place in places]
        chosen = self._controller.choose(drafts, lanes, StepShape(lanes, lanes, 0), LENGTH * lanes)
        return [len(draft.tokens) for draft in chosen]


class Oracle(Policy):
    """Knows from the start how likely each token of a draft is to hold, by match and place: counted over the whole recording.

    It decides as the engine does, pays for no mistake that teaches, and needs no step for comparison.
    """

    def __init__(self, times: StepTimes, chances: dict[int, list[float]]) -> None:
        self._controller = Controller(times)
        self._drafts = {bucket: draft_of(each) for bucket, each in chances.items()}

    def lengths(self, places: Sequence[Place]) -> list[int]:
        lanes = len(places)
        drafts = [self._drafts[bucket_of(place)] if place.match else NO_DRAFT for place in places]
        chosen = self._controller.choose(drafts, lanes, StepShape(lanes, lanes, 0), LENGTH * lanes)
        return [len(draft.tokens) for draft in chosen]


def draft_of(chances: Sequence[float]) -> Draft:
    """A chain whose tokens hold with these chances when those before do."""
    survival: list[float] = []
    alive = 1.0
    for chance in chances:
        alive *= chance
        survival.append(alive)
    count = len(survival)
    return Draft(range(count), range(-1, count - 1), [SOURCE] * count, survival)


def bucket_of(place: Place) -> int:
    """Which matches are counted together."""
    return bisect_right(MATCHES, place.match)


def chances_of(traces: Sequence[Sequence[Place]]) -> dict[int, list[float]]:
    """By bucket of matches: of the drafts that held up to each place, the share that held there, too."""
    held: dict[int, list[int]] = {}
    for trace in traces:
        for place in trace:
            if place.match:
                held.setdefault(bucket_of(place), []).append(place.held)
    return {bucket: [_share(some, at) for at in range(LENGTH)] for bucket, some in held.items()}


def _share(held: Sequence[int], at: int) -> float:
    reached = sum(count >= at for count in held)
    return sum(count > at for count in held) / reached if reached else 0.0
