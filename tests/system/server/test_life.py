"""Runs outlive what they ran on: restarts of the server, its end, launches that are sent twice."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from waiting import until

from inferd import Cancelled, Client
from inferd_runtime.server.gateway.app import Gateway, serve as serve_gateway
from inferd_runtime.server.run_store.archive import RUNS_FILE
from inferd_runtime.server.run_store.run_file import RunFile

from .conftest import ANN, BOB, CommandLine, Serve, fake_commands, settings_in

TALK = "async def main(n: int = 3):\n    for i in range(n): print(i)\n    return {'n': n}\n"
SLEEP = (
    "import asyncio\nasync def main(seconds: float = 600.0):\n    print('asleep')\n    await asyncio.sleep(seconds)\n"
)
KEY = {"Idempotency-Key": "order-66"}


async def test_runs_with_their_events_and_results_survive_a_restart(serve: Serve) -> None:
    async with serve() as served:
        over = await served.finished(await served.launch(TALK))
        large = await served.finished(await served.launch("async def main(): return 'x' * 700_000"))
        failed = await served.finished(await served.launch("async def main(): raise ValueError('no')"))
        paths = [f"/v1/runs/{over['id']}/events", f"/v1/runs/{over['id']}/events?from=2"]
        events = [(await served.client.get(path)).text for path in paths]
    async with serve() as served:
        for run in (over, large, failed):
            assert (await served.client.get(f"/v1/runs/{run['id']}")).json() == run
        assert [(await served.client.get(path)).text for path in paths] == events
        listed = (await served.client.get("/v1/runs")).json()["runs"]
        assert [run["id"] for run in listed] == [failed["id"], large["id"], over["id"]]
        stream = await served.client.get(paths[0], headers={"Accept": "text/event-stream"})
        assert stream.text.count("event: finished") == 1
        behind = await served.client.get(f"/v1/runs/{over['id']}/events?from=100")
        assert behind.text == events[0].splitlines(keepends=True)[-1], (
            "who saw more than was kept hears how the run ended"
        )
        assert (await served.client.get(f"/v1/runs/{over['id']}/events?from=100&follow=false")).text == ""
        assert '"result":{"n":3}' in stream.text.replace(" ", "")
        assert (await served.client.post(f"/v1/runs/{over['id']}/cancel")).json()["state"] == "succeeded"
        refused = await served.client.post(f"/v1/runs/{over['id']}/messages", json={"message": 1})
        assert refused.json()["error"]["code"] == "client.invalid"
        other = await served.client.get(f"/v1/runs/{over['id']}", headers={"Authorization": f"Bearer {BOB}"})
        assert other.status_code == 404


async def test_the_same_key_launches_once_also_across_a_restart(serve: Serve) -> None:
    async def post(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
        return await client.post("/v1/runs", json={"program": "p", **body}, headers=KEY)

    async with serve() as served:
        await served.upload(TALK)
        answers: list[httpx.Response] = []

        async def launch() -> None:
            answers.append(await post(served.client))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(launch)
        assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
        [run] = {answer.json()["id"] for answer in answers}
        await served.finished({"id": run})
        other = await post(served.client, arguments={"n": 5})
        assert (other.status_code, other.json()["error"]["code"]) == (422, "client.idempotency_key")
        unkeyed = await served.client.post("/v1/runs", json={"program": "p"}, headers={"Idempotency-Key": "x" * 300})
        assert unkeyed.status_code == 400
    async with serve() as served:
        again = await post(served.client)
        assert (again.status_code, again.json()["id"], again.json()["result"]) == (200, run, {"n": 3})
        assert (await post(served.client, arguments={"n": 5})).status_code == 422
        assert len((await served.client.get("/v1/runs")).json()["runs"]) == 1


async def test_draining_refuses_launches_and_lets_runs_end(serve: Serve) -> None:
    async with serve() as served:
        run = await served.launch("import worker\nasync def main(): return await worker.receive()")
        drained = anyio.Event()

        async def drain() -> None:
            await served.gateway.runtime.drain(20)
            drained.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            await until(lambda: served.gateway.runtime.closing)
            refused = await served.client.post("/v1/runs", json={"program": "p"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
            ready = await served.client.get("/readyz")
            assert (ready.status_code, ready.json()["draining"]) == (503, True)
            assert not drained.is_set()
            await served.client.post(f"/v1/runs/{run['id']}/messages", json={"message": "done"})
            assert (await served.finished(run))["result"] == "done"


async def test_draining_lets_answers_to_clients_of_llms_end_and_begins_none(serve: Serve) -> None:
    """They were cut off five seconds after the signal, at each restart, whatever the time to drain."""
    async with serve() as served:
        runtime, drained, done = served.gateway.runtime, anyio.Event(), anyio.Event()

        async def answer() -> None:
            async with runtime.use.socket_in_turn("ann", 20, "x"):
                await done.wait()

        async def drain() -> None:
            await runtime.drain(20)
            drained.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            await until(lambda: runtime.use.answering == 1)
            tasks.start_soon(drain)
            await until(lambda: runtime.closing)
            body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
            refused = await served.client.post("/v1/chat/completions", json=body)
            assert (refused.status_code, "shutting down" in refused.text) == (503, True)
            assert not drained.is_set()
            done.set()
        assert drained.is_set()


async def test_who_cancels_the_last_run_of_a_server_that_drains_is_told_how_it_ended(tmp_path: Path) -> None:
    """It asked again for a minute: the server was gone before the second question."""
    settings, ready = settings_in(tmp_path, drain_seconds=600), list[Gateway]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_gateway, settings, ready.append, fake_commands())
        await until(lambda: bool(ready))
        async with Client(ready[0].url, token=ANN, patience_s=0) as client:
            await client.upload({"main.py": SLEEP}, name="sleeper")
            run = await client.launch("sleeper")
            ready[0].stopping.set()
            await until(lambda: ready[0].runtime.closing)
            await run.cancel()
            assert run.record["state"] == "cancelled"
            with pytest.raises(Cancelled):
                await run.result()


async def test_draining_ends_when_its_time_is_up(serve: Serve) -> None:
    async with serve() as served:
        await served.launch(SLEEP)
        with anyio.fail_after(10):
            await served.gateway.runtime.drain(0.2)
        assert len(served.gateway.runtime.runs.active) == 1


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "sleeper.py"
    path.write_text(SLEEP)
    return str(path)


@pytest.mark.usefixtures("hang_ups")
def test_a_terminal_that_hangs_up_twice_ends_a_server_in_order(inferd: CommandLine, program: str) -> None:
    """The kernel and the shell both say so, and the second time cut the drain off."""
    with inferd.start("serve", "--port", "0", "--json", "--drain-seconds", "600") as server:
        assert server.stdout is not None
        assert server.stderr is not None
        json.loads(server.stdout.readline())
        assert inferd("upload", program).returncode == 0
        run = inferd("launch", "--detach", "sleeper").stdout.strip()
        server.send_signal(signal.SIGHUP)
        assert any("draining" in line for line in iter(server.stderr.readline, ""))
        for _ in range(3):
            server.send_signal(signal.SIGHUP)
        # It still answers, and waits for its run.
        assert json.loads(inferd("ps", "--json").stdout)["runs"][0]["id"] == run
        assert inferd("stop", run).returncode == 0
        assert server.wait(30) == 0


@pytest.mark.usefixtures("hang_ups")
@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGTERM, signal.SIGTERM],
        [signal.SIGTERM, signal.SIGINT],
        [signal.SIGINT],
        [signal.SIGHUP, signal.SIGTERM],
    ],
)
def test_a_second_signal_ends_a_server_at_once(inferd: CommandLine, program: str, signals: list[int]) -> None:
    with inferd.start("serve", "--port", "0", "--json", "--drain-seconds", "600") as server:
        assert server.stdout is not None
        assert server.stderr is not None
        json.loads(server.stdout.readline())
        assert inferd("upload", program).returncode == 0
        launched = inferd("launch", "--detach", "sleeper")
        assert launched.returncode == 0, launched.stderr
        run = launched.stdout.strip()
        with inferd.start("logs", "--follow", run) as logs:
            assert logs.stdout is not None
            assert "asleep" in logs.stdout.readline()
        first, *second = signals
        server.send_signal(first)
        if second:
            assert any("draining" in line for line in iter(server.stderr.readline, ""))
            server.send_signal(second[0])
        assert server.wait(30) in (0, 130)
    with closing(RunFile(Path(inferd.environment["XDG_DATA_HOME"], "inferd", RUNS_FILE))) as kept:
        [shown] = kept.records("default")
        assert (shown.id, shown.state, shown.error and shown.error.code) == (run, "cancelled", "cancelled")
        assert "asleep" in "".join(event.text or "" for event in kept.events(run, 0))


COUNT = """
import os, worker
async def main(until: int, path: str):
    for n in range(until):
        print(n)
        worker.send({'n': n})
        got = await worker.receive()
        if n == 2 and not os.path.exists(path):
            open(path, 'w').close()
            {end}
    return n
"""
ENDS = {"worker": "worker.die()", "engine": "await worker.call('model.tokenize', text='die')"}


async def _retry_safe(served: Any, source: str, **arguments: Any) -> dict[str, Any]:
    program = await served.upload(source)
    body = {"program": program["id"], "arguments": arguments, "retry_safe": True}
    run: dict[str, Any] = (await served.client.post("/v1/runs", json=body)).json()
    return run


@pytest.mark.parametrize("ends", ENDS)
async def test_a_retry_safe_run_goes_on_after_a_crash_without_repeating_itself(
    serve: Serve, tmp_path: Path, ends: str
) -> None:
    async with serve() as served:
        source = COUNT.replace("{end}", ENDS[ends])
        run = await _retry_safe(served, source, until=5, path=str(tmp_path / "crashed"))
        for n in range(5):
            await served.client.post(f"/v1/runs/{run['id']}/messages", json={"message": n})
        over = await served.finished(run)
        assert (over["state"], over["result"]) == ("succeeded", 4), over
        lines = (await served.client.get(f"/v1/runs/{run['id']}/events")).text.splitlines()
        events = [json.loads(line) for line in lines]
        assert [event["index"] for event in events] == list(range(len(events)))
        assert [event["message"]["n"] for event in events if event["type"] == "message"] == [0, 1, 2, 3, 4]
        text = "".join(event["text"] for event in events if event["type"] == "stdout")
        assert [line for line in text.split() if line.isdigit()] == list("01234")
        assert (tmp_path / "crashed").exists()


async def test_a_run_that_says_something_else_after_a_crash_ends_with_that(serve: Serve, tmp_path: Path) -> None:
    source = """
import os, worker
async def main(path: str):
    crashed = os.path.exists(path)
    open(path, 'w').close()
    print('after the crash' if crashed else 'before the crash')
    worker.send(await worker.receive())
    if not crashed: await worker.call('model.tokenize', text='die')
"""
    async with serve() as served:
        run = await _retry_safe(served, source, path=str(tmp_path / "x"))
        await served.client.post(f"/v1/runs/{run['id']}/messages", json={"message": 1})
        over = await served.finished(run)
        assert over["error"]["code"] == "program.replay_differs"
        assert "after the crash" not in (await served.client.get(f"/v1/runs/{run['id']}/events")).text


async def test_a_retry_safe_run_is_not_started_for_ever(serve: Serve) -> None:
    async with serve() as served:
        over = await served.finished(await _retry_safe(served, "import worker\nasync def main(): worker.die()\n"))
        assert over["error"]["code"] == "unavailable"
        assert served.gateway.runtime.fleet.restarts == 3


async def test_what_a_manifest_says_of_retries_holds_unless_a_launch_says_otherwise(serve: Serve) -> None:
    source = (
        "# /// script\n# [tool.inferd]\n# retry_safe = true\n# ///\nimport worker\nasync def main(): worker.die()\n"
    )
    async with serve() as served:
        program = await served.upload(source)
        assert program["retry_safe"] is True
        for asked, attempts in (({}, 3), ({"retry_safe": False}, 1)):
            before = served.gateway.runtime.fleet.restarts
            run = (await served.client.post("/v1/runs", json={"program": program["id"], **asked})).json()
            await served.finished(run)
            assert served.gateway.runtime.fleet.restarts - before == attempts


WAITS = """
import random, worker
async def main(until: int):
    for n in range(until):
        print(n, end=' ')
        worker.send({'n': n, 'got': await worker.receive()})
    return n
"""


async def _events(served: Any, run: dict[str, Any], start: int = 0) -> list[dict[str, Any]]:
    text = (await served.client.get(f"/v1/runs/{run['id']}/events?follow=false&from={start}")).text
    return [json.loads(line) for line in text.splitlines() if line]


async def test_a_retry_safe_run_goes_on_in_the_next_server_without_repeating_itself(serve: Serve) -> None:
    heard: list[dict[str, Any]] = []
    run: dict[str, Any] = {}

    async def send(served: Any, n: int) -> None:
        assert (await served.client.post(f"/v1/runs/{run['id']}/messages", json={"message": n})).status_code == 202

    async def hear(served: Any, n: int) -> None:
        """Read on from where the last server was heard, until the program has said its nth message."""
        while not any(event["type"] == "message" and event["message"]["n"] == n for event in heard):
            heard.extend(await _events(served, run, heard[-1]["index"] + 1 if heard else 0))

    for server in range(3):
        async with serve() as served:
            if not run:
                run = await _retry_safe(served, WAITS, until=4)
            assert (await served.client.get(f"/v1/runs/{run['id']}")).json()["state"] in ("queued", "running")
            await send(served, 10 + server)
            await hear(served, server)
    async with serve() as served:
        await send(served, 13)
        over = await served.finished(run)
        assert (over["state"], over["result"]) == ("succeeded", 3), over
        heard.extend(await _events(served, run, heard[-1]["index"] + 1))
        assert heard == await _events(served, run)
    assert [event["index"] for event in heard] == list(range(len(heard)))
    assert [event["message"] for event in heard if event["type"] == "message"] == [
        {"n": n, "got": 10 + n} for n in range(4)
    ]
    assert "".join(event["text"] for event in heard if event["type"] == "stdout").split() == list("0123")


HALTS = """
import asyncio, os, worker
async def main():
    worker.send(1)
    worker.send(2)
    os.path.exists(PATH) or await asyncio.sleep(600)
"""


def test_a_killed_server_leaves_its_retry_safe_runs_to_the_next_one(inferd: CommandLine, tmp_path: Path) -> None:
    program = tmp_path / "counter.py"
    program.write_text(HALTS.replace("PATH", repr(str(tmp_path / "go"))))
    with inferd.start("serve", "--port", "0", "--json") as server:
        assert server.stdout is not None
        json.loads(server.stdout.readline())
        assert inferd("upload", str(program)).returncode == 0
        run = inferd("launch", "--detach", "--retry-safe", "counter").stdout.strip()
        lost = inferd("launch", "--detach", "counter").stdout.strip()
        with inferd.start("logs", "-f", "--json", run) as logs:
            assert logs.stdout is not None
            seen = [json.loads(logs.stdout.readline()) for _ in range(3)]
            os.kill(server.pid, signal.SIGKILL)
    assert [event["type"] for event in seen] == ["started", "message", "message"]
    (tmp_path / "go").touch()
    with inferd.start("serve", "--port", "0", "--json") as server:
        assert server.stdout is not None
        json.loads(server.stdout.readline())
        events = [json.loads(line) for line in inferd("logs", "-f", "--json", run).stdout.splitlines()]
        assert events[:3] == seen
        assert [event["type"] for event in events[3:]] == ["finished"]
        assert events[3]["state"] == "succeeded"
        [shown] = [one for one in json.loads(inferd("ps", "--json").stdout)["runs"] if one["id"] == lost]
        assert (shown["state"], shown["error"]["code"]) == ("failed", "unavailable")
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
