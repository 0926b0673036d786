"""A stopwatch for the steps of a generation, with its draft model at work and without."""

from __future__ import annotations

from collections.abc import Callable

from inferd_runtime.draft_models.lengths import DraftExperience
from inferd_runtime.draft_models.worth import DraftWorth


class StepWatch:
    """Times one generation's steps from proposal to commit, and their waits for drafts before that."""

    def __init__(self, clock: Callable[[], float], experience: DraftExperience) -> None:
        self._clock = clock
        self._experience = experience
        self._begun = self._waiting_since = 0.0
        self._beside = False
        self._steps = self._tokens = 0
        self._waited = 0.0

    def wait(self, now: float) -> None:
        """Note that the next step waits for a draft."""
        self._waiting_since = self._waiting_since or now

    @property
    def waits(self) -> bool:
        """True if the next step waits for a draft."""
        return self._waiting_since > 0

    def begin(self, *, beside: bool) -> float:
        """Start a step, ``beside`` a draft model at work or not. Returns the seconds that it has waited."""
        now, since = self._clock(), self._waiting_since
        waited = now - since if since else 0.0
        self._waited += waited
        self._begun, self._beside, self._waiting_since = now, beside, 0.0
        return waited

    def end(self, tokens: int, *, beside: bool) -> None:
        """End the step, if one has started, with so many committed tokens."""
        if self._begun:
            self._experience.count_step(self._clock() - self._begun, beside=beside or self._beside)
            self._steps += 1
            self._tokens += tokens
        self._begun = 0.0

    @property
    def speed(self) -> float:
        """Tokens per time relative to no draft; 0 if not known."""
        step = self._experience.step_seconds
        if not self._steps or not step:
            return 0.0
        return self._tokens / (self._steps * self._experience.slowdown + self._waited / step)


class TokenTimer:
    """Times one generation from commit to commit, everything included, and tells :class:`DraftWorth`."""

    def __init__(self, clock: Callable[[], float], worth: DraftWorth) -> None:
        self._clock = clock
        self._worth = worth
        self._since: float | None = None
        self._drafts, self._settled = worth.drafts, False
        worth.opened()

    def restart(self) -> None:
        """Leave the step that runs now out."""
        self._since = None

    def count(self, tokens: int, *, caught_up: bool) -> None:
        """Count a commit. ``caught_up``: the draft model knows the generation."""
        now = self._clock()
        if self._since is not None:
            self._worth.count_step(tokens, now - self._since, drafts=self._drafts, settled=self._settled)
        self._since, before, self._drafts = now, self._drafts, self._worth.drafts
        self._settled = before == self._drafts and (caught_up or not before)

    def close(self) -> None:
        """End with the generation. Called once."""
        self._worth.closed()
