"""What the tests of a cluster on Ray have in common."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil

TELLS = """
import asyncio
from inferd import Context, Sampler
async def main(tokens: int = 40):
    context = Context().user("Tell me.")
    async for step in context.generate(Sampler.multinomial(), max_tokens=tokens):
        print(step.text, end="", flush=True)
        await asyncio.sleep(0.05)
"""
SECONDS = 180


class RayCluster:
    """A cluster that the command line has started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""

    def command(self, *arguments: str, **variables: str) -> Any:
        """Run ``inferd cluster`` with variables of Ray's; returns what it prints as JSON."""
        folders = [f"--state-dir={self.folder}/state", f"--data-dir={self.folder}/data"]
        own = {name: value for name, value in os.environ.items() if not name.startswith(("INFERD_", "RAY_"))}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "inferd_runtime.cli", "cluster", *arguments, *folders, "--json"],
            env={**own, **variables}, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        return json.loads(done.stdout) if done.stdout.strip() else None

    def client(self) -> httpx.AsyncClient:
        token = (self.folder / "state" / "token").read_text().strip()
        return httpx.AsyncClient(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=SECONDS)

    def ray(self) -> list[psutil.Process]:
        """The processes of its Ray that know its folder."""
        record = json.loads((self.folder / "data" / "cluster.json").read_text())
        return [
            one
            for one in psutil.process_iter(["cmdline"])
            if record["started_ray"] in " ".join(one.info["cmdline"] or ())
        ]

    def processes(self) -> list[psutil.Process]:
        """All processes of the cluster and its Ray: those that know its folder, and what they have started."""
        named = self.ray()
        return list({one.pid: one for parent in named for one in (parent, *parent.children(recursive=True))}.values())


async def replicas_of(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    replicas: list[dict[str, Any]] = (await client.get("/v1/cluster")).json()["replicas"]
    return replicas


async def two_usable(client: httpx.AsyncClient) -> bool:
    return sum(one["ready"] and not one["draining"] for one in await replicas_of(client)) == 2


async def said_by(client: httpx.AsyncClient, run: str) -> tuple[str, str]:
    """What a run has printed, and how it ended."""
    answer = await client.get(f"/v1/runs/{run}/events")
    events = [json.loads(line) for line in answer.text.splitlines() if line]
    assert [event["index"] for event in events] == list(range(len(events)))
    return "".join(event.get("text", "") for event in events), events[-1]["state"]
