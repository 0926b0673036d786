"""Which steps wait a moment for programs that are about to answer.

A generation with a speculator or a constraint of its own runs one step per answer of its program. If a step starts without the
programs that have not answered yet, another step follows for them alone: eight such programs take almost twice the steps that
they would take together. So a step waits for programs that answered in time the last time: for a whole step's time if all
generations are of this kind, else for a part of it. A program for which a step has waited in vain is not waited for again until
it has answered in time by itself. A generation whose speculator has drafted nothing for some steps runs on without waiting, and
its speculator is told of the steps that have come.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from inferd_runtime.engine.jobs.generation import Generation

SHARE_BESIDE_OTHERS = 0.2
"""Of a step's time."""


class ProgramTurns:
    """The generations of one model that wait for their programs. Belongs to the thread of the step loop."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._members: set[Generation] = set()
        self._asked: dict[Generation, float] = {}
        self._late: set[Generation] = set()
        self._step_seconds = 0.0

    def begin(self, generation: Generation) -> None:
        """Note a generation that runs one step per answer of its program, whose turn it is."""
        self._members.add(generation)
        self._asked[generation] = self.clock()

    @property
    def begun(self) -> bool:
        """True if it is the turn of any program."""
        return bool(self._asked)

    def asked(self, generation: Generation) -> None:
        """Note that a program has got its steps, so that it is its turn."""
        if generation in self._members and not generation.finished() and not generation.runs_on:
            self._asked[generation] = self.clock()

    def answered(self, generation: Generation) -> None:
        """Note that a program has answered."""
        asked = self._asked.pop(generation, None)
        if asked is not None:
            in_time = self.clock() - asked <= self._step_seconds
            (self._late.discard if in_time else self._late.add)(generation)

    def end(self, generation: Generation) -> None:
        """Forget a generation that was closed."""
        self._members.discard(generation)
        self._late.discard(generation)
        self._asked.pop(generation, None)

    def stepped(self, seconds: float) -> None:
        """Note what a step took."""
        self._step_seconds = seconds

    def waited_for(self, jobs: int) -> list[str]:
        """Return the tenants of those for whom the next step should wait. ``jobs``: all that are not finished.

        Those for whom it has waited long enough are given up.
        """
        if jobs <= len(self._asked):
            return []  # nobody could run without them
        share = 1.0 if jobs <= sum(not member.runs_on for member in self._members) else SHARE_BESIDE_OTHERS
        latest = self.clock() - share * self._step_seconds
        self._late.update(generation for generation, since in self._asked.items() if since <= latest)
        return [generation.context.tenant for generation in self._asked if generation not in self._late]
