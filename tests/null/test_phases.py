"""How long each phase of a start took, as a line says it."""

from __future__ import annotations

from inferd_runtime.phases import Phases


def test_phases_follow_each_other() -> None:
    clocks = {"wall": [10.0, 12.5, 12.5], "cpu": [1.25, 1.5]}
    phases = Phases(lambda: clocks["wall"].pop(0), lambda: clocks["cpu"].pop(0))
    phases.end("imports")
    phases.end("models")
    assert str(phases) == "imports 2.50 (1.25), models 0.00 (0.25) s (on a processor)"
