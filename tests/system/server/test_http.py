"""The HTTP API over a real socket, with a fake engine and a fake worker behind it."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import httpx
import pytest
from waiting import until

from .conftest import ANN, BOB, ROOT, Serve, Served, fake_commands

HELLO = "async def main(name: str, times: int = 1) -> str:\n    print('hello', name)\n    return name * times\n"
SLEEP = "import asyncio\nasync def main():\n    print('asleep')\n    await asyncio.sleep(600)\n"


def code_of(response: httpx.Response) -> tuple[int, str]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "detail"}
    return response.status_code, body["error"]["code"]


async def test_a_program_runs_from_upload_to_result(serve: Serve) -> None:
    async with serve() as served:
        program = await served.upload(HELLO, "hello")
        assert program["created"]
        assert program["version"] == "0.0.1"
        assert program["interface"]["arguments"]["required"] == ["name"]
        body = {"program": "hello", "arguments": {"name": "Bob", "times": 2}}
        run = (await served.client.post("/v1/runs", json=body)).json()
        assert run["program"] == {"id": program["id"], "name": "hello", "version": "0.0.1"}
        over = await served.finished(run)
        assert (over["state"], over["result"], over["error"]) == ("succeeded", "BobBob", None)
        assert over["usage"]["tokens"] == 7
        assert [line["id"] for line in (await served.client.get("/v1/runs")).json()["runs"]] == [run["id"]]


async def test_uploading_the_same_bytes_again_changes_nothing(serve: Serve) -> None:
    async with serve() as served:
        body = {"files": {"main.py": HELLO}, "name": "hello"}
        first = await served.client.post("/v1/programs", json=body)
        second = await served.client.post("/v1/programs", json=body)
        assert (first.status_code, second.status_code) == (201, 200)
        assert second.json() == {**first.json(), "created": False}
        programs = (await served.client.get("/v1/programs")).json()["programs"]
        assert [program["version"] for program in programs] == ["0.0.1"]
        found = (await served.client.get(f"/v1/programs/{first.json()['id']}")).json()
        assert found["interface"] == first.json()["interface"]


async def test_what_is_wrong_with_a_request_is_named(shared: Served) -> None:
    await shared.upload(HELLO, "hello")
    post = shared.client.post

    async def launch(**body: object) -> tuple[int, str]:
        return code_of(await post("/v1/runs", json=body))

    assert await launch(program="nix") == (404, "client.not_found")
    assert await launch(program="hello") == (400, "client.invalid")
    assert await launch(program="hello", arguments={"name": "x", "nmae": 1}) == (400, "client.invalid")
    assert await launch(program="hello", arguments=[1]) == (400, "client.invalid")
    assert await launch(program="hello", argumnets={}) == (400, "client.invalid")
    assert await launch(program="hello", arguments={"name": "x"}, limits={"wall": 1}) == (400, "client.invalid")
    assert await launch(program="hello", arguments={"name": "x"}, limits={"memory_mb": 9999}) == (400, "limit")
    assert code_of(await post("/v1/runs", content=b"{nonsense")) == (400, "client.invalid")
    assert code_of(await post("/v1/programs", json={"files": {"main.py": "x = ("}})) == (422, "program.syntax")
    assert code_of(await shared.client.get("/v1/nix")) == (404, "client.not_found")
    assert code_of(await shared.client.delete("/v1/runs")) == (405, "client.invalid")
    assert code_of(await shared.client.get("/v1/runs/run-nix/events")) == (404, "client.not_found")
    run = await shared.launch(HELLO, name="x")
    for query in ("from=-1", "from=x", "follow=maybe"):
        assert code_of(await shared.client.get(f"/v1/runs/{run['id']}/events?{query}")) == (400, "client.invalid")


async def test_a_base_url_that_is_not_quite_right_is_told_and_not_just_not_found(shared: Served) -> None:
    meant = {
        "/chat/completions": "/v1/chat/completions",
        "/v1/v1/messages": "/v1/messages",
        "/v1//chat/completions": "/v1/chat/completions",
        "/openai/v1/chat/completions": "/v1/chat/completions",
        "/v1/completions/": "/v1/completions",
        "/v1/tokenize": "/tokenize",
    }
    for asked, there in meant.items():
        told = (await shared.client.post(asked, json={}, headers={"x-stainless-lang": "python"})).json()["error"]
        assert f"there is {there}:" in told["message"]
        assert told["type"] == "invalid_request_error"
    assert "; there is" not in (await shared.client.post("/v1/nix", json={})).text


async def test_without_the_token_only_liveness_and_version_answer(shared: Served) -> None:
    async with httpx.AsyncClient(base_url=shared.gateway.url) as stranger:
        assert (await stranger.get("/livez")).json() == {"live": True}
        assert (await stranger.get("/version")).json()["protocol"] == 1
        for path in ("/readyz", "/health", "/metrics", "/v1/programs", "/v1/runs", "/v1/runs/x/events", "/nix"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {ANN}"}):
                response = await stranger.get(path, headers=headers)
                assert code_of(response) == (401, "client.unauthorized")
                assert response.headers["www-authenticate"] == "Bearer"


async def test_tenants_see_neither_programs_nor_runs_of_each_other(serve: Serve) -> None:
    async with serve() as served:
        run = await served.launch(HELLO, name="x")
        await served.finished(run)
        headers = {"Authorization": f"Bearer {BOB}"}
        async with httpx.AsyncClient(base_url=served.gateway.url, headers=headers) as bob:
            assert (await bob.get("/v1/programs")).json() == {"programs": []}
            assert (await bob.get("/v1/runs")).json() == {"runs": []}
            for path in (f"/v1/runs/{run['id']}", f"/v1/programs/{run['program']['id']}"):
                assert code_of(await bob.get(path)) == (404, "client.not_found")
            assert code_of(await bob.post(f"/v1/runs/{run['id']}/cancel")) == (404, "client.not_found")


async def test_two_tenants_never_share_a_worker_process(serve: Serve) -> None:
    source = "import worker\nasync def main():\n    return worker.pid\n"
    async with serve() as served:
        headers = {"Authorization": f"Bearer {BOB}"}
        async with httpx.AsyncClient(base_url=served.gateway.url, headers=headers) as client:
            bob = Served(served.gateway, client)
            pids = [(await who.finished(await who.launch(source)))["result"] for who in (served, bob, served, bob)]
    assert pids[0] == pids[2] != pids[1] == pids[3]


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(serve: Serve) -> None:
    async with serve(max_body_bytes=1000) as served:
        body = json.dumps({"files": {"main.py": "#" * 2000}}).encode()

        async def pieces() -> object:
            for start in range(0, len(body), 100):
                yield body[start : start + 100]

        for content in (body, pieces()):
            response = await served.client.post("/v1/programs", content=content)  # type: ignore[arg-type]
            assert code_of(response) == (413, "limit")
            assert response.json()["error"]["detail"]["limit"] == "body_bytes"
    async with serve() as served:
        big = {"files": {"main.py": "#" * (1 << 20) + "\n"}}
        assert code_of(await served.client.post("/v1/programs", json=big)) == (413, "limit")


async def test_cancel_ends_a_run_with_cancelled(shared: Served) -> None:
    run = await shared.launch(SLEEP)
    async with shared.client.stream("GET", f"/v1/runs/{run['id']}/events") as stream:
        async for line in stream.aiter_lines():
            event = json.loads(line)
            if event["type"] == "stdout" and "asleep" in event["text"]:
                answer = await shared.client.post(f"/v1/runs/{run['id']}/cancel")
                assert answer.status_code == 202
    assert event["type"] == "finished"
    assert event["state"] == "cancelled"
    over = await shared.finished(run)
    assert (over["state"], over["error"]["code"]) == ("cancelled", "cancelled")
    assert (await shared.client.post(f"/v1/runs/{run['id']}/cancel")).json()["state"] == "cancelled"


async def test_events_replay_from_any_index(shared: Served) -> None:
    run = await shared.launch(HELLO, name="x")
    path = f"/v1/runs/{run['id']}/events"
    whole = [json.loads(line) for line in (await shared.client.get(path)).text.splitlines()]
    assert [event["index"] for event in whole] == list(range(len(whole)))
    assert whole[0]["type"] == "started"
    assert "".join(event["text"] for event in whole if event["type"] == "stdout") == "hello x\n"
    assert whole[-1]["result"] == "x"
    part = (await shared.client.get(path, params={"from": 2})).text.splitlines()
    assert [json.loads(line) for line in part] == whole[2:]
    past = await shared.client.get(path, params={"from": 99})
    assert json.loads(past.text) == whole[-1]  # who has seen more than is kept hears how the run ended


async def test_events_as_server_sent_events_resume_after_the_last_id(shared: Served) -> None:
    run = await shared.launch(HELLO, name="x")
    await shared.finished(run)
    headers = {"Accept": "text/event-stream", "Last-Event-ID": "1"}
    response = await shared.client.get(f"/v1/runs/{run['id']}/events", headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"  # else nginx keeps it until it is whole
    first, *_, last = response.text.strip().split("\n\n")
    assert first.splitlines()[0] == "id: 2"
    assert last.splitlines()[1] == "event: finished"
    assert json.loads(last.splitlines()[2].removeprefix("data: "))["result"] == "x"


async def test_events_without_follow_end_at_once(shared: Served) -> None:
    run = await shared.launch(SLEEP)
    with anyio.fail_after(5):
        response = await shared.client.get(f"/v1/runs/{run['id']}/events?follow=false")
    assert "finished" not in response.text


async def test_events_that_left_the_buffer_before_anybody_followed_are_counted(serve: Serve) -> None:
    source = "async def main():\n    for n in range(100):\n        print('x' * 100)\n"
    async with serve(run_event_bytes=4000) as served:
        run = await served.launch(source)

        async def over() -> bool:
            record = (await served.client.get(f"/v1/runs/{run['id']}")).json()
            return record["finished_at"] is not None

        await until(over)
        lines = (await served.client.get(f"/v1/runs/{run['id']}/events")).text.splitlines()
        first, second, *_ = [json.loads(line) for line in lines]
        assert first["type"] == "dropped"
        assert first["count"] == second["index"]
        assert json.loads(lines[-1])["type"] == "finished"


async def test_a_client_that_leaves_the_stream_does_not_cancel_the_run(shared: Served) -> None:
    source = "import worker\nasync def main():\n    print('waiting')\n    return await worker.receive()\n"
    run = await shared.launch(source)
    path = f"/v1/runs/{run['id']}"
    async with shared.client.stream("GET", f"{path}/events") as stream:
        async for line in stream.aiter_lines():
            if "waiting" in line:
                break
    assert (await shared.client.get(path)).json()["state"] == "running"
    sent = await shared.client.post(f"{path}/messages", json={"message": {"go": [1]}})
    assert sent.status_code == 202
    assert (await shared.finished(run))["result"] == {"go": [1]}
    late = await shared.client.post(f"{path}/messages", json={"message": 1})
    assert code_of(late) == (400, "client.invalid")


@pytest.mark.parametrize("body", ["1180591620717411303424", '"\\ud800"', "NaN", "[" * 900 + "]" * 900, '"\xff"'])
async def test_a_message_that_cannot_be_carried_is_refused_and_ends_nothing(shared: Served, body: str) -> None:
    source = "import worker\nasync def main():\n    return await worker.receive()\n"
    run = await shared.launch(source)
    path = f"/v1/runs/{run['id']}/messages"
    refused = await shared.client.post(path, content=b'{"message":' + body.encode("latin-1") + b"}")
    assert code_of(refused) == (400, "client.invalid")
    assert (await shared.client.post(path, json={"message": 2**64 - 1})).status_code == 202
    assert (await shared.finished(run))["result"] == 2**64 - 1


async def test_messages_of_the_program_are_events(shared: Served) -> None:
    source = "import worker\nasync def main():\n    worker.send({'half': 0.5})\n"
    run = await shared.launch(source)
    lines = (await shared.client.get(f"/v1/runs/{run['id']}/events")).text.splitlines()
    assert [json.loads(line).get("message") for line in lines][1] == {"half": 0.5}


async def test_a_program_that_raises_fails_with_its_traceback(shared: Served) -> None:
    over = await shared.finished(await shared.launch("async def main():\n    return 1 / 0\n"))
    assert (over["state"], over["error"]["code"]) == ("failed", "program")
    assert "ZeroDivisionError" in over["error"]["detail"]["traceback"]


async def test_models_and_readiness(shared: Served) -> None:
    found = (await shared.client.get("/v1/models")).json()
    assert [model["name"] for model in found["models"]] == [model["id"] for model in found["data"]] == ["fake"]
    for path in ("/readyz", "/health"):
        ready = await shared.client.get(path)
        assert (ready.status_code, ready.json()["ready"]) == (200, True)


async def test_speculation_is_streamed_until_the_runtime_closes(serve: Serve) -> None:
    async with serve() as served:
        async with served.client.stream("GET", "/v1/speculation/cycles") as stream:
            lines = stream.aiter_lines()
            told = [json.loads(await anext(lines)) for _ in range(3)]
            assert [cycle["index"] for cycle in told] == [0, 1, 2]
            assert told[0]["session"] == "ann"
            await served.gateway.runtime.shutdown()
            assert len([line async for line in lines]) < 5
        accept = {"Accept": "text/event-stream"}
        async with httpx.AsyncClient(base_url=served.gateway.url, headers=accept) as stranger:
            assert (await stranger.get("/v1/speculation/cycles")).status_code == 401


async def test_metrics_count_what_ran(serve: Serve) -> None:
    async with serve() as served:
        await served.finished(await served.launch(HELLO, name="x"))
        await served.finished(await served.launch("async def main():\n    return 1 / 0\n"))
        await served.launch(SLEEP)
        assert code_of(await served.client.get("/metrics")) == (403, "client.forbidden")
        root = {"Authorization": f"Bearer {ROOT}"}
        lines = (await served.client.get("/metrics", headers=root)).text.splitlines()
        for line in (
            'inferd_runs_total{error="",state="succeeded"} 1.0',
            'inferd_runs_total{error="program",state="failed"} 1.0',
            "inferd_generation_tokens_total 14.0",
            "inferd_spec_decode_num_accepted_tokens_total 8.0",
            "inferd_runs_running 1.0",
            "inferd_engine_up 1.0",
            "inferd_run_store_up 1.0",
            "inferd_connections 1.0",
            'inferd_http_responses_total{status="201"} 6.0',
            'inferd_http_responses_total{status="403"} 1.0',
            "inferd_worker_restarts_total 0.0",
            "inferd_engine_steps_total 7.0",
            "inferd_kv_pages_free 60.0",
            "# HELP inferd_kv_pages_free Pages of all KV caches that nothing holds.",
            "# TYPE inferd_kv_pages_free gauge",
        ):
            assert line in lines


HUGE = "async def main(): return 'x' * 60_000_000"


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Python's collector takes tens of milliseconds of a turn in a process that has loaded all tests."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
async def test_a_huge_result_does_not_hold_the_gateways_loop(serve: Serve) -> None:
    turns: list[float] = []

    async def turn() -> None:
        """Note the processor time of each turn of the loop, which is the gateway's, too."""
        while True:
            started = time.thread_time()
            await anyio.lowlevel.checkpoint()
            turns.append(time.thread_time() - started)

    async with serve(output_bytes=64 << 20, run_event_bytes=64 << 20) as served:
        run = await served.launch(HUGE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turn)
            await until(lambda: served.gateway.runtime.runs.find(run["id"]) is None, 60)
            tasks.cancel_scope.cancel()
        assert max(turns) < 0.03, "in one message it takes 0.05 s and more"
        size = 0
        async with served.client.stream("GET", f"/v1/runs/{run['id']}") as answer:
            async for chunk in answer.aiter_bytes():
                size += len(chunk)
        assert size > 60_000_000


async def test_an_admin_ends_all_runs_of_a_tenant_and_nobody_elses(serve: Serve) -> None:
    """Those of a tenant whose tokens were revoked went on to their limits, and nobody could end them."""
    async with serve() as served:
        admin, bob = {"Authorization": f"Bearer {ROOT}"}, {"Authorization": f"Bearer {BOB}"}
        runs = [await served.launch(SLEEP) for _ in range(3)]
        upload = {"files": {"main.py": SLEEP}, "name": "p"}
        assert (await served.client.post("/v1/programs", json=upload, headers=bob)).status_code == 201
        other = (await served.client.post("/v1/runs", json={"program": "p"}, headers=bob)).json()
        for headers in (None, bob):
            refused = await served.client.post("/v1/tenants/ann/stop", headers=headers)
            assert code_of(refused) == (403, "client.forbidden")
        stopped = await served.client.post("/v1/tenants/ann/stop", headers=admin)
        assert (stopped.status_code, stopped.json()) == (202, {"tenant": "ann", "runs": 3, "responses": 0})
        for run in runs:
            ended = await served.finished(run)
            assert ended["error"]["code"] == "cancelled"
            assert "administrator" in ended["error"]["message"]
        nobody = await served.client.post("/v1/tenants/no%20such%2Ftenant/stop", headers=admin)
        assert nobody.json()["runs"] == 0
        assert (await served.client.get(f"/v1/runs/{other['id']}", headers=bob)).json()["finished_at"] is None


async def test_tokens_are_charged_while_a_run_goes_on(serve: Serve, tmp_path: Path) -> None:
    limits = {"quota": ("user,tokens_per_minute=600",)}
    async with serve(fake_commands(engine=["--produces", str(tmp_path / "go")]), **limits) as served:
        run = await served.launch(SLEEP)
        (tmp_path / "go").touch()

        async def refused() -> bool:
            answer = await served.client.post("/v1/runs", json={"program": "p"})
            return answer.status_code == 429 and answer.json()["error"]["detail"]["limit"] == "tokens_per_minute"

        await until(refused)
        assert (await served.client.get(f"/v1/runs/{run['id']}")).json()["finished_at"] is None
        other = await served.client.get("/v1/tenants", headers={"Authorization": f"Bearer {BOB}"})
        assert other.json()["tenants"][0]["use"]["tokens_per_minute"] == 0
