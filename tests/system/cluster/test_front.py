"""Two runtimes behind one address: routes, sessions, streams, programs. Processes of their own, and no Ray."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import anyio.to_thread
import httpx
import msgspec
import pytest
import websockets
from prometheus_client.parser import text_string_to_metric_families
from waiting import until

from inferd.protocol import Unavailable
from inferd_runtime.cluster.front.hop_client import own_request
from inferd_runtime.cluster.front.peers import ProvenPeers
from inferd_runtime.cluster.hop import hop_authorization
from inferd_runtime.cluster.messages import JOIN_PATH, RUN_ID, JoinCluster
from inferd_runtime.cluster.proof import Unproven
from inferd_runtime.cluster.replica.remote_programs import RemotePrograms
from inferd_runtime.server.tenancy.quotas import Role
from inferd_runtime.server.tenancy.tokens import TokenRights

from .conftest import ANN, BOB, CID, DAN, EVE, FAY, GUS, HAL, KEY, ROOT, Cluster

pytestmark = pytest.mark.usefixtures("two_replicas")
HELLO = "async def main(word: str = 'x'):\n    print('hello', word)\n    return word\n"
WAITS = "import worker\nasync def main():\n    print('up')\n    return await worker.receive()\n"


async def test_every_route_of_a_run_answers_through_one_address(cluster: Cluster) -> None:
    client = cluster.client
    assert (await cluster.upload(HELLO))["created"]
    run = await cluster.launch(arguments={"word": "w"})
    over = await cluster.finished(run["id"])
    assert over["result"] == "w"
    assert over["program"]["name"] == "p"
    events = await cluster.events(run["id"])
    assert "".join(event["text"] for event in events[1:-1]) == "hello w\n"
    assert [event["index"] for event in events] == list(range(len(events)))
    waiting = await cluster.launch(program=(await cluster.upload(WAITS, "waits"))["id"])
    sent = await client.post(f"/v1/runs/{waiting['id']}/messages", json={"message": {"a": 1}})
    assert sent.status_code == 202
    assert (await cluster.finished(waiting["id"]))["result"] == {"a": 1}
    cancelled = await cluster.launch(program="waits")
    assert (await client.post(f"/v1/runs/{cancelled['id']}/cancel")).status_code == 202
    assert (await cluster.finished(cancelled["id"]))["state"] == "cancelled"
    listed = (await client.get("/v1/runs")).json()["runs"]
    assert [one["id"] for one in listed][:3] == [cancelled["id"], waiting["id"], run["id"]]
    assert (await client.get("/v1/models")).status_code == 200
    assert (await client.get("/readyz")).json()["replicas"] == {"up": 2, "usable": 2}
    assert (await client.get(f"/v1/runs/{run['id']}", headers={"Authorization": f"Bearer {BOB}"})).status_code == 404
    for path in ("/cluster/report", "/v1/runs/run-0", "/nothing"):
        assert (await client.get(path)).status_code == 404


async def test_a_program_uploaded_once_runs_on_every_replica(cluster: Cluster) -> None:
    program = await cluster.upload(WAITS, "q")
    runs = [await cluster.launch("q") for _ in range(8)]
    assert {RUN_ID.fullmatch(run["id"])[1] for run in runs} == cluster.replicas.keys()
    assert {run["program"]["id"] for run in runs} == {program["id"]}
    newer = await cluster.upload(WAITS + "#", "q")
    assert {(await cluster.launch("q"))["program"]["id"] for _ in range(4)} == {newer["id"]}
    assert (await cluster.client.delete("/v1/programs/q")).json() == {"removed": 2}
    refused = await cluster.client.post("/v1/runs", json={"program": "q"})
    assert refused.status_code == 404
    hers = f"Bearer {BOB}"
    refused = await cluster.client.post("/v1/runs", json={"program": program["id"]}, headers={"Authorization": hers})
    assert refused.status_code == 404


async def test_an_admin_ends_a_tenants_runs_on_all_replicas_and_nobody_elses(cluster: Cluster) -> None:
    client, bob, root = cluster.client, *({"Authorization": f"Bearer {token}"} for token in (BOB, ROOT))
    await cluster.upload(WAITS)
    others = await cluster.launch()
    await client.post("/v1/programs", json={"files": {"main.py": WAITS}, "name": "stopped"}, headers=bob)
    runs: list[str] = []
    while {RUN_ID.fullmatch(run)[1] for run in runs} != cluster.replicas.keys():
        assert len(runs) < 40
        runs.append((await client.post("/v1/runs", json={"program": "stopped"}, headers=bob)).json()["id"])
    used = (await client.get("/v1/tenants", headers=bob)).json()["tenants"][0]["use"]
    assert [type(used[what]) for what in ("runs", "waiting")] == [int, int], "whole numbers stay whole"
    assert used["runs"] + used["waiting"] == len(runs)
    assert (await client.post("/v1/tenants/bob/stop", headers=bob)).status_code == 403
    stopped = await client.post("/v1/tenants/bob/stop", headers=root)
    assert stopped.status_code == 202
    assert stopped.json() == {"tenant": "bob", "runs": len(runs), "responses": 0}
    for run in runs:
        await client.get(f"/v1/runs/{run}/events", headers=bob)  # until it is over
        assert (await client.get(f"/v1/runs/{run}", headers=bob)).json()["state"] == "cancelled"
    assert (await client.get(f"/v1/runs/{others['id']}")).json()["finished_at"] is None
    await client.post(f"/v1/runs/{others['id']}/cancel")
    await cluster.finished(others["id"])


async def test_runs_of_a_session_start_on_one_replica_and_a_launch_starts_once(cluster: Cluster) -> None:
    await cluster.upload(WAITS)
    at = {RUN_ID.fullmatch((await cluster.launch(session="s"))["id"])[1] for _ in range(6)}
    assert len(at) == 1
    headers = {"Idempotency-Key": "k"}
    first = await cluster.client.post("/v1/runs", json={"program": "p"}, headers=headers)
    again = await cluster.client.post("/v1/runs", json={"program": "p"}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = await cluster.client.post("/v1/runs", json={"program": "p", "arguments": {"a": 1}}, headers=headers)
    assert other.status_code in (400, 422)


async def test_a_script_has_its_session_through_the_front(cluster: Cluster) -> None:
    assert cluster.front is not None
    url = "ws" + cluster.front.url.removeprefix("http") + "/v1/session"
    headers = {"Authorization": f"Bearer {ANN}"}
    await _end_all(cluster)
    async with websockets.connect(url, additional_headers=headers, proxy=None) as socket:
        await socket.send(msgspec.msgpack.encode({"t": 1, "op": "model.tokenize", "a": {"text": "ab"}}))
        assert msgspec.msgpack.decode(await socket.recv()) == {"t": 1, "ok": {"tokens": [97, 98]}}
        (at,) = [name for name, starts in (await cluster.starts()).items() if starts]
        await cluster.kill(cluster.replicas[at])
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


async def test_a_replica_answers_nobody_who_has_not_the_clusters_key(cluster: Cluster) -> None:
    async with httpx.AsyncClient() as stranger:
        assert cluster.front is not None
        replica = next(iter(cluster.replicas.values()))
        for token in (ANN, ROOT, f"{KEY}:admin", f"x{KEY}:admin::ann"):
            headers = {"Authorization": f"Bearer {token}"}
            for url in (f"{replica.url}/v1/runs", f"{cluster.front.private_url}/cluster/programs"):
                assert (await stranger.get(url, headers=headers)).status_code == 401
        for rights in (TokenRights("ann"), TokenRights("ann", Role.ADMIN)):
            headers = {"Authorization": hop_authorization(KEY, rights)}
            answer = await stranger.post(f"{replica.url}/cluster/report", json={"front": "http://x"}, headers=headers)
            assert answer.status_code == 403


@asynccontextmanager
async def _impostor(serves: str) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Listen, and pass everything on to another process of the cluster. Yields the URL, and what came."""
    came: list[bytes] = []

    async def pass_on(source: anyio.abc.SocketStream, to: anyio.abc.SocketStream, told: list[bytes]) -> None:
        async for part in source:
            told.append(part)
            await to.send(part)
        await to.send_eof()

    async def relay(client: anyio.abc.SocketStream) -> None:
        target = httpx.URL(serves)
        async with client, await anyio.connect_tcp(target.host, target.port or 0) as to:
            with contextlib.suppress(anyio.BrokenResourceError, OSError):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(pass_on, client, to, came)
                    tasks.start_soon(pass_on, to, client, [])

    listening = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listening as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, relay)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}", came
        tasks.cancel_scope.cancel()


async def test_who_listens_at_the_port_of_a_replica_that_has_ended_is_not_shown_the_key(cluster: Cluster) -> None:
    """Whoever had it could be any tenant, and admin. Asking a replica that lives for its proof does not help."""
    assert cluster.front is not None
    ended = "0123abcd"
    async with _impostor(next(iter(cluster.replicas.values())).url) as (url, came):
        joining = own_request(KEY, JOIN_PATH, JoinCluster(ended, url))
        with pytest.raises(Unavailable):
            await cluster.hop.ask(cluster.front.private_url, joining, 10)
        peers = ProvenPeers(KEY)
        peers.names[url] = ended
        with pytest.raises(Unproven):
            await peers.socket_to(url, 10)
        assert len(came) == 2
        assert not [part for part in came if KEY.encode() in part or b"uthorization" in part]


async def test_who_listens_at_the_port_of_a_front_that_has_ended_is_not_shown_the_key(cluster: Cluster) -> None:
    assert cluster.front is not None
    async with _impostor(cluster.front.private_url) as (url, came):
        programs = RemotePrograms(KEY, lambda: url)
        with pytest.raises(Unavailable, match="does not answer: another process listens there"):
            await anyio.to_thread.run_sync(programs.entries, "ann")
        assert came
        assert not [part for part in came if KEY.encode() in part or b"uthorization" in part]
    programs = RemotePrograms(KEY, lambda: str(cluster.front and cluster.front.private_url))
    assert await anyio.to_thread.run_sync(programs.entries, "nobody") == []


async def _is_running(cluster: Cluster, run: str) -> bool:
    return bool((await cluster.client.get(f"/v1/runs/{run}")).json()["state"] == "running")


async def test_a_front_that_was_killed_finds_runs_and_programs_again(cluster: Cluster) -> None:
    assert cluster.front is not None
    await cluster.upload(WAITS)
    run = await cluster.launch(session="s")
    await until(lambda: _is_running(cluster, run["id"]))
    await cluster.front.kill()
    await cluster.start_front()
    assert (await cluster.client.get(f"/v1/runs/{run['id']}")).json()["state"] == "running"
    replicas = (await cluster.state())["replicas"]
    assert [one["starts"] for one in replicas] == [one["runs"] for one in replicas]
    await cluster.client.post(f"/v1/runs/{run['id']}/messages", json={"message": 5})
    assert (await cluster.finished(run["id"]))["result"] == 5
    assert {"p", "waits"} <= {one["name"] for one in (await cluster.client.get("/v1/programs")).json()["programs"]}


async def test_a_launch_that_is_repeated_starts_once_at_whatever_front(cluster: Cluster) -> None:
    """Also where several come at once, and where the front was killed in between: another one would choose another replica."""
    assert cluster.front is not None
    await _end_all(cluster)
    await cluster.upload(WAITS)

    async def launched(key: str) -> str:
        answer = await cluster.client.post("/v1/runs", json={"program": "p"}, headers={"Idempotency-Key": key})
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    same: list[str] = []
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(_append, same, launched("at-once"))
    assert len(set(same)) == 1
    first = [await launched(f"again-{number}") for number in range(6)]
    assert len({RUN_ID.fullmatch(run)[1] for run in first}) == 2  # type: ignore[index]
    await cluster.front.kill()
    await cluster.start_front()
    assert [await launched(f"again-{number}") for number in range(6)] == first
    assert await launched("at-once") == same[0]
    await _end_all(cluster)


async def _append(values: list[str], coming: Awaitable[str]) -> None:
    values.append(await coming)


async def test_finished_runs_are_kept_over_all_replicas_by_what_the_tenant_may_have(cluster: Cluster) -> None:
    """Six, of a tenant whose sessions are on one replica, and then on the other."""
    headers = {"Authorization": f"Bearer {FAY}"}
    upload = {"files": {"main.py": HELLO}, "name": "p"}
    assert (await cluster.client.post("/v1/programs", json=upload, headers=headers)).status_code == 201
    begun: list[str] = []

    async def ended(session: str) -> str:
        own = {**headers, "x-session-id": session}
        run = (await cluster.client.post("/v1/runs", json={"program": "p"}, headers=own)).json()["id"]
        assert (await cluster.client.get(f"/v1/runs/{run}/events", headers=headers)).status_code == 200
        begun.append(run)
        return str(run)

    async def newest_six() -> bool:
        runs = (await cluster.client.get("/v1/runs", headers=headers)).json()["runs"]
        return [run["id"] for run in runs] == begun[:-7:-1]

    for _ in range(9):
        await ended("one")
    await until(newest_six)
    at, number = RUN_ID.fullmatch(begun[0])[1], 0  # type: ignore[index]
    while RUN_ID.fullmatch(begun[-1])[1] == at:  # type: ignore[index]
        number += 1
        await ended(f"other-{number}")
        await until(newest_six)
    for _ in range(3):
        await ended(f"other-{number}")
    await until(newest_six)
    assert len({RUN_ID.fullmatch(run)[1] for run in begun[-6:]}) == 2  # type: ignore[index]


async def test_messages_of_runs_that_wait_are_held_over_all_replicas_by_what_the_tenant_may_have(
    cluster: Cluster,
) -> None:
    """60,000 bytes: what one replica holds leaves the rest to the other."""
    headers, client = {"Authorization": f"Bearer {GUS}"}, cluster.client
    begun: list[str] = []
    for name in ("waits-a", "waits-b", "waits-a", "waits-b"):
        upload = {"files": {"main.py": f"{WAITS}# {name}"}, "name": name}
        assert (await client.post("/v1/programs", json=upload, headers=headers)).is_success
        own = {**headers, "x-session-id": name}
        begun.append((await client.post("/v1/runs", json={"program": name}, headers=own)).json()["id"])
    assert {RUN_ID.fullmatch(run)[1] for run in begun[2:]} == cluster.replicas.keys()  # type: ignore[index]

    async def is_taken(run: str, size: int) -> bool:
        path, body = f"/v1/runs/{run}/messages", {"message": "x" * size}
        answer = await client.post(path, json=body, headers=headers)
        return answer.status_code == 202

    assert await is_taken(begun[2], 45_000)
    taken = 0

    async def is_full() -> bool:
        nonlocal taken
        fits = await is_taken(begun[3], 200)
        taken += 200 * fits
        return not fits

    await until(is_full)
    assert 0 < taken < 30_000
    for run in begun:
        await client.post(f"/v1/runs/{run}/cancel", headers=headers)


async def test_whether_the_cluster_is_ready_is_the_fronts_to_say(cluster: Cluster) -> None:
    answers = [(await cluster.client.get(path)).json() for path in ("/readyz", "/health")]
    assert answers == [{"ready": True, "replicas": {"up": 2, "usable": 2}}] * 2


async def test_figures_of_all_replicas_are_on_one_page(cluster: Cluster) -> None:
    page = (await cluster.client.get("/metrics", headers={"Authorization": f"Bearer {ROOT}"})).text
    found = {one.name: one for one in text_string_to_metric_families(page)}
    assert found["inferd_cluster_replicas_usable"].samples[0].value == 2
    assert {one.labels["replica"] for one in found["inferd_engine_up"].samples} == cluster.replicas.keys()


async def test_a_tenant_launches_no_more_over_all_replicas_than_it_may(cluster: Cluster) -> None:
    headers = {"Authorization": f"Bearer {CID}"}
    upload = {"files": {"main.py": WAITS}, "name": "p"}
    assert (await cluster.client.post("/v1/programs", json=upload, headers=headers)).status_code == 201
    answers = [await cluster.client.post("/v1/runs", json={"program": "p"}, headers=headers) for _ in range(9)]
    started = [answer.json()["id"] for answer in answers if answer.status_code == 201]
    assert len(started) == 6
    refused = answers[-1].json()["error"]
    assert (answers[-1].status_code, refused["detail"]["limit"]) == (429, "launches_per_minute")
    for run in started:
        await cluster.client.post(f"/v1/runs/{run}/cancel", headers=headers)


async def test_a_tenants_runs_hold_over_all_replicas_and_go_where_they_are_wanted(cluster: Cluster) -> None:
    """Four may run and three wait, in the whole cluster; each of two programs has its session, on a replica of its own."""
    headers = {"Authorization": f"Bearer {DAN}"}
    client = cluster.client
    await _end_all(cluster)
    for name in ("p", "q"):
        upload = {"files": {"main.py": f"{WAITS}# {name}"}, "name": name}
        assert (await client.post("/v1/programs", json=upload, headers=headers)).status_code == 201

    async def launched(name: str) -> httpx.Response:
        return await client.post(
            "/v1/runs", json={"program": name}, headers={**headers, "x-session-id": f"{name}-of-dan"}
        )

    async def four_run() -> bool:
        runs = (await client.get("/v1/runs", headers=headers)).json()["runs"]
        running = [run["state"] for run in runs].count("running")
        assert running <= 4
        return running == 4

    begun: dict[str, list[str]] = {"p": [], "q": []}
    await until(lambda: _has(2, launched, "p", begun))  # again and again: a worker may have to start first
    await until(lambda: _has(5, launched, "q", begun))
    assert {RUN_ID.fullmatch(run)[1] for runs in begun.values() for run in runs} == cluster.replicas.keys()
    refused = await launched("p")
    assert (refused.status_code, refused.json()["error"]["detail"]["limit"]) == (429, "waiting")
    asked = {"model": "p", "messages": [{"role": "user", "content": "Hello"}]}
    refused = await client.post("/v1/chat/completions", json=asked, headers=headers)
    assert (refused.status_code, "wait for a worker" in refused.text) == (429, True), "a program's answer is a run, too"
    await until(four_run)
    for run in begun["q"]:
        assert (await client.post(f"/v1/runs/{run}/cancel", headers=headers)).status_code == 202
    await until(lambda: _has(6, launched, "p", begun))
    assert len({RUN_ID.fullmatch(run)[1] for run in begun["p"]}) == 1
    await until(four_run)
    for run in begun["p"]:
        await client.post(f"/v1/runs/{run}/cancel", headers=headers)


async def _end_all(cluster: Cluster) -> None:
    """End what other tests have left, so that no replica is busier."""
    for run in (await cluster.client.get("/v1/runs")).json()["runs"]:
        if run["finished_at"] is None:
            await cluster.client.post(f"/v1/runs/{run['id']}/cancel")

    async def nothing_goes_on() -> bool:
        return not any((await cluster.starts()).values())

    await until(nothing_goes_on)


async def _has(
    count: int, launched: Callable[[str], Awaitable[httpx.Response]], name: str, begun: dict[str, list[str]]
) -> bool:
    """Launch a program once more if there are fewer runs of it, and it is admitted."""
    if len(begun[name]) < count:
        answer = await launched(name)
        if answer.status_code == 201:
            begun[name].append(answer.json()["id"])
    return len(begun[name]) >= count


async def test_requests_of_llm_clients_count_as_launches_over_all_replicas(cluster: Cluster) -> None:
    """The fake engine cannot answer them, but each is counted."""
    headers = {"Authorization": f"Bearer {EVE}"}
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hello"}]}
    answers = [await cluster.client.post("/v1/chat/completions", json=body, headers=headers) for _ in range(4)]
    limited = [answer.json()["error"] for answer in answers if answer.status_code == 429]
    assert len(limited) == 1, [answer.text for answer in answers]


async def test_events_of_a_run_whose_name_is_odd_end_with_an_error(cluster: Cluster) -> None:
    """A name that cannot stand in a request as it is was asked for without end."""
    for name in ("%C3%A4", "a%20b", "a%0D%0AX:%20y", "a%3Fb"):
        answer = await cluster.client.get(f"/v1/runs/{name}/events", timeout=5)
        assert answer.status_code == 404, answer.text


async def test_head_is_answered_like_get(cluster: Cluster) -> None:
    await cluster.upload(HELLO, "hello")
    run = await cluster.launch("hello")
    await cluster.finished(run["id"])
    for path in ("/v1/runs", "/v1/tenants", f"/v1/runs/{run['id']}", f"/v1/runs/{run['id']}/events"):
        answer = await cluster.client.head(path, timeout=5)
        assert (answer.status_code, answer.content) == (200, b"")


async def test_a_key_whose_launch_was_refused_starts_no_run_that_is_not_counted(cluster: Cluster) -> None:
    headers, client = {"Authorization": f"Bearer {HAL}"}, cluster.client
    upload = {"files": {"main.py": HELLO}, "name": "p"}
    assert (await client.post("/v1/programs", json=upload, headers=headers)).status_code == 201
    statuses = []
    for arguments in ({"no": "such"}, {}):
        for key in ("a", "b"):
            body, own = {"program": "p", "arguments": arguments}, {**headers, "Idempotency-Key": key}
            statuses.append((await client.post("/v1/runs", json=body, headers=own)).status_code)
    assert statuses == [400, 400, 429, 429]


async def test_requests_of_llm_clients_wait_for_one_of_the_tenants_sessions_over_all_replicas(cluster: Cluster) -> None:
    assert cluster.front is not None
    url, headers = "ws" + cluster.front.url.removeprefix("http") + "/v1/session", {"Authorization": f"Bearer {HAL}"}
    answers: list[int] = []

    async def tokenize() -> None:
        answer = await cluster.client.post("/tokenize", json={"prompt": "ab"}, headers=headers)
        answers.append(answer.status_code)

    async with anyio.create_task_group() as tasks, websockets.connect(url, additional_headers=headers, proxy=None):
        tasks.start_soon(tokenize)
        for _ in range(20):
            await cluster.client.get("/v1/tenants", headers=headers)
        assert not answers
    assert answers == [200]


async def test_a_script_may_offer_any_subprotocol(cluster: Cluster) -> None:
    """An empty one, which servers skip, was passed on to a client that refuses it: a traceback."""
    assert cluster.front is not None
    host, port = cluster.front.url.removeprefix("http://").split(":")
    head = f"GET /v1/session HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ANN}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    async with await anyio.connect_tcp(host, int(port)) as stream:
        await stream.send(f"{head}{key}Sec-WebSocket-Protocol: x,,inferd.v1\r\n\r\n".encode())
        answer = await stream.receive()
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"inferd.v1" in answer
