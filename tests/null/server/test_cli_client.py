"""What the command line finds in the state folder, or behind an address, may be anything: it is an error and no bug."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
import trustme

import inferd
from inferd import Client, SyncClient
from inferd.protocol import InferdError, InvalidRequest, Unavailable
from inferd_runtime.cli.client import SERVER_FILE, TOKEN_FILE, Server
from inferd_runtime.server.packages.finder import MOST_SECONDS
from inferd_runtime.settings.settings import Settings

DEEP = b"[" * 100_000


@contextmanager
def answering(body: bytes, status: int = 200, under: str = "/") -> Iterator[str]:
    """The address of a server that has one answer, under a path."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(status if self.path.startswith(under) else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def test_a_certificate_that_nobody_trusted_has_signed_is_told_with_what_helps() -> None:
    authority, own = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(own)

    def served(client: Callable[[str], object]) -> str:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            url = f"https://127.0.0.1:{listening.getsockname()[1]}"
            thread = threading.Thread(target=refused_handshake, args=(listening, own))
            thread.start()
            with pytest.raises(Unavailable) as caught:
                client(url)
            thread.join()
        return caught.value.message

    def by_script(url: str) -> None:
        async def connected() -> None:
            async with inferd.connect(url.replace("https", "wss"), "x" * 20):
                pass

        asyncio.run(connected())

    def by_client(url: str) -> None:
        with SyncClient(url, "x" * 20) as client:
            client.runs()

    for client in (lambda url: Server(url, None).get("/version"), by_client, by_script):
        message = await asyncio.to_thread(served, client)
        assert "certificate verify failed" in message
        assert "ca= (--ca, INFERD_CA)" in message


def refused_handshake(listening: socket.socket, context: ssl.SSLContext) -> None:
    peer, _ = listening.accept()
    with peer, contextlib.suppress(OSError):
        context.wrap_socket(peer, server_side=True).recv(1)


@pytest.mark.parametrize("text", [b"\xed\xa0\x80", DEEP, b"[]", b'{"url": 5}', b"", bytes(range(255, 191, -1))])
@pytest.mark.parametrize("name", [SERVER_FILE, TOKEN_FILE])
def test_a_file_that_is_damaged_names_no_server_and_no_token(tmp_path: Path, name: str, text: bytes) -> None:
    (tmp_path / name).write_bytes(text)
    server = Server.of(Settings(state_dir=tmp_path, host="127.0.0.1", port=1))
    with pytest.raises(InferdError) as caught:
        server.get("/v1/tenants")
    assert isinstance(caught.value, (Unavailable, InvalidRequest))


def test_a_server_under_a_path_of_a_proxy_is_asked_there() -> None:
    with answering(b'{"runs": []}', under="/llm/v1/") as address:
        assert Server(f"{address}/llm", None).get("/v1/runs") == {"runs": []}


@pytest.mark.parametrize("url", ["http://[", "http://x:99999999", "http://", "nonsense", "http://x:y"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="no server's address"):
        Server(url, None).get("/")


@pytest.mark.parametrize("token", ["a\nb: c", "\u20ac"])
def test_a_token_that_no_header_holds_is_refused_and_not_repeated(token: str) -> None:
    with answering(b"{}") as url, pytest.raises(InvalidRequest) as caught:
        Server(url, token).get("/")
    assert token not in str(caught.value)


@pytest.mark.parametrize("body", [b"<html>", DEEP, b"\xff"])
@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_is_no_json_is_an_error(body: bytes, status: int) -> None:
    with answering(body, status) as url, pytest.raises(InferdError, match="that is no"):
        Server(url, None).get("/")


async def test_an_upload_is_waited_for_longer_than_its_packages_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 30 s it was a lost connection, where pip looked through a slow index for what `packages_s` allows."""
    waits: list[float] = []

    class Recorded(http.client.HTTPConnection):
        def __init__(self, host: str, port: int | None, *, timeout: float) -> None:
            super().__init__(host, port, timeout=timeout)
            waits.append(timeout)

    def answer(request: httpx.Request) -> httpx.Response:
        waits.append(request.extensions["timeout"]["read"])
        body = b'{"id": "p", "name": "p", "version": "1.0.0", "created": true}'
        return httpx.Response(200, stream=httpx.ByteStream(body))

    monkeypatch.setattr(http.client, "HTTPConnection", Recorded)
    with answering(b"{}") as address:
        Server(address, None).upload({})
    client = Client("http://127.0.0.1:1")
    async with client, httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://x") as mocked:
        monkeypatch.setattr(client._link, "_http", mocked)
        await client.upload({"main.py": "async def main(): ..."})
    assert len(waits) == 2
    assert min(waits) > MOST_SECONDS
