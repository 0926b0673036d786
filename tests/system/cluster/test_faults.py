"""Replicas that are killed, and replicas that end, under runs: nothing hangs, is said twice, or is lost. No Ray."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import sqlite3
from typing import Any

import anyio
import pytest
from waiting import until

import inferd
from inferd.protocol import ErrorInfo, Unavailable

from .conftest import ANN, Cluster

pytestmark = pytest.mark.usefixtures("two_replicas")
COUNTS = """
import worker
async def main():
    print('a' * 10)
    first = await worker.receive()
    print('b', first)
    second = await worker.receive()
    print('c', second)
    return [first, second]
"""


CHATTERS = """
import asyncio
async def main():
    while True:
        print("x")
        await asyncio.sleep(0.01)
"""
ECHOES = """
import asyncio
async def main(text: str):
    for character in text * 4:
        print(character)
        await asyncio.sleep(0.1)
    return text
"""


async def _ending(cluster: Cluster, number: int) -> dict[str, Any]:
    """Launch a run and return how it ended; what it printed is checked."""
    body = {"arguments": {"text": f"t{number}"}, "retry_safe": number % 2 == 0}
    with anyio.fail_after(90):
        run = await cluster.launch("echoes", **body)
        events = await cluster.events(run["id"])
    assert events[-1]["type"] == "finished", events
    if events[-1]["error"] is None:
        assert _text(events) == "".join(f"{character}\n" for character in f"t{number}" * 4)
    return events[-1]


async def _say(cluster: Cluster, run: str, message: Any) -> None:
    sent = await cluster.client.post(f"/v1/runs/{run}/messages", json={"message": message}, timeout=60)
    assert sent.status_code == 202, sent.text


def _text(events: list[dict[str, Any]]) -> str:
    return "".join(event.get("text", "") for event in events)


def _is_stored(cluster: Cluster, run: str) -> bool:
    """Whether the end of a run is on disk: that is so a moment after it is told."""
    files = cluster.settings.data_dir.glob("replicas/*/runs.sqlite3")
    with contextlib.ExitStack() as opened:
        open_files = [opened.enter_context(contextlib.closing(sqlite3.connect(file))) for file in files]
        return any(db.execute("SELECT 1 FROM runs WHERE id = ? AND over = 1", (run,)).fetchone() for db in open_files)


class Follower:
    """A client that reads a run's events as they come."""

    def __init__(self, cluster: Cluster, run: str, kind: str = "application/x-ndjson") -> None:
        self.events: list[dict[str, Any]] = []
        self._cluster, self._run, self._kind = cluster, run, kind

    async def read(self) -> None:
        path = f"/v1/runs/{self._run}/events"
        async with self._cluster.client.stream("GET", path, headers={"Accept": self._kind}, timeout=90) as answer:
            async for line in answer.aiter_lines():
                text = line.removeprefix("data: ")
                if text.startswith("{"):
                    self.events.append(json.loads(text))


@pytest.mark.parametrize("kind", ["application/x-ndjson", "text/event-stream"])
async def test_a_killed_replicas_retry_safe_run_goes_on_elsewhere_and_says_nothing_twice(
    cluster: Cluster, kind: str
) -> None:
    await cluster.upload(COUNTS)
    run = await cluster.launch(retry_safe=True)
    follower = Follower(cluster, run["id"], kind)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follower.read)
        await _say(cluster, run["id"], 1)
        await until(lambda: "b 1\n" in _text(follower.events))
        await cluster.kill(cluster.of(run))
        await _say(cluster, run["id"], 2)
    assert _text(follower.events) == "a" * 10 + "\nb 1\nc 2\n"
    assert [event["index"] for event in follower.events] == list(range(len(follower.events)))
    assert follower.events[-1]["result"] == [1, 2]
    assert (await cluster.finished(run["id"]))["result"] == [1, 2]


async def test_a_client_hears_how_a_run_ended_of_which_it_had_seen_more_than_was_kept(cluster: Cluster) -> None:
    assert cluster.front is not None
    await cluster.upload(CHATTERS, "chatters")
    async with inferd.Client(cluster.front.url, ANN, patience_s=5) as client:
        run = await client.launch("chatters")

        async def killed_under_it() -> None:
            async for event in run.events():
                if event.index == 5:
                    await cluster.kill(cluster.of({"id": run.id}))
                elif event.kind == "finished":
                    raise ErrorInfo(**event.data["error"]).to_exception()

        with pytest.raises(Unavailable, match="the server ended while this run went on"):
            await killed_under_it()


async def test_other_runs_of_a_killed_replica_end_with_a_typed_error(cluster: Cluster) -> None:
    await cluster.upload(COUNTS)
    run = await cluster.launch(session="one")
    over = await cluster.launch(session="one")
    for message in (1, 2):
        await _say(cluster, over["id"], message)
    await cluster.finished(over["id"])
    await until(lambda: _is_stored(cluster, over["id"]))
    follower = Follower(cluster, run["id"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follower.read)
        await until(lambda: "a" in _text(follower.events))
        await cluster.kill(cluster.of(run))
    assert follower.events[-1]["type"] == "finished"
    assert follower.events[-1]["error"]["code"] == "unavailable"
    assert (await cluster.finished(run["id"]))["error"]["code"] == "unavailable"
    assert (await cluster.finished(over["id"]))["result"] == [1, 2]
    next_one = await cluster.launch(session="one")
    await cluster.client.post(f"/v1/runs/{next_one['id']}/cancel")


async def test_a_replica_that_ends_loses_no_run(cluster: Cluster) -> None:
    await cluster.upload(COUNTS)
    runs = [await cluster.launch(session="two") for _ in range(4)]
    assert len({cluster.of(run).name for run in runs}) == 1
    ending = cluster.of(runs[0])
    ending.terminate()

    async def drains() -> bool:
        return any(one["draining"] for one in (await cluster.state())["replicas"])

    await until(drains)
    later = await cluster.launch(session="two")
    assert cluster.of(later) is not ending
    for run in runs:
        await _say(cluster, run["id"], 1)
        await _say(cluster, run["id"], 2)
    assert await ending.wait() == 0
    del cluster.replicas[ending.name]
    for run in runs:
        assert (await cluster.finished(run["id"]))["result"] == [1, 2]
    assert {run["id"] for run in runs} < {one["id"] for one in (await cluster.client.get("/v1/runs")).json()["runs"]}


@pytest.mark.long
async def test_100_runs_under_10_kills_hang_nowhere_and_bring_what_they_should(cluster: Cluster) -> None:
    """Half of the runs are retry-safe. A replica, or the front, is killed at a random time, again and again."""
    await cluster.upload(ECHOES, "echoes")
    draw, ended, endings = random.Random(15), anyio.Event(), dict[int, dict[str, Any]]()
    numbers = itertools.count()

    async def client() -> None:
        while len(endings) < 100 or not ended.is_set():
            number = next(numbers)
            endings[number] = await _ending(cluster, number)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(client)
        for kill in range(10):
            await anyio.sleep(draw.uniform(0.2, 1.5))
            await cluster.upload(f"{ECHOES}\n# {kill}", f"echoes-{kill}")
            await cluster.kill(draw.choice(list(cluster.replicas.values())))
            await cluster.start_replica()
        ended.set()
    failed = {number: over["error"] for number, over in endings.items() if over["error"] is not None}
    assert len(endings) >= 100
    assert all(over["result"] == f"t{number}" for number, over in endings.items() if number not in failed)
    assert {error["code"] for error in failed.values()} <= {"unavailable"}
    print(
        f"{len(endings)} runs, {len(failed)} ended with unavailable, of them retry-safe {sum(n % 2 == 0 for n in failed)}"
    )
    kept = {one["name"] for one in (await cluster.client.get("/v1/programs")).json()["programs"]}
    assert {f"echoes-{kill}" for kill in range(10)} <= kept
