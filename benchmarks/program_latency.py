"""How long a new program takes to its first line, and a guest's await to its reply, through the real processes."""

from __future__ import annotations

import json
import time
from dataclasses import replace

from inferd_runtime.sandbox.messages import Bundle
from inferd_runtime.server.programs.bundles import make_program
from inferd_runtime.server.supervisor.runtime import Runtime, open_runtime
from inferd_runtime.settings.settings import Settings

FIRST_LINE = 'print("first line {n}")\n\n\nasync def main() -> int:\n    return {n}\n'
ROUND_TRIPS = """
import time

from inferd import Model


async def main(count: int) -> list[float]:
    samples = []
    for _ in range(count):
        start = time.perf_counter()
        await Model.list()
        samples.append((time.perf_counter() - start) * 1e6)
    return samples
"""


async def measure(settings: Settings, starts: int, round_trips: int) -> tuple[list[float], list[float]]:
    """Milliseconds from launch to the first printed line, one per new program, and microseconds of round trips."""
    async with open_runtime(replace(settings, workers=1, max_workers=1), spare=0) as runtime:
        await _first_line(runtime, 0)
        latencies = [await _first_line(runtime, number) for number in range(1, starts + 1)]
        program = make_program(Bundle("round-trips", {"main.py": ROUND_TRIPS}))
        run = runtime.launch(program, json.dumps({"count": round_trips}))
        ending = await run.wait()
        if ending.error is not None:
            raise RuntimeError(ending.error.message)
        return latencies, json.loads(ending.result or "[]")


async def _first_line(runtime: Runtime, number: int) -> float:
    """A program that the runtime has never seen, from launch to the first text that it prints."""
    program = make_program(Bundle(f"new-{number}", {"main.py": FIRST_LINE.format(n=number)}))
    start = time.perf_counter()
    run = runtime.launch(program, "{}")
    seen = float("nan")
    async for event in run.follow():
        if event.kind == "stdout" and seen != seen:
            seen = (time.perf_counter() - start) * 1e3
    return seen
