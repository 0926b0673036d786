"""A cluster on Ray Serve on this machine: two replicas with the embedded model, sandboxes and all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import pytest
from waiting import until

from inferd_runtime.cluster.messages import RUN_ID
from inferd_runtime.cluster.process import MODULE

from .ray_cluster import SECONDS, TELLS, RayCluster, replicas_of, said_by, two_usable

pytest.importorskip("ray", reason="Ray is not installed: pip install 'inferd[cluster]'")
pytestmark = pytest.mark.cluster
SAVES = """
from inferd import Context
async def main():
    context = Context().system("A handbook of rules. " * 10)
    await (await context.flush()).save("handbook", overwrite=True)
"""
OPENS = """
from inferd import Context, Sampler
async def main():
    context = await Context.open("handbook")
    text = await context.user("What?").generate(Sampler.argmax(), max_tokens=12).collect_text()
    return [text, context.recomputed]
"""
PORT, RAY_PORT = 7397, 6397


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    cluster = RayCluster(tmp_path_factory.mktemp("ray"))
    options = (
        "--replicas=2",
        f"--ray-port={RAY_PORT}",
        f"--port={PORT}",
        "--replica-cpus=0.5",
        "--threads=1",
        "--drain-seconds=20",
    )
    try:
        # As if the machine's memory were used up all the time, for which Ray would end whole replicas.
        cluster.url = cluster.command("up", *options, RAY_memory_usage_threshold="0.001")["url"]
        yield cluster
    finally:
        cluster.command("down")


async def _launch(client: httpx.AsyncClient, **body: Any) -> str:
    answer = await client.post("/v1/runs", json={"program": "tells", "retry_safe": True, "seed": 7, **body})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_nothing_that_ray_opens_can_be_reached_from_another_machine(on_ray: RayCluster) -> None:
    ports = [
        (process.name(), address.laddr)
        for process in on_ray.processes()
        for address in process.net_connections("tcp")
        if address.status == psutil.CONN_LISTEN
    ]
    assert len(ports) > 3
    assert {address.ip.removeprefix("::ffff:") for _, address in ports} == {"127.0.0.1"}, ports


def test_ray_has_no_server_for_its_own_clients_which_would_keep_its_port_for_a_while(on_ray: RayCluster) -> None:
    commands = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    assert not [one for one in commands if "ray.util.client.server" in one and f":{RAY_PORT}" in one]


def test_no_other_user_reaches_the_folders_of_the_cluster_and_of_its_ray(on_ray: RayCluster) -> None:
    data = on_ray.folder / "data"
    (ray,) = [_session_folder(one) for one in on_ray.ray() if one.name() == "raylet"]
    assert {folder.stat().st_mode & 0o777 for folder in (data, ray.parent)} == {0o700}


def _session_folder(raylet: psutil.Process) -> Path:
    (said,) = [one for one in raylet.cmdline() if one.startswith("--temp_dir=")]
    return Path(said.partition("=")[2])


def test_what_serves_is_no_sooner_ended_without_memory_and_waits_no_longer_than_what_started_it(
    on_ray: RayCluster,
) -> None:
    raylet, *_ = [one for one in on_ray.ray() if one.name() == "raylet"]
    serving = [one for one in raylet.children(recursive=True) if MODULE in one.cmdline()]
    assert len(serving) == 3
    both = {(one.nice(), Path(f"/proc/{one.pid}/oom_score_adj").read_text()) for one in _and_parents(serving, raylet)}
    assert both == {(raylet.nice(), Path(f"/proc/{raylet.pid}/oom_score_adj").read_text())}


def _and_parents(processes: list[psutil.Process], above: psutil.Process) -> list[psutil.Process]:
    parents = [one.parent() for one in processes]
    return [*processes, *(one for one in parents if one is not None and one != above)]


async def test_a_killed_replicas_runs_bring_the_same_tokens_and_ray_starts_another(on_ray: RayCluster) -> None:
    async with on_ray.client() as client:
        upload = {"files": {"main.py": TELLS}, "name": "tells"}
        assert (await client.post("/v1/programs", json=upload)).status_code in (200, 201)
        expected, state = await said_by(client, await _launch(client))
        assert state == "succeeded"
        runs = [await _launch(client) for _ in range(6)]
        named = RUN_ID.fullmatch(runs[0])
        assert named is not None
        (gateway,) = [one for one in on_ray.processes() if _holds(one, f"/replicas/{named[1]}/runs.sqlite3")]
        async with anyio.create_task_group() as tasks:
            said: dict[str, tuple[str, str]] = {}

            async def follow(run: str) -> None:
                said[run] = await said_by(client, run)

            for run in runs:
                tasks.start_soon(follow, run)
            os.kill(gateway.pid, signal.SIGKILL)
        assert said == dict.fromkeys(runs, (expected, "succeeded"))
        await until(lambda: two_usable(client), SECONDS)


async def test_a_context_that_one_replica_saved_opens_on_the_other(on_ray: RayCluster) -> None:
    async with on_ray.client() as client:
        for name, source in (("saves", SAVES), ("opens", OPENS)):
            upload = {"files": {"main.py": source}, "name": name}
            assert (await client.post("/v1/programs", json=upload)).status_code in (200, 201)
        found = []
        # A new session goes to the replica that has waited longer, the first one's to its own.
        for name, session in (("saves", "one"), ("opens", "two"), ("opens", "one")):
            answer = await client.post("/v1/runs", json={"program": name}, headers={"x-session-id": session})
            await said_by(client, answer.json()["id"])
            found.append((await client.get(f"/v1/runs/{answer.json()['id']}")).json())
        saved, elsewhere, here = [RUN_ID.fullmatch(run["id"])[1] for run in found]  # type: ignore[index]
        assert saved == here != elsewhere
        assert [run["error"] for run in found] == [None] * 3
        assert found[1]["result"] == found[2]["result"]
        assert found[1]["result"][1] == 0


def _holds(process: psutil.Process, end: str) -> bool:
    """Whether a process has a file open whose path ends so."""
    try:
        return any(file.path.endswith(end) for file in process.open_files())
    except psutil.Error:
        return False


async def test_a_killed_front_comes_back_at_its_address_which_is_never_gone_and_knows_what_goes_on(
    on_ray: RayCluster,
) -> None:
    async with on_ray.client() as client:
        upload = {"files": {"main.py": TELLS}, "name": "tells"}
        assert (await client.post("/v1/programs", json=upload)).status_code in (200, 201)
        run = await _launch(client)
        (front,) = [one for one in on_ray.processes() if _holds(one, f"{on_ray.folder}/data/programs.sqlite3")]
        os.kill(front.pid, signal.SIGKILL)
        async with on_ray.client() as newcomer:
            assert (await newcomer.get("/livez")).status_code == 200, "who connects meanwhile waits for the next front"
        await until(lambda: two_usable(client), SECONDS)
        assert (await said_by(client, run))[1] == "succeeded"
        assert (await client.get("/v1/programs/tells")).status_code == 200


async def test_an_upgrade_replaces_every_replica_and_no_request_fails(on_ray: RayCluster) -> None:
    async with on_ray.client() as client:
        before = {one["name"] for one in await replicas_of(client)}
        ended = anyio.Event()
        answered: list[tuple[str, str]] = []

        async def load() -> None:
            while not ended.is_set():
                answered.append(await said_by(client, await _launch(client, arguments={"tokens": 8})))

        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(load)
            options = ("--replicas=2", f"--port={PORT}", "--replica-cpus=0.5", "--threads=1", "--drain-seconds=21")
            await anyio.to_thread.run_sync(on_ray.command, "up", *options)
            await until(lambda: two_usable(client), SECONDS)
            ended.set()
        assert not before & {one["name"] for one in await replicas_of(client)}
        assert {state for _, state in answered} == {"succeeded"}
        assert len({text for text, _ in answered}) == 1
        listed = (await client.get("/v1/runs")).json()["runs"]
        assert len(listed) >= len(answered)
