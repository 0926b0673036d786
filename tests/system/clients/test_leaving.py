"""Clients that leave at any moment leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from urllib.parse import urlparse

import httpx
import pytest

from .conftest import TOKEN, LiveServer

STREAMS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    "/v1/completions": {"prompt": "a", "max_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
}
BODIES = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "n": 4, "stream": True},
    "/v1/completions": {"model": "tiny", "prompt": ["a"] * 20, "max_tokens": 40},
    "/v1/messages": {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40},
    "/v1/embeddings": {"model": "tiny", "input": ["a", "b"]},
}


def figure(http: httpx.Client, name: str) -> float:
    """A figure of the server's metrics."""
    line = next(line for line in http.get("/metrics").text.splitlines() if line.startswith(f"{name} "))
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize("path", BODIES)
def test_sessions_of_clients_that_leave_are_closed(server: LiveServer, path: str) -> None:
    """Left at once, or after a moment: while the session opens, the prompt is rendered, or the answer is written."""
    address = urlparse(server.url)
    data = json.dumps(BODIES[path]).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
    with server.http() as http:
        before = figure(http, "inferd_engine_sessions")
        for moment in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.05) * 4:
            with socket.create_connection((address.hostname, address.port)) as client:
                client.sendall(request)
                client.settimeout(moment or None)
                if moment:
                    with contextlib.suppress(TimeoutError):
                        client.recv(1)
        deadline = time.monotonic() + 20
        while figure(http, "inferd_engine_sessions") > before:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("path", STREAMS)
def test_a_proxy_is_told_to_pass_a_stream_on_as_it_comes(server: LiveServer, path: str) -> None:
    """nginx keeps an answer until it is whole otherwise."""
    with server.http() as http:
        answer = http.post(path, json={"model": "tiny", "stream": True, **STREAMS[path]})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-accel-buffering"] == "no"
