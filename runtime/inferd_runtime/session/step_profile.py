"""Where the time of a slow step goes: steps are profiled while an operator asks for one, and never otherwise."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable
from pathlib import Path

from inferd_runtime.session.wire import ProfiledFunction, SlowStep

ASKED_SECONDS = 2.0
"""Steps are profiled for so long after each question."""
MOST_FUNCTIONS = 30
PARTS = {
    "plan": "plan",
    "_prepare": "prepare",
    "_launch": "launch",
    "_forward": "forward",
    "_verify": "verify",
    "_commit": "commit",
}
"""The engine's methods that are the parts of a step. An overlapped step launches (plan, prepare, forward) and then verifies."""
Place = tuple[str, int, str]
Times = tuple[int, int, float, float, object]
"""What pstats holds of a function: calls without and with recursion, seconds in it, seconds with what it called, callers."""


class StepProfile:
    """Keeps the last slow step. The profiler itself makes steps slower: times are for comparing parts of a step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_until = 0.0
        self._over_ms = 0.0
        self._found: SlowStep | None = None

    def read(self, over_ms: float) -> SlowStep | None:
        """Return the slow step that was found since the last question, and go on looking for one above ``over_ms``."""
        self._asked_until, self._over_ms = self._clock() + ASKED_SECONDS, over_ms
        found, self._found = self._found, None
        return found

    def run(self, model: str, jobs: Callable[[], int], step: Callable[[], bool]) -> bool:
        """Run a step of so many ``jobs`` and return what it returns."""
        if self._clock() >= self._asked_until:
            return step()
        count, profile, started = jobs(), cProfile.Profile(), time.perf_counter()
        progressed: bool = profile.runcall(step)
        ms = 1e3 * (time.perf_counter() - started)
        if ms > self._over_ms:
            self._found = _summary(model, count, ms, profile)
        return progressed


def _summary(model: str, jobs: int, ms: float, profile: cProfile.Profile) -> SlowStep:
    stats: dict[Place, Times] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    parts = {
        PARTS[name]: 1e3 * times[3]
        for (file, _, name), times in stats.items()
        if name in PARTS and Path(file).name in ("engine.py", "scheduler.py")
    }
    slowest = sorted(stats.items(), key=lambda item: item[1][2], reverse=True)[:MOST_FUNCTIONS]
    functions = [ProfiledFunction(_place(place), times[1], 1e3 * times[2], 1e3 * times[3]) for place, times in slowest]
    return SlowStep(model, jobs, ms, parts, functions)


def _place(place: Place) -> str:
    file, line, name = place
    short = "/".join(Path(file).parts[-3:])
    return name if file == "~" else f"{short}:{line} {name}"
