"""Starting programs and asking the engine, through the real processes; and what bounds both."""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import zmq

from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.sandbox.wasm.loaded_runner import LoadedRunner
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.programs.library import ProgramLibrary, open_library
from inferd_runtime.server.supervisor.runtime import Runtime, open_runtime
from inferd_runtime.server.tenancy.quotas import ADMIN_QUOTAS, same_for_all
from inferd_runtime.settings.settings import EngineSettings, Settings

TENANT = "default"
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
ECHOES = 2000
INSTANCES = 50


async def latencies(
    known: int, fresh: int, trips: int, engine: EngineSettings | None = None
) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of known and of fresh programs to their first lines, and microseconds of round trips."""
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(Settings(data_dir=Path(folder), state_dir=Path(folder)), workers=1, max_workers=1)
        settings = replace(settings, engine=engine or settings.engine)
        file = settings.data_dir / "programs.sqlite3"
        async with (
            open_runtime(settings, spare=0) as runtime,
            open_library(file, same_for_all(ADMIN_QUOTAS)) as library,
        ):
            program = await _uploaded(library, "known", FIRST_LINE.format(n=-1))
            for _ in range(5):
                await first_line(runtime, program, time.perf_counter())
            starts = [await first_line(runtime, program, time.perf_counter()) for _ in range(known)]
            uploads = [await _fresh(runtime, library, number) for number in range(fresh)]
            asking = await _uploaded(library, "round-trips", ROUND_TRIPS)
            ending = await runtime.launch(asking, json.dumps({"count": trips}), TENANT).wait()
    if ending.error is not None:
        raise RuntimeError(ending.error.message)
    return starts, uploads, json.loads(ending.result or "[]")


async def first_line(runtime: Runtime, program: Program, start: float) -> float:
    """Milliseconds from ``start`` to the first text of a run that is launched now; waits for its end."""
    run = runtime.launch(program, "{}", TENANT)
    seen = float("nan")
    async for event in run.follow():
        if event.kind == "stdout" and seen != seen:
            seen = (time.perf_counter() - start) * 1e3
    return seen


async def _fresh(runtime: Runtime, library: ProgramLibrary, number: int) -> float:
    start = time.perf_counter()
    return await first_line(runtime, await _uploaded(library, f"fresh-{number}", FIRST_LINE.format(n=number)), start)


async def _uploaded(library: ProgramLibrary, name: str, source: str) -> Program:
    async def body() -> bytes:
        return json.dumps({"files": {"main.py": source}, "name": name}).encode()

    return (await library.upload(body, TENANT)).program


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
        child = multiprocessing.get_context("spawn").Process(target=_echo, args=(endpoint,), daemon=True)
        child.start()
        here.send(b"warm")
        here.recv()
        samples = []
        for _ in range(ECHOES):
            start = time.perf_counter()
            here.send(b"x" * 50)
            here.recv()
            samples.append((time.perf_counter() - start) * 1e6)
        child.terminate()
        child.join()
    return statistics.median(samples)


def _echo(endpoint: str) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.connect(endpoint)
        while True:
            socket.send(socket.recv())
