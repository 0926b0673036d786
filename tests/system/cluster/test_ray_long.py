"""Clusters on Ray Serve that grow and shrink, and one whose Ray ends. They take minutes: Serve waits before it shrinks."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest
from waiting import until

from inferd_runtime.cluster.replica.serving import left_folders
from inferd_runtime.server.processes.folder_lock import holder_of

from .ray_cluster import TELLS, RayCluster, replicas_of, said_by, two_usable

pytest.importorskip("ray", reason="Ray is not installed: pip install 'inferd[cluster]'")
pytestmark = [pytest.mark.cluster, pytest.mark.long]
HOLDS = """
import asyncio
from inferd import Context
async def main(seconds: float):
    context = Context()
    context.append([5] * 900)
    await context.flush()
    await asyncio.sleep(seconds)
    return context.length
"""
PAGES = 64
SECONDS = 240
HOLD_SECONDS = 60.0


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """At least one replica, at most two; each has room for 1,024 tokens and should hold half of that."""
    cluster = RayCluster(tmp_path_factory.mktemp("scaled"))
    options = (
        "--replicas=1", "--most=2", "--target-kv=0.5", f"--pages={PAGES}", "--ray-port=6398", "--port=7398",
        "--replica-cpus=0.5", "--threads=1", "--drain-seconds=5",
    )  # fmt: skip
    try:
        cluster.url = cluster.command("up", *options)["url"]
        yield cluster
    finally:
        cluster.command("down")


async def test_a_full_cache_brings_a_second_replica_which_goes_when_it_is_empty_and_loses_no_run(
    scaled: RayCluster,
) -> None:
    async with scaled.client() as client:
        upload = {"files": {"main.py": HOLDS}, "name": "holds"}
        assert (await client.post("/v1/programs", json=upload)).status_code in (200, 201)
        assert len(await replicas_of(client)) == 1
        run = await _launch(client, HOLD_SECONDS)
        began = time.monotonic()

        async def count_is(count: int) -> bool:
            return len(await replicas_of(client)) == count

        await until(lambda: count_is(2), SECONDS)
        (busy,) = [one for one in await replicas_of(client) if one["kv_use"] > 0.5]
        assert busy["jobs"] <= 1, "it is not the number of jobs that asked for another replica"
        print(f"the second replica came after {time.monotonic() - began:.0f} s, at a KV use of {busy['kv_use']}")
        on_new = [await _launch(client, 5.0) for _ in range(6)]
        await until(lambda: _over(client, run), SECONDS)
        ended = time.monotonic()
        await until(lambda: count_is(1), SECONDS)
        print(f"one replica again {time.monotonic() - ended:.0f} s after the run was over")
        for one in (run, *on_new):
            found = (await client.get(f"/v1/runs/{one}")).json()
            assert found["state"] == "succeeded", found


async def _launch(client: httpx.AsyncClient, seconds: float) -> str:
    answer = await client.post("/v1/runs", json={"program": "holds", "arguments": {"seconds": seconds}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def _over(client: httpx.AsyncClient, run: str) -> bool:
    return (await client.get(f"/v1/runs/{run}")).json()["finished_at"] is not None


@pytest.fixture
def without_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A cluster whose Ray is killed, and everything that ends with it is gone."""
    cluster = RayCluster(tmp_path_factory.mktemp("head"))
    try:
        cluster.url = cluster.command("up", *HEAD_OPTIONS)["url"]
        yield cluster
    finally:
        cluster.command("down")


HEAD_OPTIONS = (
    "--replicas=2", "--ray-port=6399", "--port=7399", "--replica-cpus=0.5", "--threads=1", "--drain-seconds=5",
)  # fmt: skip


async def test_front_and_replicas_go_on_without_ray_and_up_starts_all_anew(without_ray: RayCluster) -> None:
    cluster = without_ray
    async with cluster.client() as client:
        upload = {"files": {"main.py": TELLS}, "name": "tells"}
        assert (await client.post("/v1/programs", json=upload)).status_code in (200, 201)
        before = await _told(client)
        started, pids = time.monotonic(), _own(cluster)
        going_on = await _tell(client, 200)
        for process in cluster.ray():
            process.send_signal(signal.SIGKILL)
        await until(lambda: not any(one.is_running() and one.status() != "zombie" for one in cluster.ray()), SECONDS)
        assert (await said_by(client, going_on))[1] == "succeeded", (
            "a run that nobody may start again went on when Ray ended"
        )
        assert len(await replicas_of(client)) == 2
        assert _own(cluster) == pids
        assert await _told(client) == before
        print(f"served without Ray, {time.monotonic() - started:.0f} s after it was killed")
        status = cluster.command("status")
        assert status["applications"]["ray"]["status"] == "ENDED"
        assert status["applications"]["ray"]["replicas"] == {"front": 1, "replicas": 2}
        again = time.monotonic()
        assert cluster.command("up", *HEAD_OPTIONS)["url"] == cluster.url
        await until(lambda: two_usable(client), SECONDS)
        print(f"up again in {time.monotonic() - again:.0f} s")
        assert await _told(client) == before
        assert (await client.get(f"/v1/runs/{going_on}")).json()["state"] == "succeeded"


def _own(cluster: RayCluster) -> list[int]:
    """The processes of the front and of the replicas, as their folders' locks say."""
    found = [holder_of(folder) for folder in (cluster.folder / "data", *left_folders(cluster.folder / "data"))]
    assert len(found) == 3
    assert all(found)
    return found


def _is_nobodys(pid: int) -> bool:
    """Whether the actor that started a process is gone."""
    parent = psutil.Process(pid).parent()
    return parent is None or "ray" not in " ".join(parent.cmdline())


async def _tell(client: httpx.AsyncClient, tokens: int, *, retry_safe: bool = False) -> str:
    body = {"program": "tells", "seed": 7, "arguments": {"tokens": tokens}, "retry_safe": retry_safe}
    answer = await client.post("/v1/runs", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def _told(client: httpx.AsyncClient) -> tuple[str, str]:
    """What a run with a seed says, which is always the same."""
    return await said_by(client, await _tell(client, 10, retry_safe=True))
