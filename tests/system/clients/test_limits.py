"""What a server's limits look like to clients, in each dialect; and a tenant's own program in place of the built-in one."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import openai
import pytest
from websockets.sync.client import connect as open_websocket

from inferd_runtime.settings.settings import EngineSettings

from .conftest import TOKEN, LiveServer, live_server

ASK = [{"role": "user", "content": "Hi"}]
ENDLESS = {"ignore_eos": True}
PAGES, PAGE = 256, 16
"""A cache that a few requests fill; tokens of a page."""
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
        folder, quota=("admin,sockets=2",), wall_s=4.0, max_body_bytes=65_536, chat_program="mine",
        alias=("gpt-4o:latest=tiny",), engine=EngineSettings(pages=PAGES),
    ) as live:  # fmt: skip
        yield live


def test_a_tool_that_knows_its_vendors_names_alone_is_served(limited: LiveServer) -> None:
    """Under an alias a model is listed, chats, completes and embeds as under its own name."""
    asked = {"messages": ASK, "max_tokens": 4, "seed": 1}
    with limited.http() as client:
        listed = client.get("/v1/models").raise_for_status().json()["data"]
        assert {entry["id"] for entry in listed} >= {"tiny", "gpt-4o:latest"}
        assert client.get("/v1/models/gpt-4o:latest").raise_for_status().json()["id"] == "gpt-4o:latest"
        for path, body in (
            ("/v1/chat/completions", asked), ("/v1/messages", asked), ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
            ("/v1/responses", {"input": "a"}), ("/v1/embeddings", {"input": "a"}), ("/tokenize", {"prompt": "a"}),
        ):  # fmt: skip
            answer = client.post(path, json={"model": "gpt-4o:latest", **body})
            assert answer.status_code == 200, answer.text
            assert answer.json().get("model", "gpt-4o:latest") == "gpt-4o:latest"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_conversation_with_a_name_stays_in_a_cache_that_others_fill(limited: LiveServer, path: str) -> None:
    """Its next request finds what its last one computed; that of a conversation without a name is gone by then."""
    with limited.http() as client:
        named, nameless = ([said(path, name)] for name in ("The gulls", "The boats"))
        headers = {"X-Session-Id": f"harbour{path.count('/')}-{len(path)}"}
        prompts = [converse(client, path, named, headers)[0], converse(client, path, nameless, {})[0]]
        for other in range(PAGES // 28):
            filler = {"model": "tiny", "prompt": [300 + other] * 29 * PAGE, "max_tokens": 1}
            client.post("/v1/completions", json=filler).raise_for_status()
        kept = converse(client, path, named, headers)[1]
        assert prompts[0] - PAGE - 1 <= kept
        assert converse(client, path, nameless, {})[1] == 0


def said(path: str, who: str) -> dict[str, str]:
    """A user's message of some ten pages; no two conversations begin alike."""
    return {"role": "user", "content": f"{who} of {path} came back to the harbour, and it was quiet. " * 12}


def converse(
    client: httpx.Client, path: str, messages: list[dict[str, str]], headers: dict[str, str]
) -> tuple[int, int]:
    """Ask a conversation, add the answer and a question, and return the prompt's tokens, and those that were found."""
    responses = path == "/v1/responses"
    body = {"model": "tiny", "input" if responses else "messages": messages, "temperature": 0}
    body |= {"max_output_tokens": 4} if responses else {"max_tokens": 4}
    usage = client.post(path, json=body, headers=headers).raise_for_status().json()["usage"]
    messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And then?"}]
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    cached = usage["input_tokens_details"]["cached_tokens"] if responses else usage["cache_read_input_tokens"]
    return usage["input_tokens"] + (0 if responses else cached), cached


def test_requests_beyond_the_sessions_of_a_tenant_wait_for_their_turn(limited: LiveServer) -> None:
    """The third of any at once was told to come back."""

    def ask(number: int) -> int:
        body: dict[str, Any] = {"model": "tiny", "max_tokens": 3, "messages": ASK}
        with limited.http() as client:
            if number % 3:
                return client.post("/v1/chat/completions", json=body).status_code
            return client.post("/v1/embeddings", json={"model": "tiny", "input": "Hi"}).status_code

    with ThreadPoolExecutor(18) as threads:
        assert [*threads.map(ask, range(18))] == [200] * 18


def test_requests_that_have_waited_for_too_long_are_told_when_to_come_back(limited: LiveServer) -> None:
    url, headers = limited.url.replace("http", "ws") + "/v1/session", {"Authorization": f"Bearer {TOKEN}"}
    with open_websocket(url, additional_headers=headers), open_websocket(url, additional_headers=headers):
        with limited.openai() as client, pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(model="tiny", messages=ASK)
        with limited.anthropic() as client, pytest.raises(anthropic.RateLimitError) as also:
            client.messages.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=3)
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


def test_a_body_that_is_packed_is_refused(limited: LiveServer) -> None:
    body, packed = json.dumps({"model": "tiny", "messages": ASK, "max_tokens": 1}), {"Content-Encoding": "gzip"}
    with limited.http(**{"Content-Type": "application/json"}) as http:
        refused = http.post("/v1/chat/completions", content=gzip.compress(body.encode()), headers=packed)
        plain = http.post("/v1/chat/completions", content=body, headers={"Content-Encoding": "identity"})
    assert (refused.status_code, plain.status_code) == (400, 200)
    assert "Content-Encoding" in refused.json()["error"]["message"]


def test_a_vendors_route_that_is_not_here_is_unknown_in_the_vendors_shape(limited: LiveServer) -> None:
    with limited.openai() as client, pytest.raises(openai.NotFoundError) as unknown:
        client.files.list()
    assert unknown.value.type == "invalid_request_error"
    with limited.anthropic() as client, pytest.raises(anthropic.NotFoundError) as no_files:
        client.beta.files.list()
    assert no_files.value.body["error"]["type"] == "not_found_error"
    with limited.http() as http:
        assert http.get("/v1/runs/x/y/z").json()["error"]["code"] == "client.not_found"


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
        while refused.status_code == 200:  # the next engine was there already
            os.kill(limited.gateway.runtime.engine.pid, signal.SIGKILL)
            refused = http.post("/v1/chat/completions", json=body)
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "server_error"
        assert http.post("/v1/messages", json=body).json()["error"]["type"] in ("api_error", "overloaded_error")
        wait_for_answer(http, body)


def wait_for_answer(http: httpx.Client, body: dict[str, object]) -> None:
    deadline = time.monotonic() + 60
    while http.post("/v1/chat/completions", json=body).status_code != 200:
        assert time.monotonic() < deadline
