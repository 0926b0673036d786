"""A cluster on Ray Serve beside one runtime without it: the hop, launches and tokens a second, cached prefixes, a kill.

    python benchmarks/cluster.py [--rounds 5] [--launches 40] [--prefixes 16]        # needs inferd[cluster]

One runtime, and a cluster of two replicas of which one or both take part, are up together and take turns; all have the embedded
model, one thread for each engine, and the same cores. Ends with one JSON line:

hop_ms_p50            median time of a small request to the front, less that of the same request to the replica; taken in turns
launches_per_s_ARM    launches of a program that returns at once, eight clients, until the last run is over; ARM: alone, one, two
tokens_per_s_ARM      eight clients of the chat route, all the same length
hit_rate, hit_rate_random, hit_rate_vs_random    tokens of prompts that were found cached: by the front, with replicas by lot
lost_runs             of runs marked retry_safe, those that did not end with what they should after their replica was killed
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from inferd_runtime.cluster.hop import hop_authorization
from inferd_runtime.cluster.messages import RUN_ID
from inferd_runtime.server.tenancy.quotas import Role
from inferd_runtime.server.tenancy.tokens import TokenRights

CLIENTS = 8
TOKENS = 32
NOTHING = "async def main():\n    return 1\n"
COUNTS = """
import asyncio
async def main():
    for number in range(20):
        print(number)
        await asyncio.sleep(0.1)
    return 20
"""
WORDS = ["cache", "replica", "token", "prefix", "engine", "worker", "program", "session", "answer", "page"]
COMMON = ("--threads=1", "--port=0", "--speculation=off")


@dataclass
class Arm:
    """Something to measure. ``replicas``: their addresses, if it is a cluster."""

    client: httpx.AsyncClient
    key: str = ""

    async def replicas(self) -> list[dict[str, Any]]:
        """What the front says of its replicas."""
        found: list[dict[str, Any]] = (await self.client.get("/v1/cluster")).json()["replicas"]
        return found

    def direct(self, url: str) -> httpx.AsyncClient:
        """A client of one replica, that shows the cluster's key."""
        rights = hop_authorization(self.key, TokenRights("default", Role.ADMIN, "own"))
        return httpx.AsyncClient(base_url=url, headers={"Authorization": rights}, timeout=120)


def inferd(folder: Path, *arguments: str) -> list[str]:
    """The command line over a folder of its own."""
    own = [f"--state-dir={folder}/state", f"--data-dir={folder}/data"]
    return [sys.executable, "-W", "ignore", "-m", "inferd_runtime.cli", *arguments, *own]


def client_of(folder: Path, url: str) -> httpx.AsyncClient:
    token = (folder / "state" / "token").read_text().strip()
    return httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=120)


@contextmanager
def alone(folder: Path) -> Iterator[Arm]:
    """One runtime without Ray."""
    command = inferd(folder, "serve", *COMMON, "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield Arm(client_of(folder, json.loads(process.stdout.readline())["url"]))
        process.terminate()


@contextmanager
def cluster(folder: Path) -> Iterator[Arm]:
    """Two replicas on Ray."""
    up = inferd(folder, "cluster", "up", "--replicas=2", "--replica-cpus=0.5", "--ray-port=6396", *COMMON, "--json")
    url = json.loads(subprocess.run(up, check=True, capture_output=True, text=True).stdout)["url"]
    try:
        key = json.loads((folder / "data" / "cluster.json").read_text())["key"]
        yield Arm(client_of(folder, url), key)
    finally:
        subprocess.run(inferd(folder, "cluster", "down"), check=True, capture_output=True)


async def together(work: Callable[[int], Awaitable[Any]], count: int) -> float:
    """Do ``count`` pieces of work with CLIENTS at a time; returns the seconds."""
    numbers, started = iter(range(count)), time.perf_counter()

    async def one() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return time.perf_counter() - started


async def launches_per_s(client: httpx.AsyncClient, count: int, session: str = "") -> float:
    headers = {"x-session-id": session} if session else {}

    async def launch(number: int) -> None:
        run = (await client.post("/v1/runs", json={"program": "nothing"}, headers=headers)).json()["id"]
        events = (await client.get(f"/v1/runs/{run}/events")).text
        assert '"succeeded"' in events, events

    return count / await together(launch, count)


async def tokens_per_s(client: httpx.AsyncClient, mark: str, session: str = "") -> float:
    headers = {"x-session-id": session} if session else {}

    async def ask(number: int) -> None:
        body = {
            "model": "tiny", "messages": [{"role": "user", "content": f"{mark} {number}"}], "max_tokens": TOKENS,
            "temperature": 0, "stream": True, "logit_bias": {},
        }  # fmt: skip
        counted.append((await client.post("/v1/chat/completions", json=body, headers=headers)).text.count("data: ") - 2)

    counted: list[int] = []
    seconds = await together(ask, 2 * CLIENTS)
    return sum(counted) / seconds


async def hop_ms(arm: Arm, count: int) -> list[float]:
    """The same request to the front and to the replica, in turns: differences in milliseconds."""
    one = (await arm.replicas())[0]
    differences = []
    async with arm.direct(one["url"]) as direct:
        for _ in range(count):
            took = []
            for client in (arm.client, direct):
                started = time.perf_counter()
                assert (await client.get("/v1/models", headers={"x-session-id": "hop"})).status_code == 200
                took.append(1e3 * (time.perf_counter() - started))
            differences.append(took[0] - took[1])
    return differences


async def reused(arm: Arm) -> tuple[float, float]:
    """Tokens of prompts that were looked up, and found, over all replicas."""
    page = (await arm.client.get("/metrics")).text
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    found = [sum(float(x) for x in re.findall(rf"^{re.escape(name)}{{.*}} (\S+)$", page, re.M)) for name in names]
    return found[0], found[1]


async def hit_rate(arm: Arm, prefixes: int, by_lot: bool, draw: random.Random) -> float:
    """Ask with each of so many beginnings six times, in a random order; returns the part of all tokens that was cached."""
    texts = [" ".join(draw.choices(WORDS, k=150)) for _ in range(prefixes)]
    asked = texts * 6
    draw.shuffle(asked)
    direct = [arm.direct(one["url"]) for one in await arm.replicas()]
    before = await reused(arm)
    for number, text in enumerate(asked):
        messages = [{"role": "system", "content": text}, {"role": "user", "content": f"{number}"}]
        client = draw.choice(direct) if by_lot else arm.client
        body = {"model": "tiny", "messages": messages, "max_tokens": 1}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    after = await reused(arm)
    for one in direct:
        await one.aclose()
    return (after[1] - before[1]) / (after[0] - before[0])


async def lost_runs(arm: Arm, count: int) -> int:
    """Kill the replica of a run in the middle of ``count`` runs; returns how many did not end with what they should."""
    body = {"program": "counts", "retry_safe": True}
    runs = [(await arm.client.post("/v1/runs", json=body)).json()["id"] for _ in range(count)]
    named = RUN_ID.fullmatch(runs[0])
    assert named is not None
    following = [asyncio.create_task(arm.client.get(f"/v1/runs/{run}/events")) for run in runs]
    await asyncio.sleep(0.5)
    os.kill(_gateway_of(named[1]), signal.SIGKILL)
    lost = 0
    for answer in await asyncio.gather(*following):
        events = [json.loads(line) for line in answer.text.splitlines() if line]
        text = "".join(event.get("text", "") for event in events)
        lost += events[-1].get("result") != 20 or text != "".join(f"{number}\n" for number in range(20))
    return lost


def _gateway_of(name: str) -> int:
    for process in psutil.process_iter():
        try:
            if any(f"/replicas/{name}/runs.sqlite3" in file.path for file in process.open_files()):
                return process.pid
        except psutil.Error:
            continue
    raise LookupError(name)


async def measure(single: Arm, arm: Arm, options: argparse.Namespace) -> dict[str, float]:
    for each in (single, arm):
        for name, source in (("nothing", NOTHING), ("counts", COUNTS)):
            answer = await each.client.post("/v1/programs", json={"files": {"main.py": source}, "name": name})
            assert answer.status_code == 201, answer.text
    rates: dict[str, list[float]] = {}
    for round_ in range(options.rounds + 1):
        for name, client, session in (("alone", single.client, ""), ("one", arm.client, "s"), ("two", arm.client, "")):
            launches = await launches_per_s(client, options.launches, session)
            tokens = await tokens_per_s(client, f"{name} {round_}", session)
            if round_:
                rates.setdefault(f"launches_per_s_{name}", []).append(launches)
                rates.setdefault(f"tokens_per_s_{name}", []).append(tokens)
    figures = {name: statistics.median(samples) for name, samples in rates.items()}
    for name, samples in rates.items():
        print(f"{name:22} {figures[name]:9.1f}  [{min(samples):.1f} .. {max(samples):.1f}]")
    await hop_ms(arm, 20)
    hops = await hop_ms(arm, 200)
    figures["hop_ms_p50"] = statistics.median(hops)
    print(f"hop_ms_p50 {figures['hop_ms_p50']:.2f}, quartiles {statistics.quantiles(hops)}")
    draw = random.Random(7)
    figures["hit_rate"] = await hit_rate(arm, options.prefixes, False, draw)
    figures["hit_rate_random"] = await hit_rate(arm, options.prefixes, True, draw)
    figures["hit_rate_vs_random"] = figures["hit_rate"] / figures["hit_rate_random"]
    figures["lost_runs"] = await lost_runs(arm, 12)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--launches", type=int, default=40)
    parser.add_argument("--prefixes", type=int, default=16)
    options = parser.parse_args()
    cores = os.cpu_count() or 1
    print(
        f"Ceiling: {cores} cores, load {os.getloadavg()[0]:.1f}; two replicas can at best double one where cores are free."
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        alone(Path(folder) / "alone") as single,
        cluster(Path(folder) / "cluster") as arm,
    ):
        figures = asyncio.run(measure(single, arm, options))
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
