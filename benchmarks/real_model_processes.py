"""What only whole processes show: how long a program and a server take to start, and programs that draft for themselves."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from sandbox_fleet import Client, serving
from speculation_arms import Run

STREAMS = 8
PROMPT = 24
FIVE_LINES = """
from inferd import Context, Sampler
async def main() -> str:
    async with Context() as context:
        return await context.user("Say hello.").generate(Sampler.argmax(), max_tokens=4).collect_text()
"""
BARE = """
import sys
import torch, transformers
torch.set_num_threads(1)
transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
"""
DRAFTING = """
from inferd import Context, Sampler, Speculator


async def main(first: int, count: int, tokens: int, ends: list[int], own: bool) -> int:
    async with Context() as context:
        context.append(list(range(first, first + count)))
        never = Sampler.argmax().biased({end: -100.0 for end in ends})
        speculator = Speculator() if own else None
        generator = context.generate(never, max_tokens=tokens, speculator=speculator, system_speculation=False)
        await generator.collect_tokens()
        return generator.usage.steps
"""


@dataclass(frozen=True)
class Seconds:
    """Wall-clock seconds, and processor seconds of the process and all of its children."""

    wall: float
    processor: float


def run_start(model: str) -> Seconds:
    """``inferd run`` of a program of five lines, to its end."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "hello.py"
        program.write_text(FIVE_LINES)
        command = [sys.executable, "-m", "inferd_runtime.cli", "run", str(program), "--model", model, "--threads", "1"]
        return _timed(command)


def bare_start(folder: str) -> Seconds:
    """The floor of a cold process: torch, transformers and the weights, without a token."""
    return _timed([sys.executable, "-c", BARE, folder])


def _timed(command: list[str]) -> Seconds:
    start, before = time.perf_counter(), _children_seconds()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return Seconds(time.perf_counter() - start, _children_seconds() - before)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def timed_server(model: str) -> Iterator[tuple[Client, psutil.Process, Seconds]]:
    """A server, and how long it took until it said that it is ready."""
    start = time.perf_counter()
    with serving("--model", model, "--threads", "1") as (client, server):
        wall = time.perf_counter() - start
        yield client, server, Seconds(wall, processor_seconds(server))


def processor_seconds(server: psutil.Process) -> float:
    """Processor seconds of a server's processes so far."""
    alive = [server, *server.children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in alive)


class DraftingPrograms:
    """Eight programs at a time that generate, with a speculator of their own that guesses nothing or without one."""

    def __init__(self, client: Client, server: psutil.Process, ends: list[int], tokens: int) -> None:
        self._client, self._server = client, server
        self._program = client.upload(DRAFTING)
        self._fixed = {"count": PROMPT, "tokens": tokens, "ends": ends}
        self._tokens = tokens
        self._round = 0

    def run(self, own: bool) -> Run:
        """From the first launch to the last end. ``steps``: of the program that took most."""
        self._round += 1
        start, before = time.perf_counter(), processor_seconds(self._server)
        launched = [self._launch(own, 1000 + STREAMS * 100 * self._round + 100 * at) for at in range(STREAMS)]
        results = [self._ended(run) for run in launched]
        seconds, processor = time.perf_counter() - start, processor_seconds(self._server) - before
        failed = [str(one) for one in results if not isinstance(one["result"], int)]
        if failed:
            raise RuntimeError(failed[0])
        made = [[0] * self._tokens for _ in results]
        return Run(made, seconds, processor, steps=max(one["result"] for one in results))

    def _launch(self, own: bool, first: int) -> str:
        arguments = {"first": first, "own": own, **self._fixed}
        return str(self._client.ask("POST", "/v1/runs", {"program": self._program, "arguments": arguments})["id"])

    def _ended(self, run: str) -> dict[str, Any]:
        self._client.text(f"/v1/runs/{run}/events")  # to the end
        return dict(self._client.ask("GET", f"/v1/runs/{run}"))


def middle_wall(samples: list[Seconds]) -> float:
    """The median, for the JSON line."""
    return round(statistics.median(one.wall for one in samples), 2)
