"""A bad day of a cluster: cut and slow networks, several deaths at once, growing and shrinking under load."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from draft_engines import Proxy
from waiting import until

from .conftest import Cluster, Process, open_cluster
from .test_messages import script

pytestmark = pytest.mark.long
ECHOES = """
import asyncio
async def main(text: str, pause: float = 0.05):
    for character in text * 4:
        print(character)
        await asyncio.sleep(pause)
    return text
"""
AGAIN_SECONDS = 0.05


class Load:
    """Clients that launch runs, follow them, and look at how they ended, until told to stop."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.endings: dict[int, dict[str, Any]] = {}
        self.stop = anyio.Event()
        self._numbers = itertools.count()

    async def client(self) -> None:
        while not self.stop.is_set():
            number = next(self._numbers)
            with anyio.fail_after(90):
                self.endings[number] = await self._ending(number)

    async def _ending(self, number: int) -> dict[str, Any]:
        body = {"program": "echoes", "arguments": {"text": f"t{number}"}, "retry_safe": True}
        launched = await self._asked("POST", "/v1/runs", json=body, headers={"Idempotency-Key": f"chaos-{number}"})
        answer = await self._asked("GET", f"/v1/runs/{launched['id']}/events", timeout=80)
        events = [json.loads(line) for line in answer.splitlines() if line]
        assert [event["index"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "finished", events[-1]
        if events[-1]["error"] is None:
            said = "".join(event.get("text", "") for event in events)
            assert said == "".join(f"{character}\n" for character in f"t{number}" * 4)
        return {**events[-1], "run": launched["id"]}

    async def _asked(self, method: str, path: str, **more: Any) -> Any:
        """Ask until there is an answer: the front may be gone for a moment, or say that it is too early."""
        while True:
            try:
                answer = await self.cluster.client.request(method, path, **more)
            except httpx.TransportError:
                await anyio.sleep(AGAIN_SECONDS)
                continue
            if answer.status_code == 503:
                await anyio.sleep(AGAIN_SECONDS)
                continue
            assert answer.status_code in (200, 201), answer.text
            return answer.text if path.endswith("/events") else answer.json()

    def check(self, *, all_succeed: bool = True) -> Counter[str]:
        """No run was lost or started twice, and none ended otherwise than it should."""
        codes = Counter("" if one["error"] is None else one["error"]["code"] for one in self.endings.values())
        assert all(one["result"] == f"t{number}" for number, one in self.endings.items() if one["error"] is None)
        assert not all_succeed or set(codes) == {""}, codes
        assert len({one["run"] for one in self.endings.values()}) == len(self.endings)
        return codes


@asynccontextmanager
async def loaded(cluster: Cluster, clients: int = 4) -> AsyncIterator[Load]:
    await cluster.upload(ECHOES, "echoes")
    load = Load(cluster)
    async with anyio.create_task_group() as tasks:
        for _ in range(clients):
            tasks.start_soon(load.client)
        yield load
        load.stop.set()


async def _more(load: Load, count: int) -> None:
    """Wait until so many more runs have ended."""
    before = len(load.endings)
    await until(lambda: len(load.endings) >= before + count, 60)


async def _all_there(cluster: Cluster, load: Load) -> None:
    """Every run is in the list, once, and as the stream said."""
    listed = {one["id"]: one for one in (await cluster.client.get("/v1/runs")).json()["runs"]}
    for one in load.endings.values():
        assert listed[one["run"]]["state"] == one["state"]


async def test_replicas_are_killed_two_at_a_time(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, 3) as cluster:
        async with loaded(cluster) as load:
            for _ in range(4):
                await _more(load, 6)
                doomed = list(cluster.replicas.values())[:2]
                async with anyio.create_task_group() as tasks:
                    for one in doomed:
                        tasks.start_soon(cluster.kill, one)
                await _more(load, 2)
                for _ in doomed:
                    await cluster.start_replica()
        load.check()
        await _all_there(cluster, load)
        print(f"{len(load.endings)} runs, 8 replicas killed in pairs")


async def test_all_replicas_are_killed_at_once(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, 2) as cluster:
        async with loaded(cluster) as load:
            for _ in range(3):
                await _more(load, 4)
                async with anyio.create_task_group() as tasks:
                    for one in list(cluster.replicas.values()):
                        tasks.start_soon(cluster.kill, one)
                for _ in range(2):
                    await cluster.start_replica()
        load.check()
        await _all_there(cluster, load)


async def test_a_cluster_grows_to_three_and_shrinks_to_one_under_load_and_loses_no_run(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, 1) as cluster:
        async with loaded(cluster) as load:
            for _ in range(2):
                await _more(load, 4)
                for _ in range(2):
                    await cluster.start_replica()
                await _more(load, 8)
                ending = list(cluster.replicas.values())[:2]
                for one in ending:
                    one.terminate()
                for one in ending:
                    assert await one.wait() == 0
                    del cluster.replicas[one.name]
        load.check()
        await _all_there(cluster, load)


async def test_a_replica_is_killed_while_it_drains_and_another_while_it_takes_over(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, 3) as cluster:
        async with loaded(cluster) as load:
            for _ in range(3):
                await _more(load, 4)
                draining, heir = list(cluster.replicas.values())[:2]
                draining.terminate()
                await until(partial(_drains, cluster, draining))
                await cluster.kill(draining)
                await cluster.kill(heir)
                for _ in range(2):
                    await cluster.start_replica()
        load.check()
        await _all_there(cluster, load)


async def _drains(cluster: Cluster, process: Process) -> bool:
    replicas = (await cluster.state())["replicas"]
    return any(one["draining"] for one in replicas if one["name"] == process.name) or process.child.poll() is not None


async def test_the_front_is_killed_again_and_again(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, 2) as cluster:
        assert cluster.front is not None
        async with loaded(cluster) as load:
            for _ in range(5):
                await _more(load, 3)
                await cluster.front.kill()
                await cluster.start_front()
        load.check()
        await _all_there(cluster, load)


async def test_what_a_durable_queue_took_is_there_whenever_the_front_is_killed(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, 2) as cluster:
        assert cluster.front is not None
        taken: list[int] = []
        numbers, stop = itertools.count(), anyio.Event()

        async def push() -> None:
            while not stop.is_set():
                try:
                    async with script(cluster) as one:
                        while not stop.is_set():
                            number = next(numbers)
                            if isinstance(await one.ask("queue.push", queue="q", values=[number], durable=True), dict):
                                taken.append(number)
                except Exception:  # noqa: BLE001 - its connection was lost with the front
                    await anyio.sleep(AGAIN_SECONDS)

        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(push)
            for _ in range(5):
                before = len(taken)
                await until(lambda: len(taken) > before + 20)  # noqa: B023 - awaited within the round
                await cluster.front.kill()
                await cluster.start_front()
            stop.set()
        found: list[int] = []
        async with script(cluster) as one:
            while values := (await one.ask("queue.pull", queue="q", durable=True, most=64, wait=False))["values"]:
                found += values
        assert set(taken) <= set(found)
        assert len(found) == len(set(found))
        print(f"{len(taken)} values taken, {len(found)} there")


@pytest.mark.parametrize("skew", [0, 3600, -3600])
async def test_a_network_that_is_slow_and_breaks_loses_nothing(tmp_path: Path, skew: int) -> None:
    """Between front and replicas, whose clocks may differ: pieces take 0 to 100 ms, and all connections are cut, often."""
    draw = random.Random(7)
    async with open_cluster(tmp_path, 0) as cluster:
        proxies: list[Proxy] = []
        try:
            for number in range(2):
                replica = await cluster.start_replica(skew=skew * number, join=False)
                proxies.append(Proxy(int(replica.url.rsplit(":", 1)[1])))
                replica.url = f"http://127.0.0.1:{proxies[-1].port}"
                proxies[-1].delay = lambda: draw.uniform(0, 0.1)
            await _unsteady(cluster, proxies, draw)
        finally:
            for proxy in proxies:
                await anyio.to_thread.run_sync(proxy.close)


async def _unsteady(cluster: Cluster, proxies: list[Proxy], draw: random.Random) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_announce, cluster)
        await until(lambda: _usable(cluster, 2))
        async with loaded(cluster) as load:
            for _ in range(20):
                await anyio.sleep(draw.uniform(0.1, 0.8))
                await anyio.to_thread.run_sync(draw.choice(proxies).cut)
        load.check()
        await _all_there(cluster, load)
        print(f"{len(load.endings)} runs over connections that were cut 20 times")
        tasks.cancel_scope.cancel()


async def _announce(cluster: Cluster) -> None:
    """Tell the front of the replicas again and again, as their actors do."""
    while True:
        for replica in list(cluster.replicas.values()):
            try:
                await cluster.join(replica)
            except Exception:  # noqa: BLE001 - the next time
                await anyio.sleep(AGAIN_SECONDS)
        await anyio.sleep(0.5)


async def _usable(cluster: Cluster, count: int) -> bool:
    return bool((await cluster.client.get("/readyz")).json()["replicas"]["usable"] == count)
