"""A stopwatch for the steps of a generation, with its draft model at work and without."""

from __future__ import annotations

from collections.abc import Callable

from inferd_runtime.draft_models.lengths import DraftExperience


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
