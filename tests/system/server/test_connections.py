"""Clients that leave things unfinished, take what is not theirs, or do not read: each costs itself alone."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx
import msgspec
import pytest
import trustme
from waiting import until
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus

import inferd
from inferd.protocol import InvalidRequest, Unavailable

from .conftest import ANN, BOB, ROOT, Serve, Served

HASTY = {"header_s": 0.6, "body_s": 0.6, "keep_alive_s": 0.6, "unread_s": 0.6}
PRINTS = "async def main():\n    for _ in range(60):\n        print('x' * 60000)\n"
SLEEPS = "import asyncio\nasync def main():\n    await asyncio.sleep(600)\n"


@contextmanager
def raw(served: Served, sent: bytes, receive_buffer: int = 0) -> Iterator[socket.socket]:
    """A connection that has sent something and waits."""
    parts = urlsplit(served.gateway.url)
    with socket.socket() as client:
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(20)
        client.connect((parts.hostname, parts.port))
        client.sendall(sent)
        yield client


def rest_of(client: socket.socket) -> bytes:
    """All that comes until the connection ends; a reset is an end too."""
    found = b""
    try:
        while data := client.recv(1 << 16):
            found += data
    except ConnectionError:
        pass
    return found


def as_tenant(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def request(head: str, token: str = ANN) -> bytes:
    return f"{head} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n".encode()


async def test_requests_that_are_never_finished_are_closed_and_told_and_others_are_served(serve: Serve) -> None:
    unfinished = [
        b"", b"GET /v1/ru", request("GET /livez"), request("GET /v1/runs") + b"X-Endless: ",
        request("POST /v1/runs") + b"Content-Length: 100\r\n\r\n{",
        request("POST /v1/runs") + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"GET /v1/session HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    ]  # fmt: skip
    async with serve(**HASTY) as served:
        with ExitStack() as stack:
            clients = [stack.enter_context(raw(served, sent)) for sent in unfinished for _ in range(20)]
            assert (await served.client.get("/livez")).status_code == 200
            assert (await served.client.get("/v1/programs")).status_code == 200
            for client in clients:
                answer = await anyio.to_thread.run_sync(rest_of, client)
                assert b"408 Request Timeout" in answer, answer
                assert b'"code":"unavailable"' in answer
        assert (await served.client.get("/v1/programs")).status_code == 200


async def test_a_second_request_that_is_half_sent_and_an_idle_connection_are_closed_too(serve: Serve) -> None:
    async with serve(**HASTY) as served:
        whole = request("GET /v1/programs") + b"\r\n"
        with raw(served, whole) as half, raw(served, whole) as idle:
            assert b"200 OK" in await anyio.to_thread.run_sync(half.recv, 4096)
            half.sendall(b"GET /v1/")
            assert b"408 Request Timeout" in await anyio.to_thread.run_sync(rest_of, half)
            assert b"408" not in await anyio.to_thread.run_sync(rest_of, idle)


async def test_two_tokens_are_one_too_many(serve: Serve) -> None:
    async with serve() as served:
        both = request("GET /v1/programs", ANN) + f"Authorization: Bearer {BOB}\r\n\r\n".encode()
        with raw(served, both) as client:
            answer = await anyio.to_thread.run_sync(rest_of, client)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"it has two headers authorization that differ" in answer


async def test_a_client_that_closes_its_sending_side_gets_the_answer_that_it_waits_for(serve: Serve) -> None:
    """It got none. Most that do so have left, so nothing of it waits long for what does not come on."""
    body = msgspec.json.encode({"program": "p"})
    launch = request("POST /v1/runs") + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with serve() as served:
        held = served.gateway.runtime.use.connections
        run = await served.launch(PRINTS)
        await served.finished(run)
        silent = await served.launch(SLEEPS)
        events = [request(f"GET /v1/runs/{one['id']}/events") + b"\r\n" for one in (run, silent)]
        asked = [request("GET /v1/programs") + b"\r\n", launch, *events, launch[:-1]]
        with ExitStack() as stack:
            clients = [stack.enter_context(raw(served, sent)) for sent in asked]
            for client in clients:
                client.shutdown(socket.SHUT_WR)
            said = [await anyio.to_thread.run_sync(rest_of, client) for client in clients]
        assert [answer[9:12] for answer in said] == [b"200", b"201", b"200", b"200", b""]
        assert b'"finished"' in said[2]
        assert said[2].endswith(b"\r\n0\r\n\r\n"), "a stream that comes on is whole"
        await until(lambda: held.held("ann") <= 1)


async def test_a_client_that_does_not_read_is_closed(serve: Serve) -> None:
    async with serve(run_event_bytes=8 << 20, output_bytes=8 << 20, **HASTY) as served:
        run = await served.launch(PRINTS)
        await served.finished(run)
        held = served.gateway.runtime.use.connections
        path = f"GET /v1/runs/{run['id']}/events"
        with raw(served, request(path, ANN) + b"\r\n", receive_buffer=4096) as client:
            await until(lambda: held.held("ann") == 2)
            await until(lambda: held.held("ann") == 0)  # the one that asked for the run is idle, and closed, too
            assert len(await anyio.to_thread.run_sync(rest_of, client)) < 3_600_000, "not all of it came"


@pytest.mark.parametrize("flood", [b"GET /v1/runs HTTP/1.1\r\nHost: x\r\n", b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_a_health_checks_connection_outlives_a_flood_of_connections_without_a_token(
    serve: Serve, flood: bytes
) -> None:
    async with serve(max_connections=64) as served:  # 16 without a token, 8 of one address
        with raw(served, b"") as probe, ExitStack() as held:

            def ask() -> bytes:
                probe.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                answer = probe.recv(4096)
                while not answer.endswith(b"}"):
                    answer += probe.recv(4096)
                return answer

            for _ in range(10):
                assert b"200 OK" in await anyio.to_thread.run_sync(ask)
                for _ in range(20):
                    held.enter_context(raw(served, flood))


UPGRADE = request("GET /v1/session") + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
WHOLE = request("GET /v1/runs") + b"\r\n"
KEYED = UPGRADE + b"Sec-WebSocket-Key: " + b"A" * 22 + b"==\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (request("GET /livez") + b"X: " + b"y" * 40_000, 431, "limit"),
        (request("GET /livez") + b"X: y\r\n" * 10_000, 431, "limit"),
        (b"G" * 40_000, 431, "limit"),
        (request("GET /livez" + "?" + "y" * 40_000), 431, "limit"),
        (b"\x16\x03\x01\x02\x00\x01" + bytes(100) + b"\r\n\r\n", 400, "client.invalid"),
        (b"GET /livez HTTP/1.1\r\n\r\n", 400, "client.invalid"),
        (request("GET /livez") + b"a b: c\r\n\r\n", 400, "client.invalid"),
        (request("POST /v1/runs") + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400, "client.invalid"),
        (
            request("POST /v1/runs") + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + WHOLE,
            400,
            "client.invalid",
        ),
        (
            request("POST /v1/runs").replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "client.invalid",
        ),
        (UPGRADE + b"\r\n", 400, "client.invalid"),
        (UPGRADE + b"Sec-WebSocket-Key: x\r\n\r\n", 400, "client.invalid"),
        (UPGRADE.replace(b"13", b"12") + b"\r\n", 400, "client.invalid"),
        (KEYED.replace(b"GET", b"POST") + b"\r\n", 400, "client.invalid"),
        (KEYED + b"X: " + b"y" * 9_000 + b"\r\n\r\n", 400, "client.invalid"),
        (KEYED + b"X: y\r\n" * 200 + b"\r\n", 400, "client.invalid"),
        (KEYED + b"Content-Length: 2\r\n\r\n{}", 400, "client.invalid"),
        (KEYED + b"Origin: a\r\nOrigin: b\r\n\r\n", 400, "client.invalid"),
        (KEYED + b"Sec-WebSocket-Protocol: @\xff" + b"\xff" * 5_000 + b"\r\n\r\n", 400, "client.invalid"),
        (KEYED.replace(b"session", b"runs") + b"\r\n", 404, "client.not_found"),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else str(value),
)
async def test_what_never_becomes_a_request_is_refused_with_a_typed_error(
    shared: Served, sent: bytes, status: int, code: str
) -> None:
    with raw(shared, sent) as client:
        head, _, body = (await anyio.to_thread.run_sync(rest_of, client)).partition(b"\r\n\r\n")
        assert head.split()[1] == str(status).encode(), head
        assert msgspec.json.decode(body)["error"]["code"] == code


async def test_a_refused_question_for_the_head_alone_has_no_body(shared: Served) -> None:
    """A body was more than the answer may have: an error of the gateway's own, with its traceback."""
    framed_twice = b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
    with raw(shared, request("HEAD /livez") + framed_twice) as client:
        head, _, body = (await anyio.to_thread.run_sync(rest_of, client)).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400")
    assert body == b""


@pytest.mark.parametrize("text", [b"\xff\xfe", b"\xe2\x82", b"a text"])
async def test_a_text_is_refused_with_a_typed_error_whether_it_is_one_or_not(
    serve: Serve, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """uvicorn decoded it, and logged a traceback."""
    frame = bytes([0x81, 0x80 | len(text)]) + bytes(4) + text
    async with serve() as served:
        with raw(served, KEYED + b"\r\n") as client:
            assert b"101" in await anyio.to_thread.run_sync(client.recv, 4096)
            client.sendall(frame)
            assert b"client.invalid" in await anyio.to_thread.run_sync(client.recv, 4096)
    assert not [record for record in caplog.records if record.exc_info]


async def test_no_tenant_takes_the_sessions_or_connections_of_others(serve: Serve) -> None:
    limits = ("user,sockets=2,connections=5",)
    async with serve(quota=limits) as served, AsyncExitStack() as stack:
        url = served.gateway.url.replace("http", "ws") + "/v1/session"

        async def session(token: str) -> None:
            await stack.enter_async_context(open_websocket(url, additional_headers=as_tenant(token)))

        await session(ANN)
        await session(ANN)
        with pytest.raises(InvalidStatus) as caught:
            await session(ANN)
        response = caught.value.response
        assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
        assert response.body is not None
        assert b'"limit":"sockets","value":2' in response.body
        await session(BOB)

        held = served.gateway.runtime.use.connections
        with ExitStack() as open_ones:
            whole = request("GET /v1/programs") + b"\r\n"
            for _ in range(5 - held.held("ann")):
                await anyio.to_thread.run_sync(open_ones.enter_context(raw(served, whole)).recv, 100)
            refused = open_ones.enter_context(raw(served, whole))
            answer = b""
            while b"}}" not in answer:
                answer += await anyio.to_thread.run_sync(refused.recv, 4096)
            assert b"429" in answer.splitlines()[0]
            assert b'"limit":"connections","value":5' in answer
            async with httpx.AsyncClient(base_url=served.gateway.url, headers=as_tenant(BOB)) as bob:
                assert (await bob.get("/v1/programs")).status_code == 200
                own = (await bob.get("/v1/tenants")).json()["tenants"]
            assert [(one["tenant"], one["use"]["sockets"]) for one in own] == [("bob", 1)]
            async with httpx.AsyncClient(base_url=served.gateway.url, headers=as_tenant(ROOT)) as root:
                every = {one["tenant"]: one for one in (await root.get("/v1/tenants")).json()["tenants"]}
            assert every.keys() == {"ann", "bob", "root"}
            assert every["ann"]["use"]["sockets"] == every["ann"]["quotas"]["sockets"] == 2
    assert held.used == 0


async def test_a_flood_of_unfinished_connections_leaves_room_for_who_shows_a_token(serve: Serve) -> None:
    """More of them than may be open before they show one: the oldest go."""
    async with serve(max_connections=32) as served:
        with ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(raw(served, b"GET /"))
                assert (await served.client.get("/v1/programs")).status_code == 200
            async with httpx.AsyncClient(base_url=served.gateway.url, headers=as_tenant(BOB)) as bob:
                assert (await bob.get("/v1/programs")).status_code == 200


async def test_frames_that_cost_nothing_to_send_do_not_take_the_gateways_time(serve: Serve) -> None:
    """A million pings from one client: others wait for one piece of them at most."""
    async with serve() as served:
        url = served.gateway.url.replace("http", "ws") + "/v1/session"
        async with open_websocket(url, additional_headers=as_tenant(ANN), ping_interval=None) as flood:
            sending = flood.transport
            sending.write(b"\x89\x80\x00\x00\x00\x00" * 1_000_000)
            worst = 0.0
            for _ in range(30):
                start = anyio.current_time()
                assert (await served.client.get("/livez")).status_code == 200
                worst = max(worst, anyio.current_time() - start)
            sending.abort()
        assert worst < 1.0


async def test_launches_are_bounded_per_minute_and_say_when_to_come_again(serve: Serve) -> None:
    async with serve(quota=("tenant:ann,launches_per_minute=2,runs=1,waiting=1", "user,cpu_s=5")) as served:
        program = await served.upload(SLEEPS)
        body = {"program": program["id"], "limits": {"cpu_s": 1}}
        answers = [await served.client.post("/v1/runs", json=body) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [201, 201, 429]
        detail = answers[2].json()["error"]["detail"]
        assert (detail["limit"], detail["value"]) == ("launches_per_minute", 2)
        assert int(answers[2].headers["Retry-After"]) >= detail["retry_after_s"] > 1
        too_long = await served.client.post("/v1/runs", json={**body, "limits": {"cpu_s": 6}})
        assert too_long.json()["error"]["detail"]["limit"] == "cpu_s"
        states = [
            (await served.client.get(f"/v1/runs/{answer.json()['id']}")).json()["state"] for answer in answers[:2]
        ]
        assert states.count("queued") >= 1


async def test_a_revoked_token_ends_open_sessions_and_its_audit_trail_names_it(serve: Serve, tmp_path: Path) -> None:
    from inferd_runtime.server.tenancy.quotas import Role
    from inferd_runtime.server.tenancy.token_store import TOKENS_FILE, TokenStore

    async with serve(audit_log=tmp_path / "audit") as served:
        store = TokenStore(tmp_path / "data" / TOKENS_FILE)
        made = store.create("eve", Role.USER)
        url = served.gateway.url.replace("http", "ws") + "/v1/session"
        async with httpx.AsyncClient(base_url=served.gateway.url, headers=as_tenant(made.token)) as eve:
            assert (await eve.post("/v1/programs", json={"files": {"main.py": SLEEPS}, "name": "s"})).status_code == 201
            assert (await eve.post("/v1/runs", json={"program": "s"})).status_code == 201
        async with open_websocket(url, additional_headers=as_tenant(made.token)) as session:
            store.revoke(made.entry.id)
            with pytest.raises(ConnectionClosed) as caught, anyio.fail_after(20):
                await session.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1008
        async with httpx.AsyncClient(base_url=served.gateway.url, headers=as_tenant(ROOT)) as root:
            told = {one["tenant"]: one for one in (await root.get("/v1/tenants")).json()["tenants"]}
            assert told["eve"]["use"]["runs"] == 1, "who lost its token still has a run, and nobody saw it"
        made_anew = store.create("eve", Role.USER)
        async with httpx.AsyncClient(base_url=served.gateway.url, headers=as_tenant(made_anew.token)) as eve:
            (left,) = (await eve.get("/v1/runs")).json()["runs"]
            assert (await eve.post(f"/v1/runs/{left['id']}/cancel")).status_code == 202
        store.close()
        assert (await served.client.get("/v1/runs", headers=as_tenant(made.token))).status_code == 401
        run = await served.launch("async def main(secret: str):\n    return secret\n", secret="not for the log")
        await served.finished(run)
    trail = (tmp_path / "audit").read_text()
    assert f'"tenant":"eve","role":"user","token":"{made.entry.id}"' in trail
    assert (
        '"tenant":null,"role":null,"token":null,"method":"GET","path":"/v1/runs","subject":null,"status":401' in trail
    )
    assert f'"path":"/v1/runs","subject":"{run["id"]}","status":201' in trail
    assert "not for the log" not in trail
    assert made.token not in trail
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o600


async def test_a_page_in_a_browser_can_do_nothing_without_the_token(serve: Serve) -> None:
    """The token is a header, which a browser sends to no site by itself, and no answer allows another origin to ask."""
    foreign = {"Origin": "http://evil.example", "Host": "evil.example", "Cookie": f"token={ANN}"}
    async with serve() as served, httpx.AsyncClient(base_url=served.gateway.url) as browser:
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        before = await browser.options("/v1/runs", headers={**foreign, **asked})
        assert before.status_code == 401
        for answer in (
            before,
            await browser.get("/v1/runs", headers=foreign),
            await browser.get("/livez", headers=foreign),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control")]
        assert (await browser.get("/v1/runs", headers=foreign)).status_code == 401
        with pytest.raises(InvalidStatus) as caught:
            await open_websocket(served.gateway.url.replace("http", "ws") + "/v1/session", origin="http://evil.example")  # type: ignore[arg-type]
        assert caught.value.response.status_code == 401


def issue(folder: Path) -> dict[str, Path]:
    """Write the files of a new authority and its certificate, which nobody else can read, over those that are there."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = {"ca": folder / "ca.pem", "tls_cert": folder / "cert.pem", "tls_key": folder / "key.pem"}
    authority.cert_pem.write_to_path(str(files["ca"]))
    issued.cert_chain_pems[0].write_to_path(str(files["tls_cert"]))
    issued.private_key_pem.write_to_path(str(files["tls_key"]))
    files["tls_key"].chmod(0o600)
    return files


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, Path]:
    return issue(tmp_path)


async def test_a_renewed_certificate_needs_no_restart_and_half_of_one_changes_nothing(
    serve: Serve, certificate: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "inferd.gateway")
    (tmp_path / "new").mkdir()

    async def status(ca: Path) -> int:
        trusted = ssl.create_default_context(cafile=ca)
        async with httpx.AsyncClient(base_url=url, verify=trusted, headers=as_tenant(ANN)) as client:
            return (await client.get("/v1/programs")).status_code

    async with serve(tls_cert=certificate["tls_cert"], tls_key=certificate["tls_key"]) as served:
        url = served.gateway.url
        assert await status(certificate["ca"]) == 200
        renewed = issue(tmp_path / "new")
        renewed["tls_cert"].replace(certificate["tls_cert"])  # and not yet its key
        assert await status(certificate["ca"]) == 200
        renewed["tls_key"].replace(certificate["tls_key"])
        assert await status(renewed["ca"]) == 200
        with pytest.raises(httpx.ConnectError, match=r"(?i)certificate.verify.failed"):
            await status(certificate["ca"])
        certificate["tls_cert"].unlink()
        assert await status(renewed["ca"]) == 200
        os.mkfifo(certificate["tls_cert"])  # whoever reads it waits for a writer, and all others with it
        assert await status(renewed["ca"]) == 200


async def test_tls_is_spoken_verified_and_its_handshake_has_a_time(serve: Serve, certificate: dict[str, Path]) -> None:
    ca = str(certificate["ca"])
    async with serve(tls_cert=certificate["tls_cert"], tls_key=certificate["tls_key"], header_s=1.0) as served:
        url = served.gateway.url
        assert url.startswith("https://")
        with raw(served, b"") as silent, raw(served, b"GET / HTTP/1.1\r\n\r\n") as plain:
            trusted = ssl.create_default_context(cafile=ca)
            async with httpx.AsyncClient(base_url=url, verify=trusted, headers=as_tenant(ANN)) as client:
                assert (await client.get("/v1/programs")).status_code == 200
            async with inferd.connect(url.replace("https", "wss"), ANN, ca=ca):
                assert [model.name for model in await inferd.Model.list()] == ["fake"]
            with pytest.raises(Unavailable, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
                async with inferd.connect(url.replace("https", "wss"), ANN):
                    pass
            for client_of_none in (silent, plain):
                assert b"HTTP" not in await anyio.to_thread.run_sync(rest_of, client_of_none)
    with pytest.raises(InvalidRequest, match="ca"):
        inferd.connect("ws://127.0.0.1:1", ANN, ca=ca)
    with pytest.raises(InvalidRequest, match="no file of certificates"):
        inferd.connect("wss://127.0.0.1:1", ANN, ca=ca + "x")
