"""Starting programs and asking the engine, through the real processes; and what bounds both."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time

import zmq
from sandbox_runtime import Place

from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.sandbox.wasm.loaded_runner import LoadedRunner
from inferd_runtime.server.programs.bundles import Program

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
ECHO = """
import sys, zmq
socket = zmq.Context().socket(zmq.PAIR)
socket.connect(sys.argv[1])
while True:
    socket.send(socket.recv())
"""
ECHOES = 2000
INSTANCES = 50


async def latencies(place: Place, known: int, fresh: int, trips: int) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of known and of fresh programs to their first lines, and microseconds of round trips."""
    program = await place.upload("known", FIRST_LINE.format(n=-1))
    for _ in range(5):
        await first_line(place, program, time.perf_counter())
    starts = [await first_line(place, program, time.perf_counter()) for _ in range(known)]
    uploads = [await _fresh(place, number) for number in range(fresh)]
    ending = await place.launch(await place.upload("round-trips", ROUND_TRIPS), count=trips).wait()
    if ending.error is not None:
        raise RuntimeError(ending.error.message)
    return starts, uploads, json.loads(ending.result or "[]")


async def first_line(place: Place, program: Program, start: float) -> float:
    """Milliseconds from ``start`` to the first text of a run that is launched now; waits for its end."""
    run = place.launch(program)
    seen = float("nan")
    async for event in run.follow():
        if event.kind == "stdout" and seen != seen:
            seen = (time.perf_counter() - start) * 1e3
    return seen


async def _fresh(place: Place, number: int) -> float:
    start = time.perf_counter()
    return await first_line(place, await place.upload(f"fresh-{number}", FIRST_LINE.format(n=number)), start)


def bare_start_ms() -> float:
    """Milliseconds to make and discard an instance of the runner that runs nothing."""
    runner = LoadedRunner(ensure_runner())
    samples = []
    for _ in range(INSTANCES):
        start = time.perf_counter()
        runner.discard(runner.instantiate())
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples)


def echo_us() -> float:
    """Microseconds of a message to another process and back, over the transport that the engine's wire uses."""
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context, context.socket(zmq.PAIR) as here:
        endpoint = f"ipc://{folder}/echo"
        here.bind(endpoint)
        with subprocess.Popen([sys.executable, "-c", ECHO, endpoint]) as child:
            here.send(b"warm")
            here.recv()
            samples = []
            for _ in range(ECHOES):
                start = time.perf_counter()
                here.send(b"x" * 50)
                here.recv()
                samples.append((time.perf_counter() - start) * 1e6)
            child.terminate()
    return statistics.median(samples)
