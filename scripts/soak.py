"""Mixed load on a real server for a while, and whether it grows: ``python scripts/soak.py --minutes 30 [--out docs/soak]``.

Two tenants work and a third attacks, all at once: launches, scripts with and without a grammar and drafts, uploads, messages,
cancels, and programs that loop, flood, hoard and crash. Every few seconds memory, descriptors and threads of all processes and
the lengths of the queues are noted. ``OUT.jsonl`` gets every sample, ``OUT.svg`` the plot, however it ends. The last line is one
of JSON, with ``flat``: after the first fifth, no series is more than 5 % (and a few) higher at the end than before. The exit
code is 0 if it is flat, the server lived to the end without a traceback, and the clients met nothing but typed errors.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from soak_plot import plot

import inferd

TOKENS = {name: f"token-of-{name}-0123456789abcdef" for name in ("ann", "bob", "mallory")}
SAMPLE_SECONDS = 5.0
WARM_UP = 0.2
STOP_SECONDS = 60.0
UNEXPECTED = "unexpected"
GROWTH = 1.05
SLACK = {"memory_mb": 8.0, "fds": 8.0, "threads": 4.0}
"""How much more is noise, whatever the share. A queue may be as long as it was at any time before."""
QUEUES = ("inferd_runs_waiting", "inferd_runs_running", "inferd_engine_sessions", "inferd_engine_jobs")
Sample = dict[str, float]

WORK = """
from inferd import Context, JsonSchema, Sampler, session

async def main(seed: int = 0, kind: str = "plain") -> str:
    async with Context() as ctx:
        ctx.user(f"Tell me about number {seed}.")
        on = Sampler.multinomial(0.8, seed=seed)
        if kind == "schema":
            value = await ctx.generate(Sampler.argmax(), max_tokens=40, constrain=JsonSchema({"type": "integer"}),
                                       system_speculation=True).collect_json()
            return str(value)
        if kind == "talk":
            await session.send("ready")
            return str(await session.receive())
        return await ctx.generate(on, max_tokens=24, system_speculation=kind == "drafts").collect_text()
"""
SLEEP = "import asyncio\nasync def main():\n    await asyncio.sleep(60)\n"
HOSTILE = (
    "async def main():\n    while True: pass\n",
    "async def main():\n    kept = []\n    while True: kept.append(bytearray(1 << 20))\n",
    "async def main():\n    while True: print('x' * 500)\n",
    "async def main():\n    raise ValueError('x' * 300_000)\n",
    "import os\nasync def main():\n    os.abort()\n",
    "import inferd\nasync def main():\n    await inferd.session.send(2**70)\n",
    "import sys\nasync def main():\n    sys.setrecursionlimit(10**9)\n    f = lambda: f()\n    f()\n",
    "import inferd\nasync def main():\n    ctx = inferd.Context()\n    ctx.append('word ' * 100_000)\n    await ctx.flush()\n",
    "import wit_world\nasync def main():\n    for _ in range(3000): wit_world.cancel(wit_world.submit('model.list', '{}'))\n",
)
LIMITS = {"wall_s": 10.0, "cpu_s": 0.5, "memory_mb": 96, "output_bytes": 100_000}


class Tenant:
    """One tenant's clients. ``done`` counts what came of each kind of work."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.token = TOKENS[name]
        self.done: Counter[str] = Counter()
        headers = {"Authorization": f"Bearer {self.token}"}
        self.http = httpx.AsyncClient(base_url=url, headers=headers, timeout=60)

    async def upload(self, source: str, name: str) -> str:
        """A program's id."""
        response = await self.http.post("/v1/programs", json={"files": {"main.py": source}, "name": name})
        response.raise_for_status()
        return str(response.json()["id"])

    async def launch(self, program: str, **body: Any) -> str:
        """A run's id."""
        response = await self.http.post("/v1/runs", json={"program": program, **body})
        response.raise_for_status()
        return str(response.json()["id"])

    async def over(self, run: str) -> dict[str, Any]:
        """A run that has ended."""
        while True:
            response = await self.http.get(f"/v1/runs/{run}")
            response.raise_for_status()
            value: dict[str, Any] = response.json()
            if value["finished_at"] is not None:
                return value
            await asyncio.sleep(0.05)

    async def programs(self) -> None:
        """Launch, one after the other, programs of every kind."""
        program = await self.upload(WORK, "work")
        for seed in itertools.count():
            kind = random.choice(("plain", "drafts", "schema", "talk"))
            run = await self.launch(program, arguments={"seed": seed % 50, "kind": kind})
            if kind == "talk":
                await self.http.post(f"/v1/runs/{run}/messages", json={"message": {"n": seed}})
            self._count(kind, (await self.over(run))["error"])

    async def scripts(self) -> None:
        """Connect, generate a little, and leave, sometimes in the middle."""
        for seed in itertools.count():
            async with inferd.connect(self.url.replace("http", "ws", 1), token=self.token):
                context = inferd.Context()
                context.append(f"Chapter {seed % 20}. It was a")
                generator = context.generate(inferd.Sampler.multinomial(0.7, seed=seed), max_tokens=30)
                async for _ in generator:
                    if random.random() < 0.02:
                        break
            self.done["script"] += 1

    async def uploads(self) -> None:
        """Upload one of fifty programs."""
        for number in itertools.count():
            await self.upload(f"x = {number % 50}\n{WORK}", f"program-{number % 50}")
            self.done["upload"] += 1
            await asyncio.sleep(0.3)

    async def cancels(self) -> None:
        """Launch and cancel."""
        program = await self.upload(SLEEP, "sleep")
        while True:
            run = await self.launch(program)
            await asyncio.sleep(random.random() * 0.3)
            await self.http.post(f"/v1/runs/{run}/cancel")
            self._count("cancel", (await self.over(run))["error"])

    async def attacks(self) -> None:
        """Run what is hostile, in turn."""
        programs = [await self.upload(source, f"hostile-{number}") for number, source in enumerate(HOSTILE)]
        for program in itertools.cycle(programs):
            over = await self.over(await self.launch(program, limits=LIMITS))
            self._count("attack", over["error"])

    def _count(self, kind: str, error: dict[str, Any] | None) -> None:
        self.done[f"{kind} {error['code'] if error else 'ok'}"] += 1


async def kept_up(work: Callable[[], Awaitable[None]], done: Counter[str]) -> None:
    """Do some work for ever, over again where it was refused."""
    while True:
        try:
            await work()
        except (httpx.HTTPError, inferd.InferdError) as error:
            done[f"{work.__name__} refused: {type(error).__name__}"] += 1
        except Exception as error:  # noqa: BLE001 - the boundary of one client: the load goes on, and the verdict names it
            done[f"{UNEXPECTED} in {work.__name__}: {error!r:.200}"] += 1
        await asyncio.sleep(0.5)


async def loaded(url: str, server: psutil.Process, seconds: float, out: Path) -> tuple[list[Sample], Counter[str]]:
    """Load the server for so long; return the samples and what was done."""
    tenants = {name: Tenant(url, name) for name in TOKENS}
    works = [
        tenants["ann"].programs, tenants["ann"].scripts, tenants["ann"].uploads, tenants["bob"].programs,
        tenants["bob"].scripts, tenants["bob"].cancels, tenants["mallory"].attacks, tenants["mallory"].attacks,
    ]  # fmt: skip
    total: Counter[str] = Counter()
    samples: list[Sample] = []
    tasks = [asyncio.create_task(kept_up(work, total)) for work in works]
    start = time.monotonic()
    with out.with_suffix(".jsonl").open("w") as file:
        while time.monotonic() - start < seconds and server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(SAMPLE_SECONDS)
            try:
                held = await sample(tenants["ann"], server)
            except (httpx.HTTPError, psutil.Error) as error:
                total[f"sample refused: {type(error).__name__}"] += 1
                continue
            samples.append({"second": round(time.monotonic() - start, 1), **held})
            file.write(json.dumps(samples[-1]) + "\n")
            file.flush()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for tenant in tenants.values():
        total += tenant.done
        await tenant.http.aclose()
    return samples, total


async def sample(tenant: Tenant, server: psutil.Process) -> Sample:
    """Memory in MiB, descriptors and threads by process, and the queues."""
    found: Sample = {}
    for process in (server, *server.children(recursive=True)):
        try:
            kind = kind_of(process, server)
            memory = process.memory_info().rss / (1 << 20)
            held = {"memory_mb": memory, "fds": process.num_fds(), "threads": process.num_threads()}
            for name, value in held.items():
                found[f"{kind} {name}"] = round(found.get(f"{kind} {name}", 0) + value, 1)
        except psutil.Error:
            continue
    figures = (await tenant.http.get("/metrics")).text
    for name in QUEUES:
        match = re.search(rf"^{name} (\S+)$", figures, re.MULTILINE)
        if match:
            found[name.removeprefix("inferd_")] = float(match[1])
    return found


def kind_of(process: psutil.Process, server: psutil.Process) -> str:
    """What a process of the server is."""
    if process.pid == server.pid:
        return "gateway"
    command = " ".join(process.cmdline())
    return next((kind for kind in ("worker", "engine") if kind in command), "other")


def grown(samples: Sequence[Sample]) -> dict[str, str]:
    """The series that are higher in the last fifth than in the fifth behind the warm-up, with both medians."""
    size = max(1, int(len(samples) * WARM_UP))
    found = {}
    for name in sorted({name for one in samples for name in one if name != "second"}):
        early = [one.get(name, 0.0) for one in samples[size : 2 * size]] or [0.0]
        late = statistics.median([one.get(name, 0.0) for one in samples[-size:]])
        slack = SLACK.get(name.rpartition(" ")[2], max(early))
        if late > max(statistics.median(early) * GROWTH, statistics.median(early) + slack):
            found[name] = f"{statistics.median(early):.1f} -> {late:.1f}"
    return found


@contextmanager
def serving() -> Iterator[tuple[str, psutil.Process, Path]]:
    """A server of its own: its address, its process and its log."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, log = Path(folder) / "tokens", Path(folder) / "log"
        tokens.touch(0o600)
        roles = {"ann": "admin"}  # who may see figures of all
        tokens.write_text("".join(f"{t} {name} role={roles.get(name, 'user')}\n" for name, t in TOKENS.items()))
        command = [
            sys.executable, "-m", "inferd_runtime.cli", "serve", "--json", "--port", "0", "--tokens-file", str(tokens),
            "--data-dir", f"{folder}/data", "--state-dir", f"{folder}/state", "--threads", "1",
            "--metrics-for", "all",
        ]  # fmt: skip
        with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as server:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise SystemExit(log.read_text())
            try:
                yield json.loads(line)["url"], psutil.Process(server.pid), log
            finally:
                stop(server)


def stop(server: subprocess.Popen[bytes]) -> None:
    """End a server, which has its time to."""
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()


def main() -> None:
    """Load, sample, plot, judge."""
    parser = argparse.ArgumentParser(description="Mixed load, and whether the server grows.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--out", type=Path, default=Path("soak"), help="where the samples and the plot go, without suffix"
    )
    options = parser.parse_args()
    with serving() as (url, server, log):
        samples, done = asyncio.run(loaded(url, server, options.minutes * 60, options.out))
        options.out.with_suffix(".svg").write_text(plot(samples))
        tracebacks = log.read_text(errors="replace").count("Traceback")
    verdict = judged(samples, done, tracebacks, options.minutes)
    print(json.dumps(verdict))
    sys.exit(not verdict["passed"])


def judged(samples: Sequence[Sample], done: Counter[str], tracebacks: int, minutes: float) -> dict[str, Any]:
    """Return what came of it."""
    growth = grown(samples)
    lasted = samples[-1]["second"] / 60 if samples else 0.0
    whole = lasted >= 0.95 * minutes
    unexpected = sorted(name for name in done if name.startswith(UNEXPECTED))
    return {
        "passed": whole and not growth and not tracebacks and not unexpected,
        "flat": not growth,
        "grown": growth,
        "tracebacks": tracebacks,
        "minutes": round(lasted, 1),
        "unexpected": unexpected,
        "done": dict(sorted(done.items())),
    }


if __name__ == "__main__":
    main()
