"""Programs that talk to each other and start each other: real sandboxes and one real gateway, over the fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from waiting import until

import inferd
from inferd import queue, topic
from inferd.protocol import InferdError, NotFound
from inferd_runtime.sandbox.messages import MAX_ASKED
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.server.gateway.app import Gateway, open_gateway
from inferd_runtime.server.services.launches import launches
from inferd_runtime.server.supervisor.commands import Commands, default_commands

from .conftest import ANN, BOB, fake_commands, settings_in

PUBLISH = """
import asyncio
from inferd import topic

async def main(count: int) -> int:
    while await topic.publish("numbers", -1) < 2:
        await asyncio.sleep(0.01)
    for start in range(0, count, 200):
        await asyncio.gather(*(topic.publish("numbers", number) for number in range(start, min(start + 200, count))))
    await topic.publish("numbers", None)
    return count
"""
SUBSCRIBE = """
from inferd import topic

async def main() -> list[int]:
    got = []
    async with topic.subscribe("numbers") as numbers:
        async for number in numbers:
            if number is None:
                return got
            if number >= 0:
                got.append(number)
"""
PULL = """
from inferd import queue

async def main(count: int) -> list[int]:
    return [await queue.pull("jobs") for _ in range(count)]
"""
CHILD = """
# /// script
# [tool.inferd]
# name = "child"
# version = "1.2.0"
# ///
import asyncio
from inferd import session

async def main(name: str, wait: float = 0) -> str:
    await session.send(f"{name} is here")
    async with asyncio.timeout(600):
        said = await session.receive() if wait else "nothing"
    await session.send({"heard": said})
    return name.upper()
"""
PARENT = """
import inferd

async def main() -> list:
    children = [await inferd.launch("child@1.2.0", {"name": name, "wait": 1}) for name in ("a", "b")]
    first = [await child.receive() for child in children]
    for child in children:
        await child.send("hello " + first[0])
    return [*first, *[await child.result() for child in children], *[[m async for m in child] for child in children]]
"""
SLEEPER = "import asyncio\nasync def main():\n    print('asleep', flush=True)\n    await asyncio.sleep(600)\n"
SPIN = "async def main():\n    while True:\n        pass\n"
LAUNCH = """
import asyncio
import inferd

async def main(program: str, count: int = 1, hold: bool = False, limits: dict[str, float] = {}) -> list:
    outcomes, children = [], []
    for _ in range(count):
        try:
            children.append(await inferd.launch(program, limits=limits, wait_s=0))
            outcomes.append(children[-1].id)
        except inferd.InferdError as error:
            outcomes.append([error.code, error.detail.get("limit")])
    print("launched", flush=True)
    if hold:
        await asyncio.gather(*(child.result() for child in children))
    return outcomes
"""
CROWD = """
import asyncio
import inferd

async def main() -> list:
    async def one():
        return await (await inferd.launch("seven")).result()
    return await asyncio.gather(*(one() for _ in range(12)))
"""
IMPATIENT = """
import asyncio
from inferd import queue

async def main(count: int) -> list[int]:
    got = []
    while len(got) < count:
        try:
            async with asyncio.timeout(0.002):
                got.append(await queue.pull("impatient"))
        except TimeoutError:
            pass
    return got
"""
BOMB = """
import asyncio
import inferd

async def main(depth: int = 0) -> list:
    try:
        child = await inferd.launch("bomb", {"depth": depth + 1})
        return await child.result()
    except inferd.LimitExceeded as error:
        return [depth, error.detail["limit"]]
"""
FLOOD = """
import asyncio
from inferd import topic

async def main():
    async def flood():
        while True:
            await topic.publish("flood", "x" * 2000)
    await asyncio.gather(*(flood() for _ in range(200)))
"""


class Client:
    """One tenant's client."""

    def __init__(self, gateway: Gateway, token: str) -> None:
        self.http = httpx.AsyncClient(base_url=gateway.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    async def upload(self, source: str, name: str) -> str:
        response = await self.http.post("/v1/programs", json={"files": {"main.py": source}, "name": name})
        assert response.status_code in (200, 201), response.text
        return str(response.json()["id"])

    async def launch(
        self, source: str, name: str = "p", limits: dict[str, float] | None = None, **arguments: Any
    ) -> str:
        asked = {"program": await self.upload(source, name), "arguments": arguments, "limits": limits or {}}
        response = await self.http.post("/v1/runs", json=asked)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    async def ended(self, run: str, seconds: float = 30) -> dict[str, Any]:
        with anyio.fail_after(seconds):
            await self.http.get(f"/v1/runs/{run}/events")
        value: dict[str, Any] = (await self.http.get(f"/v1/runs/{run}")).json()
        return value

    async def result(self, run: str) -> Any:
        value = await self.ended(run)
        assert value["error"] is None, value["error"]
        return value["result"]

    async def runs(self) -> list[dict[str, Any]]:
        value: list[dict[str, Any]] = (await self.http.get("/v1/runs")).json()["runs"]
        return value

    async def children(self, run: str) -> list[dict[str, Any]]:
        return [one for one in await self.runs() if one["parent"] == run]

    async def printed(self, run: str, text: str) -> None:
        async def there() -> bool:
            events = (await self.http.get(f"/v1/runs/{run}/events", params={"follow": "false"})).text
            return text in events

        await until(there)


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    ensure_runner()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder: Path = tmp_path_factory.mktemp("services")
    settings = settings_in(folder, threads=1, audit_log=folder / "audit.log", workers=2, quota=("tenant:bob,runs=2",))
    commands = Commands(engine=fake_commands().engine, worker=default_commands(settings).worker)
    async with open_gateway(settings, commands) as opened:
        await opened.runtime.wait_ready()
        yield opened


@pytest.fixture
async def ann(gateway: Gateway) -> AsyncIterator[Client]:
    client = Client(gateway, ANN)
    async with client.http:
        yield client


@pytest.fixture
async def bob(gateway: Gateway) -> AsyncIterator[Client]:
    client = Client(gateway, BOB)
    async with client.http:
        yield client


def address(gateway: Gateway) -> str:
    return gateway.url.replace("http://", "ws://")


async def test_programs_hear_what_another_publishes_in_order_and_all_of_it(ann: Client) -> None:
    listeners = [await ann.launch(SUBSCRIBE, "subscribe") for _ in range(2)]
    publisher = await ann.launch(PUBLISH, "publish", count=3000)
    assert await ann.result(publisher) == 3000
    for listener in listeners:
        assert await ann.result(listener) == list(range(3000))


async def test_a_queue_between_a_script_and_programs_gives_each_value_to_one(gateway: Gateway, ann: Client) -> None:
    pullers = [await ann.launch(PULL, "pull", count=50) for _ in range(2)]
    async with inferd.connect(address(gateway), token=ANN), asyncio.timeout(30):
        await asyncio.gather(*(queue.push("jobs", number) for number in range(100)))
    got = [await ann.result(puller) for puller in pullers]
    assert sorted(got[0] + got[1]) == list(range(100))
    assert all(one == sorted(one) for one in got)


async def test_what_a_killed_puller_never_got_goes_to_the_next_and_tenants_do_not_meet(
    gateway: Gateway, ann: Client
) -> None:
    killed = await ann.launch(PULL, "pull", count=1)
    await ann.printed(killed, "started")
    async with inferd.connect(address(gateway), token=ANN), asyncio.timeout(30):
        await asyncio.sleep(0.1)
        await ann.http.post(f"/v1/runs/{killed}/cancel")
        assert (await ann.ended(killed))["state"] == "cancelled"
        await queue.push("jobs", "for whoever comes")
        async with inferd.connect(address(gateway), token=BOB):
            assert await queue.pull_many("jobs", wait=False) == []
            async with topic.subscribe("news") as news:
                async with inferd.connect(address(gateway), token=ANN):
                    assert await topic.publish("news", "secret") == 0
                del news
        assert await queue.pull("jobs") == "for whoever comes"


async def test_programs_and_scripts_that_give_up_all_the_time_lose_no_value(gateway: Gateway, ann: Client) -> None:
    run = await ann.launch(IMPATIENT, "impatient", count=150)
    got: list[int] = []
    async with inferd.connect(address(gateway), token=ANN), asyncio.timeout(30), asyncio.TaskGroup() as tasks:

        async def push() -> None:
            for number in range(300):
                await queue.push("impatient", number)
                await asyncio.sleep(0.001)

        tasks.create_task(push())
        while len(got) < 150:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.002):
                    got.append(await queue.pull("impatient"))
    got += await ann.result(run)
    assert sorted(got) == list(range(300))


async def test_who_gives_up_faster_than_the_gateway_answers_is_made_to_wait_and_not_refused(
    gateway: Gateway, ann: Client
) -> None:
    source = """
        import asyncio
        from inferd import queue

        async def main(count: int) -> int:
            assert await queue.pull("begin") == 0
            for _ in range(count):
                pull = asyncio.create_task(queue.pull("nobody pushes"))
                await asyncio.sleep(0)
                pull.cancel()
                await asyncio.wait([pull])
                assert pull.cancelled(), pull.exception()
            await queue.push("somebody pushes", 1)
            return await queue.pull("somebody pushes")
    """
    run = await ann.launch(textwrap.dedent(source), "hasty", count=200)
    async with inferd.connect(address(gateway), token=ANN), asyncio.timeout(30):
        await queue.push("begin", 0)
        gateway.runtime.services.pace.used("ann", 0.5, time.monotonic())  # nothing of hers is answered for a second
        for _ in range(3):
            pulls = [asyncio.create_task(queue.pull("nobody pushes")) for _ in range(MAX_ASKED)]
            await asyncio.sleep(0)
            for pull in pulls:
                pull.cancel()
            await asyncio.wait(pulls)
            assert all(pull.cancelled() for pull in pulls)
        assert await queue.pull_many("nobody pushes", wait=False) == []
    assert await ann.result(run) == 1


async def test_a_queue_is_gone_with_the_last_run_of_its_tenant_and_a_durable_one_is_not(
    gateway: Gateway, ann: Client
) -> None:
    source = """
        from inferd import queue

        async def main(push: bool) -> list:
            if push:
                await queue.push("left", 1)
                await queue.push("left", 2, durable=True)
                return []
            return [await queue.pull_many("left", wait=False, durable=durable) for durable in (False, True)]
    """
    await until(lambda: not gateway.runtime.runs.has_active("ann") and not gateway.runtime.use.sockets.held("ann"))
    await ann.result(await ann.launch(textwrap.dedent(source), "left", push=True))
    assert await ann.result(await ann.launch(textwrap.dedent(source), "left", push=False)) == [[], [2]]


async def test_a_retry_safe_parent_that_is_started_again_starts_new_children_and_the_old_ones_have_ended(
    gateway: Gateway, ann: Client
) -> None:
    await ann.upload(SLEEPER, "sleeper")
    program = await ann.upload(LAUNCH, "launch")
    arguments = {"program": "sleeper", "count": 2, "hold": True}
    asked = {"program": program, "arguments": arguments, "retry_safe": True, "limits": {"memory_mb": 512}}
    parent = (await ann.http.post("/v1/runs", json=asked)).json()["id"]
    await ann.printed(parent, "launched")
    before = {one["id"] for one in await ann.children(parent)}
    worker = gateway.runtime.fleet.pool.worker_of(parent)
    os.kill(gateway.runtime.fleet.pids[worker or ""], signal.SIGKILL)

    async def started_again() -> bool:
        return len(await ann.children(parent)) == 4

    await until(started_again, 30)
    for child in before:
        assert (await ann.ended(child, 10))["state"] in ("cancelled", "failed")
    await ann.http.post(f"/v1/runs/{parent}/cancel")
    for one in await ann.children(parent):
        assert (await ann.ended(one["id"], 10))["error"] is not None


async def test_parents_that_fill_all_places_get_an_error_instead_of_waiting_for_each_other(
    bob: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "ROOM_SECONDS", 0.3)  # two runs are all that this tenant may have
    await bob.upload(BOMB, "bomb")
    assert await bob.result(await bob.launch(BOMB, "bomb", {"memory_mb": 512})) == [1, "runs"]


async def test_a_program_starts_others_and_talks_with_them(gateway: Gateway, ann: Client) -> None:
    await ann.upload(CHILD, "child")
    parent = await ann.launch(PARENT, "parent", limits={"memory_mb": 512})
    heard = {"heard": "hello a is here"}
    assert await ann.result(parent) == ["a is here", "b is here", "A", "B", [heard], [heard]]
    children = await ann.children(parent)
    assert [one["state"] for one in children] == ["succeeded"] * 2
    written = await anyio.Path(gateway.runtime.settings.audit_log or "").read_text()
    lines = [json.loads(line) for line in written.splitlines()]
    audited = {line["subject"]: line for line in lines if line["method"] == "LAUNCH" and line["parent"] == parent}
    assert {one["id"] for one in children} == set(audited)
    assert all(line["tenant"] == "ann" and line["path"] == "child@1.2.0" for line in audited.values())


@pytest.mark.parametrize("how", ["it is cancelled", "it returns"])
async def test_a_child_never_outlives_its_parent(ann: Client, how: str) -> None:
    await ann.upload(SLEEPER, "sleeper")
    limits = {"memory_mb": 512}
    parent = await ann.launch(LAUNCH, "launch", limits, program="sleeper", count=2, hold=how == "it is cancelled")
    await ann.printed(parent, "launched")
    if how == "it is cancelled":
        assert [one["state"] for one in await ann.children(parent)] == ["running"] * 2
        await ann.http.post(f"/v1/runs/{parent}/cancel")
    await ann.ended(parent)
    for child in await ann.children(parent):
        ended = await ann.ended(child["id"], 10)
        assert ended["state"] == "cancelled"
        assert parent in ended["error"]["message"]


async def test_a_script_starts_programs_which_end_with_it(gateway: Gateway, ann: Client) -> None:
    await ann.upload(SLEEPER, "sleeper")
    await ann.upload(CHILD, "child")
    async with inferd.connect(address(gateway), token=ANN), asyncio.timeout(30):
        child = await inferd.launch("child", {"name": "c"})
        assert await child.result() == "C"
        assert [message async for message in child] == ["c is here", {"heard": "nothing"}]
        with pytest.raises(InferdError, match="parameter"):
            await inferd.launch("child", {"nome": "c"})
        with pytest.raises(NotFound):
            await inferd.launch("no-such-program")
        left = await inferd.launch("sleeper")
        cancelled = await inferd.launch("sleeper")
        await cancelled.cancel()
        with pytest.raises(inferd.Cancelled):
            await cancelled.result()
    assert (await ann.ended(left.id, 10))["state"] == "cancelled"


async def test_programs_of_another_tenant_cannot_be_launched_by_any_name(
    gateway: Gateway, ann: Client, bob: Client
) -> None:
    secret = await ann.upload("async def main() -> str:\n    return 'of ann'\n", "secret")
    for name in (
        "secret",
        "secret@0.0.0",
        secret,
        secret[:20],
        "ann/secret",
        "../ann/secret",
        "secret\0",
        "x" * 100_000,
    ):
        async with inferd.connect(address(gateway), token=BOB), asyncio.timeout(30):
            with pytest.raises(InferdError) as error:
                await inferd.launch(name)
            assert error.value.code.startswith("client.")
            assert len(error.value.message) < 400
    del bob


async def test_a_launch_bomb_ends_in_typed_errors_and_others_are_answered(ann: Client) -> None:
    await ann.upload(BOMB, "bomb")
    deep = await ann.launch(BOMB, "bomb", {"memory_mb": 512})
    depth, limit = await ann.result(deep)
    assert (depth, limit) == (4, "launch_depth")
    await ann.upload(SLEEPER, "sleeper")
    wide = await ann.launch(LAUNCH, "launch", {"memory_mb": 256}, program="sleeper", count=40)
    outcomes = await ann.result(wide)
    assert 1 <= sum(isinstance(outcome, str) for outcome in outcomes) <= 5
    assert all(outcome == ["limit", "memory_mb"] for outcome in outcomes if isinstance(outcome, list))


async def test_children_for_which_there_is_no_memory_yet_wait_for_others_to_end(ann: Client) -> None:
    """A gather of twelve launches failed: four find room at a time."""
    await ann.upload("async def main() -> int:\n    return 7\n", "seven")
    assert await ann.result(await ann.launch(CROWD, "crowd", {"memory_mb": 256})) == [7] * 12


async def test_children_launder_no_limits(ann: Client) -> None:
    await ann.upload(SPIN, "spin")
    started = time.monotonic()
    parent = await ann.launch(LAUNCH, "launch", {"cpu_s": 1.0, "memory_mb": 512}, program="spin", count=3, hold=True)
    ended = await ann.ended(parent)
    assert ended["error"]["code"] == "limit"
    assert ended["error"]["detail"]["limit"] == "cpu_s"
    used = [(await ann.ended(child["id"]))["usage"]["cpu_ms"] for child in await ann.children(parent)]
    assert sum(used) < 2500, (used, time.monotonic() - started)


async def test_a_flood_of_messages_keeps_nobody_waiting(gateway: Gateway, ann: Client, bob: Client) -> None:
    flooding = [await ann.launch(FLOOD, "flood") for _ in range(3)]
    async with inferd.connect(address(gateway), token=ANN):
        await topic.subscribe("flood").__aenter__()  # it never reads
        for run in flooding:
            await ann.printed(run, "started")
        times = []
        for _ in range(20):
            asked = time.perf_counter()
            assert (await bob.http.get("/livez")).status_code == 200
            times.append(time.perf_counter() - asked)
        assert sorted(times)[10] < 0.5
        assert await bob.result(await bob.launch("async def main() -> int:\n    return 7\n", "seven")) == 7
        for run in flooding:
            await ann.http.post(f"/v1/runs/{run}/cancel")
            assert (await ann.ended(run))["state"] == "cancelled"


async def test_nothing_is_left_when_all_is_over(gateway: Gateway) -> None:
    runtime = gateway.runtime
    await until(lambda: not runtime.runs.active and not runtime.use.sockets.used)
    assert [runtime.services.open_bytes(tenant) for tenant in ("ann", "bob")] == [0, 0]
