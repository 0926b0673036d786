"""How many programs a real server starts in a second for one client over HTTP, and how many can wait at once in a worker."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from sandbox_runtime import Place

from inferd_runtime.server.supervisor.runs import Run

TRIVIAL = "async def main() -> int:\n    return 1\n"
WAITING = "from inferd import session\n\n\nasync def main() -> object:\n    return await session.receive()\n"
TOKEN = "token-of-the-benchmark-0123456789"
PROBES = 300
MOST_OPEN = 100
"""Runs that the client has not seen the end of, so that none is refused: 64 run at a time, and as many may wait."""
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Idle:
    """How many waiting programs answered, the memory of each in MiB, and how long launching them took."""

    alive: int
    each_mb: float
    seconds: float


class Client:
    """One connection, kept open."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_SECONDS)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON. Raises RuntimeError for an error."""
        return json.loads(self.text(path, method, body))

    def text(self, path: str, method: str = "GET", body: Any = None) -> str:
        """The answer's text. Raises RuntimeError for an error."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = self._connection.getresponse()
        text = response.read().decode()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {text[:500]}")
        return text

    def upload(self, source: str) -> str:
        """A program's id."""
        return str(self.ask("POST", "/v1/programs", {"files": {"main.py": source}, "name": "p"})["id"])

    def over(self, run: str) -> dict[str, Any]:
        """A run that has ended."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            value: dict[str, Any] = self.ask("GET", f"/v1/runs/{run}")
            if value["finished_at"] is not None:
                return value
            time.sleep(0.002)
        raise TimeoutError(run)


@contextmanager
def serving(*options: str) -> Iterator[tuple[Client, psutil.Process]]:
    """A client of a server that ends with the block, and its process."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens"
        tokens.touch(0o600)
        tokens.write_text(f"{TOKEN} benchmark role=admin\n")
        command = [
            sys.executable, "-m", "inferd_runtime.cli", "serve", "--json", "--port", "0", "--tokens-file", str(tokens),
            "--data-dir", folder, "--state-dir", folder, *options,
        ]  # fmt: skip
        log = Path(folder) / "log"
        with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as server:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise RuntimeError(log.read_text())
            try:
                yield Client(json.loads(line)["url"]), psutil.Process(server.pid)
            finally:
                server.terminate()


def launch_rate(rounds: int, count: int) -> tuple[float, list[float]]:
    """Answers of ``/livez`` per second, and in each round the programs per second from the first launch to the last end."""
    with serving() as (client, _):
        program = client.upload(TRIVIAL)
        _launched(client, program, count)
        start = time.perf_counter()
        for _ in range(PROBES):
            client.ask("GET", "/livez")
        answers = PROBES / (time.perf_counter() - start)
        return answers, [_launched(client, program, count) for _ in range(rounds)]


def _launched(client: Client, program: str, count: int) -> float:
    start = time.time()
    runs: list[str] = []
    for number in range(count):
        if number >= MOST_OPEN:
            client.over(runs[number - MOST_OPEN])
        runs.append(client.ask("POST", "/v1/runs", {"program": program})["id"])
    ends = [
        float(client.over(run)["finished_at"]) for run in reversed(runs)
    ]  # mostly one question each: the last ends last
    return count / (max(ends) - start)


async def idle_programs(place: Place, count: int) -> Idle:
    """Launch programs that wait for a message, weigh them, then send each its message and look for it in the result."""
    program = await place.upload("waiting", WAITING)
    for number in range(3):
        await _answers(place.launch(program), number)
    before, start = private_mb(), time.monotonic()
    runs = [place.launch(program) for _ in range(count)]
    for run in runs:
        await _begun(run)
    seconds = time.monotonic() - start
    each = (private_mb() - before) / count
    alive = sum([await _answers(run, number) for number, run in enumerate(runs)])
    return Idle(alive, each, seconds)


async def _begun(run: Run) -> None:
    async for _ in run.follow():
        return


async def _answers(run: Run, number: int) -> bool:
    run.deliver(number)
    return bool((await run.wait()).result == str(number))


def private_mb() -> float:
    """MiB that this process and its children have for themselves, except for the engine's."""
    this = psutil.Process()
    processes = [this, *this.children(recursive=True)]
    return sum(_private_kb(p.pid) for p in processes if "engine_process" not in " ".join(p.cmdline())) / 1024


def _private_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
