"""A cluster on a Ray that runs already, which has two nodes: both are on this machine, as two machines would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import until

from inferd_runtime.cluster.ray_serve.environment import RAY_ENVIRONMENT
from inferd_runtime.cluster.replica.serving import left_folders
from inferd_runtime.server.processes.folder_lock import holder_of

from .ray_cluster import SECONDS, TELLS, RayCluster, said_by

pytest.importorskip("ray", reason="Ray is not installed: pip install 'inferd[cluster]'")
pytestmark = [pytest.mark.cluster, pytest.mark.long]
ADDRESS = "127.0.0.1:6395"
OPTIONS = ("--replicas=2", "--port=7395", "--replica-cpus=1", "--threads=1", "--drain-seconds=5")


def _ray(*arguments: str) -> None:
    command = [sys.executable, "-P", "-W", "ignore", "-m", "inferd_runtime.cluster.ray_serve.loopback", "start"]
    own = ("--num-cpus=1", "--node-ip-address=127.0.0.1", "--disable-usage-stats")
    subprocess.run(
        [*command, *own, *arguments], env={**os.environ, **RAY_ENVIRONMENT}, check=True, stdout=subprocess.DEVNULL
    )


def _processes(folder: str) -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if folder in " ".join(one.info["cmdline"] or ())]


@pytest.fixture
def nodes() -> Iterator[str]:
    """The folder of the Ray."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        try:
            _ray("--head", f"--port={ADDRESS.rpartition(':')[2]}", "--include-dashboard=false", f"--temp-dir={folder}")
            _ray(f"--address={ADDRESS}")
            yield folder
        finally:
            for one in _processes(folder):
                one.kill()


def _holders(cluster: RayCluster) -> list[psutil.Process]:
    folders = (cluster.folder / "data", *left_folders(cluster.folder / "data"))
    return [psutil.Process(pid) for pid in map(holder_of, folders) if pid]


def _raylet(process: psutil.Process) -> int:
    return next((one.pid for one in process.parents() if one.name() == "raylet"), 0)


async def test_replicas_are_on_both_nodes_and_the_end_of_one_loses_no_run_and_leaves_nothing(
    nodes: str, tmp_path: Path
) -> None:
    cluster = RayCluster(tmp_path)
    try:
        cluster.url = cluster.command("up", f"--ray-address={ADDRESS}", *OPTIONS)["url"]
        assert json.loads((tmp_path / "data" / "cluster.json").read_text())["address"] == ADDRESS
        front, *replicas = _holders(cluster)
        head, other = _raylet(front), next(_raylet(one) for one in replicas if _raylet(one) != _raylet(front))
        assert {_raylet(one) for one in replicas} == {head, other} - {0}
        async with cluster.client() as client:
            upload = {"files": {"main.py": TELLS}, "name": "tells"}
            assert (await client.post("/v1/programs", json=upload)).status_code == 201
            body = {"program": "tells", "seed": 7}
            runs = [(await client.post("/v1/runs", json=body)).json()["id"] for _ in range(4)]
            os.kill(other, signal.SIGKILL)
            assert {state for _, state in [await said_by(client, run) for run in runs]} == {"succeeded"}
            assert len(_holders(cluster)) == 3, "what the node had goes on, although nobody looks after it"
        with pytest.raises(AssertionError, match="`inferd cluster down` first"):
            cluster.command("up", "--ray-address=127.0.0.1:1", *OPTIONS)
    finally:
        cluster.command("down")
    await until(lambda: not _holders(cluster), SECONDS)
