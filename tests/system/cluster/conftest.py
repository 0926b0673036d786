"""A front and replicas as processes of their own, over the fake engine and the fake worker. No Ray."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

from inferd_runtime.cluster.front.hop_client import HopClient, own_request
from inferd_runtime.cluster.front.serving import FrontStart
from inferd_runtime.cluster.messages import JOIN_PATH, RUN_ID, JoinCluster
from inferd_runtime.cluster.process import MODULE, process_environment, process_order
from inferd_runtime.cluster.replica.serving import ReplicaOrder, new_replica_name
from inferd_runtime.settings.settings import EngineSettings, Settings

HERE = Path(__file__).parent
ANN, BOB = "token-of-ann-0123456789", "token-of-bob-0123456789"
CID = "token-of-cid-0123456789"
DAN = "token-of-dan-0123456789"
EVE = "token-of-eve-0123456789"
FAY = "token-of-fay-0123456789"
GUS = "token-of-gus-0123456789"
HAL = "token-of-hal-0123456789"
ROOT = "token-of-root-0123456789"
TOKENS = f"""
{ANN} ann weight=2
{BOB} bob
{CID} cid launches_per_minute=6
{DAN} dan runs=4 waiting=3
{EVE} eve launches_per_minute=3
{FAY} fay kept_runs=6 kept_bytes=60000
{GUS} gus runs=2 waiting=4 kept_bytes=60000
{HAL} hal launches_per_minute=2 sockets=1
{ROOT} root role=admin
"""
KEY = "key-of-the-cluster-0123456789abcdef"


def settings_in(folder: Path, **changes: Any) -> Settings:
    folder.mkdir(parents=True, exist_ok=True)
    tokens = folder / "tokens"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    values = {
        "port": 0, "tokens_file": tokens, "data_dir": folder / "data", "state_dir": folder / "state", "drain_seconds": 100.0,
    }  # fmt: skip
    return Settings(**{**values, "engine": EngineSettings(), **changes})


@dataclass
class Process:
    """A process of the cluster. ``name`` is a replica's."""

    name: str
    child: subprocess.Popen[bytes]
    url: str = ""
    """Where the front asks it: its own address, or that of a proxy."""
    private_url: str = ""

    async def ready(self) -> None:
        assert self.child.stdout is not None
        with anyio.fail_after(120):
            line = await anyio.to_thread.run_sync(self.child.stdout.readline, abandon_on_cancel=True)
        said = json.loads(line)
        self.url, self.private_url = said["url"], said["private_url"]

    async def kill(self) -> None:
        """End it at once, and with it what it started."""
        self.child.kill()
        await self.wait()

    def terminate(self) -> None:
        self.child.send_signal(signal.SIGTERM)

    async def wait(self) -> int:
        with anyio.fail_after(120):  # longer than it may drain
            code = await anyio.to_thread.run_sync(self.child.wait, abandon_on_cancel=True)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return code


@dataclass
class Cluster:
    """A front, its replicas, and a client for the tenant ann."""

    settings: Settings
    client: httpx.AsyncClient
    hop: HopClient
    program: Sequence[str]
    front: Process | None = None
    replicas: dict[str, Process] = field(default_factory=dict)

    async def start_front(self) -> None:
        self.front = self._started("", process_order(FrontStart(key=KEY, settings=self.settings)))
        await self.front.ready()
        self.client.base_url = httpx.URL(self.front.url)
        for replica in self.replicas.values():
            await self.join(replica)

    async def start_replica(self, *, skew: int = 0, join: bool = True) -> Process:
        """``skew``: seconds by which its clock is wrong."""
        name = new_replica_name()
        order = process_order(ReplicaOrder(name=name, key=KEY, settings=self.settings))
        replica = self._started(name, order, *([f"--skew={skew}"] if skew else []))
        self.replicas[name] = replica
        await replica.ready()
        if join:
            await self.join(replica)
        return replica

    async def join(self, replica: Process) -> None:
        assert self.front is not None
        joining = own_request(KEY, JOIN_PATH, JoinCluster(replica.name, replica.url))
        await self.hop.ask(self.front.private_url, joining, 10)

    async def kill(self, replica: Process) -> None:
        del self.replicas[replica.name]
        await replica.kill()

    async def upload(self, source: str, name: str = "p") -> dict[str, Any]:
        answer = await self.client.post("/v1/programs", json={"files": {"main.py": source}, "name": name})
        assert answer.status_code in (200, 201), answer.text
        value: dict[str, Any] = answer.json()
        return value

    async def launch(self, program: str = "p", session: str = "", **body: Any) -> dict[str, Any]:
        headers = {"x-session-id": session} if session else {}
        answer = await self.client.post("/v1/runs", json={"program": program, **body}, headers=headers)
        assert answer.status_code == 201, answer.text
        value: dict[str, Any] = answer.json()
        return value

    async def events(self, run: str, start: int = 0) -> list[dict[str, Any]]:
        """All events of a run until its end."""
        answer = await self.client.get(f"/v1/runs/{run}/events?from={start}", timeout=60)
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines() if line]

    async def finished(self, run: str) -> dict[str, Any]:
        """The run once it is over."""
        await self.events(run)
        value: dict[str, Any] = (await self.client.get(f"/v1/runs/{run}")).json()
        assert value["finished_at"] is not None
        return value

    async def state(self) -> dict[str, Any]:
        answer = await self.client.get("/v1/cluster", headers={"Authorization": f"Bearer {ROOT}"})
        value: dict[str, Any] = answer.json()
        return value

    async def starts(self) -> dict[str, int]:
        """How many starts the front counts on each replica."""
        return {one["name"]: one["starts"] for one in (await self.state())["replicas"]}

    def of(self, run: dict[str, Any]) -> Process:
        """The replica that a run started on."""
        named = RUN_ID.fullmatch(run["id"])
        assert named is not None
        return self.replicas[named[1]]

    def _started(self, name: str, order: bytes, *options: str) -> Process:
        command = [sys.executable, "-W", "error", *self.program, *options]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=process_environment(), process_group=0
        )
        assert child.stdin is not None
        child.stdin.write(order)
        child.stdin.close()
        return Process(name, child)


@asynccontextmanager
async def open_cluster(
    folder: Path, replicas: int = 2, *, real: bool = False, **changes: Any
) -> AsyncIterator[Cluster]:
    """``real``: with real engines and sandboxes."""
    hop = HopClient(KEY)
    program = ["-P", "-m", MODULE] if real else [str(HERE / "fake_process.py")]
    headers = {"Authorization": f"Bearer {ANN}"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as client:
        cluster = Cluster(settings_in(folder, **changes), client, hop, program)
        try:
            await cluster.start_front()
            async with anyio.create_task_group() as tasks:
                for _ in range(replicas):
                    tasks.start_soon(cluster.start_replica)
            yield cluster
        finally:
            await hop.close()
            for process in [*cluster.replicas.values(), *filter(None, [cluster.front])]:
                with anyio.CancelScope(shield=True):
                    await process.kill()


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Two replicas, which a module's tests share: who finds fewer starts another."""
    async with open_cluster(tmp_path_factory.mktemp("cluster")) as shared:
        yield shared


@pytest.fixture
async def two_replicas(cluster: Cluster) -> None:
    while len(cluster.replicas) < 2:
        await cluster.start_replica()
