"""Two replicas with the embedded model and real sandboxes: contexts in a shared store, and time by weight. No Ray."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import lying_tool_server
import pytest
import websockets
from waiting import until
from web_servers import Connection, WebServer, web_server

from inferd import Client
from inferd_runtime.cluster.hop import hop_authorization
from inferd_runtime.cluster.messages import RUN_ID
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.server.tenancy.tokens import TokenRights
from inferd_runtime.settings.settings import EngineSettings

from .conftest import ANN, BOB, KEY, ROOT, Cluster, open_cluster

SAVES = """
from inferd import Context
async def main():
    context = Context().system("A handbook of rules. " * 10)
    await (await context.flush()).save("handbook")
"""
OPENS = """
from inferd import Context, Sampler
async def main():
    context = await Context.open("handbook")
    text = await context.user("What?").generate(Sampler.argmax(), max_tokens=12).collect_text()
    return [text, context.recomputed]
"""
WORKS = """
import asyncio
from inferd import Context, Sampler
async def stream():
    while True:
        await Context().user("Tell me.").generate(Sampler.multinomial(), max_tokens=400).collect_text()
async def main():
    await asyncio.gather(*(stream() for _ in range(8)))
"""
ALL_SERVICES = """
# /// script
# [tool.inferd]
# http = ["{origin}"]
# mcp = ["liar"]
# ///
import asyncio
import inferd
from inferd import http, mcp, queue, session, topic

async def main(here: str, there: str) -> list:
    async with topic.subscribe(here) as heard:
        while await topic.publish(there, "hello " + there) == 0:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(20):
            found = [await anext(heard)]
    await queue.push("of " + there, here)
    found.append(await queue.pull("of " + here))
    child = await inferd.launch("child", {{"name": here}})
    found.append(await child.result())
    response = await http.fetch("{origin}/" + here)
    found.append([response.status, await response.text()])
    async with mcp.connect("liar") as liar:
        found.append(mcp.text_of(await liar.call_tool("echo", {{"text": here}})))
    received = await session.receive_file()
    await session.send_file(await received.read() + b" back", name="back")
    return found
"""
CHILD = "async def main(name: str) -> str:\n    return 'child of ' + name\n"
SETTLE_SECONDS, MEASURED_SECONDS = 1.0, 7.0
WINDOWS = 3
"""That are measured until one has the shares: what else the machine does in one may fall on one replica alone."""


@pytest.fixture(scope="module")
async def web() -> AsyncIterator[WebServer]:
    async def answer(connection: Connection) -> None:
        await connection.answer(connection.path.encode())

    async with web_server(answer) as server:
        yield server


@pytest.fixture(scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory, web: WebServer) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("real")
    ensure_runner()
    async with open_cluster(
        folder, real=True, engine=EngineSettings(threads=1), context_store=f"file://{folder}/contexts",
        http_allow=(f"tenant:ann,{web.url('').rstrip('/')},private=127.0.0.1/32",), mcp_file=_tool_servers(folder),
    ) as cluster:  # fmt: skip
        yield cluster


@pytest.fixture(autouse=True)
async def nothing_runs(real: Cluster) -> None:
    """Runs of the test before that end while a test launches would decide which replica gets its runs."""
    await until(lambda: _idle(real))


async def _idle(cluster: Cluster) -> bool:
    return not any((await cluster.starts()).values())


def _tool_servers(folder: Path) -> Path:
    script = Path(lying_tool_server.__file__)
    server = {
        "command": sys.executable,
        "args": ["-S", str(script), ""],
        "read": [str(script.parent)],
        "tenants": ["ann"],
    }
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"liar": server}}))
    path.chmod(0o600)
    return path


async def _run(cluster: Cluster, token: str, program: str, session: str) -> str:
    headers = {"Authorization": f"Bearer {token}", "x-session-id": session}
    answer = await cluster.client.post("/v1/runs", json={"program": program}, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def _upload(cluster: Cluster, token: str, **sources: str) -> None:
    for name, source in sources.items():
        body = {"files": {"main.py": source}, "name": name}
        answer = await cluster.client.post("/v1/programs", json=body, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 201, answer.text


def _replica(run: str) -> str:
    named = RUN_ID.fullmatch(run)
    assert named is not None
    return named[1]


async def test_a_context_that_one_replica_saved_opens_on_the_other(real: Cluster) -> None:
    await _upload(real, ANN, saves=SAVES, opens=OPENS)
    saved = await _run(real, ANN, "saves", "one")
    assert (await real.finished(saved))["error"] is None
    # A new session goes to the replica that has waited longer, the first one's to its own.
    elsewhere, here = await _run(real, ANN, "opens", "two"), await _run(real, ANN, "opens", "one")
    assert _replica(saved) == _replica(here) != _replica(elsewhere)
    results = [(await real.finished(run))["result"] for run in (elsewhere, here)]
    assert results[0] == results[1]
    assert results[0][1] == 0, "the other replica has the same weights, so nothing is computed again"


async def test_programs_on_two_replicas_have_all_that_the_gateway_does_for_them(
    real: Cluster, web: WebServer, tmp_path: Path
) -> None:
    """Topics and queues between them, children, the web, a server of tools, and files both ways."""
    source = ALL_SERVICES.format(origin=web.url("").rstrip("/"))
    await _upload(real, ANN, a=source, b=source + "# b", child=CHILD)  # equal programs would go to one replica
    (tmp_path / "sent").write_bytes(b"there and")
    assert real.front is not None
    launched = [("a", "b"), ("b", "a")]
    async with Client(real.front.url, ANN) as client:
        runs = []
        for here, there in launched:
            body = {"program": here, "arguments": {"here": here, "there": there}}
            answer = await real.client.post("/v1/runs", json=body, headers={"x-session-id": f"services-{here}"})
            runs.append(await client.attach(answer.json()["id"]))
        assert _replica(runs[0].id) != _replica(runs[1].id)
        for run, (here, there) in zip(runs, launched, strict=True):
            await run.send_file(tmp_path / "sent")
            with anyio.fail_after(60):
                found = await run.result()
            assert found == [f"hello {here}", there, f"child of {here}", [200, f"/{here}"], here]
            (file,) = await run.files()
            assert b"".join([piece async for piece in run.read_file(file.file)]) == b"there and back"


async def _served(cluster: Cluster) -> dict[str, float]:
    answer = await cluster.client.get("/v1/tenants", headers={"Authorization": f"Bearer {ROOT}"})
    tenants: list[dict[str, Any]] = answer.json()["tenants"]
    return {one["tenant"]: one["use"]["served_s"] for one in tenants}


async def _all_work(cluster: Cluster, runs: list[tuple[str, str]]) -> bool:
    states = [
        (await cluster.client.get(f"/v1/runs/{run}", headers={"Authorization": f"Bearer {token}"})).json()["state"]
        for token, run in runs
    ]
    return set(states) == {"running"} and (await _served(cluster)).get("bob", 0.0) > 0


async def test_tenants_get_the_clusters_time_by_weight_wherever_they_work(real: Cluster) -> None:
    """Ann, with twice bob's weight, works on both replicas and bob on one: alone, that one would give him a third of its time."""
    await _upload(real, ANN, one=WORKS, two=WORKS + "# two")
    await _upload(real, BOB, one=WORKS)
    runs = [(ANN, await _run(real, ANN, name, name)) for name in ("one", "two")]
    assert len({_replica(run) for _, run in runs}) == 2
    runs.append((BOB, await _run(real, BOB, "one", "bob")))
    await until(lambda: _all_work(real, runs))  # a tenant's first run waits for a worker of its own to start
    await anyio.sleep(SETTLE_SECONDS)
    ratios = []
    for _ in range(WINDOWS):
        ann, bob = await _served_meanwhile(real, MEASURED_SECONDS)
        assert ann + bob > 0.5 * 2 * MEASURED_SECONDS, "both engines were at work"
        ratios.append(ann / bob)
        if ratios[-1] == pytest.approx(2, rel=0.1):
            break
    for token, run in runs:
        await real.client.post(f"/v1/runs/{run}/cancel", headers={"Authorization": f"Bearer {token}"})
    assert ratios[-1] == pytest.approx(2, rel=0.1), ratios


async def _served_meanwhile(cluster: Cluster, seconds: float) -> tuple[float, float]:
    """The time that ann and bob are given meanwhile."""
    before = await _served(cluster)
    await anyio.sleep(seconds)
    after = await _served(cluster)
    return after["ann"] - before["ann"], after["bob"] - before["bob"]


async def test_responses_over_a_websocket_come_through_the_front(real: Cluster) -> None:
    assert real.front is not None
    url, headers = "ws" + real.front.url.removeprefix("http") + "/v1/responses", {"Authorization": f"Bearer {ANN}"}
    async with websockets.connect(url, additional_headers=headers, proxy=None) as socket:
        followed = None
        for said in ("Hello", "And now?"):
            asked = {"type": "response.create", "model": "tiny", "input": said, "max_output_tokens": 4, "store": False}
            await socket.send(json.dumps({**asked, "previous_response_id": followed}))
            while (event := json.loads(await socket.recv(decode=True)))["type"] not in (
                "response.completed",
                "response.incomplete",
            ):
                assert event["type"] != "error", event
            followed = event["response"]["id"]
        assert event["response"]["previous_response_id"]
        assert event["response"]["output"]


async def test_a_stored_response_is_there_though_its_replica_has_just_been_killed(real: Cluster) -> None:
    """The last test of these: one replica is left. What is asked for meanwhile waits for the heir."""
    (model,) = (await real.client.get("/v1/models")).json()["data"]
    asked = {"model": model["id"], "input": "Say something.", "max_output_tokens": 16}
    answer = await real.client.post("/v1/responses", json=asked, headers={"x-session-id": "stored"})
    assert answer.status_code == 200, answer.text
    said = answer.json()
    path = f"/v1/responses/{said['id']}"
    holders = [one for one in real.replicas.values() if await _holds(one.url, path)]
    (holder,) = holders
    await real.kill(holder)
    found = await real.client.get(path)
    assert (found.status_code, found.json()["output"]) == (200, said["output"])
    assert (await real.client.get("/v1/responses/resp_none")).status_code == 404
    follows = {**asked, "previous_response_id": said["id"]}
    assert (await real.client.post("/v1/responses", json=follows)).status_code == 200


async def _holds(url: str, path: str) -> bool:
    """Whether a replica itself has a response."""
    headers = {"Authorization": hop_authorization(KEY, TokenRights("ann"))}
    async with httpx.AsyncClient() as client:
        return (await client.get(url + path, headers=headers)).status_code == 200
