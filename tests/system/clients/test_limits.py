"""What a server's limits look like to clients, in each dialect; and a tenant's own program in place of the built-in one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import anthropic
import httpx
import openai
import pytest

from .conftest import LiveServer, live_server

ASK = [{"role": "user", "content": "Hi"}]
ENDLESS = {"ignore_eos": True}
OWN = """# /// script
# [tool.inferd]
# serves = "chat"
# ///
from inferd.chat import ChatRequest, Reply

async def main(request: ChatRequest) -> None:
    reply = Reply(request)
    await reply.text(f"my own answer, for {request.model}")
    await reply.finish()
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("limited")
    with live_server(
        folder, quota=("admin,sockets=2",), wall_s=4.0, max_body_bytes=65_536, chat_program="mine"
    ) as live:
        yield live


def test_too_many_requests_at_a_time_are_told_when_to_come_back(limited: LiveServer) -> None:
    with limited.openai() as client, limited.anthropic() as other:
        streams = [
            client.chat.completions.create(model="tiny", messages=ASK, stream=True, extra_body=ENDLESS)
            for _ in range(2)
        ]
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(model="tiny", messages=ASK)
        with pytest.raises(anthropic.RateLimitError) as also:
            other.messages.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=3)
        for stream in streams:
            stream.close()
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert int(also.value.response.headers["retry-after"]) >= 1


def test_a_request_has_its_time(limited: LiveServer) -> None:
    with limited.openai(max_retries=5) as client:  # what the test before has left may not be over yet
        began = time.monotonic()
        stream = client.chat.completions.create(
            model="tiny", messages=ASK, stream=True, n=8, extra_body={**ENDLESS, "speculation": False}
        )
        with pytest.raises(openai.APIError, match="more than 4 s"):
            list(stream)
        assert time.monotonic() - began < 20


def test_a_body_that_is_too_large_is_refused(limited: LiveServer) -> None:
    with limited.http() as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 70_000}]}
        refused = client.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["type"]) == (413, "invalid_request_error")
        refused = client.post("/v1/messages", json={**body, "max_tokens": 1})
        assert (refused.status_code, refused.json()["error"]["type"]) == (413, "request_too_large")


def test_request_ids_are_taken_and_given(limited: LiveServer) -> None:
    with limited.http() as client:
        body = {"model": "tiny", "messages": ASK, "max_tokens": 2}
        given = client.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine-7"})
        assert given.headers["x-request-id"] == "mine-7"
        assert client.post("/v1/chat/completions", json={}).headers["x-request-id"].startswith("req-")


def test_the_tenants_own_program_answers_for_every_model(limited: LiveServer) -> None:
    limited.upload(OWN, "mine")
    with limited.openai() as client, limited.http() as http:
        answer = client.chat.completions.create(model="tiny", messages=ASK)
        assert answer.choices[0].message.content == "my own answer, for tiny"
        assert http.delete("/v1/programs/mine").status_code == 200
        answer = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=3)
        assert "my own" not in (answer.choices[0].message.content or "")


def test_without_an_engine_there_is_an_error_of_the_dialect_and_then_an_answer_again(limited: LiveServer) -> None:
    body = {"model": "tiny", "messages": ASK, "max_tokens": 2}
    with limited.http() as http, limited.openai() as client:
        stream = client.chat.completions.create(model="tiny", messages=ASK, stream=True, extra_body=ENDLESS)
        next(iter(stream))
        os.kill(limited.gateway.runtime.engine.pid, signal.SIGKILL)
        with pytest.raises(openai.APIError):
            list(stream)
        refused = http.post("/v1/chat/completions", json=body)
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "server_error"
        assert http.post("/v1/messages", json=body).json()["error"]["type"] in ("api_error", "overloaded_error")
        wait_for_answer(http, body)


def wait_for_answer(http: httpx.Client, body: dict[str, object]) -> None:
    deadline = time.monotonic() + 60
    while http.post("/v1/chat/completions", json=body).status_code != 200:
        assert time.monotonic() < deadline
